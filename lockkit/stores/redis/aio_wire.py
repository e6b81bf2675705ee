"""The asyncio wire: all tasks of an event loop share one connection, and one for the messages.

Requests go out in the order in which they were asked for, and replies come in the same order. A
task that is cancelled no longer waits for its reply; the reply is read and dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from redis.exceptions import NoPermissionError

from lockkit.engine.effects import Exchange, Listen, Park
from lockkit.model.errors import BackendError, BackendUnavailable, LockError, OutcomeUnknown
from lockkit.runtime import process
from lockkit.runtime.aio_wires import mark_as_retrieved, park_task
from lockkit.stores.redis.failures import all_checked, anew, checked, is_demoted
from lockkit.stores.redis.line import Line, connected
from lockkit.stores.redis.pulse import Pulse
from lockkit.stores.redis.resp import ALONE
from lockkit.stores.redis.settings import Connection
from lockkit.stores.redis.subscription import Inbox


class AsyncRedisWire:
    """A payload is one packed command, or a list of them, which are sent at once."""

    def __init__(self, make: Callable[[], Connection], inbox: Inbox) -> None:
        self._make = make
        self._inbox = inbox
        self._inherited: list[object] = []
        self._start()
        process.after_fork(self._start_anew)

    def _start(self) -> None:
        self._line: Line | None = None
        self._connecting: asyncio.Task[Line] | None = None
        self._mail: Line | None = None  #: of the subscription
        self._listening: asyncio.Task[None] | None = None
        self._is_repeated = False  #: ``_listening`` repeats until it succeeds: do not wait

    def _start_anew(self) -> None:
        """In a forked child: the sockets are its parent's, so it neither uses nor closes them."""
        self._inherited += [self._line, self._connecting, self._mail, self._listening]
        self._start()

    async def exchange(self, effect: Exchange) -> Any:
        line = self._line
        if line is None or line.is_over or line.has_ended():
            line = await self._connected()
        payload = effect.payload
        try:
            if type(payload) is bytes:
                return checked(await line.ask(payload, ALONE))
            replies = await line.ask(b"".join(payload), len(payload))
            return all_checked(payload, replies)
        except BackendUnavailable as error:
            if is_demoted(error.__cause__):
                line.abort()
                self._end_mail()
            raise

    def _end_mail(self) -> None:
        if self._mail is not None:
            self._mail.abort()

    async def park(self, effect: Park) -> None:
        self._look_after()
        await park_task(effect.signal, effect.seconds)

    async def listen(self, _: Listen) -> None:
        if self._listening is None:
            self._listening = asyncio.create_task(self._subscribe(), name="lockkit-listen")
            self._listening.add_done_callback(self._listened)
        elif self._is_repeated:  # perhaps for longer than this task has time
            return
        await _joined(self._listening)

    async def close(self) -> None:
        """Close all connections. Claims that wait, now or later, poll the store from now on."""
        self._inbox.forbid()
        loop = asyncio.get_running_loop()  # tasks of a loop that has ended never end
        begun = [task for task in (self._connecting, self._listening) if task is not None]
        tasks = [task for task in begun if task.get_loop() is loop]
        self._connecting = self._listening = None
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks)
            if self._line is not None:
                await self._line.settled()
        finally:  # also if it is cancelled
            for line in (self._line, self._mail):
                if line is not None:
                    line.abort()
            self._line = self._mail = self._inbox.pulse = None
        await asyncio.sleep(0)  # meanwhile the loop closes their sockets

    def leave(self) -> bool:
        """Close the connection, unless somebody uses it, waits for it, or has just got it. Returns
        whether there is none any more."""
        line = self._line
        if self._connecting is not None or (line is not None and line.is_used):
            return False
        if line is not None:
            line.abort()
        return True

    async def _connected(self) -> Line:
        """The connection. All tasks that need it now wait for the same attempt to connect."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name="lockkit-connect")
            self._connecting.add_done_callback(self._has_connected)
        line: Line = await _joined(self._connecting)
        return line

    async def _connect(self) -> Line:
        if self._line is not None:
            self._line.abort()  # its loop may have ended: redis-py could not close it then
        self._line = await connected(self._make())
        return self._line

    def _has_connected(self, task: asyncio.Task[Line]) -> None:
        self._connecting = None
        mark_as_retrieved(task)

    def _listened(self, task: asyncio.Task[None]) -> None:
        if self._listening is task:
            self._listening, self._is_repeated = None, False
        mark_as_retrieved(task)

    async def _subscribe(self) -> None:
        if not (self._inbox.is_open or self._inbox.is_forbidden):
            await self._subscribe_over(self._make())

    async def _subscribe_over(self, connection: Connection) -> None:
        inbox, line = self._inbox, await connected(connection)
        try:
            checked(await line.ask(inbox.subscribe, ALONE))
            line.hear, line.on_end = inbox.hear, partial(self._broke, line)
            pulse = Pulse(connection)
            inbox.have_all_ask()
        except BackendError as error:
            line.abort()
            if not isinstance(error.__cause__, NoPermissionError):
                raise
            inbox.refuse()
            return
        except BaseException:  # cancelled: nobody else knows of it
            line.abort()
            raise
        self._mail, inbox.pulse = line, pulse

    def _broke(self, line: Line) -> None:
        if self._mail is line:
            self._mail = self._inbox.pulse = None
            self._open_again()

    def _open_again(self) -> None:
        """Subscribe again for those who wait already: they do not ask for it."""
        if self._inbox.is_awaited and not self._inbox.is_forbidden and self._listening is None:
            self._listening = asyncio.create_task(self._resubscribe(), name="lockkit-listen")
            self._listening.add_done_callback(self._listened)
            self._is_repeated = True

    async def _resubscribe(self) -> None:
        """Try to subscribe as long as somebody waits. After that, the next waiter begins anew.

        All waiters ask the store: it may have made grants of which nobody heard, be down, or merely
        take no more connections.
        """
        inbox = self._inbox
        while inbox.is_awaited and not (inbox.is_open or inbox.is_forbidden):
            if (left := inbox.pace.left()) > 0:
                inbox.have_all_ask()
                await asyncio.sleep(left)
            inbox.pace.tried()
            try:
                await self._subscribe()
            except BackendError:
                inbox.have_all_ask()

    def _look_after(self) -> None:
        """Check the subscription, as each wait begins: nothing else notices that it is silent, or
        that it was lost before anybody waited."""
        line, pulse = self._mail, self._inbox.pulse
        if line is None or pulse is None:
            self._open_again()
        elif pulse.is_dead:
            line.abort()
        elif pulse.is_due:
            pulse.asked()
            line.say(self._inbox.subscribe)


async def _joined(task: asyncio.Task[Any]) -> Any:
    """The result of a shared task. The task goes on if one that waits for it is cancelled. Each of
    them gets its own copy of an error."""
    await asyncio.wait([task])
    if task.cancelled():
        raise OutcomeUnknown("the client was closed")
    error = task.exception()
    if error is not None:
        raise anew(error) if isinstance(error, LockError) else error
    return task.result()
