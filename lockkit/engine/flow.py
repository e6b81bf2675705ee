"""Waiting, retrying and deadlines, written once, as generators.

A flow yields a step (what to do next) and is sent a Reply (what came of it, and when). It has no
clock, thread, event loop or socket: ``client`` drives it with blocking calls and ``aio`` with
awaits, so the two cannot drift apart. An error of the store comes as a Reply; whatever else ends
a step (KeyboardInterrupt, SystemExit, CancelledError) is thrown in, and the flow cleans up and
lets it pass.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from lockkit.engine.holding import downgrade, extend, release, renew, unless_interrupted
from lockkit.engine.steps import (
    METHODS,
    Abandon,
    Attempt,
    Extend,
    Free,
    Granted,
    Reply,
    Step,
    Wait,
    Why,
    Withdraw,
    broke_off,
)
from lockkit.model.errors import (
    AcquireTimeout,
    BackendError,
    ConfigurationError,
    LockError,
    LockHeld,
    OutcomeUnknown,
    TooManyWaiters,
    by,
)
from lockkit.model.log import log
from lockkit.model.types import (
    Busy,
    Gone,
    Grant,
    Kind,
    Mode,
    Owner,
    Request,
    alive_for,
    drift,
    is_placed,
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
    "Why",
    "Withdraw",
    "acquire",
    "downgrade",
    "extend",
    "release",
    "renew",
]

OWN = (
    ": this very thread or task, which would wait for itself. Use the lease that it has (in a "
    "view, that of lock_view), or say reentrant=True in both places"
)

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
        try:
            return (yield from attempt.run())
        except (AcquireTimeout, BackendError, ConfigurationError) as error:
            if attempt.placed or attempt.request.unsure:
                yield from _leave(attempt.request, error)
            raise
    except (GeneratorExit, AcquireTimeout, BackendError, ConfigurationError):
        raise
    except BaseException:  # interrupted, as it left as well: a tombstone follows what is under way
        unsure = attempt.joining or attempt.request.unsure
        if attempt.placed or unsure:
            yield from _withdraw(attempt.request._replace(unsure=unsure))
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
        self.joining = False  #: a request is under way after which it may
        self.waits = False
        self.start = 0.0

    def run(self) -> Generator[Step, Reply, Granted]:
        reply = yield from self._attempt()
        while True:
            value = reply.value
            if isinstance(value, Grant):
                deadline = reply.sent + value.left - drift(value.left)
                if deadline > reply.now:
                    whole = value.left >= self.request.ttl
                    if self.waits:
                        log.debug("%s waited %.3f s for %r", *self._told(reply.now))
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
        left = self._give_up_in_time(reply.now, busy)
        if not self.waits:
            self.waits = True
            held_by = by(Owner.decode(busy.holder)) if busy.holder else ""
            owner, _, name = self._told(reply.now)
            log.debug("%s waits for %r, held%s", owner, name, held_by)
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
        """A poll never joins: one that arrives late, after a withdraw, is told that it is gone."""
        self.joining = self.request.mode is not Mode.POLL
        reply = yield Attempt(self.request)
        self.start = self.start or reply.sent
        if isinstance(reply.value, BackendError):
            reply = yield from self._once_more(reply)
        self.placed = self.placed or is_placed(reply.value)
        self.joining = False  # last: it may be interrupted between any two lines
        return reply

    def _once_more(self, reply: Reply) -> Generator[Step, Reply, Reply]:
        """A request that broke off may have been applied: the same token gives the same answer.

        If that fails as well, the first error counts: the second cannot undo what it left open.
        """
        error: BackendError = reply.value
        if isinstance(error, OutcomeUnknown):
            self.request = self.request._replace(unsure=True)
            if broke_off(reply):
                reply = yield Attempt(self.request)
        if isinstance(reply.value, BackendError):
            raise error
        return reply

    def _told(self, now: float) -> tuple[Owner, float, str]:
        return Owner.decode(self.request.owner), now - self.start, self.request.name

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
        own = holder is not None and self._is_own(holder)
        text += OWN * own
        return kind(text, name=self.request.name, waited=waited, holder=holder, own=own)

    def _is_own(self, holder: Owner) -> bool:
        """Whether the asker holds it itself, in the same thread or task, and waits for itself."""
        asker = Owner.decode(self.request.owner)
        return self.request.kind is Kind.MUTEX and holder._replace(label="") == asker._replace(
            label=""
        )


def _leave(request: Request, error: LockError) -> Generator[Step, Reply, None]:
    """A store that has just failed is told later."""
    if isinstance(error, AcquireTimeout):
        yield from _withdraw(request)
    else:
        yield Abandon(request)


def _withdraw(request: Request) -> Generator[Step, Reply, None]:
    reply = yield from unless_interrupted(Withdraw(request))
    if isinstance(reply.value, BackendError):
        yield Abandon(request)
