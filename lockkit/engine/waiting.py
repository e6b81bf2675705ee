"""Acquire, with waiting, retries and a timeout: a step that is made of the steps of any store.

It uses no clock but ``now``, and no thread, event loop or socket. ``runtime.run`` performs its
effects with blocking calls, ``runtime.aio_run`` with awaits, so the two APIs cannot drift apart. An
interrupt (KeyboardInterrupt, SystemExit, CancelledError) is thrown into the step. The step cleans
up, and raises it again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from lockkit.engine.effects import Later, Made, Step
from lockkit.engine.holding import broke_off, withdraw
from lockkit.engine.times import alive_for, drift, granted
from lockkit.model import clock
from lockkit.model.errors import (
    AcquireTimeout,
    BackendError,
    ConfigurationError,
    LockHeld,
    OutcomeUnknown,
    TooManySessions,
    TooManyWaiters,
    by,
)
from lockkit.model.log import log
from lockkit.model.types import Busy, Gone, Grant, Granted, Kind, Mode, Owner, Request

if TYPE_CHECKING:
    from lockkit.stores.contract import Waited

OWN = (
    ": that is this thread or task itself (or one with the same name), so waiting would never end. "
    "Use the lease it already has (in a view, that of lock_view; with @locked, lease_as), or make "
    'both locks reentrant: reentrant=True of lock(), and kind="reentrant" of lock_view'
)

OWN_VIEW = (
    ": that is the lock_view around the code that asks, so a view that waits for this waits for "
    "itself. Use the lease it already has"
)

THIS_VIEW: ContextVar[tuple[Callable[[], Any], ...]] = ContextVar("lockkit_view", default=())
"""Weak references to the leases that ``lock_view`` has taken around the code that runs, of one name
or of several. Unlike the thread and the task, they are the same in a task of the view, and in a
thread with a copy of its context. Code that outlives its view has them as well: released ones."""

TAKEOVER_STEP = 0.002
"""Waiters that poll at the moment at which the holder expires do so this many seconds apart."""


DEBUG = 10
"""``logging.DEBUG``: the import of ``logging`` is slow."""

LATE = 1 / 3
"""Part of the time of a grant by message. If no more is left when the waiter hears of the grant,
because its process was busy, it asks the store, which then grants the whole ttl."""


def acquire(  # noqa: PLR0917
    store: Waited,
    request: Request,
    timeout: float | None,
    new_token: Callable[[], str],
    now: Callable[[], float] = clock.now,
    first: Made | None = None,
) -> Step[Granted]:
    """Acquire within ``timeout`` seconds (None: for ever), or leave nothing behind.

    Raises LockHeld (timeout 0, or a view that would wait for itself), AcquireTimeout,
    TooManyWaiters, a BackendError or a ConfigurationError. ``first``: the first attempt, if it has
    already been made.
    """
    attempt = _Acquire(store, request, timeout, new_token, now)
    try:
        if first is not None:
            attempt.joining = first.is_taken = True
        return (yield from attempt.run_or_leave(first))
    except (GeneratorExit, AcquireTimeout, BackendError, ConfigurationError):
        raise
    except BaseException:  # interrupted, perhaps while it withdrew
        if attempt.joining:  # a request may be under way, so the store must leave a tombstone
            attempt.request = attempt.request._replace(unsure=True)
        if attempt.is_owed:
            yield from withdraw(store, attempt.request)
        raise


class _Acquire:
    """One acquire under way: the loop, and what must be cleaned up if it ends early."""

    def __init__(
        self,
        store: Waited,
        request: Request,
        timeout: float | None,
        new_token: Callable[[], str],
        now: Callable[[], float],
    ) -> None:
        self.store = store
        self.request = request
        self.timeout = timeout
        self.new_token = new_token
        self.clock = now
        self.placed = False  #: our token has a claim or a place in the queue
        self.joining = False  #: a request is under way that may give it one
        self.waits = False
        self.start = 0.0
        self.sent = self.now = 0.0  #: just before and just after the last attempt

    def run_or_leave(self, first: Made | None) -> Step[Granted]:
        try:
            return (yield from self.run(first))
        except (BackendError, ConfigurationError):
            if self.is_owed:  # the store has just failed, so withdraw later, in the background
                yield Later(self.request._replace(queued=True))
            raise
        except AcquireTimeout:
            if self.is_owed:
                yield from withdraw(self.store, self.request)
            raise

    def run(self, first: Made | None) -> Step[Granted]:
        value = yield from self._attempt(first)
        while True:
            if isinstance(value, Grant):
                found = granted(self.request, value, self.sent, self.now)
                if found is not None:
                    if self.waits and log.isEnabledFor(DEBUG):
                        log.debug("%s waited %.3f s for %r", *self._for_log())
                    return found
                self._give_up_in_time(Busy())  # the reply took longer than the lease
                value = yield from self._attempt()
            elif isinstance(value, Gone):
                self._give_up_in_time(Busy())
                if self.request.unsure:  # an earlier copy of the request may still be under way
                    yield from withdraw(self.store, self.request)
                self._renew_token()
                value = yield from self._attempt()
            else:
                value = yield from self._wait(value)

    def _wait(self, busy: Busy) -> Step[Grant | Busy | Gone]:
        """Wait for a message or for the next moment at which asking makes sense, then ask.

        A message says for how many seconds the claim is granted. They are counted from our last
        request, whose reply was that somebody else held the name: the grant cannot be older.
        """
        left = self._give_up_in_time(busy)
        if not self.waits:
            self.waits = True
            if log.isEnabledFor(DEBUG):
                held_by = by(Owner.decode(busy.holder)) if busy.holder else ""
                owner, _, name = self._for_log()
                log.debug("%s waits for %r, held%s", owner, name, held_by)
        if (yield from self.store.listen(self.request)):
            return (yield from self._attempt())
        self.request = self.request._replace(mode=Mode.POLL)
        try:
            message = yield from self.store.wait(self.request, self._pause(busy, left), busy)
        except BackendError:
            message = None
        self.now = self.clock()
        if message is not None:
            left = self.sent + message.left - drift(message.left) - self.now
            if left > message.left * LATE:
                return message
        return (yield from self._attempt())

    def _pause(self, busy: Busy, left: float | None) -> float:
        pause = alive_for(self.request.ttl) / 2
        if busy.left is not None:
            pause = min(pause, busy.left + TAKEOVER_STEP * (1 + min(busy.ahead, 25)))
        return pause if left is None else min(pause, left)

    def _attempt(self, made: Made | None = None) -> Step[Grant | Busy | Gone]:
        """Ask the store. A poll never joins the queue, so it may arrive late, after a withdrawal:
        then the answer is Gone."""
        self.joining = self.request.mode is not Mode.POLL
        self.sent = self.clock() if made is None else made.sent
        self.start = self.start or self.sent
        try:
            value: Grant | Busy | Gone | None = made.result() if made else None
            if value is None:
                value = yield from self.store.acquire(self.request)
        except BackendError as error:
            value = yield from self._once_more(error)
        self.now = self.clock()
        known = isinstance(value, Grant) or (isinstance(value, Busy) and value.ticket > 0)
        self.placed = self.placed or known
        self.joining = False  # the last line, because an interrupt may come between any two
        return value

    def _once_more(self, error: BackendError) -> Step[Grant | Busy | Gone]:
        """Ask again if the request broke off. It may have been applied: the same token then gets
        the same answer.

        If this fails as well, the first error is raised: it is still open whether the first request
        was applied, whatever the second error says.
        """
        try:
            if isinstance(error, OutcomeUnknown):
                self.request = self.request._replace(unsure=True)
                now = self.clock()
                if broke_off(error, now - self.sent):
                    self.sent = now
                    try:
                        return (yield from self.store.acquire(self.request))
                    except BackendError:
                        raise error from error.__cause__
            raise error
        finally:
            del error  # see ``engine.effects``

    @property
    def is_owed(self) -> bool:
        """Whether our token has, or may have, a claim or a place in the queue."""
        return self.placed or self.request.unsure

    def _for_log(self) -> tuple[Owner, float, str]:
        return Owner.decode(self.request.owner), self.now - self.start, self.request.name

    def _renew_token(self) -> None:
        mode = Mode.TRY if self.timeout == 0 else Mode.ENQUEUE
        self.request = self.request._replace(token=self.new_token(), mode=mode, unsure=False)
        self.placed = False

    def _give_up_in_time(self, busy: Busy) -> float | None:
        """The seconds left to wait (None: for ever). Raises the error that ends the wait."""
        waited = self.now - self.start
        if busy.full:
            held = ", and it is held{by}" if busy.holder else ""
            raise self._error(TooManyWaiters, "the queue for {name!r} is full" + held, busy, waited)
        if busy.holder and THIS_VIEW.get() and self._waits_for_its_view(Owner.decode(busy.holder)):
            raise self._error(LockHeld, "{name!r} is held{by}", busy, waited)
        if self.timeout is None:
            return None
        if busy.sessions and waited >= self.timeout:
            message = f"{{name!r}} was not asked for: {busy.sessions} sessions are in use, which "
            message += "is max_sessions, and none became free within {timeout:g} s"
            raise self._error(TooManySessions, message, busy, waited)
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
        timeout = self.timeout and round(self.timeout, 3)  # for a multi-lock, it has many digits
        text = message.format(name=self.request.name, timeout=timeout, by=by(holder))
        own = "" if holder is None else self._own(holder)
        text += own
        return kind(text, name=self.request.name, waited=waited, holder=holder, own=bool(own))

    def _own(self, holder: Owner) -> str:
        """What to say if the asker waits for itself: the holder is its own thread or task (or
        another one of the same process that has the same name), or its own view."""
        if self._asks_itself(holder):
            return OWN
        if self.request.kind not in (Kind.MUTEX, Kind.REENTRANT):
            return ""
        return OWN_VIEW if self._is_of_its_view(holder) else ""

    def _waits_for_its_view(self, holder: Owner) -> bool:
        """Whether the thread or task of a view waits for what ``lock_view`` keeps until the view
        has returned. What the view has started may outlive it, so that may wait."""
        return self._asks_itself(holder) and self._is_of_its_view(holder)

    def _asks_itself(self, holder: Owner) -> bool:
        asker = Owner.decode(self.request.owner)
        return self.request.kind is Kind.MUTEX and holder == asker._replace(label=holder.label)

    def _is_of_its_view(self, holder: Owner) -> bool:
        found = (each() for each in THIS_VIEW.get())
        name = self.request.name
        leases = [lease for lease in found if lease is not None and not lease.released]
        holds = [lease[name]._hold for lease in leases if name in lease.names]
        return any(holder == Owner.decode(hold.request.owner) for hold in holds)
