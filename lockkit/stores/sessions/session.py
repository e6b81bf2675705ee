"""One session with the server, and what its claim has there.

One statement is under way at a time. A statement whose reply nobody has waited for, because of an
interrupt or a time limit, still runs: the next one waits for its end.
"""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from lockkit.engine.effects import Exchange, Park, Signal, Step
from lockkit.model.clock import now
from lockkit.model.errors import BackendUnavailable, LockError, OutcomeUnknown
from lockkit.model.types import Request
from lockkit.runtime.wires import TURN_SECONDS, Lane, call
from lockkit.stores.sessions.connection import (
    CANCELLED,
    Connection,
    Refused,
    Rows,
    SessionEnded,
    Statement,
    pooled,
)
from lockkit.stores.sessions.work import Ready

R = TypeVar("R")

CANCEL_AGAIN = 0.1
"""Seconds after which a statement is cancelled again: the first cancel may have reached the server
before the statement did."""

LOOK_AGAIN = 0.2
"""Seconds after which a step that waits for its turn looks whether the turn has come."""

ANSWER_SECONDS = 5.0
"""Seconds within which a statement that does not wait for a lock must be answered."""


class Session:
    """A connection and its claim. Used by any thread or task, each in its turn."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._turns: dict[Signal, object] = {}  #: of the steps, in order, each with its asker
        self._waits = False  #: the last statement sent waits for a lock
        self._got: Rows | Refused | None = None  #: a reply that was read and not used yet
        self.connection: Connection | None = None
        self.claim: Hashable = None  #: the claim that it serves
        self.owner: weakref.ref[object] | None = None  #: the store that made the claim
        self.is_over = False
        self.holds = False
        self.may_hold = False  #: it has asked for the lock, and has not given it back
        self.ttl = 0.0
        self.until = 0.0  #: by the local clock; the server ends a silent session no sooner
        self.number = 0  #: of its last extension
        self.answer: Rows | None = None  #: the reply to a take that got nothing, for the next step

    @property
    def is_waiting(self) -> bool:
        """Whether a statement that waits for the lock is under way."""
        return self.is_owed and self._waits

    @property
    def is_owed(self) -> bool:
        """Whether a reply is still to come."""
        return self.connection is not None and self.connection.is_owed

    @property
    def is_used(self) -> bool:
        """Whether somebody talks to it, or is about to."""
        return bool(self._turns)

    def keeps(self, ttl: float, since: float) -> None:
        """Note that the server ends it once it is silent for ``ttl`` seconds after ``since``."""
        self.ttl, self.until = ttl, since + ttl

    def is_told(self, ttl: float | None) -> None:
        """Note the timeout that the server now has for its silence. None: it is not known."""
        assert self.connection is not None
        self.connection.silence = ttl

    def rest(self) -> None:
        """It holds nothing until the next claim."""
        self.claim = None
        self.holds = self.may_hold = False
        self.number, self.answer = 0, None

    def say(self, claim: Hashable, statement: Statement) -> Step[Rows]:
        """One request and its reply. Raises Refused, SessionEnded, OutcomeUnknown."""
        return self.in_turn(claim, self._saying(statement, ANSWER_SECONDS))

    def opening(self, claim: Hashable) -> Step[None]:
        """Connect. Raises a BackendError or ConfigurationError. Like ``beating``, ``posting`` and
        ``looking``, it is for ``in_turn``."""
        try:
            yield from call(self._open, Lane.ASKING, claim)  # which may take long
        except BaseException:  # interrupted: it may be connecting still
            self.end()
            raise

    def _open(self) -> None:
        connection = self._connect()
        if self.is_over:
            connection.close()
        self.connection = connection

    def _saying(self, statement: Statement, seconds: float) -> Step[Rows]:
        """``seconds`` are for two replies: to an earlier statement, if it still runs; and to this
        one."""
        until = now() + seconds
        cancelled = (yield from self._settle(seconds)) if self.is_owed else False
        while True:
            connection = self._send(statement, waits=False)
            try:
                return (yield from self._reply(max(until - now(), 0.0), connection))
            except SessionEnded as error:
                error.was_sent = True
                raise
            except Refused as refusal:
                if not (cancelled and refusal.code in CANCELLED):
                    raise
                cancelled = False  # the cancel came late, and hit this statement: repeat it

    def beating(
        self, request: Request, statement: Callable[[], Statement], seconds: float
    ) -> Step[Rows | None]:
        """Like ``say``: it tells the server to keep the session for another TTL. None: nothing was
        sent, because a later extension was sent already, and the server goes by the last one."""
        if request.number < self.number:
            return None
        self.number, sent = request.number, now()
        rows = yield from self._saying(statement(), seconds)
        self.keeps(request.ttl, sent)
        self.is_told(request.ttl)
        return rows

    def posting(self, statement: Statement) -> Step[None]:
        """Send a statement that waits for a lock; ``looking`` says what has come of it."""
        yield from self._settle(ANSWER_SECONDS)
        self._send(statement, waits=True)

    def looking(self, seconds: float) -> Step[Rows | None]:
        """The reply to what was posted, if it comes within ``seconds``."""
        return (yield from self._read(seconds)) if self.is_owed else None

    def end(self) -> None:
        """Close the connection; the server ends the session as soon as it notices. Only for the
        step whose turn it is, or if no step uses the session."""
        self.is_over = True
        if self.connection is not None:
            self.connection.close()

    def abort(self) -> None:
        """Like ``end``, for all others. A step that waits for a reply there fails and closes it."""
        self.is_over = True
        if self.connection is not None and self._turns:
            self.connection.shut_down()
        else:
            self.end()

    def _open_connection(self) -> Connection:
        if self.connection is None or self.is_over or self.connection.is_closed:
            raise SessionEnded("the session with the database server has ended")
        return self.connection

    def in_turn(self, claim: Hashable, work: Step[R], seconds: float = math.inf) -> Step[R]:
        """Do the work when its turn comes, in the order of the calls. Raises BackendUnavailable if
        the turn does not come in time; SessionEnded if the session serves another claim by then: a
        release that comes twice must not release the lock of another claim.

        An interrupt cannot block the steps that come later: the first call in ``finally`` runs in
        C, so no interrupt can come before it; and a step that is not woken looks again.
        """
        place = Signal()
        try:
            self._turns[place] = _asker()
            yield from self._come_first(place, min(seconds, TURN_SECONDS))
            if self.claim == claim:
                return (yield from work)
        except SessionEnded:
            self.end()
            raise
        finally:
            self._turns.pop(place, None)
            for first in list(self._turns)[:1]:
                first.set()
        raise SessionEnded("the session serves another claim")

    def _come_first(self, place: Signal, seconds: float) -> Step[None]:
        """Wait for the turn. Code that a signal handler or the garbage collector calls cannot wait
        for the step that it has interrupted: it gets an error at once."""
        until = now() + seconds
        while (first := list(self._turns)[0]) is not place:  # noqa: RUF015  others come and go
            if self._turns.get(first) == self._turns[place]:
                raise BackendUnavailable("this thread or task is in another step of the same lease")
            if now() > until:
                raise BackendUnavailable(f"others used the session for {seconds:g} s")
            yield Park(place, min(LOOK_AGAIN, max(until - now(), 0.0)))

    def _send(self, statement: Statement, *, waits: bool) -> Connection:
        """A session with a lock is looked at first: once a release is sent and has no reply, nobody
        can tell whether it was applied, or the lock was lost before."""
        self._waits = waits  # before: an interrupt may come after it is sent
        connection = self._open_connection()
        if self.holds and not connection.is_alive():
            with suppress(Refused):
                connection.fetch()  # notes whether the server has said so
            raise SessionEnded("the session with the database server has ended")
        connection.send(statement)
        return connection

    def _settle(self, seconds: float) -> Step[bool]:
        """Wait for the end of the statement under way, whose result nobody needs; cancel it if it
        waits for a lock. Returns whether it was to be cancelled."""
        cancels, deadline = self.is_waiting, now() + seconds
        while self.is_waiting and now() < deadline:
            try:
                yield from call(self._open_connection().cancel, Lane.ASKING, self)
            except (LockError, OSError) as error:
                raise SessionEnded("a waiting statement could not be cancelled") from error
            with suppress(Refused):
                yield from self._read(CANCEL_AGAIN)
        if self.is_owed:
            with suppress(Refused):
                yield from self._reply(max(deadline - now(), 0.0))
        return cancels

    def _reply(self, seconds: float, sent: Connection | None = None) -> Step[Rows]:
        """``sent``: the connection, if something was just sent: there is nothing to read yet."""
        rows = yield from self._read(seconds, sent)
        if rows is None:
            raise OutcomeUnknown("the database server did not answer in time")
        return rows

    def _read(self, seconds: float, sent: Connection | None = None) -> Step[Rows | None]:
        connection = sent or self._open_connection()
        deadline, blocks = now() + seconds, connection.reads_block
        if sent is not None:
            yield Exchange(Ready(connection, deadline))
        while True:
            if self._got is None:  # else an interrupt came after it was read
                if blocks:
                    yield from call(partial(self._fetch, connection), Lane.ENDING, self)
                else:
                    self._fetch(connection)
            if self._got is not None:
                return self._told(connection)
            if deadline <= now():
                return None
            yield Exchange(Ready(connection, deadline))

    def _fetch(self, connection: Connection) -> None:
        """What was read is kept for the next step, if this one is interrupted."""
        if self.is_over:
            raise SessionEnded("the session with the database server has ended")
        if self._got is not None:  # read already, by a call of a task that was cancelled
            return
        try:
            self._got = connection.fetch()
        except Refused as refusal:
            self._got = refusal
        except BaseException:  # interrupted: what was read is gone
            if connection.reads_block:
                connection.close()
            raise

    def _told(self, connection: Connection) -> Rows:
        """The reply that was read. Raises ConfigurationError if another session has answered: a
        pooler has given the statement to it."""
        got, self._got, connection.is_owed = self._got, None, False
        if isinstance(got, Refused):
            raise got
        assert got is not None
        if got and got[0][0] != connection.identity:
            self.end()
            raise pooled()
        return got


def _asker() -> object:
    """The thread that asks, and its task."""
    in_loop = asyncio._get_running_loop() is not None
    return threading.get_ident(), asyncio.current_task() if in_loop else None
