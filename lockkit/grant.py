"""The grant rule: who gets a name, as pure functions over its state.

Memory and SQL call these functions; the Lua scripts of the Redis backend mirror them. Each takes
the state of one name, changes it in place, and says what to answer and whom to tell. ``now`` is
the store's clock in microseconds; nothing here reads a clock.

The rule: a claim is granted iff no live holder is in its way and no live waiter is ahead of it.
Whoever finds the name free while somebody waits grants the head of the queue, so that a name is
handed on in the order of enqueueing (direct handoff), whoever looks first.

Guarantee and limit: two tokens are never live holders of one name at the same store time. What a
holder does after its lease has expired is not the store's to prevent: see fencing tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lockkit.types import Busy, Gone, Grant, Mode, Release, Renewal, Request, alive_for

__all__ = [
    "Holder",
    "Outcome",
    "State",
    "Waiter",
    "acquire",
    "break_",
    "extend",
    "release",
    "withdraw",
]

T = TypeVar("T")

SECOND = 1_000_000
TOMB_SECONDS = 600
"""How long a withdrawn token stays refused: longer than a request can linger in a network."""

GRACE_SECONDS = 600
"""How long an abandoned claim is kept, so that ``locks`` can report it."""


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
    extended: int = 0  #: the number of the extension that was done last


@dataclass(slots=True)
class Waiter:
    """A claim in the queue. It counts until ``alive`` has passed."""

    token: str
    owner: str
    ticket: int
    enqueued: int
    alive: int
    ttl: int
    max_hold: int | None


@dataclass(slots=True)
class State:
    """All that a store keeps of one name."""

    fence: int = 0
    holders: list[Holder] = field(default_factory=list)
    queue: list[Waiter] = field(default_factory=list)
    tombs: dict[str, tuple[int, bool]] = field(default_factory=dict)  #: token: (until, broken)

    def live(self, now: int) -> Holder | None:
        return next((h for h in self.holders if h.until > now), None)

    def number(self, now: int) -> int:
        """The next fencing token or ticket: grows strictly, and by the clock outlives data loss."""
        self.fence = max(self.fence + 1, now)
        return self.fence

    def prune(self, now: int) -> bool:
        """Forget tombs and abandoned holders that are past their time; whether nothing is left."""
        if self.tombs:
            self.tombs = {t: v for t, v in self.tombs.items() if v[0] > now}
        if self.holders and self.holders[0].until + GRACE_SECONDS * SECOND <= now:
            self.holders.clear()
        return not (self.holders or self.queue or self.tombs)

    def sweep(self, now: int) -> bool:
        """Forget the dead in the queue as well: for a name that nobody asks for any more."""
        self.queue = [waiter for waiter in self.queue if waiter.alive > now]
        return self.prune(now)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The answer; whether the state changed; and the grants to hand to waiters, in order."""

    reply: T
    changed: bool = False
    handoffs: tuple[Grant, ...] = ()


def acquire(state: State, request: Request, now: int) -> Outcome[Grant | Busy | Gone]:
    """One attempt. Asked again with the same token it gives the same grant, with what is left."""
    if state.tombs.get(request.token, (0, False))[0] > now:
        return Outcome(Gone())
    mine = _holding(state, request.token)
    if mine is not None:
        return Outcome(_grant(mine, now) if mine.until > now else Gone())
    waiting = _waiting(state, request.token)
    if waiting is None and request.mode is Mode.POLL:
        return Outcome(Gone())
    refreshed = waiting is not None and _refresh(waiting, now)
    handoffs = _advance(state, now, asker=request.token)
    mine = _holding(state, request.token)
    if mine is None and waiting is None and state.live(now) is None:
        mine = _hold(state, request, now)
    if mine is not None:
        return Outcome(_grant(mine, now), True, handoffs)
    if waiting is None and request.mode is Mode.ENQUEUE:
        return _join(state, request, now, handoffs)
    return Outcome(_busy(state, request.token, now), refreshed or bool(handoffs), handoffs)


def _join(
    state: State, request: Request, now: int, handoffs: tuple[Grant, ...]
) -> Outcome[Grant | Busy | Gone]:
    """Join the queue, unless max_queue are alive in it. The dead leave it here at the latest."""
    state.queue = [w for w in state.queue if w.alive > now]
    if request.max_queue is not None and len(state.queue) >= request.max_queue:
        busy = _busy(state, request.token, now)._replace(full=True)
        return Outcome(busy, bool(handoffs), handoffs)
    state.queue.append(_waiter(state, request, now))
    return Outcome(_busy(state, request.token, now), True, handoffs)


def release(state: State, request: Request, now: int) -> Outcome[Release]:
    """Give back a claim, and grant the head of the queue."""
    until, broken = state.tombs.get(request.token, (0, False))
    if broken and until > now:
        return Outcome(Release.BROKEN)
    mine = _holding(state, request.token)
    if mine is not None:
        state.holders.remove(mine)
    if request.unsure:
        _bury(state, request.token, now)
    reply = Release.RELEASED if mine is not None and mine.until > now else Release.ABSENT
    changed = mine is not None or request.unsure
    return Outcome(reply, changed, _advance(state, now) if mine is not None else ())


