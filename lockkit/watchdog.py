"""Renewal in the background: one thread per client, started with its first lease.

It sleeps until the earliest renewal is due, then renews all that are due about then in one batch.
It also withdraws what could not be withdrawn while the store was unreachable. A thread per client,
not per process, so that a store that hangs does not keep another store's leases from renewal.

The thread is a daemon and ends with its client. A forked child starts with no holds and no thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator

from lockkit import flow, process
from lockkit.clock import now
from lockkit.errors import BackendError
from lockkit.hold import Hold
from lockkit.log import log
from lockkit.schedule import Schedule
from lockkit.types import Request

__all__ = ["Watchdog"]

LONGEST_SLEEP = 60.0

Runner = Callable[[Generator[flow.Step, flow.Reply, None]], None]


class Watchdog:
    """Renews the holds of one client; ``run`` drives a flow against its store."""

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._schedule = Schedule()
        self._wake = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, hold: Hold) -> None:
        """Renew this one from now on. Wakes the thread only if nothing else is due before it."""
        if self._schedule.add(hold) or self._thread is None:
            self._hurry()

    def unwatch(self, hold: Hold) -> None:
        self._schedule.discard(hold)

    def withdraw_later(self, request: Request) -> None:
        """Withdraw again and again until the store has heard it or the TTL has passed."""
        self._schedule.withdraw(request, now())
        self._hurry()

    def stop(self) -> None:
        """End the thread; holds are no longer renewed. A later ``watch`` starts another."""
        with self._starting:
            self._schedule.clear()
            self._thread = None
            self._wake.set()

    def _hurry(self) -> None:
        with self._starting:
            if self._thread is None:
                self._start()
            self._wake.set()

    def _start(self) -> None:
        self._wake = threading.Event()
        self._thread = threading.Thread(
            target=_work,
            args=(weakref.ref(self), self._wake),
            name="lockkit-watchdog",
            daemon=True,
        )
        try:
            self._thread.start()
        except BaseException:  # no more threads: the next lease tries again
            self._thread = None
            raise

    def __del__(self) -> None:
        self._wake.set()

    def work(self) -> float:
        """One pass; returns the seconds until the next."""
        holds, withdrawals = self._schedule.take_due(now())
        if holds:
            self._run(flow.renew(holds, now()))
        for request in withdrawals:
            self._run(self._withdraw(request))
            if self._schedule.waits(request):
                break  # the store is still down: renewals must not queue behind its time-outs
        moment = now()
        return min(max(self._schedule.sleep_until(moment) - moment, 0.0), LONGEST_SLEEP)

    def _withdraw(self, request: Request) -> Generator[flow.Step, flow.Reply, None]:
        reply = yield flow.Withdraw(request)
        if not isinstance(reply.value, BackendError):
            self._schedule.withdrawn(request)


def _work(reference: weakref.ref[Watchdog], wake: threading.Event) -> None:
    """The thread: it keeps no watchdog alive while it sleeps."""
    this = threading.current_thread()
    while True:
        watchdog = reference()
        if watchdog is None or watchdog._thread is not this:
            return
        wake.clear()
        try:
            pause = watchdog.work()
        except Exception:  # noqa: BLE001  a defect must not end renewal: say it, go on
            log.exception("the lockkit watchdog failed; it goes on")
            pause = 1.0
        del watchdog
        wake.wait(pause)
