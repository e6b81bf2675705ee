"""Renewal in the background: one thread per client, started with its first lease.

It sleeps until the earliest renewal is due, then renews all that are due about then in one batch.
It also withdraws what could not be withdrawn while the store was unreachable, and releases what is
still held when the interpreter exits: no other thread can be started then. A thread per client,
not per process, so that a store that hangs does not keep another store's leases from renewal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from lockkit.engine import holding
from lockkit.engine.effects import Step
from lockkit.model.clock import now
from lockkit.model.errors import BackendError
from lockkit.model.log import log
from lockkit.model.types import Request
from lockkit.runtime import native, process
from lockkit.runtime.background import Background
from lockkit.runtime.hold import Hold
from lockkit.runtime.notices import Notices
from lockkit.runtime.schedule import Schedule

if TYPE_CHECKING:
    from lockkit.stores.contract import Store

R = TypeVar("R")


class Renewing(Protocol):
    """What it talks to."""

    @property
    def store(self) -> Store: ...

    @property
    def is_apart(self) -> bool:
        """Whether the watchdog's thread has connections of its own."""

    def run(self, step: Step[R]) -> R: ...

    def run_here(self, step: Step[R]) -> R:
        """Over the connections of the client, in a thread or greenlet of its own."""

    def close(self) -> None:
        """Close what only the watchdog has opened."""


class Watchdog(Background):
    """Renews the holds of one client."""

    thread_name = "lockkit-watchdog"

    def __init__(self, renewing: Renewing) -> None:
        self._renewing = renewing
        self._notices = Notices()
        super().__init__()
        process.at_exit(self._begin_exit, self._finish_exit)

    def _reset(self) -> None:
        super()._reset()
        self._schedule = Schedule()
        self._exit: native.Wake | None = None

    def watch(self, hold: Hold) -> None:
        """Renew this one from now on. Wakes the thread only if nothing else is due before it."""
        if self._schedule.add(hold) or self._wake is None:
            self._hurry()
        if hold.on_lost:
            self._notices.watch(hold)

    def unwatch(self, hold: Hold) -> None:
        self._schedule.discard(hold)
        if hold.on_lost is not None:
            self._notices.unwatch(hold)

    def doubt(self) -> None:
        """Any of them may be over: renew all now. From any thread."""
        if self._schedule.doubt(now()):
            self._hurry()

    def withdraw_later(self, request: Request) -> None:
        """Withdraw again and again until the store has heard it or the TTL has passed."""
        self._schedule.withdraw(request, now())
        self._hurry()

    def give_up(self) -> None:
        """All that are held are lost: what proves them is about to be closed."""
        self._schedule.take_all()

    def stop(self) -> None:
        """End the thread; holds are no longer renewed. A later ``watch`` starts another."""
        self._schedule.clear()
        self._notices.stop()
        self._end()

    def ended(self) -> None:
        self._renewing.close()

    def work(self) -> float:
        """One pass; returns the seconds until the next."""
        if self._exit is not None:
            self._release_all(self._renewing.run)
            self._exit.set()
        holds, withdrawals = self._schedule.take_due(now())
        if holds:
            self._renewing.run(holding.renew(self._renewing.store, holds))
            self._notices.look_at(holds)
        for request in withdrawals:
            self._withdraw(request)
            if self._schedule.waits(request):
                break  # the store is still down: renewals must not queue behind its time-outs
        moment = now()
        return self._schedule.sleep_until(moment) - moment

    def _begin_exit(self) -> None:
        if self._schedule.holds_any and self._wake is not None:
            self._notices.stop()
            if self._renewing.is_apart:  # its thread could not look up its server any more
                self._release_all(self._renewing.run_here)
                return
            self._exit = native.Wake()
            self._wake.set()

    def _finish_exit(self, until: float) -> None:
        if self._exit is not None:
            self._exit.wait(max(until - now(), 0.0))

    def _release_all(self, run: Callable[[Step[bool]], object]) -> None:
        """A store that does not answer to one will not answer to the next: the rest expires."""
        for hold in self._schedule.take_all():
            try:
                run(holding.release(self._renewing.store, hold))
            except BackendError as error:
                log.warning("release of %r not confirmed: %s", hold.name, error)
                return

    def _withdraw(self, request: Request) -> None:
        with contextlib.suppress(BackendError):
            self._renewing.run(self._renewing.store.release(request))
            self._schedule.withdrawn(request)
