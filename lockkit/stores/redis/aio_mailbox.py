"""Grants by message: one subscription for all the waiting tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from lockkit.model.errors import BackendError
from lockkit.stores.redis.aio_link import Connection, Link, abort, connect, drop, send
from lockkit.stores.redis.failures import lost_on_the_way
from lockkit.stores.redis.mailbox import Pace
from lockkit.stores.redis.protocol import pack
from lockkit.stores.redis.pulse import Pulse
from lockkit.stores.redis.replies import read_message

__all__ = ["AsyncMailbox"]


class AsyncSlot:
    """One waiting claim: where its message goes."""

    __slots__ = ("epoch", "message", "woken")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.message: tuple[int, int] | None = None  #: ticket, fence
        self.woken = asyncio.Event()


class AsyncMailbox:
    """The subscription of one event loop to its own channel, read by one task.

    After every (re)subscription each waiter asks the store once: a message may have been missed.
    Without one, because the server takes no more connections, each asks after every further try.
    """

    def __init__(self, link: Link, channel: bytes) -> None:
        self._link = link
        self.channel = channel
        self._slots: dict[str, AsyncSlot] = {}
        self._opening = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._connection: Connection | None = None  #: the reader's
        self._epoch = 0
        self._pace = Pace()
        self._pulse: Pulse | None = None  #: of the connection
        self.is_open = False
        self.forbidden = False  #: to listen: who waits must ask

    async def open(self) -> None:
        """Subscribe, if nobody has yet. Raises a BackendError."""
        async with self._opening:
            if not self.is_open and not self.forbidden:
                await self._subscribe()
                if self._connection is not None and self._reader is None:
                    self._reader = asyncio.create_task(self._read(), name="lockkit-mail")

    def expect(self, token: str) -> None:
        """A message for this token may come from now on."""
        self._slots[token] = AsyncSlot(self._epoch)

    def forget(self, token: str) -> None:
        self._slots.pop(token, None)

    def doubt(self) -> None:
        """A claim that waited is gone from the store: maybe nobody has heard of its grant."""
        if self._pulse is not None:
            self._pulse.doubt()

    async def wait(self, token: str, ticket: int, seconds: float) -> int | None:
        """The fence of a grant of this enqueueing, or None: time is over, or better ask."""
        slot = self._slots.get(token)
        if slot is None:
            return None
        await self._look_after()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    message, slot.message = slot.message, None
                    if message is not None and message[0] == ticket:
                        return message[1]
                    if slot.epoch != self._epoch:
                        slot.epoch = self._epoch
                        return None
                    await slot.woken.wait()
                    slot.woken.clear()
        return None

    async def close(self) -> None:
        """Who still waits, or comes later, asks the store again and again."""
        self.forbidden = True
        self._have_all_ask()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])
        await self._drop()

    async def _drop(self) -> None:
        self.is_open = False
        connection, self._connection = self._connection, None
        if connection is not None:
            await drop(connection)

    async def _read(self) -> None:
        """The task: dispatches messages; when the connection breaks it makes another.

        As long as somebody waits: who comes when nobody does makes both anew.
        """
        try:
            while not self.forbidden:
                connection = self._connection
                if connection is None:
                    if not self._slots:
                        return
                    await asyncio.sleep(max(self._pace.left(), 0.0))
                    await self._resubscribe(None)
                    continue
                try:
                    reply = await connection.read_response(disable_decoding=True)
                except (RedisError, OSError):
                    await self._resubscribe(connection)
                else:
                    self._dispatch(reply)
        finally:
            if self._reader is asyncio.current_task():
                self._reader = None
                await self._drop()

    async def _look_after(self) -> None:
        """Each who comes to wait does so: the reader itself waits as long as it is silent."""
        connection, pulse = self._connection, self._pulse
        if connection is None or pulse is None:
            return
        if pulse.is_dead:
            abort(connection)  # the reader hears of it
        elif pulse.is_due:
            pulse.asked()
            with contextlib.suppress(RedisError, OSError):  # broken: the reader hears of it, too
                await send(connection, [pack(b"SUBSCRIBE", self.channel)])

    def _dispatch(self, reply: Any) -> None:
        self._pace.worked()
        if self._pulse is not None:
            self._pulse.heard()
        message = read_message(reply)
        slot = self._slots.get(message.token) if message else None
        if message is not None and slot is not None:
            slot.message = (message.ticket, message.fence)
            slot.woken.set()

    def _have_all_ask(self) -> None:
        self._epoch += 1
        for slot in self._slots.values():
            slot.woken.set()

    async def _resubscribe(self, broken: Connection | None) -> None:
        """Everybody asks the store: it may have granted unheard, or be down, or only be full."""
        async with self._opening:
            if self._connection is not broken:
                return  # somebody who came to wait was faster
            await self._drop()
            if self._pace.left() > 0:
                self._have_all_ask()
                return
            self._pace.tried()
            try:
                await self._subscribe()
            except BackendError:
                self._have_all_ask()

    async def _subscribe(self) -> None:
        connection = self._link.fresh()
        try:
            await connect(connection)
            await send(connection, [pack(b"SUBSCRIBE", self.channel)])
            await connection.read_response(disable_decoding=True)
        except NoPermissionError:
            self.forbidden = True
            self._have_all_ask()
        except RedisError as error:
            raise lost_on_the_way(error) from error
        else:
            if not self.forbidden:  # else it was closed meanwhile
                self._pulse = Pulse(connection)
                connection.socket_timeout = None  # silence is no fault here: nobody may be waiting
                self._connection = connection
                self.is_open = True
                self._have_all_ask()
        finally:
            if self._connection is not connection:
                await drop(connection)
