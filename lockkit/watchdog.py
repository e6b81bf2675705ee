"""Renewal in the background: one thread per client, started with its first lease.

It sleeps until the earliest renewal is due, then renews all that are due about then in one batch.
It also withdraws what could not be withdrawn while the store was unreachable. A thread per client,
not per process, so that a store that hangs does not keep another store's leases from renewal.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from lockkit import flow
from lockkit.background import Background
from lockkit.clock import now
from lockkit.errors import BackendError
from lockkit.hold import Hold
from lockkit.notices import Notices
from lockkit.schedule import Schedule
from lockkit.types import Request

__all__ = ["Watchdog"]

Runner = Callable[[Generator[flow.Step, flow.Reply, None]], None]


class Watchdog(Background):
    """Renews the holds of one client; ``run`` drives a flow against its store."""

    thread_name = "lockkit-watchdog"

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._notices = Notices()
        super().__init__()

    def _reset(self) -> None:
        super()._reset()
        self._schedule = Schedule()

    def watch(self, hold: Hold) -> None:
        """Renew this one from now on. Wakes the thread only if nothing else is due before it."""
        if self._schedule.add(hold) or self._thread is None:
            self._hurry()
        if hold.on_lost is not None:
            self._notices.watch(hold)

    def unwatch(self, hold: Hold) -> None:
        self._schedule.discard(hold)
        if hold.on_lost is not None:
            self._notices.unwatch(hold)

    def withdraw_later(self, request: Request) -> None:
        """Withdraw again and again until the store has heard it or the TTL has passed."""
        self._schedule.withdraw(request, now())
        self._hurry()

    def stop(self) -> None:
        """End the thread; holds are no longer renewed. A later ``watch`` starts another."""
        self._schedule.clear()
        self._notices.stop()
        self._end()

    def work(self) -> float:
        """One pass; returns the seconds until the next."""
        holds, withdrawals = self._schedule.take_due(now())
        if holds:
            self._run(flow.renew(holds, now()))
            self._notices.look_at(holds)
        for request in withdrawals:
            self._run(self._withdraw(request))
            if self._schedule.waits(request):
                break  # the store is still down: renewals must not queue behind its time-outs
        moment = now()
        return self._schedule.sleep_until(moment) - moment

    def _withdraw(self, request: Request) -> Generator[flow.Step, flow.Reply, None]:
        reply = yield flow.Withdraw(request)
        if not isinstance(reply.value, BackendError):
            self._schedule.withdrawn(request)
