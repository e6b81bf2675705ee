"""What a lease and the watchdog share: one granted claim and how long it can be relied on."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import count
from typing import Any, Protocol

from lockkit.engine.times import before_drift, drift, reached_max_hold
from lockkit.model.errors import LeaseLost, LockError
from lockkit.model.types import Granted, Request
from lockkit.runtime import process

_numbers = count(1)
"""Extensions are numbered in the order in which they are asked for; drawing one is atomic."""

_HANDED = -1
"""In place of an extension's number: the claim was handed to a waiter for less than its ttl, and
has not been extended yet."""

_TTL, _MAX_HOLD = 0, 4
"""The places of these fields in ``request[2:]``, which is all but the name and the token."""

LOOK_AGAIN = 0.25
"""Seconds between two looks at a claim of which only the store can tell whether it is lost."""

_terms_once, _asked_once = lru_cache(256)(tuple), lru_cache(8)(tuple)
"""Each returns the same tuple for equal ones, which saves memory: thousands of leases share few."""


@lru_cache(8)
def _until(number: int, sent: float, left: float) -> tuple[int, float]:
    """An extension's number, and the deadline if it is applied: one tuple for a whole batch."""
    return number, sent + left - drift(left)


class _Lease(Protocol):
    @property
    def _ended(self) -> bool: ...


