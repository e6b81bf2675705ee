"""The asyncio Redis backend: native, one subscription per event loop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import NoScriptError

from lockkit.model.errors import BackendError, DamagedRecord, LockError
from lockkit.model.settings import AliasSettings
from lockkit.model.types import (
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
from lockkit.runtime import process
from lockkit.stores.base import AsyncBackend
from lockkit.stores.redis.aio_link import Link
from lockkit.stores.redis.aio_mailbox import AsyncMailbox
from lockkit.stores.redis.failures import refused
from lockkit.stores.redis.layout import encoded
from lockkit.stores.redis.protocol import ALL_BUCKETS, NO_CHANNEL, POLL, Command, Protocol
from lockkit.stores.redis.records import AsyncRedisRecords
from lockkit.stores.redis.replies import (
    count_details,
    damaged_bucket,
    read_acquire,
    read_details,
    read_extend,
    read_page,
    read_release,
    read_words,
)
from lockkit.stores.redis.settings import Maker, maker

__all__ = ["AsyncRedisBackend"]

PAGE = 250


class AsyncRedisBackend(AsyncBackend):
    """Locks in one Redis or Valkey server, for the tasks of one event loop."""

    capabilities = Capabilities(push=True)

    def __init__(self, make: Maker, prefix: str) -> None:
        self._make = make
        self._protocol = Protocol(prefix)
        self._is_announced = False
        self._inherited: list[object] = []
        self._start()
        process.after_fork(self._start_anew)

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> AsyncRedisBackend:
        make = maker(settings, redis.asyncio.ConnectionPool)
        return cls(make, settings.key_prefix)

    def _start(self) -> None:
        self._link = Link(self._make)
        channel = self._protocol.keys.channel(secrets.token_hex(8))
        self._mail = AsyncMailbox(self._link, channel)

    def _start_anew(self) -> None:
        """In a forked child: the sockets are its parent's, to be neither used nor shut down."""
        self._inherited += [self._link, self._mail]
        self._start()

    async def acquire(self, request: Request) -> Grant | Busy | Gone:
        mail = self._mail
        if request.mode is not Mode.ENQUEUE:
            reply = await self._ask(request, request.mode)
            if isinstance(reply, Gone):
                mail.doubt()
        elif not (mail.is_open or mail.forbidden):
            # Only somebody who listens may queue; somebody who finds it free need not listen.
            reply = await self._ask(request, Mode.TRY)
            if not isinstance(reply, Busy):
                return reply
            await mail.open()
            return await self.acquire(request)
        else:
            mail.expect(request.token)
            try:
                reply = await self._ask(request, Mode.ENQUEUE)
            except BaseException:  # nobody will wait for a message
                mail.forget(request.token)
                raise
        if not isinstance(reply, Busy) or reply.full:
            mail.forget(request.token)
        return reply

    async def _ask(self, request: Request, mode: Mode) -> Grant | Busy | Gone:
        channel = NO_CHANNEL if self._mail.forbidden else self._mail.channel
        command = self._protocol.acquire(request, mode, channel)
        reply = read_acquire(request, await self._link.call(command))
        if not self._is_announced:
            await self._announce()
        return reply

    async def _announce(self) -> None:
        """Once: a user that may not write the note has none."""
        self._is_announced = True
        with contextlib.suppress(BackendError):
            await self._link.call(self._protocol.announce())

    async def release(self, request: Request) -> Release:
        return read_release(await self._link.call(self._protocol.release(request)))

    async def withdraw(self, request: Request) -> None:
        self._mail.forget(request.token)
        await self._link.call(self._protocol.withdraw(request))

    async def extend(self, requests: Sequence[Request]) -> list[Renewal]:
        """One script per bucket, all in one pipeline; one by one if one of them is refused."""
        batches = list(self._protocol.extend(requests))
        renewals = [Renewal(None)] * len(requests)
        try:
            replies = await self._pipeline([command for command, _ in batches])
        except LockError as error:
            if not refused(error):
                raise
            replies = [await self._extend_one(command) for command, _ in batches]
        for (_, positions), reply in zip(batches, replies, strict=True):
            if isinstance(reply, LockError):
                for position in positions:
                    renewals[position] = Renewal(None, reply)
            else:
                read_extend(requests, positions, reply, renewals)
        return renewals

    async def _pipeline(self, commands: Sequence[Command]) -> list[Any]:
        try:
            return await self._link.pipeline([command.packed for command in commands])
        except NoScriptError:
            return await self._link.load_and_run(commands)

    async def _extend_one(self, command: Command) -> Any:
        """One bucket; that the server refuses it says nothing of the others."""
        try:
            return await self._link.call(command)
        except LockError as error:
            if not refused(error):
                raise
            return error

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
        buckets = ALL_BUCKETS if name is None else [self._protocol.bucket(name)]
        unreadable = None
        for bucket in buckets:
            one = name is not None and self._details(bucket, [encoded(name)])
            try:
                async for info in one or self._bucket(bucket):
                    yield info
            except DamagedRecord:
                yield damaged_bucket(self._protocol.keys.bucket(bucket))
            except LockError as error:  # after all the others
                if not refused(error):
                    raise
                unreadable = unreadable or error
        if unreadable is not None:
            raise unreadable

    async def _bucket(self, bucket: int) -> AsyncIterator[LockInfo]:
        """All of one bucket. HSCAN may return a name twice while the hash is being resized."""
        seen: set[bytes] = set()
        cursor = b"0"
        while True:
            packed = [self._protocol.page(bucket, cursor, PAGE)]
            reply = await self._link.look(lambda: self._link.pipeline(packed))  # noqa: B023
            key = self._protocol.keys.bucket(bucket)
            cursor, names, damaged = read_page(key, reply[0])
            for info in damaged:
                yield info
            fresh = [name for name in names if name not in seen]
            seen.update(fresh)
            async for info in self._details(bucket, fresh):
                yield info
            if cursor == b"0":
                return

    async def _details(self, bucket: int, names: Sequence[bytes]) -> AsyncIterator[LockInfo]:
        key = self._protocol.keys.bucket(bucket)
        while names:
            command = self._protocol.details(bucket, names)
            reply = await self._link.look(lambda: self._link.call(command))  # noqa: B023
            for info in read_details(key, names, reply):
                yield info
            names = names[count_details(reply) :]

    async def break_(self, name: str, fence: int, by: str = "") -> bool:
        reply = await self._link.call(self._protocol.break_(name, fence, by))
        if reply < 0:
            reply = await self._link.call(self._protocol.break_shared(name, fence, by))
        return bool(reply)

    async def last_words(self, name: str) -> list[LockInfo]:
        names = [encoded(name)]
        command = self._protocol.last_words(self._protocol.bucket(name), names)
        reply = await self._link.look(lambda: self._link.call(command))
        return [info for info in read_words(names, reply) if info.name == name]

    def records(self) -> AsyncRedisRecords:
        return AsyncRedisRecords(self._link, self._protocol.keys)

    async def close(self) -> None:
        await self._mail.close()
        await self._link.close()
