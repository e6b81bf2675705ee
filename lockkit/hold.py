"""What a lease and the watchdog share: one granted claim and how long it can be relied on."""

from __future__ import annotations

from lockkit import process
from lockkit.types import Request, drift

__all__ = ["Hold"]


class Hold:
    """One granted claim, in the local clock. Lost is final, and true after a fork.

    The watchdog keeps the hold and the user keeps the lease, so that a lease which nobody
    references any more can be noticed while its hold is being renewed.
    """

    __slots__ = (
        "dead",
        "deadline",
        "due",
        "fence",
        "generation",
        "granted",
        "renew_until",
        "request",
        "settled",
        "whole",
    )

    def __init__(
        self, request: Request, fence: int, deadline: float, now: float, *, whole: bool = True
    ) -> None:
        self.request = request
        self.fence = fence
        self.deadline = deadline
        self.granted = now
        self.renew_until = None if request.max_hold is None else now + request.max_hold
        self.due = now + (deadline - now) / 3
        self.settled = now
        self.whole = whole  #: else it was handed to a waiter, and for less than its ttl
        self.generation = process.generation()
        self.dead = False

    def lost(self, now: float) -> bool:
        """Whether the claim can no longer be relied on. Once true, it stays true."""
        if self.dead:
            return True
        if now >= self.deadline or self.generation != process.generation():
            self.dead = True
        return self.dead

    def lose(self) -> None:
        self.dead = True

    def renewed(self, sent: float, left: float, now: float) -> None:
        """The store extended it. A reply that comes after the deadline comes too late.

        Of two extensions that were under way at the same time nobody knows which came last, so the
        shorter one counts.
        """
        if self.lost(now):
            return
        deadline = sent + left - drift(left)
        self.deadline = min(deadline, self.deadline) if sent < self.settled else deadline
        self.settled = now
        self.whole = True
        self._plan(now)

    def shorten(self, now: float, ttl: float) -> None:
        """It is about to be set to ``ttl``, and may be from now on, whatever the reply."""
        deadline = now + ttl - drift(ttl)
        if deadline < self.deadline:
            self.deadline = deadline
            self.settled = now
            self._plan(now)

    def renewal_failed(self, now: float) -> None:
        """Unknown, not lost: try again soon, ever faster as the deadline comes near."""
        self.due = now + max((self.deadline - now) / 8, 0.02)

    def renewable(self, now: float) -> bool:
        """Whether the watchdog still has work with it: not lost, and within max_hold.

        What was handed to a waiter is made whole in any case: until then it is no full lease.
        """
        if self.lost(now):
            return False
        return self.renew_until is None or now < self.renew_until or not self.whole

    def _plan(self, now: float) -> None:
        self.due = now + (self.deadline - now) / 3