class Hold:
    """One granted claim. Times are the local clock. Lost is final; in a forked child, all are lost.

    A claim that was handed to a waiter has little time until its first extension. After that its
    holder cannot rely on it, but perhaps nobody else has taken the name. The store's answer to the
    first extension or to the release decides, unless the holder was already told of a loss.

    The watchdog keeps the hold, and the user keeps the lease. So the watchdog notices a lease that
    nobody references any more. It also notices a released one, even if the release fails, because a
    lease is marked as released in one step, which no interrupt can cut in two.

    Several extensions can be under way at once, and the network can delay one. The store ignores
    one that arrives after a later one. So the deadline is that of the latest extension that was
    answered. Exception: an extension that was requested after that one and ends sooner counts as
    applied from the moment of its request.
    """

    __slots__ = (
        "_asked",
        "_leases",
        "_settled",
        "_terms",
        "dead",
        "due",
        "failing_since",
        "failure",
        "fence",
        "generation",
        "granted",
        "name",
        "on_lost",
        "token",
    )

    def __init__(self, granted: Granted) -> None:
        request, fence, deadline, now, whole = granted
        self.name, self.token = request.name, request.token
        self._terms = _terms_once(request[2:])
        self.fence = fence
        self._settled: float | tuple[int, float] = deadline if whole else (_HANDED, deadline)
        self._asked: tuple[Any, ...] = ()  #: of open extensions: number, deadline, number, …
        self.granted = now
        self.due = now + (deadline - now) / 3
        self.generation = process.generation()
        self._leases: tuple[weakref.ref[_Lease], ...] = ()
        self.dead: bool | str = False  #: whether it is lost; as a text: how that happened
        self.failing_since: float | None = None  #: since then no renewal has succeeded
        self.failure = ""  #: the error of the last renewal that failed
        self.on_lost: dict[int, Callable[[], object]] | None = None  #: by the lease's id

    @property
    def request(self) -> Request:
        return tuple.__new__(Request, (self.name, self.token, *self._terms))

    @request.setter
    def request(self, request: Request) -> None:
        self._terms = _terms_once(request[2:])

    @property
    def ttl(self) -> float:
        """The seconds to which a renewal sets the time left, at least."""
        ttl: float = self._terms[_TTL]
        return ttl

    def wanted(self, now: float) -> float:
        """The seconds to which a renewal sets the time left now. More than the ttl if ``extend``
        has set more, or has asked for more: the renewal must not undo that."""
        number, deadline = self._last
        asked = self._asked
        for position in range(0, len(asked), 2):
            if asked[position] > number:
                number, deadline = asked[position : position + 2]
        return max(self.ttl, before_drift(deadline - now))

    def renew_to(self, ttl: float, now: float) -> None:
        """From now on, renew it to at least ``ttl`` seconds."""
        if ttl > self.ttl:
            self.request = self.request._replace(ttl=ttl)
            self.due = min(self.due, self._next(now))

    @property
    def whole(self) -> bool:
        """False: it was handed to a waiter for less than its ttl, and not extended since."""
        return self._last[0] != _HANDED

    @property
    def _last(self) -> tuple[int, float]:
        """The number of the last extension that was applied, and its deadline. Before the first one
        the number is 0. This 0 is not kept: each lease would need a tuple of its own."""
        settled = self._settled
        return settled if isinstance(settled, tuple) else (0, settled)

    @property
    def deadline(self) -> float:
        """Until when the claim can be relied on, whichever open extensions the store applies."""
        number, deadline = self._last
        asked = self._asked
        for position in range(0, len(asked), 2):
            if asked[position] > number and asked[position + 1] < deadline:
                deadline = asked[position + 1]
        return deadline

    @property
    def latest(self) -> float:
        """Until when the store may keep it at most, whichever open extensions it applies."""
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
        """Whether it is lost, so that the store need not be asked. Until a claim that was handed
        over is extended, this goes by ``dead`` alone, because the store decides."""
        handed = isinstance(self._settled, tuple) and not self.whole
        if handed and self.generation == process.generation():
            return bool(self.dead)
        return self.lost(now)

    def ends(self, now: float) -> float:
        """The next moment at which to look whether it is lost. After the deadline of a claim that
        was handed over, every LOOK_AGAIN seconds, because the store decides."""
        if self.dead:
            return now
        return self.deadline if self.whole else max(self.deadline, now + LOOK_AGAIN)

    def share(self, lease: _Lease) -> None:
        """Add a lease to those for which the claim is held. Call it in one thread at a time."""
        used = tuple(map(weakref.ref, self.leases())) if self._leases else ()
        self._leases = (*used, weakref.ref(lease))

    @property
    def used(self) -> bool:
        """Whether somebody still has a lease on it, and has not begun to release it. Also true
        before the first ``share``."""
        return not self._leases or next(self.leases(), None) is not None

    def leases(self) -> Iterator[_Lease]:
        """The leases on it that are still referenced and whose release has not begun."""
        for reference in self._leases:
            lease = reference()
            if lease is not None and not lease._ended:
                yield lease

    def lose(self, why: bool | str = True) -> None:
        self.dead = self.dead or why

    def loss(self, now: float) -> LeaseLost:
        """The error for a lost lease. Its text says why the lease is lost."""
        return LeaseLost(f"the lease on {self.name!r} is lost: {self._cause(now)}", name=self.name)

    def _cause(self, now: float) -> str:
        if isinstance(self.dead, str):
            return self.dead
        if self.generation != process.generation():
            return "it belongs to the process that this one was forked from"
        if self.failing_since is not None:
            since = min(now, self.deadline) - self.failing_since
            if self.failure:
                return f"it expired: for {since:.1f} s no renewal had succeeded: {self.failure}"
            return f"it expired, and its store had been unreachable for {since:.1f} s"
        most = self._terms[_MAX_HOLD]
        if most is not None and reached_max_hold(self.deadline - self.granted, self.ttl, most):
            return f"it was held for its MAX_HOLD of {most:g} s, and expired"
        return "it expired: its process was paused, or did not renew it in time"

    def ask(self, ttl: float, now: float, number: int | None = None) -> Request:
        """Note an extension to ``ttl`` seconds, and return its request. ``now``: a moment before it
        is sent. ``number``: that of its batch; without it, a new one."""
        asked = _until(next(_numbers) if number is None else number, now, ttl)
        sooner = asked[1] < self.deadline
        self._asked += asked  # one expression without a call: no other thread gets in between
        if sooner:
            self.due = self._next(now)
        return self.request._replace(ttl=ttl, number=asked[0])

    def renewed(self, number: int, sent: float, left: float, now: float) -> None:
        """The store has applied this extension. After the deadline, its reply comes too late.

        Extensions requested before it no longer count. This one stays in ``_asked``: a thread with
        an earlier reply may be about to overwrite ``_settled``.
        """
        if self.is_over(now):
            return
        if number > self._last[0]:
            self._settled = _until(number, sent, left)
            self._keep_asked(lambda each: each >= number)
        self.failing_since, self.failure = None, ""
        self.due = self._next(now)

    def _next(self, now: float) -> float:
        """When to renew next: after a third of the time left, or of the ttl if that is less, so
        that a loss is noticed in time."""
        return now + min(self.deadline - now, self.ttl) / 3

    def not_asked(self, number: int) -> None:
        """The store has refused this extension before anything was sent."""
        self._keep_asked(lambda each: each != number)

    def _keep_asked(self, keeps: Callable[[int], bool]) -> None:
        """Forget the open extensions with other numbers."""
        while True:
            asked, kept = self._asked, ()
            for position in range(0, len(asked), 2):
                if keeps(asked[position]):
                    kept += asked[position : position + 2]
            kept = _asked_once(kept)
            if self._asked is asked:  # else another thread has asked meanwhile
                self._asked = kept
                return

    def renewal_failed(self, now: float, error: LockError) -> None:
        """Unknown, not lost: try again soon, ever faster as the deadline comes near."""
        self.failure = f"{type(error).__name__}: {error}"
        self.dead = self.dead or now >= self.deadline  # then there is no further try
        self.failing_since = now if self.failing_since is None else self.failing_since
        self.due = now + max(min(self.deadline - now, self.ttl) / 8, 0.02)

    def doubt(self, now: float) -> None:
        """The store may have ended it. So its state is unknown, and a renewal is due at once."""
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

        A claim that was handed to a waiter is renewed once even after max_hold, to its whole ttl.
        """
        return not self.is_over(now) and (now < self.renew_until or not self.whole)
