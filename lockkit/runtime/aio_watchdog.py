"""Renewal in the background for asyncio: like ``watchdog``, but with a timer of the event loop.

When something is due, a task renews it. Between two passes there is no task. When nothing is left
to renew, there is no timer either. If a program cancels all tasks of its loop, another pass follows
soon.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING

from lockkit.model.clock import now
from lockkit.model.errors import ConfigurationError
from lockkit.model.log import log_error
from lockkit.model.types import Request
from lockkit.runtime import process
from lockkit.runtime.aio_notices import AsyncNotices
from lockkit.runtime.aio_run import arun
from lockkit.runtime.background import LONGEST_SLEEP
from lockkit.runtime.hold import Hold
from lockkit.runtime.run import run
from lockkit.runtime.schedule import RETRY, Schedule
from lockkit.runtime.watchdog import BaseWatchdog

if TYPE_CHECKING:
    from lockkit.stores.contract import Store
    from lockkit.stores.wires import AsyncWire


class AsyncWatchdog(BaseWatchdog):
    """Renews in an event loop.

    When the interpreter exits, no loop runs any more. So a blocking store of the same settings
    releases all that is still held; if the connections need no loop, they are used instead.
    Limits: nothing is released for ``memory://``, which ends with the process; over a redis.asyncio
    client that was handed over; and for a client that was closed, for example when its loop ended.
    """

    def __init__(self, store: Store, wire: AsyncWire, again: Callable[[], Store]) -> None:
        self._wire = wire
        self._notices = AsyncNotices()
        super().__init__(store, again)

    def _reset(self) -> None:
        self._schedule = Schedule()
        self._wake: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None  #: the pass that is under way
        self._withdrawing: set[asyncio.Task[None]] = set()
        self._left: list[Hold] = []  #: to be released at exit

    def withdraw_later(self, request: Request, until: float) -> None:
        """Withdraw at once, in a task that ``stop`` waits for. If that fails, try again later."""
        task = asyncio.get_running_loop().create_task(self._withdraw(request))
        self._withdrawing.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(partial(self._withdrew, request, until))

    async def stop(self) -> None:
        """Stop renewing, even if this call is cancelled. Claims that cannot be withdrawn within
        EXIT_SECONDS are left to expire."""
        process.notice_fork()
        loop = asyncio.get_running_loop()  # tasks of a loop that has ended never end
        withdrawing = [task for task in self._withdrawing if task.get_loop() is loop]
        try:
            if withdrawing:  # after the close, they would connect again
                await asyncio.wait(withdrawing, timeout=process.EXIT_SECONDS)
        finally:
            self._withdrawing.difference_update(withdrawing)  # they are not tried again
            for task in withdrawing:
                task.cancel()
            await self._end()

    async def _end(self) -> None:
        self._schedule.clear()
        self._notices.stop()
        self._cancel_timer()
        task, self._task = self._task, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])

    def _hurry(self, least: float = 0.0) -> None:
        """Set the timer for the next pass, in ``least`` seconds or later. If a pass is under way,
        it sets the timer at its end."""
        if self._task is not None:
            return
        self._cancel_timer()
        moment = now()
        pause = self._schedule.sleep_until(moment) - moment
        if not math.isinf(pause):
            pause = min(max(pause, least), LONGEST_SLEEP)
            loop = asyncio.get_running_loop()
            self._wake = loop.call_later(pause, _begin, weakref.ref(self), context=Context())

    def _cancel_timer(self) -> None:
        timer, self._wake = self._wake, None
        if timer is not None:
            timer.cancel()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._wake = None
        self._task = loop.create_task(self._pass(), name="lockkit-watchdog")
        self._task.add_done_callback(self._passed)

    async def _pass(self) -> None:
        try:
            await arun(self._renewing(), self._wire)
        except Exception:  # noqa: BLE001  a defect must not end renewal: log it, go on
            log_error("the lockkit watchdog failed; it goes on")
            await asyncio.sleep(1.0)

    def _passed(self, task: asyncio.Task[None]) -> None:
        """Called when a pass has ended: as the task's callback, and not in its last line, because
        an eager task may end before ``_task`` is set."""
        if self._task is task:
            self._task = None
            # If all tasks are cancelled, the loop may be about to end: start none at once.
            self._hurry(RETRY if task.cancelled() else 0.0)

    async def _withdraw(self, request: Request) -> None:
        await arun(self._store.release(request), self._wire)

    def _withdrew(self, request: Request, until: float, task: asyncio.Task[None]) -> None:
        """A withdrawal has ended. If it failed or was cancelled, the next pass tries again."""
        if task in self._withdrawing and (task.cancelled() or task.exception()):
            self._schedule.withdraw(request, now(), until)
            self._hurry()
        self._withdrawing.discard(task)

    def _begin_exit(self) -> None:
        self._left = self.give_up()

    def _finish_exit(self, until: float) -> None:
        if self._left or self._schedule.owes_any:
            without_loop = getattr(self._wire, "without_loop", None)
            store = self._store if without_loop else self._again()
            try:
                wire = without_loop() if without_loop else store.wire()
            except ConfigurationError:  # over a client of redis.asyncio, which needs a loop
                return
            run(self._releasing_all(store, self._left, until), wire)


def _begin(reference: weakref.ref[AsyncWatchdog]) -> None:
    """Begin a pass. The timer refers to the watchdog weakly, so that it does not keep it alive."""
    watchdog = reference()
    if watchdog is not None:
        watchdog._begin()
