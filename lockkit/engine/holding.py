"""Steps for claims that are held: release, withdraw, extend, downgrade, renew. See ``effects``."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from lockkit.engine.effects import Later, Made, Step
from lockkit.model import clock
from lockkit.model.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
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
Silent = set[tuple[int, Hashable]]
"""Servers that did not answer one of several releases: each is the ``id`` of its store, and what
``server_of`` says."""

GONE = (
    "its store does not have it any more: it expired there, somebody else released it, or the data "
    "were lost"
)

AT_ONCE = 1000
"""The most leases in one call of ``store.renew``."""

MOST_ASKED = 16
"""If one such call finds more lost leases, the store is asked for only so many how they ended."""

RETRY_WITHIN = 0.5
"""Seconds. A request that fails faster broke off: its connection was stale, or the server has
restarted. It is tried once more at once. A slower one timed out, and its error is raised."""

UNTOLD = BackendError, LayoutMismatch, MissingTable
"""The errors of a release if the store cannot be told now: it fails; or, since the grant, another
version of lockkit has written there, or the table was dropped."""


def broke_off(error: LockError, seconds: float) -> bool:
    """Whether the request may be tried again at once: its connection ended without a reply."""
    return isinstance(error, OutcomeUnknown) and seconds < RETRY_WITHIN


def give_back(
    store: Store, request: Request, made: Made | None = None, until: float = 0.0
) -> Step[Release]:
    """Release a claim. If this is interrupted, the watchdog releases it. ``made``: see ``release``;
    ``until``: see ``Later``."""
    try:
        found: Release | None = made.result() if made else None
        return (yield from store.release(request)) if found is None else found
    except (GeneratorExit, *UNTOLD):
        raise
    except BaseException:  # interrupted, perhaps for the second time
        yield Later(request, until)
        raise


def abandon(store: Store, request: Request) -> Step[None]:
    """Give back a claim that was granted, but whose lease the caller does not get."""
    return withdraw(store, request._replace(unsure=True))


def withdraw(store: Store, request: Request) -> Step[None]:
    """Give back a claim, or its place in the queue: in the background if the store fails now."""
    leaving = request._replace(queued=True)
    try:
        yield from give_back(store, leaving)
    except UNTOLD:
        yield Later(leaving)


def release(
    store: Store,
    hold: Hold,
    now: Clock = clock.now,
    made: Made | None = None,
    silent: Silent | None = None,
) -> Step[bool]:
    """Release. True if the claim was still ours. If it was handed over and never extended, only the
    store knows that. ``made``: the exchange, if it was made already, before the lease was over.

    If a release before the deadline gets no reply, and the second try finds nothing, the first was
    applied: True. If the store cannot be told now, the watchdog tells it later, and this raises.
    ``silent``: servers that are not asked, because they would not answer; this may add one.
    """
    request = hold.request
    sent = now() if made is None else made.sent
    ours = made is not None or not hold.is_over(sent)  # or the store decides whether it is
    in_time = ours and sent < hold.deadline

    def ask() -> Step[Release]:
        if silent and _server(store, hold) in silent:
            raise BackendUnavailable("its server did not answer the last release")
        return give_back(store, request, made, hold.latest)

    try:
        found, again = yield from _answer(ask, hold, now, sent)
    except BaseException as error:  # also if interrupted
        if silent is not None and now() - sent >= RETRY_WITHIN:
            silent.add(_server(store, hold))
        if isinstance(error, UNTOLD):
            yield Later(request, hold.latest)
        raise
    if in_time and again and found is Release.ABSENT:
        return True
    if ours and found is not Release.RELEASED:
        yield from _ask_how_it_ended(store, hold)
    return ours and found is Release.RELEASED


def _server(store: Store, hold: Hold) -> tuple[int, Hashable]:
    return id(store), store.server_of(hold.name)


def release_all(
    store: Store,
    holds: Sequence[Hold],
    until: float = math.inf,
    withdrawals: Sequence[Request] = (),
) -> Step[None]:
    """Release and withdraw these at exit, and stop at the moment ``until``. If a server fails to
    answer one request, it would not answer the next: the rest are left to expire. A record that
    cannot be read says nothing about the others."""
    ends: list[tuple[str, Callable[[], Step[object]]]]
    ends = [(hold.name, partial(release, store, hold)) for hold in holds]
    ends += [(request.name, partial(store.withdraw, request)) for request in withdrawals]
    failed = set[Hashable]()
    for name, end in ends:
        if clock.now() > until:
            return
        if failed and store.server_of(name) in failed:
            continue
        try:
            yield from end()
        except UNTOLD as error:
            log.warning("release of %r not confirmed: %s", name, error)
            if not isinstance(error, DamagedRecord | LayoutMismatch):
                failed.add(store.server_of(name))


def _answer(
    ask: Callable[[], Step[R]], hold: Hold, now: Clock, sent: float
) -> Step[tuple[R, float | None]]:
    """The store's answer, and None. If the request broke off, the store is asked once more: then
    the moment of the second request takes the place of None. If that fails, too, the first error is
    raised.
    """
    try:
        return (yield from ask()), None
    except UNTOLD as error:
        error.about(hold.name)
        error.of_lease = True
        if not broke_off(error, now() - sent):
            raise
        again = now()
        try:
            return (yield from ask()), again
        except UNTOLD:
            raise error from error.__cause__


def extend(store: Store, hold: Hold, ttl: float, now: Clock = clock.now) -> Step[None]:
    """Set the time left to ``ttl`` seconds. Raises LeaseLost or a BackendError; ConfigurationError
    if the store allows no such ttl."""
    request = hold.ask(ttl, now())
    sent = now()
    try:
        (renewal,), again = yield from _answer(lambda: store.extend((request,)), hold, now, sent)
    except ConfigurationError:  # renewals would ask for it as well, and be refused
        hold.not_asked(request.number)
        raise
    moment = now()
    _apply(hold, request, renewal, again or sent, moment)
    if (unreadable := renewal.error) is not None:
        unreadable.about(hold.name)
        unreadable.of_lease = True
        raise unreadable
    if renewal.left is None:
        yield from _ask_how_it_ended(store, hold)
    _refuse_lost(hold, moment)


def _ask_how_it_ended(store: Store, hold: Hold) -> Step[bool]:
    """Ask the store how the lease ended, for the text of LeaseLost: an operator may have released
    it. Some stores do not know. False: the store does not answer."""
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
    """Make an exclusive claim shared. Raises LeaseLost, or a BackendError: then it is not known
    whether the store has done it.

    This process counts the claim as shared from before the request is sent. The request is a poll
    with the same token, because a poll cannot be granted anything new.
    """
    hold.request = hold.request._replace(shared=True)
    poll = hold.request._replace(mode=Mode.POLL)
    found, _ = yield from _answer(lambda: store.acquire(poll), hold, now, now())
    if not isinstance(found, Grant):
        yield from _ask_how_it_ended(store, hold)
    _refuse_lost(hold, now())


def renew(store: Store, holds: Sequence[Hold], now: Clock = clock.now) -> Step[None]:
    """Renew these holds, server by server, the one that failed before last: the others must not
    wait for it. AT_ONCE at a time, which bounds the memory that this takes.

    An error is not a loss: the watchdog tries again until the deadline.
    """
    of_server: dict[Hashable, list[Hold]] = {}
    for hold in sorted(holds, key=lambda hold: hold.failing_since is not None):
        of_server.setdefault(store.server_of(hold.name), []).append(hold)
    for its in of_server.values():
        for start in range(0, len(its), AT_ONCE):
            try:
                yield from _renew(store, its[start : start + AT_ONCE], now)
            except UNTOLD as error:
                _fail(its[start:], error, now())
                break


def _fail(holds: Sequence[Hold], error: LockError, moment: float) -> None:
    is_new = any(hold.failing_since is None for hold in holds)
    for hold in holds:
        hold.renewal_failed(moment, error)
    if is_new:  # else it has been said
        say = "renewals fail, and are tried until the leases expire (%d leases): %s"
        with suppress(Exception):  # of the application's filters: others are to be renewed
            log.warning(say, len(holds), error)


def _renew(store: Store, holds: Sequence[Hold], now: Clock) -> Step[None]:
    sent = now()
    requests = [holds[0].ask(holds[0].wanted(sent), sent)]
    requests += [hold.ask(hold.wanted(sent), sent, requests[0].number) for hold in holds[1:]]
    sent = now()
    try:
        renewals = yield from store.renew(requests)
    except UNTOLD as error:  # such as on a connection that was idle for too long
        if not broke_off(error, now() - sent):
            raise
        sent = now()
        renewals = yield from store.renew(requests)
    moment = now()
    unreadable = None
    for hold, request, renewal in zip(holds, requests, renewals, strict=True):
        _apply(hold, request, renewal, sent, moment)
        unreadable = unreadable or (renewal.error and (request.name, renewal.error))
    gone = (h for h, renewal in zip(holds, renewals, strict=True) if renewal == Renewal(None))
    for hold in islice(gone, MOST_ASKED):
        if not (yield from _ask_how_it_ended(store, hold)):
            break
    if unreadable:
        with suppress(Exception):  # of the application's filters: others are to be renewed
            log.warning("the lease on %r cannot be renewed: %s", *unreadable)


def _apply(hold: Hold, request: Request, renewal: Renewal, sent: float, now: float) -> None:
    if renewal.error is not None:
        hold.renewal_failed(now, renewal.error)
    elif renewal.left is None:
        hold.lose(GONE)
    else:
        hold.renewed(request.number, sent, renewal.left, now)
