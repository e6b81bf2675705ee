"""The asyncio Redis backend: native, one subscription per event loop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)

from lockkit.backends.base import AsyncBackend
from lockkit.backends.redis.failures import from_reply, lost_on_the_way, not_connected
from lockkit.backends.redis.protocol import (
    ALL_BUCKETS,
    NO_CHANNEL,
    POLL,
    Command,
    Protocol,
    pack,
    read_acquire,
    read_details,
    read_extend,
    read_page,
    read_release,
)
from lockkit.backends.redis.settings import connection_pool
from lockkit.config import AliasSettings
from lockkit.errors import BackendError
from lockkit.types import (
    Busy,
    Capabilities,
    Gone,
    Grant,
    LockInfo,
    Mode,
    Release,
    Renewal,
    Request,
    alive_for,
)

__all__ = ["AsyncRedisBackend"]

PAGE = 250
Connection = Any  # redis-py's connections have no common, typed base


class AsyncRedisBackend(AsyncBackend):
    """Locks in one Redis or Valkey server, for the tasks of one event loop."""

    capabilities = Capabilities(push=True)

    def __init__(self, pool: redis.asyncio.ConnectionPool, prefix: str) -> None:
        self._link = Link(pool)
        self._protocol = Protocol(prefix)
        self._mail = AsyncMailbox(
            self._link, self._protocol.keys.channel(secrets.token_hex(8))
        )

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> AsyncRedisBackend:
        pool = connection_pool(settings, redis.asyncio.ConnectionPool)
        return cls(pool, settings.key_prefix)

    async def acquire(self, request: Request) -> Grant | Busy | Gone:
        mail = self._mail
        if request.mode is not Mode.ENQUEUE:
            reply = await self._ask(request, request.mode)
        elif not (mail.is_open or mail.forbidden):
            # Only somebody who listens may queue; somebody who finds it free need not listen.
            reply = await self._ask(request, Mode.TRY)
            if not isinstance(reply, Busy):
                return reply
            await mail.open()
            return await self.acquire(request)
        else:
            mail.expect(request.token)
            reply = await self._ask(request, Mode.ENQUEUE)
        if not isinstance(reply, Busy) or reply.full:
            mail.forget(request.token)
        return reply

    async def _ask(self, request: Request, mode: Mode) -> Grant | Busy | Gone:
        channel = NO_CHANNEL if self._mail.forbidden else self._mail.channel
        command = self._protocol.acquire(request, mode, channel)
        return read_acquire(request, await self._link.call(command))

    async def release(self, request: Request) -> Release:
        return read_release(await self._link.call(self._protocol.release(request)))

    async def withdraw(self, request: Request) -> None:
        self._mail.forget(request.token)
        await self._link.call(self._protocol.withdraw(request))

    async def extend(self, requests: Sequence[Request]) -> list[Renewal]:
        """One script per bucket, all in one pipeline."""
        batches = list(self._protocol.extend(requests))
        renewals = [Renewal(None)] * len(requests)
        packed = [command.packed for command, _ in batches]
        try:
            replies = await self._link.pipeline(packed)
        except NoScriptError:
            await self._link.pipeline([self._protocol.load_extend()])
            replies = await self._link.pipeline(packed)
        for (_, positions), reply in zip(batches, replies, strict=True):
            read_extend(requests, positions, reply, renewals)
        return renewals

    async def wait(self, request: Request, seconds: float, busy: Busy) -> Grant | None:
        """The ``left`` of a grant by message is what the waiter's last sign of life leaves it."""
        if self._mail.forbidden:
            await asyncio.sleep(min(seconds, POLL))
            return None
        fence = await self._mail.wait(request.token, busy.ticket, seconds)
        if fence is None:
            return None
        self._mail.forget(request.token)
        return Grant(request.token, fence, min(request.ttl, alive_for(request.ttl)))

    async def holders(self, name: str | None = None) -> AsyncIterator[LockInfo]:
        if name is not None:
            for info in await self._details(self._protocol.bucket(name), [name.encode()]):
                yield info
            return
        for bucket in ALL_BUCKETS:
            async for info in self._bucket(bucket):
                yield info

    async def _bucket(self, bucket: int) -> AsyncIterator[LockInfo]:
        """All of one bucket. HSCAN may return a name twice while the hash is being resized."""
        seen: set[bytes] = set()
        cursor = b"0"
        while True:
            reply = await self._link.pipeline([self._protocol.page(bucket, cursor, PAGE)])
            cursor, names = read_page(reply[0])
            fresh = [name for name in names if name not in seen]
            seen.update(fresh)
            for info in await self._details(bucket, fresh):
                yield info
            if cursor == b"0":
                return

    async def _details(self, bucket: int, names: Sequence[bytes]) -> list[LockInfo]:
        if not names:
            return []
        reply = await self._link.call(self._protocol.details(bucket, names))
        return list(read_details(names, reply))

    async def break_(self, name: str, fence: int) -> bool:
        return bool(await self._link.call(self._protocol.break_(name, fence)))

    async def close(self) -> None:
        await self._mail.close()
        await self._link.close()


