"""The last words of a lease that was not released: who held it, until when, and who broke it.

They are kept for a day, for at most a thousand names. Each name has a slot, so a name that is lost
again and again does not push out the others. A repair of the name's record is kept, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from lockkit.engine.state import GRACE_SECONDS, SECOND, Holder, State
from lockkit.model.types import Kind, LockInfo, LockState, Owner, Waiting

DAY = 24 * 3600 * SECOND
SLOTS = 1000

QUEUE_SHOWN = 16
"""The most waiters of a queue that are shown."""


class Words(NamedTuple):
    """The last words of one lease. Times are the store's clock in microseconds."""

    name: str
    at: int  #: when the lease ended
    by: str  #: the operator who broke or repaired it; empty: it expired
    kind: Kind
    holder: Holder


def slot_of(name: str) -> int:
    return zlib.crc32(name.encode(errors="surrogateescape")) % SLOTS


def last_words(name: str, state: State) -> list[Words]:
    """The words of the holders that the last step found to have ended without a release. They are
    taken out of the state, so that each is returned once. Leases that an operator broke come last,
    because a store keeps only the latest words of each name."""
    fallen, state.fallen = state.fallen, []
    return [
        Words(name, at, by, kind, holder)
        for holder, kind, at, by in sorted(fallen, key=lambda each: bool(each[3]))
    ]


def words_of_repair(name: str, now: int, by: str) -> Words:
    return Words(name, now, by, Kind.MUTEX, Holder("", "", 0, now, now, now, 0, None))


def words_info(words: Words, now: int) -> LockInfo | None:
    """The words, for people; None if they are older than a day."""
    if words.at + DAY <= now:
        return None
    if words.holder.fence:
        info = _info(words.name, words.holder, now, words.kind)
    else:  # a repair, so that nothing is known of a holder
        info = LockInfo(words.name, LockState.LOST)
    left = (words.at - now) / SECOND
    return info._replace(state=LockState.LOST, left=left, broken_by=words.by)


def infos_of(name: str, state: State, now: int) -> Iterator[LockInfo]:
    """The state of a name, for people: a row for each holder, or one if there are only waiters.

    ``now`` is the store's clock in microseconds.
    """
    queue = tuple(
        Waiting(Owner.decode(w.owner), (now - w.enqueued) / SECOND, w.alive > now)
        for w in state.queue[:QUEUE_SHOWN]
    )
    waiting: dict[str, Any] = {
        "waiters": len(state.queue),
        "waiters_alive": sum(waiter.alive > now for waiter in state.queue),
        "queue": queue,
    }
    if queue and not state.holders:
        info = LockInfo(name, LockState.QUEUED, kind=state.kind, permits=state.permits)
        yield info._replace(**waiting)
    oldest = now - GRACE_SECONDS * SECOND
    for holder in state.holders:
        if holder.until <= oldest:  # expired long ago: only its last words are shown
            continue
        info = _info(name, holder, now, state.kind)
        yield info._replace(**waiting)


def _info(name: str, holder: Holder, now: int, kind: Kind) -> LockInfo:
    return LockInfo(
        name=name,
        state=LockState.HELD if holder.until > now else LockState.ABANDONED,
        owner=Owner.decode(holder.owner),
        fence=holder.fence,
        age=(now - holder.granted) / SECOND,
        left=(holder.until - now) / SECOND,
        renewed=(now - holder.renewed) / SECOND,
        ttl=holder.ttl / SECOND,
        max_hold=None if holder.max_hold is None else holder.max_hold / SECOND,
        kind=kind,
        permits=holder.permits,
        shared=holder.shared,
    )
