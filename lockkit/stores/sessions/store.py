"""Locks that belong to a session with a database server, and end with it.

Each claim has a session of its own, so no session takes a lock that it already has, and a claim can
wait in the server's queue. Sessions are reused. The server ends one that is silent for the TTL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lockkit.engine.effects import Exchange, Park, Signal, Step
from lockkit.model.clock import now
from lockkit.model.errors import BackendUnavailable, LockError, OutcomeUnknown
from lockkit.model.types import Busy, Finding, Gone, Grant, Mode, Release, Renewal, Request
from lockkit.runtime.process import new_token
from lockkit.runtime.run import run
from lockkit.stores.contract import Sessioned
from lockkit.stores.sessions.attempts import Attempts, check_length, route_of
from lockkit.stores.sessions.connection import Connection, Refused, Rows, SessionEnded, Statement
from lockkit.stores.sessions.dialects import ENDLESS, is_taken
from lockkit.stores.sessions.session import ANSWER_SECONDS, CANCEL_AGAIN, Session
from lockkit.stores.sessions.wire import AsyncSessionWire, SessionWire
from lockkit.stores.sessions.work import together

if TYPE_CHECKING:
    from typing import Self

    from lockkit.stores.sessions.pool import Route

R = TypeVar("R")

PATIENCE = 1 / 6
"""Part of the ttl for which an extension waits for its answer."""


class SessionStore(Attempts, Sessioned):
    """The steps, the same for every server and mode."""

    def for_asyncio(self) -> Self:
        """Another store over the same sessions, because each client ends those of its own claims
        only: the other client's leases would go on as if they were held."""
        return type(self)(self._sessions, self._prefix)

    def wire(self) -> SessionWire:
        return SessionWire(partial(self._sessions.close, self))

    def async_wire(self, *, is_shared: bool = False) -> AsyncSessionWire:
        """If ``is_shared``, it leaves the idle sessions to the blocking client. A client of a loop
        that ends soon would close them for all."""
        close = self._sessions.end_claims if is_shared else self._sessions.close
        return AsyncSessionWire(partial(close, self))

    def create_table(self) -> None:
        if sql := self._sql.before_create + self.ddl():
            run(self._elsewhere(partial(self._make_table, sql)), self.wire())

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        check_length(request.ttl)
        route, sessions = route_of(request), self._sessions
        session = sessions.of(route)
        if session is not None:
            with self._parting(route):
                goes_on = self._again if session.answer is None else self._begin
                return (yield from goes_on(request, session))
        if request.mode is Mode.POLL and not (sessions.waits(route) or sessions.remains(route)):
            return Gone()
        joins = request.mode is not Mode.TRY
        busy = Busy(ticket=int(joins), sessions=sessions.most)
        return (yield from self._using(route, partial(self._begin, request), waits=joins)) or busy

    def wait(self, request: Request, seconds: float, busy: Busy) -> Step[Grant | None]:
        session = self._sessions.of(route_of(request))
        if session is None:
            if (place := self._sessions.waits(route_of(request))) is not None:
                yield Park(place, seconds)
            return None
        with self._parting(route_of(request)):
            return (yield from self._look(session, request, seconds))

    def release(self, request: Request) -> Step[Release]:
        route = route_of(request)
        self._sessions.leave(route)
        if (session := self._sessions.of(route)) is None:
            if self._sessions.remains(route):
                yield from self._elsewhere(partial(self._bury, route))
            return Release.ABSENT
        held, key = session.holds, self._key(request)
        try:
            with self._parting(route):
                yield from self._bury(route, route, session)
                rows = yield from self._say(session, route, self._sql.free(key, held=held))
        except SessionEnded as error:
            if self._may_be_applied(error, route):
                raise
            return (yield from self.release(request))  # there is no session any more
        except OutcomeUnknown:  # no answer: the next try ends the session over another connection
            self._sessions.part(route, is_broken=True)
            raise
        self._sessions.unpin(route, session)
        return Release.RELEASED if held and is_taken(rows) else Release.ABSENT

    def withdraw(self, request: Request) -> Step[Release]:
        """Do not wait for a session that owes an answer, as renewals wait for this: end it."""
        session = self._sessions.of(route_of(request))
        if session is not None and session.is_owed:
            self._sessions.part(route_of(request), is_broken=True)
        return self.release(request)

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        return self._extend(requests, ANSWER_SECONDS)

    def renew(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        """Wait no longer than the shortest lease of the process can: it may be renewed next."""
        most = min(ANSWER_SECONDS, self._sessions.shortest() * PATIENCE)
        return self._extend(requests, most)

    def _extend(self, requests: Sequence[Request], most: float) -> Step[list[Renewal]]:
        """Ask all at once: a session that does not answer must not hold up the others."""
        works = {}
        for request in requests:
            check_length(request.ttl)
            session = self._sessions.of(route_of(request))
            if session is not None and session.holds:
                patience = min(request.ttl * PATIENCE, most)
                works[route_of(request)] = self._beat(session, request, patience)
        replies: dict[Route, Rows | Exception | None] = yield Exchange(partial(together, works))
        return [self._renewal(request, replies.get(route_of(request))) for request in requests]

    def check(self) -> Step[None]:
        yield from self._elsewhere(self._greet)

    def health(self) -> Step[list[Finding]]:
        connection = yield from self._elsewhere(self._greet)
        return [] if connection.ends_silence or self._sql.begins else [ENDLESS]

    def _begin(self, request: Request, session: Session) -> Step[Grant | Busy]:
        """Ask for the lock in a session that has nothing yet."""
        route = route_of(request)
        if self._sessions.remains(route):
            yield from self._bury(route, route, session, ANSWER_SECONDS)
        rows = yield from self._take(session, request)
        if is_taken(rows):
            return self._taken(session, request)
        joins = request.mode is not Mode.TRY
        ahead = (yield from self._count(session, request)) if joins else 0
        is_full = joins and request.max_queue is not None and ahead >= request.max_queue
        if is_full or not joins:
            if self._sql.begins:
                yield from self._clear(session, request)
            self._sessions.unpin(route, session)
            return Busy(ahead=ahead, full=is_full)
        joining = session.posting(self._sql.join(self._key(request)))
        yield Exchange(partial(session.in_turn, route, joining), route)
        return Busy(ticket=1, ahead=ahead)

    def _count(self, session: Session, request: Request) -> Step[int]:
        """How many claims wait. A take that counts them as well takes three times as long."""
        if request.max_queue is None:
            return 0
        waiting = self._sql.waiting(self._key(request))
        rows = yield from self._say(session, route_of(request), waiting)
        return int(rows[0][1] or 0)

    def _clear(self, session: Session, request: Request) -> Step[Rows]:
        return self._say(session, route_of(request), self._sql.free(self._key(request), held=False))

    def _again(self, request: Request, session: Session) -> Step[Grant | Busy]:
        """The claim has a session already. Only the server can say what it holds."""
        route = route_of(request)
        if session.is_waiting:
            granted = yield from self._look(session, request, 0.0)
            if granted is not None or session.is_waiting:
                return granted or Busy(ticket=1)
        rows: Rows = ()
        with suppress(Refused):
            rows = yield from self._say(session, route, self._sql.check(self._key(request)))
        if is_taken(rows) and (granted := (yield from self._granted(session, request))):
            return granted
        yield from self._clear(session, request)
        return (yield from self._begin(request, session))

    def _look(self, session: Session, request: Request, seconds: float) -> Step[Grant | None]:
        route, session.until = route_of(request), now() + seconds + request.ttl
        try:
            rows = yield Exchange(partial(session.in_turn, route, session.looking(seconds)), route)
        except Refused:  # a time limit of the server's, say: it may have been granted all the same
            return None
        if rows is None or not is_taken(rows):
            return None
        return (yield from self._granted(session, request))

    def _granted(self, session: Session, request: Request) -> Step[Grant | None]:
        """The server may have granted it long ago, so say something: its silence counts anew."""
        session.holds = True
        beat = partial(self._beat, session, request, ANSWER_SECONDS)
        rows = yield Exchange(beat, route_of(request))
        session.holds = rows is None or is_taken(rows)
        return Grant(request.token, None, request.ttl) if session.holds else None

    def _beat(self, session: Session, request: Request, seconds: float) -> Step[Rows | None]:
        def statement() -> Statement:
            return self._sql.beat(self._silence(session, request.ttl))

        beating = session.beating(request, statement, seconds)
        return session.in_turn(route_of(request), beating, seconds)

    def _renewal(self, request: Request, reply: Rows | Exception | None) -> Renewal:
        session = self._sessions.of(route_of(request))
        if isinstance(reply, LockError) and not isinstance(reply, SessionEnded):
            return Renewal(None, reply)
        if session is None or not session.holds:
            return Renewal(None)
        if reply is None:  # a later extension is done already
            return Renewal(max(session.until - now(), 0.0))
        if isinstance(reply, Exception) or not is_taken(reply):
            self._sessions.part(route_of(request), is_broken=isinstance(reply, SessionEnded))
            return Renewal(None)
        return Renewal(request.ttl)

    def _using(
        self, route: Route, use: Callable[[Session], Step[R]], *, waits: bool = False
    ) -> Step[R | None]:
        """Use a session of the claim's own. None: all sessions are in use."""
        while (session := self._sessions.pin(route, self, waits=waits)) is not None:
            was_idle = session.connection is not None
            try:
                with self._parting(route):
                    if not was_idle:
                        opening = session.opening(route)
                        yield Exchange(partial(session.in_turn, route, opening), route)
                    return (yield from use(session))
            except SessionEnded:
                if not was_idle:  # one that was idle had ended before it applied anything
                    raise
        return None

    def _elsewhere(self, use: Callable[[Route, Session], Step[R]]) -> Step[R]:
        """Use a session for a moment, for no claim. An error ends it: nobody would ask for the
        reply that it may still owe."""
        route = "", new_token()

        def used(session: Session) -> Step[R]:
            done = yield from use(route, session)
            self._sessions.unpin(route, session)
            return done

        try:
            done = yield from self._using(route, used)
        except BaseException:
            self._sessions.part(route)
            raise
        if done is None:
            raise BackendUnavailable(f"the process uses all of its {self._sessions.most} sessions")
        return done

    def _bury(self, route: Route, own: Route, session: Session, seconds: float = 0.0) -> Step[bool]:
        """End a claim's former session, over ``session``, which serves ``own``. The former one has
        the lock until it is gone: wait up to ``seconds`` for that. If the server refuses, silence
        ends it. A pooler's is left alone: it was freed, and may be somebody else's by now."""
        remains, over = self._sessions.remains(route), session.connection
        if remains is not None and over is not None:
            find, until = self._sql.find(remains.identity, remains.started), now() + seconds
            with suppress(Refused):
                while not over.is_pooled and is_taken((yield from self._say(session, own, find))):
                    yield from self._say(session, own, self._sql.end(remains.identity, over))
                    if not seconds:
                        break
                    if now() > until:
                        raise OutcomeUnknown("the server has not ended the former session in time")
                    yield Park(Signal(), CANCEL_AGAIN)
            self._sessions.buried(route)
        return True

    def _make_table(self, sql: str, route: Route, session: Session) -> Step[Rows]:
        with suppress(Refused):  # it is missing; a user who may not make it is refused ``sql``
            return (yield from self._say(session, route, "select 1 from lockkit_row limit 0"))
        return (yield from self._say(session, route, sql))

    def _greet(self, route: Route, session: Session) -> Step[Connection]:
        assert session.connection is not None
        yield from self._say(session, route, f"select {self._sql.me}")
        return session.connection
