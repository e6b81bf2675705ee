"""The grant rule: who gets a name, as pure functions over its state.

The memory and SQL stores call these functions; the Lua scripts of the Redis store mirror them.
Each takes the state of one name, changes it in place, and returns the answer and the waiters to
tell. ``now`` is the store's clock in microseconds; nothing here reads a clock.

The rule: a claim is exclusive, or it shares the name with others up to a limit. It is granted if no
live holder is in its way and no live waiter is ahead of it. It is also granted at once if its owner
already holds an equal or stronger claim, because otherwise the owner would wait for itself. A claim
that is not fair may overtake the waiters. A step that finds room while claims wait grants the head
of the queue. So a name is handed on in the order of enqueueing (direct handoff), whoever asks next.

Guarantee: at every moment of the store's clock, nobody else holds a name on which an owner has an
exclusive claim, and a shared name has no more holders than allowed. Limit: the store cannot stop a
holder that goes on working after its lease has expired. Fencing tokens protect against that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from lockkit.engine.state import SECOND, Holder, State, Waiter
from lockkit.engine.times import alive_for
from lockkit.model.errors import OTHER_KIND, WRITE_FIRST, KindMismatch, UpgradeRefused
from lockkit.model.types import Busy, Gone, Grant, Kind, Mode, Release, Renewal, Request

__all__ = [  # the rule, and the data on which it works
    "SECOND", "Holder", "Outcome", "State", "Waiter",
    "acquire", "break_", "extend", "release", "withdraw",
]  # fmt: skip

T = TypeVar("T")

PASS_MOST = 256
"""The most waiters that one step grants or removes as dead. The next step goes on from there."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The answer; whether the state changed and must be saved; and the grants of which waiters must
    be told, in order."""

    reply: T
    changed: bool = False
    handoffs: tuple[Grant, ...] = ()


def acquire(state: State, request: Request, now: int) -> Outcome[Grant | Busy | Gone]:
    """One attempt. A token that was granted before gets the same grant again, with the time left.
    If that grant was handed over to it while it waited, it now gets its whole ttl. An exclusive
    claim becomes shared if its token now asks to share.

    Raises KindMismatch while the name is in use as another kind, and UpgradeRefused.
    """
    if state.tombs.get(request.token, (0, False))[0] > now:
        return Outcome(Gone())
    if not (state.holders or state.queue or request.mode is Mode.POLL):  # the usual case
        state.kind = request.kind
        return Outcome(_grant(_hold(state, request, now), now), True)
    mine = state.holding(request.token)
    if mine is not None:
        return _once_more(state, mine, request, now)
    waiting = state.waiting(request.token)
    if waiting is None and request.mode is Mode.POLL:
        return Outcome(Gone())
    return _ask(state, request, waiting, now)


def _ask(
    state: State, request: Request, waiting: Waiter | None, now: int
) -> Outcome[Grant | Busy | Gone]:
    """The answer for a name that somebody holds, held or waits for."""
    _use_as(state, request, now)
    _refuse_upgrade(state, request, now)
    refreshed = waiting is not None and waiting.refresh(now)
    barges = not request.fair and state.has_room(request, now)
    mine = _hold(state, request, now) if barges else None
    handoffs = _advance(state, now, asker=request.token)
    mine = mine or state.holding(request.token)
    if mine is None:
        is_first = not state.waits(now) and state.waiting(request.token) is None
        if state.reenters(request, now) or (is_first and state.has_room(request, now)):
            mine = _hold(state, request, now)
    if mine is not None:
        return Outcome(_grant(mine, now), True, handoffs)
    if waiting is None and request.mode is Mode.ENQUEUE:
        return _join(state, request, now, handoffs)
    return Outcome(_busy(state, request.token, now), refreshed or bool(handoffs), handoffs)


def _once_more(
    state: State, mine: Holder, request: Request, now: int
) -> Outcome[Grant | Busy | Gone]:
    if not mine.is_ours(now):
        return Outcome(Gone())
    changed = mine.is_handed
    if changed:  # it asks again, so its holder is alive
        mine.renewed, mine.until = now, now + mine.ttl
    if mine.shared or not request.shared:
        return Outcome(_grant(mine, now), changed)
    mine.shared = True  # from now on, waiters may share the name
    return Outcome(_grant(mine, now), True, _advance(state, now))


def _refuse_upgrade(state: State, request: Request, now: int) -> None:
    """Two readers that both wait to write would wait for each other."""
    own = state.held_by(request.entrant, now)
    if own and not request.shared and all(holder.shared for holder in own):
        text = f"a reader of {request.name!r} asked to write it: {WRITE_FIRST}"
        raise UpgradeRefused(text, name=request.name)


def _use_as(state: State, request: Request, now: int) -> None:
    """Give the name the kind that is asked for. Raises KindMismatch if it is in use as another."""
    if state.kind is request.kind:
        return
    if state.live(now) is not None or state.waits(now):
        used_as = state.kind.described(state.permits)
        text = f"{request.name!r} is in use as {used_as}: {OTHER_KIND}"
        raise KindMismatch(text, name=request.name)
    state.forget(now)
    state.kind = request.kind
    state.queue.clear()


def _join(
    state: State, request: Request, now: int, handoffs: tuple[Grant, ...]
) -> Outcome[Grant | Busy | Gone]:
    """Join the queue, unless it has max_queue live waiters. Dead ones are removed before that."""
    state.queue = [w for w in state.queue if w.alive > now]
    if request.max_queue is not None and len(state.queue) >= request.max_queue:
        busy = _busy(state, request.token, now)._replace(full=True)
        return Outcome(busy, bool(handoffs), handoffs)
    state.queue.append(_waiter(request, state.number(now), now))
    return Outcome(_busy(state, request.token, now), True, handoffs)


def release(state: State, request: Request, now: int) -> Outcome[Release]:
    """Give back a claim, and grant the head of the queue."""
    if request.queued:
        return withdraw(state, request, now)
    until, broken = state.tombs.get(request.token, (0, False))
    if broken and until > now:
        return Outcome(Release.BROKEN)
    mine = state.holding(request.token)
    if mine is not None:
        state.holders.remove(mine)
    if request.unsure:
        state.bury(request.token, now)
    reply = Release.RELEASED if mine is not None and mine.is_ours(now) else Release.ABSENT
    changed = mine is not None or request.unsure
    return Outcome(reply, changed, _advance(state, now) if mine is not None else ())


def withdraw(state: State, request: Request, now: int) -> Outcome[Release]:
    """Leave the queue, or give back a claim that was granted just before the withdrawal arrived.

    If the token has neither, or the request is ``unsure``, this leaves a tombstone, so that a
    request of the token that is still under way cannot succeed when it arrives later.
    """
    waiting = state.waiting(request.token)
    if waiting is not None:
        state.queue.remove(waiting)
    mine = state.holding(request.token)
    if mine is not None:
        state.holders.remove(mine)
    if request.unsure or (waiting is None and mine is None):
        state.bury(request.token, now)
    was_in_the_way = mine is not None or state.kind is not Kind.MUTEX
    handoffs = _advance(state, now) if was_in_the_way else ()
    return Outcome(Release.ABSENT, True, handoffs)


def extend(state: State, request: Request, now: int) -> Outcome[Renewal]:
    """Set the time left to the request's ttl. An expired lease stays lost, even if the name is
    free. Exception: the claim was handed over, and this is the first request of its holder since.

    An extension that arrives after a later one changes nothing, because the holder relies on the
    later one. The answer is the time left.
    """
    mine = state.holding(request.token)
    if mine is None or not mine.is_ours(now):
        return Outcome(Renewal(None))
    if request.number < mine.extended:
        return Outcome(Renewal((mine.until - now) / SECOND))
    mine.extended = request.number
    mine.renewed = now
    mine.until = now + _us(request.ttl)
    return Outcome(Renewal(request.ttl), True)


def break_(state: State, fence: int, now: int, by: str = "") -> Outcome[bool]:
    """An operator releases the grant with this fence, and no other. If its owner has re-entered the
    name, all its tokens are released. False: there is no such grant any more."""
    broken = [holder for holder in state.holders if holder.fence == fence]
    if not broken:
        return Outcome(False)
    for holder in broken:
        state.holders.remove(holder)
        state.fallen.append((holder, state.kind, now, by))
        state.bury(holder.token, now, broken=True)
    return Outcome(True, True, _advance(state, now))


def _advance(state: State, now: int, asker: str = "") -> tuple[Grant, ...]:
    """While there is room, grant the first waiter that is alive; forget the dead ones before it.

    The asker is alive and reads our reply, so it gets its whole ttl. Any other waiter gets only the
    time for which it still counts as alive. If the message does not reach it, its turn soon ends.
    """
    handoffs: list[Grant] = []
    for _ in range(PASS_MOST):
        if not state.queue or (state.kind is Kind.MUTEX and state.live(now) is not None):
            break
        head = state.queue[0]
        is_asker = head.token == asker
        if (is_asker or head.alive > now) and not state.has_room(head, now):
            break
        del state.queue[0]
        if is_asker:
            _install(state, head, now + head.ttl, now)
        elif head.alive > now:
            holder = _install(state, head, min(now + head.ttl, head.alive), now)
            handoffs.append(_grant(holder, now))
    return tuple(handoffs)


def _install(state: State, waiter: Waiter, until: int, now: int) -> Holder:
    """Add a holder. All exclusive claims of one owner have the same fence: a resource that refuses
    smaller fences must accept the writes of each."""
    held = waiter.entrant and [h.fence for h in state.held_by(waiter.entrant, now) if not h.shared]
    holder = Holder(
        waiter.token,
        waiter.owner,
        held[0] if held and not waiter.shared else state.number(now),
        now,
        now,
        until,
        waiter.ttl,
        waiter.max_hold,
        shared=waiter.shared,
        entrant=waiter.entrant,
        permits=waiter.permits,
    )
    state.forget(now)  # expired holders: the name is in use again
    state.holders.append(holder)
    return holder


def _hold(state: State, request: Request, now: int) -> Holder:
    """Grant at once. A claim that waited in the queue, such as one that re-enters, leaves it."""
    if state.queue:
        state.queue = [waiter for waiter in state.queue if waiter.token != request.token]
    waiter = _waiter(request, 0, now)
    return _install(state, waiter, now + waiter.ttl, now)


def _waiter(request: Request, ticket: int, now: int) -> Waiter:
    return Waiter(
        request.token,
        request.owner,
        ticket,
        now,
        now + _us(alive_for(request.ttl)),
        _us(request.ttl),
        None if request.max_hold is None else _us(request.max_hold),
        request.shared,
        request.entrant,
        request.permits,
    )


def _busy(state: State, token: str, now: int) -> Busy:
    """``left`` is the time until the next holder expires: then it is worth asking again."""
    holder = state.live(now)
    index = next((i for i, w in enumerate(state.queue) if w.token == token), None)
    until = min((h.until for h in state.holders if h.until > now), default=now)
    return Busy(
        ticket=0 if index is None else state.queue[index].ticket,
        ahead=len(state.queue) if index is None else index,
        left=(until - now) / SECOND,
        holder="" if holder is None else holder.owner,
        age=None if holder is None else (now - holder.granted) / SECOND,
    )


def _grant(holder: Holder, now: int) -> Grant:
    return Grant(holder.token, holder.fence, (holder.until - now) / SECOND)


def _us(seconds: float) -> int:
    return round(seconds * SECOND)
