"""What a store keeps of one name, and the questions the grant rule asks of it.

Times are the store's clock in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lockkit.engine.times import alive_for
from lockkit.model.types import Kind, Request

SECOND = 1_000_000
TOMB_SECONDS = 600
"""How long a tombstone refuses its token: longer than a request can linger in a network."""

MOST_TOMBS = 256
"""The most tombstones of a name, because each step on it reads and writes them all. If there would
be more, the oldest is dropped. A request of its token that is still under way may then be granted
although nobody wants it any more, and hold the name until its TTL has passed."""

MOST_SHARED = 10_000
"""The most holders of a name of any kind, because each step on it reads them all."""

GRACE_SECONDS = 600
"""How long an abandoned claim is kept, so that the command ``locks`` can report it."""


@dataclass(slots=True)
class Holder:
    """A claim that was granted. Once ``until`` has passed it is abandoned, not live."""

    token: str
    owner: str
    fence: int
    granted: int
    renewed: int
    until: int
    ttl: int
    max_hold: int | None
    extended: int = 0  #: the number of the last extension that was applied; 0: none
    shared: bool = False
    entrant: str = ""
    permits: int = 0

    def is_ours(self, now: int) -> bool:
        """Whether its holder still has it. If it was handed over, and its holder has not been heard
        of yet, it outlasts its time: until somebody else takes the name, which removes it."""
        return self.until > now or self.is_handed

    @property
    def is_handed(self) -> bool:
        """Whether its holder has not been heard of since it was granted by a message."""
        return not self.extended and self.until - self.granted < self.ttl


@dataclass(slots=True)
class Waiter:
    """A claim in the queue. It counts as alive until the moment ``alive``."""

    token: str
    owner: str
    ticket: int
    enqueued: int
    alive: int
    ttl: int
    max_hold: int | None
    shared: bool = False
    entrant: str = ""
    permits: int = 0
    channel: str = ""  #: where the store publishes its grant; empty: nowhere

    def refresh(self, now: int) -> bool:
        """It was heard of: let it count as alive for longer. Only if half of the time is used, so
        that most polls write nothing. Returns whether anything changed."""
        span = round(alive_for(self.ttl / SECOND) * SECOND)
        if self.alive - now > span // 2:
            return False
        self.alive = now + span
        return True


@dataclass(slots=True)
class State:
    """All that a store keeps of one name. Holders are in the order of their grants."""

    fence: int = 0
    holders: list[Holder] = field(default_factory=list)
    queue: list[Waiter] = field(default_factory=list)
    tombs: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Tombstones, each of which refuses a token: by token, until when, and whether an operator
    broke its claim."""
    kind: Kind = Kind.MUTEX
    fallen: list[tuple[Holder, Kind, int, str]] = field(default_factory=list)
    """Holders that lost the name without a release; for each the kind of lock, the moment, and the
    operator who broke it. They are here only until ``last_words`` takes them out."""

    @property
    def permits(self) -> int:
        """The smallest number that a holder or a waiter asks for."""
        claims: list[Holder | Waiter] = [*self.holders, *self.queue]
        return min((claim.permits for claim in claims), default=0)

    def live(self, now: int) -> Holder | None:
        """The live holder, or the first of several that share the name."""
        return next((h for h in self.holders if h.until > now), None)

    def held_by(self, entrant: str, now: int) -> list[Holder]:
        """The live claims of this owner."""
        if not entrant:
            return []
        return [h for h in self.holders if h.entrant == entrant and h.until > now]

    def reenters(self, claim: Request | Waiter, now: int) -> bool:
        """Whether the claim's owner already holds an equal or a stronger one."""
        return any(claim.shared or not h.shared for h in self.held_by(claim.entrant, now))

    def has_room(self, claim: Request | Waiter, now: int) -> bool:
        """Whether no live holder is in the claim's way. While two versions of a program ask for
        different numbers of permits, the smaller number applies."""
        live = [holder for holder in self.holders if holder.until > now]
        if not live or self.reenters(claim, now):
            return True
        if not claim.shared or not all(holder.shared for holder in live):
            return False
        return len(live) < min(one.permits or MOST_SHARED for one in (claim, *live))

    def waits(self, now: int) -> bool:
        """Whether somebody alive is in the queue."""
        return any(waiter.alive > now for waiter in self.queue)

    def holding(self, token: str) -> Holder | None:
        return next((h for h in self.holders if h.token == token), None)

    def waiting(self, token: str) -> Waiter | None:
        return next((w for w in self.queue if w.token == token), None)

    def number(self, now: int) -> int:
        """The next fence or ticket: larger than all before. It is never below the clock, so that it
        grows even if the store loses its data."""
        self.fence = max(self.fence + 1, now)
        return self.fence

    def bury(self, token: str, now: int, *, broken: bool = False) -> None:
        """Leave a tombstone, which refuses the token for TOMB_SECONDS. If an earlier one says that
        an operator broke the claim, so does this one."""
        _, was_broken = self.tombs.pop(token, (0, False))
        self.tombs[token] = (now + TOMB_SECONDS * SECOND, broken or was_broken)
        self._forget_tombs(now)

    def _forget_tombs(self, now: int) -> None:
        """Forget tombstones that have ended, and the oldest if there are too many. They are in the
        order in which they end."""
        while self.tombs:
            oldest = next(iter(self.tombs))
            if self.tombs[oldest][0] > now and len(self.tombs) <= MOST_TOMBS:
                return
            del self.tombs[oldest]

    def forget(self, until: int) -> None:
        """Forget the holders whose leases had expired by then."""
        if self.holders:
            kind = self.kind
            self.fallen += [(h, kind, h.until, "") for h in self.holders if h.until <= until]
            self.holders[:] = [h for h in self.holders if h.until > until]

    def prune(self, now: int) -> bool:
        """Forget tombstones and abandoned holders whose time is over. True: nothing is left."""
        self._forget_tombs(now)
        self.forget(now - GRACE_SECONDS * SECOND)
        return not (self.holders or self.queue or self.tombs)

    def sweep(self, now: int) -> bool:
        """Prune, and forget dead waiters as well: for a name that nobody asks for any more."""
        self.queue = [waiter for waiter in self.queue if waiter.alive > now]
        return self.prune(now)
