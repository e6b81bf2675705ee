"""The grant rule as the SQL stores apply it."""

from __future__ import annotations

from lockkit.engine import grant
from lockkit.model.types import Busy, Gone, Grant, Mode, Owner, Renewal, Request
from lockkit.runtime import process
from lockkit.stores.sql.codec import token_digest


def stored(request: Request) -> Request:
    """The request with what the table knows of its token."""
    return request._replace(token=token_digest(request.token))


def acquired(state: grant.State, request: Request, now: int) -> grant.Outcome[Grant | Busy | Gone]:
    """The grant rule; but a grant that was handed to us while we slept is a short one, and whoever
    polls hears of it late: asking for it makes it whole, in the same step."""
    outcome = grant.acquire(state, request, now)
    reply = outcome.reply
    if request.mode is Mode.POLL and isinstance(reply, Grant) and reply.left < request.ttl:
        left = grant.extend(state, request, now).reply.left or reply.left
        return grant.Outcome(reply._replace(left=left), True)
    return outcome


def taken_over(
    state: grant.State, request: Request, now: int
) -> grant.Outcome[Grant | Busy | Gone]:
    """What the dead hold has expired, and they do not wait."""
    for holder in state.holders:
        if holder.until > now and process.is_dead(Owner.decode(holder.owner)):
            holder.until = now
    for waiter in state.queue:
        if waiter.alive > now and process.is_dead(Owner.decode(waiter.owner)):
            waiter.alive = now
    return acquired(state, request, now)


def extended(request: Request, state: grant.State, now: int) -> grant.Outcome[Renewal]:
    return grant.extend(state, request, now)
