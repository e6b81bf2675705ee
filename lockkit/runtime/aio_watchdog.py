"""Renewal in the background for asyncio: as ``watchdog``, by a timer of the event loop.

When something is due, a task renews it. Between two passes there is no task, and when nothing is
left to renew, no timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import weakref
from typing import TYPE_CHECKING

from lockkit.engine import holding
from lockkit.model.clock import now
from lockkit.model.errors import BackendError
from lockkit.model.log import log
from lockkit.model.types import Request
from lockkit.runtime import process
from lockkit.runtime.aio_notices import AsyncNotices
from lockkit.runtime.aio_run import arun
from lockkit.runtime.background import LONGEST_SLEEP
from lockkit.runtime.hold import Hold
from lockkit.runtime.schedule import Schedule

if TYPE_CHECKING:
    from lockkit.stores.contract import Store
    from lockkit.stores.wires import AsyncWire


class AsyncWatchdog:
    """Renews the holds of one client."""

    def __init__(self, store: Store, wire: AsyncWire) -> None:
        self._store = store
        self._wire = wire
        self._notices = AsyncNotices()
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._schedule = Schedule()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None  #: the pass that is under way
        self._withdrawing: set[asyncio.Task[None]] = set()

    def watch(self, hold: Hold) -> None:
        if self._schedule.add(hold) or self._is_idle:
            self._set_timer()
        if hold.on_lost:
            self._notices.watch(hold)

    def unwatch(self, hold: Hold) -> None:
        self._schedule.discard(hold)
        if hold.on_lost is not None:
            self._notices.unwatch(hold)

    def doubt(self) -> None:
        """Any of them may be over: renew all now."""
        if self._schedule.doubt(now()):
            self._set_timer()

    def withdraw_later(self, request: Request) -> None:
        """At once, in a task that outlives a ``stop``; if that fails, again and again."""
        task = asyncio.get_running_loop().create_task(self._withdraw_first(request))
        self._withdrawing.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._withdrawing.discard)

    def give_up(self) -> list[Hold]:
        """All that are held; none is renewed or can be relied on any more. From any thread."""
        return self._schedule.take_all()

    async def stop(self) -> None:
        self._schedule.clear()
        self._notices.stop()
        self._cancel_timer()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    @property
    def _is_idle(self) -> bool:
        return self._timer is None and self._task is None

    def _hurry(self) -> None:
        """Have a pass at once."""
        self._cancel_timer()
        self._begin()

    def _set_timer(self) -> None:
        """For the next pass; one that is under way does so at its end."""
        if self._task is not None:
            return
        self._cancel_timer()
        moment = now()
        pause = self._schedule.sleep_until(moment) - moment
        if not math.isinf(pause):
            pause = min(max(pause, 0.0), LONGEST_SLEEP)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(pause, _begin, weakref.ref(self))

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _begin(self) -> None:
        self._timer = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._pass(), name="lockkit-watchdog"
            )

    async def _pass(self) -> None:
        try:
            await self.work()
        except Exception:  # noqa: BLE001  a defect must not end renewal: say it, go on
            log.exception("the lockkit watchdog failed; it goes on")
            await asyncio.sleep(1.0)
        if self._task is asyncio.current_task():
            self._task = None
            self._set_timer()

    async def work(self) -> None:
        """One pass."""
        holds, withdrawals = self._schedule.take_due(now())
        if holds:
            await arun(holding.renew(self._store, holds), self._wire)
            self._notices.look_at(holds)
        for request in withdrawals:
            await self._withdraw(request)
            if self._schedule.waits(request):
                break  # the store is still down: renewals must not queue behind its time-outs

    async def _withdraw_first(self, request: Request) -> None:
        try:
            await arun(self._store.release(request), self._wire)
        except BackendError:
            self._schedule.withdraw(request, now())
            self._set_timer()

    async def _withdraw(self, request: Request) -> None:
        with contextlib.suppress(BackendError):
            await arun(self._store.release(request), self._wire)
            self._schedule.withdrawn(request)


def _begin(reference: weakref.ref[AsyncWatchdog]) -> None:
    """The timer keeps no watchdog alive."""
    watchdog = reference()
    if watchdog is not None:
        watchdog._begin()
