"""Steps for claims that are held: give back, extend, downgrade, renew. See ``flow``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from lockkit.engine.effects import Later, Made, Step
from lockkit.model import clock
from lockkit.model.errors import (
    BackendError,
    DamagedRecord,
    LayoutMismatch,
    LockError,
    MissingTable,
    OutcomeUnknown,
)
from lockkit.model.log import log
from lockkit.model.types import Grant, Mode, Release, Renewal, Request

if TYPE_CHECKING:
    from lockkit.runtime.hold import Hold
    from lockkit.stores.contract import Store

R = TypeVar("R")
Clock = Callable[[], float]

GONE = (
    "its store does not have it any more: it expired there, somebody else released it, or the data "
    "were lost"
)

AT_ONCE = 1000
"""The most leases in one call of ``store.renew``."""

HEARD = 16
"""The most losses of one such call for which the store is asked how the lease ended."""

RETRY_WITHIN = 0.5
"""Seconds: a request that failed faster than this broke off (the connection was stale, the server
restarted) and is tried once more at once; a slower one timed out, and the caller hears of it."""

UNTOLD = BackendError, LayoutMismatch, MissingTable
"""What a release raises if the store cannot be told now: it fails, or since the grant another
version of lockkit has written there, or its table was dropped."""


def broke_off(error: LockError, seconds: float) -> bool:
    """Whether the request may be tried again at once: its connection ended without a reply."""
    return isinstance(error, OutcomeUnknown) and seconds < RETRY_WITHIN


def give_back(
    store: Store, request: Request, made: Made | None = None, until: float = 0.0
) -> Step[Release]:
    """Release. If it is interrupted, the watchdog does it. ``made``: as in ``release``; ``until``:
    as in ``Later``."""
    try:
        found: Release | None = made.result() if made else None
        return (yield from store.release(request)) if found is None else found
    except (GeneratorExit, *UNTOLD):
        raise
    except BaseException:  # interrupted once more, by an impatient user
        yield Later(request, until)
        raise


def abandon(store: Store, request: Request) -> Step[None]:
    """Give back a claim that was granted but that nobody gets."""
    return withdraw(store, request._replace(unsure=True))


def withdraw(store: Store, request: Request) -> Step[None]:
    """Give back a claim, or its place in the queue. A store that fails now is told later."""
    leaving = request._replace(queued=True)
    try:
        yield from give_back(store, leaving)
    except UNTOLD:
        yield Later(leaving)


def release(
    store: Store, hold: Hold, now: Clock = clock.now, made: Made | None = None
) -> Step[bool]:
    """Release; True if it was still ours. If a claim was handed over and never extended, the store
    decides that. ``made``: the request, if it was already made, before the lease was over.

    A release was applied the first time if it was sent before the deadline, its reply was lost, and
    it now finds nothing. If the store cannot be told now, the watchdog tells it later.
    """
    request = hold.request
    sent = now() if made is None else made.sent
    ours = made is not None or not hold.is_over(sent)  # or may be
    in_time = ours and sent < hold.deadline

    def ask() -> Step[Release]:
        return give_back(store, request, made, hold.latest)

    try:
        found, again = yield from _answer(ask, hold, now, sent)
    except UNTOLD:
        yield Later(request, hold.latest)
        raise
    if in_time and again and found is Release.ABSENT:
        return True
    if ours and found is not Release.RELEASED:
        yield from _hear(store, hold)
    return ours and found is Release.RELEASED


def release_all(store: Store, holds: Sequence[Hold], until: float = math.inf) -> Step[None]:
    """Release at exit, until that moment. If the store does not answer one request, it will not
    answer the next: the rest expire. A record that cannot be read says nothing about the others."""
    for hold in holds:
        if clock.now() > until:
            return
        try:
            yield from release(store, hold)
        except UNTOLD as error:
            log.warning("release of %r not confirmed: %s", hold.name, error)
            if not isinstance(error, DamagedRecord | LayoutMismatch):
                return


def _answer(
    ask: Callable[[], Step[R]], hold: Hold, now: Clock, sent: float
) -> Step[tuple[R, float | None]]:
    """What the store says. If the request broke off, the store is asked once more, and this returns
    the moment as well. If that fails, too, the first error counts.
    """
    try:
        return (yield from ask()), None
    except UNTOLD as error:
        error.about(hold.name)
        if not broke_off(error, now() - sent):
            raise
        again = now()
        try:
            return (yield from ask()), again
        except UNTOLD:
            raise error from error.__cause__


def extend(store: Store, hold: Hold, ttl: float, now: Clock = clock.now) -> Step[None]:
    """Set what is left to ``ttl`` seconds. Raises LeaseLost or a BackendError."""
    request = hold.ask(ttl, now())
    sent = now()
    (renewal,), again = yield from _answer(lambda: store.extend((request,)), hold, now, sent)
    moment = now()
    _apply(hold, request, renewal, again or sent, moment)
    if (unreadable := renewal.error) is not None:
        unreadable.about(hold.name)
        raise unreadable
    if renewal.left is None:
        yield from _hear(store, hold)
    _refuse_lost(hold, moment)


def _hear(store: Store, hold: Hold) -> Step[bool]:
    """Ask the store how the lease ended: an operator may have released it. Some stores do not know.
    False: the store does not answer."""
    hold.dead = GONE
    try:
        words = yield from store.ended(hold.name, hold.fence)
    except UNTOLD as error:
        return isinstance(error, DamagedRecord | LayoutMismatch)
    if words is not None and words.broken_by:
        hold.dead = f"an operator released it: {words.broken_by}"
    elif words is not None:
        hold.dead = f"it expired {max(0.0, -(words.left or 0.0)):.1f} s ago"
    return True


def _refuse_lost(hold: Hold, now: float) -> None:
    if hold.lost(now):
        raise hold.loss(now)


def downgrade(store: Store, hold: Hold, now: Clock = clock.now) -> Step[None]:
    """Share an exclusive claim. Raises LeaseLost, or a BackendError: then it may be done or not.

    It counts as shared from the moment it is asked for. The request is a poll with the same token,
    which cannot be granted anything new.
    """
    hold.request = hold.request._replace(shared=True)
    poll = hold.request._replace(mode=Mode.POLL)
    found, _ = yield from _answer(lambda: store.acquire(poll), hold, now, now())
    if not isinstance(found, Grant):
        hold.lose()
        yield from _hear(store, hold)
    _refuse_lost(hold, now())


def renew(store: Store, holds: Sequence[Hold], now: Clock = clock.now) -> Step[None]:
    """One pass of the watchdog, AT_ONCE holds at a time, which bounds the memory that it takes.

    An error is not a loss: it is tried again until the deadline.
    """
    for start in range(0, len(holds), AT_ONCE):
        try:
            yield from _renew(store, holds[start : start + AT_ONCE], now)
        except UNTOLD:
            moment = now()
            for hold in holds[start:]:
                hold.renewal_failed(moment)
            return


def _renew(store: Store, holds: Sequence[Hold], now: Clock) -> Step[None]:
    sent = now()
    requests = [holds[0].ask(holds[0].wanted(sent), sent)]
    requests += [hold.ask(hold.wanted(sent), sent, requests[0].number) for hold in holds[1:]]
    sent = now()
    renewals = yield from store.renew(requests)
    moment = now()
    unreadable = None
    for hold, request, renewal in zip(holds, requests, renewals, strict=True):
        _apply(hold, request, renewal, sent, moment)
        unreadable = unreadable or (renewal.error and (request.name, renewal.error))
    gone = (h for h, renewal in zip(holds, renewals, strict=True) if renewal == Renewal(None))
    for hold in islice(gone, HEARD):
        if not (yield from _hear(store, hold)):
            break
    if unreadable:
        log.warning("the lease on %r cannot be renewed: %s", *unreadable)


def _apply(hold: Hold, request: Request, renewal: Renewal, sent: float, now: float) -> None:
    if renewal.error is not None:
        hold.renewal_failed(now)
    elif renewal.left is None:
        hold.lose(GONE)
    else:
        hold.renewed(request.number, sent, renewal.left, now)
