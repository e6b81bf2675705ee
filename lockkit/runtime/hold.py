"""What a lease and the watchdog share: one granted claim and how long it can be relied on."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import count
from typing import Protocol

from lockkit.model.errors import LeaseLost
from lockkit.model.types import Request, drift
from lockkit.runtime import process

_numbers = count(1)
"""Extensions are numbered in the order in which they are asked for; drawing one is atomic."""


class _Lease(Protocol):
    @property
    def _ended(self) -> bool: ...


class Hold:
    """One granted claim, in the local clock. Lost is final, and true after a fork.

    The watchdog keeps the hold and the user keeps the lease, so that a lease which nobody
    references any more can be noticed while its hold is being renewed. So can one that is released,
    whatever becomes of the release: to be released is one step, which no interrupt cuts in two.

    Several extensions can be under way at once, and one of them can be held up in the network: the
    store does none after a later one. So what the latest reply says holds, unless an extension
    that was asked for after it is done: it counts as done from the moment it is asked for.
    """

    __slots__ = (
        "_asked",
        "_settled",
        "dead",
        "due",
        "ended",
        "failing_since",
        "fence",
        "generation",
        "granted",
        "leases",
        "on_lost",
        "renew_until",
        "request",
        "whole",
    )

    def __init__(
        self,
        request: Request,
        fence: int | None,
        deadline: float,
        now: float,
        *,
        whole: bool = True,
    ) -> None:
        self.request = request
        self.fence = fence
        self._settled = (0, deadline)
        self._asked: dict[int, float] = {}  #: number: the deadline if it is done at once
        self.granted = now
        self.renew_until = None if request.max_hold is None else now + request.max_hold
        self.due = now + (deadline - now) / 3
        self.whole = whole  #: else it was handed to a waiter, and for less than its ttl
        self.generation = process.generation()
        self.leases: dict[int, weakref.ref[_Lease]] | None = None  #: by their id; None: none yet
        self.dead = False
        self.failing_since: float | None = None  #: since then no renewal has succeeded
        self.ended = ""  #: what the store says of its end
        self.on_lost: dict[int, Callable[[], object]] | None = None  #: who wants to hear of it

    @property
    def deadline(self) -> float:
        """Until when the claim can be relied on, whichever of the open extensions are done."""
        number, deadline = self._settled
        for asked, bound in tuple(self._asked.items()):  # another thread may ask just now
            if asked > number and bound < deadline:
                deadline = bound
        return deadline

    @property
    def unknown(self) -> bool:
        """Whether the last renewal failed."""
        return self.failing_since is not None

    def lost(self, now: float) -> bool:
        """Whether the claim can no longer be relied on. Once true, it stays true."""
        if self.dead:
            return True
        if now >= self.deadline or self.generation != process.generation():
            self.dead = True
        return self.dead

    def share(self, lease: _Lease) -> None:
        """Count it among those for which the claim is held."""
        if self.leases is None:
            self.leases = {}
        self.leases[id(lease)] = weakref.ref(lease)

    @property
    def users(self) -> int:
        """How many leases somebody still has, and has not begun to release."""
        leases = [reference() for reference in list((self.leases or {}).values())]
        return sum(lease is not None and not lease._ended for lease in leases)

    @property
    def used(self) -> bool:
        return self.leases is None or self.users > 0

    def lose(self) -> None:
        self.dead = True

    def loss(self, now: float) -> LeaseLost:
        """The error of a lease that is lost, and why it is."""
        name = self.request.name
        return LeaseLost(f"the lease on {name!r} is lost: {self._cause(now)}", name=name)

    def _cause(self, now: float) -> str:
        if self.ended:
            return self.ended
        if self.generation != process.generation():
            return "it belongs to the process that this one was forked from"
        if self.failing_since is not None:
            since = now - self.failing_since
            return f"it expired, and its store has been unreachable for {since:.1f} s"
        if self.renew_until is not None and self.deadline >= self.renew_until:
            return f"it was held for its MAX_HOLD of {self.request.max_hold:g} s, and expired"
        return "it expired: its process was paused, or did not renew it in time"

    def ask(self, ttl: float, now: float) -> Request:
        """The request that sets what is left to ``ttl``. ``now``: it is not sent before."""
        number, bound = next(_numbers), now + ttl - drift(ttl)
        sooner = bound < self.deadline
        self._asked[number] = bound
        if sooner:
            self._plan(now)
        return self.request._replace(ttl=ttl, number=number)

    def renewed(self, number: int, sent: float, left: float, now: float) -> None:
        """The store answered to this extension. After the deadline its reply comes too late.

        What was asked for before it does not count any more. It itself is not forgotten: a thread
        with an earlier reply may be about to write ``_settled`` as well.
        """
        if self.lost(now):
            return
        if number > self._settled[0]:
            self._settled = (number, sent + left - drift(left))
            for asked in tuple(self._asked):
                if asked < number:
                    self._asked.pop(asked, None)
        self.whole = True
        self.failing_since = None
        self._plan(now)

    def renewal_failed(self, now: float) -> None:
        """Unknown, not lost: try again soon, ever faster as the deadline comes near."""
        self.failing_since = now if self.failing_since is None else self.failing_since
        self.due = now + max((self.deadline - now) / 8, 0.02)

    def doubt(self, now: float) -> None:
        """The store may have ended it: unknown, until it is renewed at once."""
        if not self.lost(now):
            self.failing_since = now if self.failing_since is None else self.failing_since
            self.due = now

    def renewable(self, now: float) -> bool:
        """Whether the watchdog still has work with it: not lost, and within max_hold.

        A lease that was handed to a waiter is always made whole: until then it is shorter.
        """
        if self.lost(now):
            return False
        return self.renew_until is None or now < self.renew_until or not self.whole

    def _plan(self, now: float) -> None:
        """After a third of what is left. More than the ttl was asked for by the holder: it is not
        cut short by a renewal."""
        left = self.deadline - now
        self.due = now + max(left / 3, left - self.request.ttl * 2 / 3)
