"""What a watchdog has to do, and when. It has no clock, thread or event loop of its own, so that
both kinds of watchdogs share it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lockkit.model.types import Request
from lockkit.runtime import native
from lockkit.runtime.hold import Hold

RETRY = 0.25
"""Seconds between two tries to withdraw from a store that is down."""

BATCH_AHEAD = 0.1
"""A hold that is due soon is renewed early, to share a batch: if it is due within this part of its
ttl, or of the time left if that is less."""

DROPPED = "its lease was collected, never released"
"""Marks a hold whose lease was collected by the garbage collector. The collector may interrupt a
step of the schedule, so the lease only sets this mark, and the watchdog does the rest."""


class _Watched:
    """Holds, and when their runner, which is a thread or an event loop, looks at them again.

    Thread-safe. Every release calls ``discard``, which takes no lock. So a loop over the holds goes
    through a copy (``list`` of a dict is atomic).
    """

    def __init__(self) -> None:
        self._lock = native.mutex()
        self._holds: dict[str, Hold] = {}
        self._wake_at = math.inf
        self._asked = math.inf

    def discard(self, hold: Hold) -> None:
        self._holds.pop(hold.token, None)

    def clear(self) -> None:
        with self._lock:
            self._holds.clear()

    def _sooner(self, moment: float) -> bool:
        """Whether the runner must be woken, because it would sleep beyond this moment.

        Only the runner sets ``_wake_at``. If this set it, and an interrupt came before the runner
        is woken, nobody would wake it for a later moment, although it still sleeps too long."""
        if moment >= self._wake_at:
            return False
        self._asked = min(self._asked, moment)
        return True


class Schedule(_Watched):
    """Holds to renew and requests to withdraw."""

    def __init__(self) -> None:
        super().__init__()
        self._withdrawals: dict[str, tuple[Request, float]] = {}

    def add(self, hold: Hold) -> bool:
        """Add a hold. Returns whether the runner sleeps too long for it, and must be woken."""
        with self._lock:
            self._holds[hold.token] = hold
            return hold.due < self._wake_at and self._sooner(hold.due)

    def doubt(self, now: float) -> bool:
        """Have all of them renewed now. Returns whether the runner must be woken."""
        with self._lock:
            for hold in list(self._holds.values()):
                hold.doubt(now)
            return self.holds_any and self._sooner(now)

    def withdraw(self, request: Request, now: float, until: float = 0.0) -> None:
        """Keep trying to withdraw until the claim has expired by itself: until its TTL has passed,
        and so has the moment ``until``, to which it may have been extended."""
        with self._lock:
            self._withdrawals[request.token] = (request, max(now + request.ttl, until))
            self._sooner(now + RETRY)

    def postpone(self, request: Request) -> None:
        """Try this one again after the others, which may be at another server that is up."""
        with self._lock:
            if found := self._withdrawals.pop(request.token, None):
                self._withdrawals[request.token] = found

    def withdrawn(self, request: Request) -> None:
        self._withdrawals.pop(request.token, None)

    @property
    def holds_any(self) -> bool:
        return bool(self._holds)

    @property
    def owes_any(self) -> bool:
        """Whether there is anything to release at exit."""
        return bool(self._holds or self._withdrawals)

    def clear(self) -> None:
        super().clear()
        with self._lock:
            self._withdrawals.clear()

    def take_all(self) -> list[Hold]:
        """Return all holds. None of them is renewed any more, and all count as lost."""
        with self._lock:
            holds = list(self._holds.values())
            self._holds.clear()
        for hold in holds:
            hold.lose()
        return holds

    def take_withdrawals(self) -> list[Request]:
        with self._lock:
            taken, self._withdrawals = self._withdrawals, {}
        return [request for request, _ in taken.values()]

    def take_due(self, now: float) -> tuple[list[Hold], list[Request], list[Hold]]:
        """The holds to renew now, the requests to withdraw, and the holds that are over, each of
        which is returned only once. Forgets holds that are over or that nobody uses any more, and
        withdrawals of claims that have expired."""
        with self._lock:
            self._asked = _next(now, self._asked, self._wake_at)
            self._wake_at = -math.inf  # the runner is awake: whoever adds need not wake it
            due: list[Hold] = []
            over: list[Hold] = []
            for hold in list(self._holds.values()):
                if hold.is_over(now):
                    over.append(hold)
                if hold.dead or not hold.used:
                    self._holds.pop(hold.token, None)  # it may have been released just now
                elif not hold.renewable(now):
                    hold.due = hold.deadline  # still held, and to be released at exit
                elif hold.due <= now + max(min(hold.deadline - now, hold.ttl), 0.0) * BATCH_AHEAD:
                    due.append(hold)
            for token, (_, until) in list(self._withdrawals.items()):
                if until <= now:
                    del self._withdrawals[token]
            return due, [request for request, _ in self._withdrawals.values()], over

    def sleep_until(self, now: float) -> float:
        """When the runner must look again. From now on, ``add`` tells whether that is too late.

        A moment for which ``add`` had the runner woken is kept, even if the hold is gone by now.
        Otherwise a process that takes and gives back one lease after another would wake the runner
        for each.
        """
        with self._lock:
            wake_at = min((hold.due for hold in list(self._holds.values())), default=math.inf)
            wake_at = min(wake_at, self._asked)
            if self._withdrawals:
                wake_at = min(wake_at, now + RETRY)
            self._wake_at = wake_at
            return wake_at


class Deadlines(_Watched):
    """Holds whose holders want to hear of a loss.

    A renewal does not wake the runner: it looks at the hold at the old deadline, and then again at
    the new one.
    """

    def add(self, hold: Hold) -> bool:
        """Add a hold. Returns whether the runner sleeps too long for it, and must be woken."""
        moment = -math.inf if hold.dead else hold.deadline
        with self._lock:
            self._holds[hold.token] = hold
            return self._sooner(moment)

    def lost(self, now: float) -> Iterator[Hold]:
        """The holds that are over. Each is forgotten when the caller asks for the next one."""
        for hold in list(self._holds.values()):
            if hold.is_over(now):
                yield hold
                self.discard(hold)

    def sleep_until(self, now: float) -> float:
        """When the runner must look again. Moments are kept, as in ``Schedule.sleep_until``."""
        with self._lock:
            nearest = min((hold.ends(now) for hold in list(self._holds.values())), default=math.inf)
            self._wake_at = min(nearest, _next(now, self._asked, self._wake_at))
            self._asked = math.inf
            return self._wake_at


def _next(now: float, *moments: float) -> float:
    """The first of these moments that is still to come; infinity if none is."""
    return min((moment for moment in moments if moment > now), default=math.inf)
