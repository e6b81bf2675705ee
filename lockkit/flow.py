"""Waiting, retrying and deadlines, written once, as generators.

A flow yields a step (what to do next) and is sent a Reply (what came of it, and when). It has no
clock, thread, event loop or socket: ``client`` drives it with blocking calls and ``aio`` with
awaits, so the two cannot drift apart. An error of the store comes as a Reply; whatever else ends
a step (KeyboardInterrupt, SystemExit, CancelledError) is thrown in, and the flow cleans up and
lets it pass.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from lockkit.errors import (
    AcquireTimeout,
    BackendError,
    ConfigurationError,
    LeaseLost,
    LockHeld,
    OutcomeUnknown,
    TooManyWaiters,
    by,
)
from lockkit.hold import Hold
from lockkit.log import log
from lockkit.steps import (
    METHODS,
    Abandon,
    Attempt,
    Extend,
    Free,
    Granted,
    Reply,
    Step,
    Wait,
    Withdraw,
)
from lockkit.types import (
    Busy,
    Gone,
    Grant,
    Mode,
    Owner,
    Release,
    Renewal,
    Request,
    alive_for,
    drift,
)

__all__ = [
    "METHODS",
    "Abandon",
    "Attempt",
    "Extend",
    "Free",
    "Granted",
    "Reply",
    "Step",
    "Wait",
    "Withdraw",
    "acquire",
    "downgrade",
    "extend",
    "release",
    "renew",
]

RETRY_WITHIN = 0.5
"""Seconds: a request that failed faster than this broke off (the connection was stale, the server
restarted) and is tried once more at once; a slower one timed out, and the caller hears of it."""

TAKEOVER_STEP = 0.002
"""Seconds between the polls of waiters that all expect the holder to expire at the same moment."""


def acquire(
    request: Request, timeout: float | None, new_token: Callable[[], str]
) -> Generator[Step, Reply, Granted]:
    """Acquire within ``timeout`` seconds (None: for ever), or leave nothing behind.

    Raises LockHeld (timeout 0), AcquireTimeout, TooManyWaiters or a BackendError.
    """
    attempt = _Acquire(request, timeout, new_token)
    try:
        return (yield from attempt.run())
    except GeneratorExit:
        raise
    except (BackendError, ConfigurationError):
        if attempt.placed or attempt.request.unsure:
            yield Abandon(attempt.request)
        raise
    except AcquireTimeout:
        if attempt.placed or attempt.request.unsure:
            yield from _withdraw(attempt.request)
        raise
    except BaseException:  # interrupted or cancelled: a tombstone follows what is under way
        yield from _withdraw(attempt.request._replace(unsure=True))
        raise


class _Acquire:
    """One acquire under way: the loop, and what must be cleaned up if it ends early."""

    def __init__(
        self, request: Request, timeout: float | None, new_token: Callable[[], str]
    ) -> None:
        self.request = request
        self.timeout = timeout
        self.new_token = new_token
        self.placed = False  #: the store knows our token
        self.start = 0.0

    def run(self) -> Generator[Step, Reply, Granted]:
        reply = yield Attempt(self.request)
        self.start = reply.sent
        if isinstance(reply.value, BackendError):
            reply = yield from self._once_more(reply)
        while True:
            value = reply.value
            if isinstance(value, Grant):
                self.placed = True
                deadline = reply.sent + value.left - drift(value.left)
                if deadline > reply.now:
                    whole = value.left >= self.request.ttl
                    return Granted(self.request, value.fence, deadline, reply.now, whole)
                self._give_up_in_time(reply.now, Busy())  # the reply took longer than the lease
                reply = yield from self._attempt()
            elif isinstance(value, Gone):
                self._give_up_in_time(reply.now, Busy())
                if self.request.unsure:  # a copy of it may still be under way
                    yield from _withdraw(self.request)
                self._renew_token()
                reply = yield from self._attempt()
            else:
                reply = yield from self._wait(value, reply)

    def _wait(self, busy: Busy, reply: Reply) -> Generator[Step, Reply, Reply]:
        """Wait for a message or for the next moment at which asking makes sense, then ask.

        A grant by message counts from the last request whose reply said that the claim was not
        ours: the grant cannot be older than that.
        """
        self.placed = self.placed or busy.ticket > 0
        left = self._give_up_in_time(reply.now, busy)
        known = reply.sent
        self.request = self.request._replace(mode=Mode.POLL)
        message = yield Wait(self.request, self._pause(busy, left), busy)
        if isinstance(message.value, Grant):
            grant = message.value
            if known + grant.left - drift(grant.left) > message.now:
                return message._replace(sent=known)
        return (yield from self._attempt())

    def _pause(self, busy: Busy, left: float | None) -> float:
        pause = alive_for(self.request.ttl) / 2
        if busy.left is not None:
            pause = min(pause, busy.left + TAKEOVER_STEP * (1 + min(busy.ahead, 25)))
        return pause if left is None else min(pause, left)

    def _attempt(self) -> Generator[Step, Reply, Reply]:
        reply = yield Attempt(self.request)
        if isinstance(reply.value, BackendError):
            reply = yield from self._once_more(reply)
        return reply

    def _once_more(self, reply: Reply) -> Generator[Step, Reply, Reply]:
        """A request that broke off may have been applied: the same token gives the same answer.

        If that fails as well, the first error counts: the second cannot undo what it left open.
        """
        error: BackendError = reply.value
        if isinstance(error, OutcomeUnknown):
            self.request = self.request._replace(unsure=True)
            if reply.now - reply.sent < RETRY_WITHIN:
                reply = yield Attempt(self.request)
        if isinstance(reply.value, BackendError):
            raise error
        return reply

    def _renew_token(self) -> None:
        mode = Mode.TRY if self.timeout == 0 else Mode.ENQUEUE
        self.request = self.request._replace(token=self.new_token(), mode=mode, unsure=False)
        self.placed = False

    def _give_up_in_time(self, now: float, busy: Busy) -> float | None:
        """Seconds that may still be waited (None: for ever), or the error that ends it."""
        waited = now - self.start
        if busy.full:
            raise self._error(TooManyWaiters, "the queue for {name!r} is full", busy, waited)
        if self.timeout is None:
            return None
        if self.timeout == 0:
            raise self._error(LockHeld, "{name!r} is held{by}", busy, waited)
        if waited >= self.timeout:
            message = "{name!r} was not granted within {timeout:g} s; it is held{by}"
            raise self._error(AcquireTimeout, message, busy, waited)
        return self.timeout - waited

    def _error(
        self, kind: type[AcquireTimeout], message: str, busy: Busy, waited: float
    ) -> AcquireTimeout:
        holder = Owner.decode(busy.holder) if busy.holder else None
        timeout = self.timeout and round(self.timeout, 3)  # of a multi-lock: what is left of it
        text = message.format(name=self.request.name, timeout=timeout, by=by(holder))
        return kind(text, name=self.request.name, waited=waited, holder=holder)


def _withdraw(request: Request) -> Generator[Step, Reply, None]:
    reply = yield from _unless_interrupted(Withdraw(request))
    if isinstance(reply.value, BackendError):
        yield Abandon(request)


def _unless_interrupted(step: Withdraw | Free) -> Generator[Step, Reply, Reply]:
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
    first = reply = yield from _unless_interrupted(Free(hold.request))
    in_time = ours and reply.sent < hold.deadline
    if isinstance(reply.value, OutcomeUnknown) and reply.now - reply.sent < RETRY_WITHIN:
        reply = yield from _unless_interrupted(Free(hold.request))
        if reply.value is Release.ABSENT and in_time:
            return True
    if isinstance(reply.value, BackendError):
        yield Abandon(hold.request)
        raise first.value
    return bool(reply.value is Release.RELEASED and in_time)


def extend(hold: Hold, ttl: float, now: float) -> Generator[Step, Reply, None]:
    """Set what is left to ``ttl`` seconds. Raises LeaseLost or a BackendError."""
    requests = (hold.ask(ttl, now),)
    reply = yield from _repeated(Extend(requests))
    _apply(hold, requests[0], reply.value[0], reply)
    if reply.value[0].error is not None:
        raise reply.value[0].error
    _refuse_lost(hold, reply.now)


def _repeated(step: Extend | Attempt) -> Generator[Step, Reply, Reply]:
    """The reply; of a second try if the first had none, and soon. Raises a BackendError."""
    first = reply = yield step
    if isinstance(reply.value, OutcomeUnknown) and reply.now - reply.sent < RETRY_WITHIN:
        reply = yield step
    if isinstance(reply.value, BackendError):
        raise first.value
    return reply


def _refuse_lost(hold: Hold, now: float) -> None:
    if hold.lost(now):
        raise LeaseLost(f"the lease on {hold.request.name!r} is lost", name=hold.request.name)


def downgrade(hold: Hold) -> Generator[Step, Reply, None]:
    """Share what was exclusive. Raises LeaseLost, or a BackendError: then it is done or not.

    It counts as shared from the moment it is asked for. The same token asked to share what it
    holds: a poll, which gets nothing that it has not.
    """
    hold.request = hold.request._replace(shared=True)
    reply = yield from _repeated(Attempt(hold.request._replace(mode=Mode.POLL)))
    if not isinstance(reply.value, Grant):
        hold.lose()
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
    if unreadable:
        log.warning("the lease on %r cannot be renewed: %s", *unreadable)


def _apply(hold: Hold, request: Request, renewal: Renewal, reply: Reply) -> None:
    if renewal.error is not None:
        hold.renewal_failed(reply.now)
    elif renewal.left is None:
        hold.lose()
    else:
        hold.renewed(request.number, reply.sent, renewal.left, reply.now)
