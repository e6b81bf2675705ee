"""Grants by message: one subscription for all the waiting tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from lockkit.backends.redis.aio_link import Connection, Link, connect, send
from lockkit.backends.redis.failures import lost_on_the_way
from lockkit.backends.redis.protocol import pack
from lockkit.backends.redis.replies import read_message
from lockkit.errors import BackendError

__all__ = ["AsyncMailbox"]


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
        """The task: dispatches messages; when the connection breaks it makes another, once.

        Nobody else reopens meanwhile: a second reader would be one that nobody closes.
        """
        current: Connection | None = connection
        try:
            while current is not None:
                try:
                    self._dispatch(await current.read_response(disable_decoding=True))
                except (RedisError, OSError):
                    await current.disconnect(nowait=True)
                    current = await self._resubscribe()
        finally:
            if self._reader is asyncio.current_task():
                self.is_open = False
            if current is not None:
                await current.disconnect(nowait=True)

    def _dispatch(self, reply: Any) -> None:
        message = read_message(reply)
        slot = self._slots.get(message.token) if message else None
        if message is not None and slot is not None:
            slot.message = (message.ticket, message.fence)
            slot.woken.set()

    async def _resubscribe(self) -> Connection | None:
        """Everybody asks the store once; or everybody hears that it is down."""
        async with self._opening:
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
            await send(connection, [pack(b"SUBSCRIBE", self.channel)])
            await connection.read_response(disable_decoding=True)
        except NoPermissionError:
            await connection.disconnect(nowait=True)
            self.forbidden = True
            self._epoch += 1  # who waits already must ask from now on
            return None
        except RedisError as error:
            await connection.disconnect(nowait=True)
            raise lost_on_the_way(error) from error
        connection.socket_timeout = None  # silence is no fault here: nobody may be waiting
        self._epoch += 1
        self.is_open = True
        return connection
