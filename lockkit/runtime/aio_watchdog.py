"""Renewal in the background for asyncio: one task per client, started with its first lease.

The twin of ``watchdog``. The task ends when there is nothing left to renew.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Awaitable, Callable, Generator

from lockkit.engine import flow
from lockkit.model.clock import now
from lockkit.model.errors import BackendError
from lockkit.model.log import log
from lockkit.model.types import Request
from lockkit.runtime import process
from lockkit.runtime.aio_notices import AsyncNotices
from lockkit.runtime.hold import Hold
from lockkit.runtime.schedule import Schedule

__all__ = ["AsyncWatchdog"]

Runner = Callable[[Generator[flow.Step, flow.Reply, None]], Awaitable[None]]


class AsyncWatchdog:
    """Renews the holds of one client; ``run`` drives a flow against its store."""

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._notices = AsyncNotices()
        self._schedule = Schedule()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._schedule = Schedule()
        self._wake = asyncio.Event()
        self._task = None

    def watch(self, hold: Hold) -> None:
        if self._schedule.add(hold) or self._task is None or self._task.done():
            self._hurry()
        if hold.on_lost:
            self._notices.watch(hold)

    def unwatch(self, hold: Hold) -> None:
        self._schedule.discard(hold)
        if hold.on_lost is not None:
            self._notices.unwatch(hold)

    def withdraw_later(self, request: Request) -> None:
        self._schedule.withdraw(request, now())
        self._hurry()

    def give_up(self) -> list[Hold]:
        """All that are held; none is renewed or can be relied on any more. From any thread."""
        return self._schedule.take_all()

    async def stop(self) -> None:
        self._schedule.clear()
        self._notices.stop()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _hurry(self) -> None:
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                _work(weakref.ref(self), self._wake), name="lockkit-watchdog"
            )

    async def work(self) -> float:
        """One pass; returns the seconds until the next."""
        holds, withdrawals = self._schedule.take_due(now())
        if holds:
            await self._run(flow.renew(holds, now()))
            self._notices.look_at(holds)
        for request in withdrawals:
            await self._run(self._withdraw(request))
            if self._schedule.waits(request):
                break  # the store is still down: renewals must not queue behind its time-outs
        moment = now()
        return max(self._schedule.sleep_until(moment) - moment, 0.0)

    def _withdraw(self, request: Request) -> Generator[flow.Step, flow.Reply, None]:
        reply = yield flow.Withdraw(request)
        if not isinstance(reply.value, BackendError):
            self._schedule.withdrawn(request)


async def _work(reference: weakref.ref[AsyncWatchdog], wake: asyncio.Event) -> None:
    """The task: it keeps no watchdog alive while it sleeps, and ends when there is no work."""
    while True:
        watchdog = reference()
        if watchdog is None:
            return
        wake.clear()
        try:
            pause = await watchdog.work()
        except Exception:  # noqa: BLE001  a defect must not end renewal: say it, go on
            log.exception("the lockkit watchdog failed; it goes on")
            pause = 1.0
        if math.isinf(pause):
            watchdog._task = None
            return
        del watchdog
        try:
            await asyncio.wait_for(wake.wait(), pause)
        except TimeoutError:
            continue
