"""The grant rule as the SQL stores apply it, and how often a waiter asks for it."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence

from lockkit.engine import grant
from lockkit.engine.state import Waiter
from lockkit.model.types import Busy, Gone, Grant, Owner, Renewal, Request
from lockkit.runtime import process
from lockkit.stores.sql.codec import token_digest

POLL_LEAST = 0.0005
POLL_STEP = 0.005
POLL_LONG = 0.05
POLL_MOST = 0.1
"""Seconds: see ``pause``. A waiter must ask twice in the time for which it counts as alive: see
``alive_for``. POLL_MOST is far below half of the shortest such time."""


def stored(request: Request) -> Request:
    """The request with the digest of its token, as the table has no tokens."""
    return request._replace(token=token_digest(request.token))


def taken_over(
    state: grant.State, request: Request, now: int
) -> grant.Outcome[Grant | Busy | Gone]:
    """First expire the claims of dead processes: all leases, and the waiters at the head of the
    queue. Then acquire. Each process is looked at once, however many claims it has."""
    look = functools.cache(process.is_dead)

    def is_dead(owner: str) -> bool:
        return look(Owner.decode(owner)._replace(thread="", label=""))

    for holder in state.holders:
        if holder.until > now and is_dead(holder.owner):
            holder.until = now
    for waiter in state.queue:
        if waiter.alive > now:
            if not is_dead(waiter.owner):
                break
            waiter.alive = now
    return grant.acquire(state, request, now)


def extended(
    requests: Sequence[Request], state: grant.State, now: int
) -> grant.Outcome[list[Renewal]]:
    """Extend all claims on one name at once: one by one, each would write the whole state."""
    outcomes = [grant.extend(state, request, now) for request in requests]
    return grant.Outcome([o.reply for o in outcomes], any(o.changed for o in outcomes))


def messages(handoffs: Sequence[Grant], waiters: Mapping[str, Waiter], now: int) -> dict[str, str]:
    """The messages for new holders, each with its channel. A message has the token's digest, the
    ticket that is granted, the fence, and when the grant expires by the database's clock."""
    return {
        f"{g.token} {w.ticket} {g.fence} {now + round(g.left * grant.SECOND)}": w.channel
        for g in handoffs
        if (w := waiters.get(g.token)) is not None
    }


def pause(seconds: float, busy: Busy) -> float:
    """Seconds that a waiter sleeps, if no message may come. The head of the queue sleeps shortest.

    They are a twentieth of the time for which the name has been held, within bounds. So a wait is
    at most that much longer than necessary, and a long wait costs few requests.
    """
    step = POLL_STEP if busy.age is None else min(max(busy.age / 20, POLL_LEAST), POLL_LONG)
    return min(seconds, min(step * (1 + busy.ahead), POLL_MOST) * random.uniform(0.5, 1.0))
