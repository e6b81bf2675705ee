"""Renewal in the background: one thread per client, started with its first lease.

The thread sleeps until the earliest renewal is due, then renews in one batch all that are due about
then. It also withdraws claims that could not be withdrawn while the store was unreachable. When the
interpreter exits, it releases what is still held, because no other thread can be started then. Each
client has a thread of its own, so that a store that hangs does not stop the renewal of another
store's leases.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockkit.engine import holding
from lockkit.engine.effects import Step
from lockkit.model.clock import now
from lockkit.model.errors import BackendError, ConfigurationError, DamagedRecord, StoreRefused
from lockkit.model.log import log, log_error
from lockkit.model.types import Owner, Request
from lockkit.runtime import native, process
from lockkit.runtime.background import Background
from lockkit.runtime.hold import Hold
from lockkit.runtime.notices import BaseNotices, Notices
from lockkit.runtime.run import run
from lockkit.runtime.schedule import DROPPED, RETRY, Schedule

if TYPE_CHECKING:
    from lockkit.stores.contract import Store
    from lockkit.stores.wires import Wire


class BaseWatchdog(ABC):
    """Renews the holds of one client: the part that threads and event loops share."""

    _notices: BaseNotices
    _schedule: Schedule
    _wake: Any  #: wakes the thread or loop that renews; None: none does now

    def __init__(self, store: Store, again: Callable[[], Store]) -> None:
        """``again`` makes another store of the same settings, with connections of its own."""
        self._store = store
        self._again = again
        process.in_each_process(self._reset)
        process.at_exit(self._begin_exit, self._finish_exit)

    @abstractmethod
    def _reset(self) -> None:
        """Start without holds, as a forked child does."""

    @abstractmethod
    def _hurry(self) -> None:
        """Look at the schedule at once."""

    @abstractmethod
    def _begin_exit(self) -> None: ...

    @abstractmethod
    def _finish_exit(self, until: float) -> None: ...

    def watch(self, hold: Hold) -> None:
        """Renew this hold from now on. Wakes the thread or loop only if it would sleep too long."""
        if self._schedule.add(hold) or self._wake is None:
            self._hurry()
        if hold.on_lost:
            self._notices.watch(hold)

    def unwatch(self, hold: Hold) -> None:
        self._schedule.discard(hold)
        if hold.on_lost is not None:
            self._notices.unwatch(hold)

    def doubt(self) -> None:
        """Renew all holds now, because any may be over. With asyncio, call this in the event loop;
        otherwise in any thread."""
        if self._schedule.doubt(now()):
            self._hurry()

    def give_up(self) -> list[Hold]:
        """Return all holds. They count as lost from now on, and are not renewed any more."""
        process.notice_fork()
        return self._schedule.take_all()

    def _releasing_all(
        self, store: Store, holds: list[Hold], until: float = math.inf
    ) -> Step[None]:
        """At exit: release these holds, and withdraw what could not be withdrawn before."""
        return holding.release_all(store, holds, until, self._schedule.take_withdrawals())

    def _renewing(self) -> Step[None]:
        """One pass: renew what is due, then withdraw."""
        holds, withdrawals, over = self._schedule.take_due(now())
        self._notices.look_at(over)  # a suspended machine prolongs the sleep beyond deadlines
        if holds:
            yield from holding.renew(self._store, holds)
            self._notices.look_at(holds)
        for hold in over:
            if hold.dead is DROPPED:
                _complain_of(hold)
        until = now() + RETRY
        for request in withdrawals:
            if now() > until:  # renewals must not queue behind thousands of these
                break
            if not (yield from self._withdrawn(request)):  # nor behind the timeouts of these
                break

    def _withdrawn(self, request: Request) -> Step[bool]:
        """Withdraw one request. Returns whether to go on with the next one."""
        try:
            yield from self._store.withdraw(request)
        except (ConfigurationError, DamagedRecord, StoreRefused):
            self._schedule.postpone(request)  # only this record or key fails; it may be repaired
            return True
        except BackendError:
            self._schedule.postpone(request)
            return False
        except Exception:  # noqa: BLE001  a defect must not end renewal: log it, go on
            log_error("%r is not given back, and will expire", request.name)
        self._schedule.withdrawn(request)
        return True


def _complain_of(hold: Hold) -> None:
    by = Owner.decode(hold.request.owner)
    log.warning(
        "the lease on %r was never released, and is not renewed, because nothing refers to "
        "it: keep what acquire() returns; it was acquired in %s of %s",
        *(hold.name, by.thread, by),
    )


class Watchdog(Background, BaseWatchdog):
    """Renews in a thread.

    Under gevent the client's sockets belong to greenlets, so the thread has a wire of its own. If
    the steps of the store are calls, they use its sockets, so the thread has a store of its own.
    Limit: that is impossible over a pool that was handed over, such as that of a django-redis
    cache.
    """

    thread_name = "lockkit-watchdog"

    def __init__(
        self, store: Store, wire: Wire, again: Callable[[], Store], *, is_local: bool
    ) -> None:
        """``is_local``: the store is in this process, and has no sockets."""
        self._wire = wire
        self._clients = store
        self._own: Wire | None = None
        self._is_local = is_local
        self._notices = Notices()
        BaseWatchdog.__init__(self, store, again)

    def _reset(self) -> None:
        super()._reset()
        self._schedule = Schedule()
        self._exit: native.Wake | None = None

    def withdraw_later(self, request: Request, until: float) -> None:
        """Withdraw again and again until the store has heard of it, or the claim has expired."""
        self._schedule.withdraw(request, now(), until)
        self._hurry()

    def stop(self) -> None:
        """End the thread; holds are no longer renewed. A later ``watch`` starts another."""
        process.notice_fork()  # the wire is closed next, and its sockets may be the parent's
        self._schedule.clear()
        self._notices.stop()
        self._end()

    def ended(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.close()

    def work(self) -> float:
        """One pass; returns the seconds until the next."""
        if self._own is None and self._is_apart:
            from lockkit.runtime.wires import CallWire  # here, as importing it takes long

            store = self._again()
            self._own = store.wire()
            if type(self._own) is CallWire and type(store) is type(self._clients):
                self._store = store
        wire = self._own or self._wire
        if self._exit is not None:
            run(self._releasing_all(self._store, self.give_up()), wire)
            self._exit.set()
        run(self._renewing(), wire)
        moment = now()
        return self._schedule.sleep_until(moment) - moment

    @property
    def _is_apart(self) -> bool:
        return native.is_patched() and not self._is_local

    def _begin_exit(self) -> None:
        if self._schedule.owes_any and self._wake is not None:
            self._notices.stop()
            if self._is_apart:  # at exit, its thread cannot look up the server's address any more
                run(self._releasing_all(self._clients, self.give_up()), self._wire)
                return
            self._exit = native.Wake()
            self._wake.set()

    def _finish_exit(self, until: float) -> None:
        if self._exit is not None:
            self._exit.wait(max(until - now(), 0.0))
