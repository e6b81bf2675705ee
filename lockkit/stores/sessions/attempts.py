"""The usual work of a session: an attempt that gets the lock, and its release.

If a session is idle, and nothing has to be made first, each of them is one exchange. For all else,
the steps in ``store`` go on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from lockkit.engine.effects import Exchange, Step
from lockkit.model.checks import wrong
from lockkit.model.clock import now
from lockkit.model.errors import BackendUnavailable, OutcomeUnknown
from lockkit.model.types import Grant, Release, Request
from lockkit.stores.contract import Direct
from lockkit.stores.servers import current, said_twice
from lockkit.stores.sessions.connection import (
    DEADLOCKS,
    Connection,
    Refused,
    Rows,
    SessionEnded,
    Statement,
)
from lockkit.stores.sessions.dialects import Dialect, is_taken
from lockkit.stores.sessions.pool import EVERYWHERE, Parting, Route, Sessions
from lockkit.stores.sessions.settings import Arguments, Said, said

if TYPE_CHECKING:
    from typing import Self

    from lockkit.model.settings import AliasSettings
    from lockkit.stores.sessions.session import Session

TAKES = 4
"""The most takes of one step: the row may be missing, and be deleted again once it is made, or be
undone by a deadlock."""

LONGEST = 24
"""The most days of a ttl. PostgreSQL's time limits can be set to less than 25 days."""


class Attempts(Direct):
    """Attempts and releases, over the sessions of this process with one database."""

    _sql: ClassVar[Dialect]

    def __init__(self, sessions: Sessions, prefix: str) -> None:
        self._sessions = sessions
        self.most = sessions.most
        self._prefix = prefix

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> Self:
        options = said(settings)
        arguments = cls._arguments(settings, options)
        if options.password is not None and arguments.get("password"):
            raise said_twice(settings.place)

        def with_password() -> dict[str, object]:
            if options.password is None:
                return arguments
            return {**arguments, "password": current(options.password)}

        def connect() -> Connection:
            return cls._connected(with_password, may_be_pooled=options.session_pooler)

        sessions = EVERYWHERE.setdefault(options.key(), Sessions(connect, options.max_sessions))
        sessions.connect = connect  # it has just read the environment, and the files for TLS
        return cls(sessions, cls._prefix_of(settings, arguments))

    @staticmethod
    @abstractmethod
    def _arguments(settings: AliasSettings, options: Said) -> dict[str, object]:
        """The driver's arguments for each connection. Raises ConfigurationError."""

    @classmethod
    @abstractmethod
    def _connected(cls, arguments: Arguments, *, may_be_pooled: bool) -> Connection:
        """Open a connection. To cancel a statement it may open another one, and then calls
        ``arguments`` again. Raises a BackendError or ConfigurationError."""

    @staticmethod
    def _prefix_of(settings: AliasSettings, _arguments: dict[str, object]) -> str:
        """The text before each name: the name's key is made of both."""
        return settings.key_prefix

    def ddl(self) -> str:
        return self._sql.create

    def asked(self, request: Request) -> Exchange | None:
        check_length(request.ttl)
        route = request.name, request.token
        session = self._sessions.pin(route, self, opens=False)
        if session is None:
            return None
        return Exchange(partial(session.say, route, self._taking(session, request)), route)

    def answered(self, request: Request, reply: Rows) -> Grant | None:
        session = self._sessions.of((request.name, request.token))
        if session is None:
            return None
        if is_taken(reply):
            return self._taken(session, request)
        session.answer = reply
        return None

    def returned(self, request: Request) -> Exchange | None:
        route = request.name, request.token
        session = self._sessions.of(route)
        if session is None or not session.holds:
            return None
        free = self._sql.free(self._key(request), held=True)
        return Exchange(partial(session.say, route, free), route)

    def taken_back(self, request: Request, reply: Rows) -> Release:
        route = request.name, request.token
        session = self._sessions.of(route)
        if session is not None and session.holds:
            self._sessions.unpin(route, session)
        return Release.RELEASED if is_taken(reply) else Release.ABSENT

    def unanswered(self, request: Request, error: BaseException) -> BaseException | None:
        """A release without an answer ends its session: see ``release``."""
        route = route_of(request)
        found, session = self._parting(route).of(error), self._sessions.of(route)
        if isinstance(found, SessionEnded) and not self._may_be_applied(found, route):
            return None
        if isinstance(found, OutcomeUnknown) and session is not None and session.holds:
            self._sessions.part(route, is_broken=True)
        return found

    def _may_be_applied(self, error: SessionEnded, route: Route) -> bool:
        """False: the statement was not sent, or the server has said that the session is over."""
        return error.was_sent and self._sessions.remains(route) is not None

    def _take(self, session: Session, request: Request) -> Step[Rows]:
        route, take = route_of(request), self._taking(session, request)
        rows, session.answer = session.answer, None
        for _ in range(TAKES):
            if rows is None:
                rows = yield from self._say(session, route, take)
            if not self._sql.is_undecided(rows):
                if not self._sql.is_missing(rows):
                    return rows
                yield from self._make(session, request)
            rows = None
        raise BackendUnavailable("the server did not say whether the lock is free")

    def _make(self, session: Session, request: Request) -> Step[None]:
        """Make the row. In MySQL, this may be what ends a deadlock with those who make and prune
        other rows; the next take tells whether it is there."""
        route, key = route_of(request), self._key(request)
        try:
            yield from self._say(session, route, self._sql.make(key, quote(request.name)))
        except Refused as refusal:
            if refusal.code not in DEADLOCKS:
                raise
        with suppress(Refused):  # another name's maker prunes again
            yield from self._say(session, route, self._sql.prune())

    def _say(self, session: Session, route: Hashable, statement: Statement) -> Step[Rows]:
        rows: Rows = yield Exchange(partial(session.say, route, statement), route)
        return rows

    def _taking(self, session: Session, request: Request) -> Statement:
        session.may_hold = True
        session.keeps(request.ttl, now())
        return self._sql.take(self._key(request), self._silence(session, request.ttl))

    def _taken(self, session: Session, request: Request) -> Grant:
        session.holds = True
        session.is_told(request.ttl)
        return Grant(request.token, None, request.ttl)

    def _parting(self, route: Route) -> Parting:
        return Parting(self._sessions, self._sql, route)

    def _silence(self, session: Session, ttl: float) -> str:
        assert session.connection is not None
        tells = self._sql.silence(ttl, session.connection)
        if tells:
            session.is_told(None)  # until the reply has come
        return tells

    def _key(self, request: Request) -> str:
        return self._sql.key_of(f"{self._prefix}\0{request.name}")


def check_length(ttl: float) -> None:
    """Raise ConfigurationError for a ttl that is longer than the server can wait."""
    if ttl > LONGEST * 24 * 3600:
        raise wrong("ttl", ttl, f"at most {LONGEST} days for locks of a database's sessions")


def route_of(request: Request) -> Route:
    return request.name, request.token