class Link:
    """Connections to one server: each is used for one exchange at a time."""

    def __init__(self, pool: redis.asyncio.ConnectionPool) -> None:
        self._pool = pool
        self._idle: list[Connection] = []

    async def call(self, command: Command) -> Any:
        """Run a script; load it first if the server does not have it."""
        try:
            return (await self.pipeline([command.packed]))[0]
        except NoScriptError:
            await self.pipeline([pack(b"SCRIPT", b"LOAD", command.script.source)])
        try:
            return (await self.pipeline([command.packed]))[0]
        except NoScriptError as error:
            raise from_reply(error) from error

    async def pipeline(self, packed: Sequence[bytes]) -> list[Any]:
        """Send some commands at once and read their replies. Raises lockkit's errors, or
        NoScriptError, which says that the script was not run."""
        connection = self._idle.pop() if self._idle else self.fresh()
        try:
            if not connection.is_connected:
                await connect(connection)
            await connection.send_packed_command(packed, check_health=False)
            replies = [await _read(connection) for _ in packed]
        except BaseException as error:
            await self._discard(connection)
            if isinstance(error, (BusyLoadingError, AuthenticationError)):
                raise from_reply(error) from error
            if isinstance(error, (RedisError, OSError)):
                raise lost_on_the_way(error) from error
            raise  # cancelled between request and reply: the connection cannot be used again
        self._idle.append(connection)
        for reply in replies:
            if isinstance(reply, NoScriptError):
                raise reply
            if isinstance(reply, ResponseError):
                raise from_reply(reply) from reply
        return replies

    def fresh(self) -> Connection:
        return self._pool.make_connection()  # type: ignore[no-untyped-call]

    async def _discard(self, connection: Connection) -> None:
        """The idle ones are probably stale as well: the next try must not meet another of them."""
        stale, self._idle = [connection, *self._idle], []
        for one in stale:
            await one.disconnect(nowait=True)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect()


async def connect(connection: Connection) -> None:
    try:
        await connection.connect()
    except (RedisError, OSError) as error:
        await connection.disconnect(nowait=True)
        raise not_connected(error) from error


async def _read(connection: Connection) -> Any:
    """A reply; an error reply as a value, because the others of the pipeline must be read, too."""
    try:
        return await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


class AsyncSlot:
    """One waiting claim: where its message goes."""

    __slots__ = ("epoch", "error", "message", "woken")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.message: tuple[int, int] | None = None  #: ticket, fence
        self.error: BackendError | None = None
        self.woken = asyncio.Event()


class AsyncMailbox:
    """The subscription of one event loop to its own channel, read by one task.

    After every (re)subscription each waiter asks the store once: a message may have been missed.
    """

    def __init__(self, link: Link, channel: bytes) -> None:
        self._link = link
        self.channel = channel
        self._slots: dict[str, AsyncSlot] = {}
        self._opening = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._epoch = 0
        self.is_open = False
        self.forbidden = False

    async def open(self) -> None:
        """Subscribe, if nobody has yet. Raises a BackendError."""
        async with self._opening:
            if not self.is_open and not self.forbidden:
                connection = await self._subscribe()
                if connection is not None:
                    self._reader = asyncio.create_task(self._read(connection), name="lockkit-mail")

    def expect(self, token: str) -> None:
        """A message for this token may come from now on."""
        self._slots[token] = AsyncSlot(self._epoch)

    def forget(self, token: str) -> None:
        self._slots.pop(token, None)

    async def wait(self, token: str, ticket: int, seconds: float) -> int | None:
        """The fence of a grant of this enqueueing, or None: time is over, or better ask."""
        slot = self._slots.get(token)
        if slot is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    message, slot.message = slot.message, None
                    if message is not None and message[0] == ticket:
                        return message[1]
                    if slot.error is not None:
                        raise slot.error
                    if slot.epoch != self._epoch:
                        slot.epoch = self._epoch
                        return None
                    await slot.woken.wait()
                    slot.woken.clear()
        return None

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        self.is_open = False
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])

    async def _read(self, connection: Connection) -> None:
        """The task: dispatches messages; when the connection breaks it makes another, once."""
        current: Connection | None = connection
        try:
            while current is not None:
                try:
                    self._dispatch(
                        await current.read_response(disable_decoding=True, timeout=None)
                    )
                except (RedisError, OSError):
                    await current.disconnect(nowait=True)
                    current = await self._resubscribe()
        finally:
            self.is_open = False
            if current is not None:
                await current.disconnect(nowait=True)

    def _dispatch(self, reply: Any) -> None:
        if reply[0] != b"message":
            return
        token, ticket, fence = reply[2].decode().split(" ")
        slot = self._slots.get(token)
        if slot is not None:
            slot.message = (int(ticket), int(fence))
            slot.woken.set()

    async def _resubscribe(self) -> Connection | None:
        """Everybody asks the store once; or everybody hears that it is down."""
        self.is_open = False
        try:
            connection = await self._subscribe()
        except BackendError as error:
            for slot in self._slots.values():
                slot.error = error
                slot.woken.set()
            return None
        for slot in self._slots.values():
            slot.woken.set()
        return connection

    async def _subscribe(self) -> Connection | None:
        connection = self._link.fresh()
        await connect(connection)
        try:
            await connection.send_packed_command(
                [pack(b"SUBSCRIBE", self.channel)], check_health=False
            )
            await connection.read_response(disable_decoding=True)
        except NoPermissionError:
            await connection.disconnect(nowait=True)
            self.forbidden = True
            return None
        except RedisError as error:
            await connection.disconnect(nowait=True)
            raise lost_on_the_way(error) from error
        self._epoch += 1
        self.is_open = True
        return connection
