"""What a lease and the watchdog share: one granted claim and how long it can be relied on."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import count
from typing import Any, Protocol

from lockkit.engine.times import before_drift, drift
from lockkit.model.errors import LeaseLost
from lockkit.model.types import Request
from lockkit.runtime import process

_numbers = count(1)
"""Extensions are numbered in the order in which they are asked for; drawing one is atomic."""

_HANDED = -1
"""The number before the first extension, if a waiter was handed the claim for less than its ttl."""

_TTL, _MAX_HOLD = 0, 4
"""Their places in a request, counted from after its name and its token."""

LOOK_AGAIN = 0.25  #: seconds

_terms_once, _asked_once = lru_cache(256)(tuple), lru_cache(8)(tuple)
"""The same object for equal terms: thousands of leases of a process have few different ones."""


@lru_cache(8)
def _until(number: int, sent: float, left: float) -> tuple[int, float]:
    """An extension's number, and its deadline if it is done: one object for a whole batch."""
    return number, sent + left - drift(left)


class _Lease(Protocol):
    @property
    def _ended(self) -> bool: ...


class Hold:
    """One granted claim, in the local clock. Lost is final, and true after a fork.

    A claim that was handed to a waiter has little time until its first extension. After that time
    its holder cannot rely on it, but perhaps nobody has taken it: the store's answer to the first
    extension or the release decides, unless its holder was told that it is lost.

    The watchdog keeps the hold and the user keeps the lease, so the watchdog notices a lease that
    nobody references any more. It also notices a released one, even if the release fails: it is
    marked as released in one step, which no interrupt cuts in two.

    Several extensions can be under way at once, and the network can hold one up: the store ignores
    it after a later one. So the latest extension that was answered counts, unless one that was
    asked for after it ends sooner: that one counts as done from the moment it is asked for.
    """

    __slots__ = (
        "_asked",
        "_leases",
        "_settled",
        "_terms",
        "dead",
        "due",
        "failing_since",
        "fence",
        "generation",
        "granted",
        "name",
        "on_lost",
        "token",
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
        self.name, self.token = request.name, request.token
        self._terms = _terms_once(request[2:])
        self.fence = fence
        self._settled: float | tuple[int, float] = deadline if whole else (_HANDED, deadline)
        self._asked: tuple[Any, ...] = ()  #: number and deadline of each open extension, flat
        self.granted = now
        self.due = now + (deadline - now) / 3
        self.generation = process.generation()
        self._leases: tuple[weakref.ref[_Lease], ...] = ()
        self.dead: bool | str = False  #: True; or what the store says of its end
        self.failing_since: float | None = None  #: since then no renewal has succeeded
        self.on_lost: dict[int, Callable[[], object]] | None = None  #: who wants to hear of it

    @property
    def request(self) -> Request:
        return tuple.__new__(Request, (self.name, self.token, *self._terms))

    @request.setter
    def request(self, request: Request) -> None:
        self._terms = _terms_once(request[2:])

    @property
    def ttl(self) -> float:
        """Seconds to which it is renewed at least."""
        ttl: float = self._terms[_TTL]
        return ttl

    def wanted(self, now: float) -> float:
        """Seconds to which it is renewed now: ``extend`` may have set more than its ttl, or may be
        waiting for the reply, which would come too late."""
        number, deadline = self._last
        asked = self._asked
        for position in range(0, len(asked), 2):
            if asked[position] > number:
                number, deadline = asked[position : position + 2]
        return max(self.ttl, before_drift(deadline - now))

    def renew_to(self, ttl: float, now: float) -> None:
        """Renew it to at least so many seconds from now on."""
        if ttl > self.ttl:
            self.request = self.request._replace(ttl=ttl)
            self.due = min(self.due, self._next(now))

    @property
    def whole(self) -> bool:
        """Whether it is for its whole ttl. If not, it was handed to a waiter."""
        return self._last[0] != _HANDED

    @property
    def _last(self) -> tuple[int, float]:
        """The number of the last extension that was done, and its deadline. The number is 0 before
        the first one: that is not kept, because each lease would need a tuple of its own."""
        settled = self._settled
        return settled if isinstance(settled, tuple) else (0, settled)

    @property
    def deadline(self) -> float:
        """Until when the claim can be relied on, whichever of the open extensions are done."""
        number, deadline = self._last
        asked = self._asked
        for position in range(0, len(asked), 2):
            if asked[position] > number and asked[position + 1] < deadline:
                deadline = asked[position + 1]
        return deadline

    @property
    def latest(self) -> float:
        """Until when the store may keep it, whichever of the open extensions are done."""
        ends: float = max(self.granted, self._last[1], *self._asked[1::2])
        return ends + 2 * drift(ends - self.granted)  # the drift was taken off the deadlines

    def lost(self, now: float) -> bool:
        """Whether the claim can no longer be relied on. Once true, it stays true."""
        if self.dead:
            return True
        settled = self._settled
        if self._asked or isinstance(settled, tuple):
            settled = self.deadline
        if now >= settled or self.generation != process.generation():
            self.dead = True
        return bool(self.dead)

    def is_over(self, now: float) -> bool:
        """Whether it is lost, and the store need not be asked."""
        handed = isinstance(self._settled, tuple) and not self.whole
        if handed and self.generation == process.generation():
            return bool(self.dead)
        return self.lost(now)

    def ends(self, now: float) -> float:
        """When to look whether it is lost. While the store decides that, again and again."""
        if self.dead:
            return now
        return self.deadline if self.whole else max(self.deadline, now + LOOK_AGAIN)

    def share(self, lease: _Lease) -> None:
        """Count a lease among those for which the claim is held; by one thread at a time."""
        used = tuple(map(weakref.ref, self.leases())) if self._leases else ()
        self._leases = (*used, weakref.ref(lease))

    @property
    def used(self) -> bool:
        """Whether somebody still has a lease on it, and has not begun to release it."""
        return not self._leases or next(self.leases(), None) is not None

    def leases(self) -> Iterator[_Lease]:
        """The leases that ``used`` looks for."""
        for reference in self._leases:
            lease = reference()
            if lease is not None and not lease._ended:
                yield lease

    def lose(self, why: bool | str = True) -> None:
        self.dead = self.dead or why

    def loss(self, now: float) -> LeaseLost:
        """The error of a lease that is lost, and why it is."""
        return LeaseLost(f"the lease on {self.name!r} is lost: {self._cause(now)}", name=self.name)

    def _cause(self, now: float) -> str:
        if isinstance(self.dead, str):  # what the store says of its end
            return self.dead
        if self.generation != process.generation():
            return "it belongs to the process that this one was forked from"
        if self.failing_since is not None:
            since = min(now, self.deadline) - self.failing_since
            return f"it expired, and its store had been unreachable for {since:.1f} s"
        if self.deadline >= self.renew_until:
            return f"it was held for its MAX_HOLD of {self._terms[_MAX_HOLD]:g} s, and expired"
        return "it expired: its process was paused, or did not renew it in time"

    def ask(self, ttl: float, now: float, number: int | None = None) -> Request:
        """The request that sets what is left to ``ttl``. ``now``: a moment before it is sent.
        ``number``: that of a pass that extends many."""
        asked = _until(next(_numbers) if number is None else number, now, ttl)
        sooner = asked[1] < self.deadline
        self._asked += asked  # one expression without a call: no other thread gets in between
        if sooner:
            self.due = self._next(now)
        return self.request._replace(ttl=ttl, number=asked[0])

    def renewed(self, number: int, sent: float, left: float, now: float) -> None:
        """The store has answered this extension. After the deadline, its reply comes too late.

        Extensions asked for before it do not count any more. This one is not forgotten: a thread
        with an earlier reply may be about to write ``_settled`` as well.
        """
        if self.is_over(now):
            return
        if number > self._last[0]:
            self._settled = _until(number, sent, left)
            self._forget(number)
        self.failing_since = None
        self.due = self._next(now)

    def _next(self, now: float) -> float:
        """After a third of what is left or of the ttl, if less: a loss must be known in time."""
        return now + min(self.deadline - now, self.ttl) / 3

    def _forget(self, number: int) -> None:
        """Forget what was asked for before this one."""
        while True:
            asked, kept = self._asked, ()
            for position in range(0, len(asked), 2):
                if asked[position] >= number:
                    kept += asked[position : position + 2]
            kept = _asked_once(kept)
            if self._asked is asked:  # else another thread has asked meanwhile
                self._asked = kept
                return

    def renewal_failed(self, now: float) -> None:
        """Unknown, not lost: try again soon, ever faster as the deadline comes near."""
        self.dead = self.dead or now >= self.deadline  # the store was asked for the last time
        self.failing_since = now if self.failing_since is None else self.failing_since
        self.due = now + max(min(self.deadline - now, self.ttl) / 8, 0.02)

    def doubt(self, now: float) -> None:
        """The store may have ended it: unknown, until it is renewed at once."""
        if not self.is_over(now):
            self.failing_since = now if self.failing_since is None else self.failing_since
            self.due = now

    @property
    def renew_until(self) -> float:
        """The end of its MAX_HOLD."""
        most = self._terms[_MAX_HOLD]
        return math.inf if most is None else self.granted + most

    def renewable(self, now: float) -> bool:
        """Whether the watchdog still has to renew it: it is not lost, and within max_hold.

        A claim that was handed to a waiter always gets its whole ttl: until then it has less.
        """
        return not self.is_over(now) and (now < self.renew_until or not self.whole)
