"""Flows of what is held: given back, extended, downgraded, renewed. See ``flow``."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from lockkit.engine.steps import (
    Abandon,
    Attempt,
    Extend,
    Free,
    Reply,
    Step,
    Why,
    Withdraw,
    broke_off,
)
from lockkit.model.errors import BackendError
from lockkit.model.log import log
from lockkit.model.types import Grant, LockInfo, Mode, Release, Renewal, Request

if TYPE_CHECKING:
    from lockkit.runtime.hold import Hold

__all__ = ["downgrade", "extend", "release", "renew", "unless_interrupted"]

HEARD = 16
"""Of so many losses in one pass the store is asked how they came about."""


def unless_interrupted(step: Withdraw | Free) -> Generator[Step, Reply, Reply]:
    """A step that gives something back. Interrupted in it, the watchdog does so."""
    try:
        return (yield step)
    except GeneratorExit:
        raise
    except BaseException:  # interrupted once more, by an impatient user
        yield Abandon(step.request)
        raise


def release(hold: Hold) -> Generator[Step, Reply, bool]:
    """Release; True if it was still ours.

    A release sent before the deadline whose reply was lost, and which now finds nothing, was
    applied the first time. What cannot be said to the store now the watchdog says later.
    """
    ours = not hold.dead
    first = reply = yield from unless_interrupted(Free(hold.request))
    in_time = ours and reply.sent < hold.deadline
    if broke_off(reply):
        reply = yield from unless_interrupted(Free(hold.request))
        if reply.value is Release.ABSENT and in_time:
            return True
    if in_time and reply.value in (Release.ABSENT, Release.BROKEN):
        yield from _hear(hold)
    if isinstance(reply.value, BackendError):
        yield Abandon(hold.request)
        raise first.value
    return bool(reply.value is Release.RELEASED and in_time)


def extend(hold: Hold, ttl: float, now: float) -> Generator[Step, Reply, None]:
    """Set what is left to ``ttl`` seconds. Raises LeaseLost or a BackendError."""
    requests = (hold.ask(ttl, now),)
    reply = yield from _repeated(Extend(requests))
    _apply(hold, requests[0], reply.value[0], reply)
    if (error := reply.value[0].error) is not None:
        error.about(hold.request.name)
        raise error
    if reply.value[0].left is None:
        yield from _hear(hold)
    _refuse_lost(hold, reply.now)


def _hear(hold: Hold) -> Generator[Step, Reply, None]:
    """Of the store, how it ended: of an operator, say."""
    words = (yield Why(hold.request.name, hold.fence)).value
    if not isinstance(words, LockInfo):
        hold.ended = "its store does not have it any more: it expired there, or the data were lost"
    elif words.broken_by:
        hold.ended = f"an operator released it: {words.broken_by}"
    else:
        hold.ended = f"it expired {max(0.0, -(words.left or 0.0)):.1f} s ago"


def _repeated(step: Extend | Attempt) -> Generator[Step, Reply, Reply]:
    """The reply; of a second try if the first had none, and soon. Raises a BackendError."""
    first = reply = yield step
    if broke_off(reply):
        reply = yield step
    if isinstance(reply.value, BackendError):
        raise first.value
    return reply


def _refuse_lost(hold: Hold, now: float) -> None:
    if hold.lost(now):
        raise hold.loss(now)


def downgrade(hold: Hold) -> Generator[Step, Reply, None]:
    """Share what was exclusive. Raises LeaseLost, or a BackendError: then it is done or not.

    It counts as shared from the moment it is asked for. The same token asked to share what it
    holds: a poll, which gets nothing that it has not.
    """
    hold.request = hold.request._replace(shared=True)
    reply = yield from _repeated(Attempt(hold.request._replace(mode=Mode.POLL)))
    if not isinstance(reply.value, Grant):
        hold.lose()
        yield from _hear(hold)
    _refuse_lost(hold, reply.now)


def renew(holds: Sequence[Hold], now: float) -> Generator[Step, Reply, None]:
    """One pass of the watchdog. An error is not a loss: it is tried again until the deadline."""
    requests = tuple(hold.ask(hold.request.ttl, now) for hold in holds)
    reply = yield Extend(requests)
    if isinstance(reply.value, BackendError):
        for hold in holds:
            hold.renewal_failed(reply.now)
        return
    unreadable = None
    for hold, request, renewal in zip(holds, requests, reply.value, strict=True):
        _apply(hold, request, renewal, reply)
        unreadable = unreadable or (renewal.error and (request.name, renewal.error))
    gone = (h for h, renewal in zip(holds, reply.value, strict=True) if renewal == Renewal(None))
    for hold in islice(gone, HEARD):
        yield from _hear(hold)
    if unreadable:
        log.warning("the lease on %r cannot be renewed: %s", *unreadable)


def _apply(hold: Hold, request: Request, renewal: Renewal, reply: Reply) -> None:
    if renewal.error is not None:
        hold.renewal_failed(reply.now)
    elif renewal.left is None:
        hold.lose()
    else:
        hold.renewed(request.number, reply.sent, renewal.left, reply.now)