def withdraw(state: State, request: Request, now: int) -> Outcome[None]:
    """Leave the queue, or give back a grant that raced the decision to leave.

    Whoever finds nothing leaves a tombstone, so that a request still under way cannot succeed
    when it arrives later.
    """
    waiting = _waiting(state, request.token)
    if waiting is not None:
        state.queue.remove(waiting)
    mine = _holding(state, request.token)
    if mine is not None:
        state.holders.remove(mine)
    if request.unsure or (waiting is None and mine is None):
        _bury(state, request.token, now)
    return Outcome(None, True, _advance(state, now) if mine is not None else ())


def extend(state: State, request: Request, now: int) -> Outcome[Renewal]:
    """Set what is left to the request's ttl. What has expired stays lost, also when still free.

    One that was held up on its way while a later one was done changes nothing: its holder relies
    on the later one. It is told what is left.
    """
    mine = _holding(state, request.token)
    if mine is None or mine.until <= now:
        return Outcome(Renewal(None))
    if request.number < mine.extended:
        return Outcome(Renewal((mine.until - now) / SECOND))
    mine.extended = request.number
    mine.renewed = now
    mine.until = now + _us(request.ttl)
    return Outcome(Renewal(request.ttl), True)


def break_(state: State, fence: int, now: int) -> Outcome[bool]:
    """An operator's release of exactly the holder that was displayed."""
    holder = next((h for h in state.holders if h.fence == fence), None)
    if holder is None:
        return Outcome(False)
    state.holders.remove(holder)
    _bury(state, holder.token, now, broken=True)
    return Outcome(True, True, _advance(state, now))


def _advance(state: State, now: int, asker: str = "") -> tuple[Grant, ...]:
    """If the name is free, grant the first waiter that is alive; forget the dead ones before it.

    The asker is alive and reads our reply, so it gets its whole ttl. Anybody else gets only what
    remains of its own sign of life: if the message does not reach it, the others soon go on.
    """
    if state.live(now) is not None:
        return ()
    while state.queue:
        head = state.queue.pop(0)
        if head.token == asker:
            _install(state, head, now + head.ttl, now)
            return ()
        if head.alive > now:
            holder = _install(state, head, min(now + head.ttl, head.alive), now)
            return (_grant(holder, now),)
    return ()


def _install(state: State, waiter: Waiter, until: int, now: int) -> Holder:
    holder = Holder(
        waiter.token, waiter.owner, state.number(now), now, now, until, waiter.ttl, waiter.max_hold
    )
    state.holders[:] = [holder]
    return holder


def _hold(state: State, request: Request, now: int) -> Holder:
    ttl, fence = _us(request.ttl), state.number(now)
    holder = Holder(
        request.token, request.owner, fence, now, now, now + ttl, ttl, _max_hold(request)
    )
    state.holders[:] = [holder]
    return holder


def _waiter(state: State, request: Request, now: int) -> Waiter:
    return Waiter(
        request.token,
        request.owner,
        state.number(now),
        now,
        now + _us(alive_for(request.ttl)),
        _us(request.ttl),
        _max_hold(request),
    )


def _refresh(waiter: Waiter, now: int) -> bool:
    """Renew its sign of life once half of it is used, so that most polls write nothing."""
    span = _us(alive_for(waiter.ttl / SECOND))
    if waiter.alive - now > span // 2:
        return False
    waiter.alive = now + span
    return True


def _busy(state: State, token: str, now: int) -> Busy:
    holder = state.live(now)
    index = next((i for i, w in enumerate(state.queue) if w.token == token), None)
    return Busy(
        ticket=0 if index is None else state.queue[index].ticket,
        ahead=len(state.queue) if index is None else index,
        left=None if holder is None else (holder.until - now) / SECOND,
        holder="" if holder is None else holder.owner,
        age=None if holder is None else (now - holder.granted) / SECOND,
    )


def _bury(state: State, token: str, now: int, *, broken: bool = False) -> None:
    """Who was broken stays so, also when it withdraws afterwards."""
    state.tombs = {t: v for t, v in state.tombs.items() if v[0] > now}
    broken = broken or state.tombs.get(token, (0, False))[1]
    state.tombs[token] = (now + TOMB_SECONDS * SECOND, broken)


def _holding(state: State, token: str) -> Holder | None:
    return next((h for h in state.holders if h.token == token), None)


def _waiting(state: State, token: str) -> Waiter | None:
    return next((w for w in state.queue if w.token == token), None)


def _grant(holder: Holder, now: int) -> Grant:
    return Grant(holder.token, holder.fence, (holder.until - now) / SECOND)


def _max_hold(request: Request) -> int | None:
    return None if request.max_hold is None else _us(request.max_hold)


def _us(seconds: float) -> int:
    return round(seconds * SECOND)
