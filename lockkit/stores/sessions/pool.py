"""The sessions of this process with one database: pinned to a claim, or idle, to be used again.

All clients of one URL share them, so that ``max_sessions`` counts them all, and a lease may be
renewed and released by another client than the one that took it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, NamedTuple

from lockkit.engine.effects import Signal
from lockkit.model.clock import now
from lockkit.model.errors import BackendUnavailable, ConfigurationError
from lockkit.runtime import native, process
from lockkit.stores.sessions.connection import Connection, Refused, SessionEnded, pooled
from lockkit.stores.sessions.session import Session

if TYPE_CHECKING:
    from lockkit.stores.sessions.dialects import Dialect

Route = tuple[str, str]
"""A claim: its name and its token."""

PATIENCE = 10.0
"""Seconds after which a claim counts as gone if it waits for a session, or was just given one, and
asks for nothing more. A claim that is alive asks much sooner."""

GRACE = 5.0
"""Seconds past the end of its lease after which a session counts as forgotten."""


class Remains(NamedTuple):
    """A session whose connection broke. At the server it may live on until it has been silent for
    its TTL."""

    identity: str
    started: str
    until: float  #: by the local clock


class _Place(Signal):
    """The signal of a claim that waits for a session."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        super().__init__()
        self.until = 0.0  #: the claim has gone if it does not ask until then


class Sessions:
    """Thread-safe. ``connect`` opens a connection, as the newest client says; ``most`` may be open
    at once."""

    def __init__(self, connect: Callable[[], Connection], most: int) -> None:
        self.most = most
        self.connect = connect
        self._inherited: list[object] = []
        self._reset()
        process.after_fork(self._forget)

    def _reset(self) -> None:
        self._mutex = native.mutex()
        self._pinned: dict[Route, Session] = {}
        self._idle: list[Session] = []
        self._places: dict[Route, _Place] = {}  #: in the order in which they came
        self._remains: dict[Route, Remains] = {}

    def _forget(self) -> None:
        """Called in a forked child, which closes none of its parent's connections."""
        self._inherited += [self._pinned, self._idle]
        self._reset()

    def of(self, route: Route) -> Session | None:
        """The session of this claim. None: it has none, or none any more."""
        session = self._pinned.get(route)
        if session is not None and session.is_over:
            self.part(route, is_broken=True)
            return None
        return session

    def pin(
        self, route: Route, owner: object, *, waits: bool = False, opens: bool = True
    ) -> Session | None:
        """A session for this claim: an idle one; else, if ``opens``, one that is not connected yet.

        None: there is none. ``waits``: the claim then has a place among those that wait for one.
        ``owner``: its ``close`` ends the session.
        """
        with self._mutex:
            if not ((not self._places or self._is_first(route)) and self._has_room()):
                if waits:
                    place = self._places.setdefault(route, _Place())
                    place.is_set, place.until = False, now() + PATIENCE
                return None
            session = self._alive() or (Session(self._open) if opens else None)
            if session is not None:
                self._places.pop(route, None)
                session.owner, session.claim = weakref.ref(owner), route
                session.until = now() + PATIENCE  # until the claim asks it for something
                self._pinned[route] = session
        if session is not None and self._places and len(self._pinned) < self.most:
            self._next()  # two came free at once, and only this claim was told
        return session

    def shortest(self) -> float:
        """The shortest ttl of all leases that these sessions hold; infinite if there are none."""
        leases = (s for s in list(self._pinned.values()) if s.holds and s.until > now())
        return min((session.ttl for session in leases), default=math.inf)

    def waits(self, route: Route) -> Signal | None:
        """The place of this claim among those that wait for a session. None: it has none."""
        return self._places.get(route)

    def unpin(self, route: Route, session: Session) -> None:
        """The claim is over; its session is idle now. If the claim has another session by now, that
        one stays: another step uses it to end what remains of this one."""
        with self._mutex:
            if self._pinned.get(route) is session:
                del self._pinned[route]
                if not session.is_over:
                    session.rest()
                    self._idle.append(session)
        if self._places:
            self._next()

    def part(self, route: Route, *, is_broken: bool = False) -> None:
        """End the session of this claim, which cannot be used any more. If the server may not
        notice that at once, the session is remembered: see ``remains``."""
        with self._mutex:
            session = self._pinned.get(route)
            if session is None:
                return
            connection, lives_on = session.connection, is_broken or session.is_waiting
            if lives_on and connection is not None and session.may_hold and not connection.said_end:
                until = now() + max(session.ttl, GRACE)
                self._remains[route] = Remains(connection.identity, connection.started, until)
            del self._pinned[route]
        session.abort()
        self._next()

    def remains(self, route: Route) -> Remains | None:
        """The former session of this claim, if it may still hold the lock."""
        left = self._remains.get(route)
        if left is not None and left.until < now():
            self._remains.pop(route, None)
            return None
        return left

    def buried(self, route: Route) -> None:
        """Forget the former session: the server has ended it."""
        self._remains.pop(route, None)

    def leave(self, route: Route) -> None:
        """Give up the place of a claim that waits for a session."""
        if self._places.pop(route, None) is not None:
            self._next()

    def close(self, owner: object) -> None:
        """End the sessions of this owner's claims, and so the claims; and the idle sessions."""
        with self._mutex:
            idle, self._idle = self._idle, []
        for session in idle:
            session.end()
        self.end_claims(owner)

    def end_claims(self, owner: object) -> None:
        """End the sessions of this owner's claims, and so the claims."""
        for route, session in list(self._pinned.items()):
            if session.owner is not None and session.owner() in {owner, None}:
                with self._mutex:
                    if self._pinned.get(route) is not session:
                        continue  # it serves another claim by now
                    del self._pinned[route]
                session.abort()
        self._next()

    def _open(self) -> Connection:
        """Raises a BackendError; or ConfigurationError if another connection of this process leads
        to the same session of the server, which only a pooler can do."""
        connection = self.connect()
        for other in [*self._pinned.values(), *self._idle]:
            known = other.connection
            if known is not None and not other.is_over and known.is_same(connection):
                connection.close()
                raise pooled()
        return connection

    def _is_first(self, route: Route) -> bool:
        """Whether this claim is the first of those that wait for a session and are not gone."""
        moment = now()
        for other, place in list(self._places.items()):
            if other == route:
                break
            if place.until > moment:
                return False
            self._places.pop(other, None)
        return True

    def _has_room(self) -> bool:
        if len(self._pinned) >= self.most:
            self._sweep()
        return len(self._pinned) < self.most

    def _alive(self) -> Session | None:
        """The idle session that was used last. The server ends those that are not used."""
        while self._idle:
            session = self._idle.pop()
            if session.is_used or (session.connection and session.connection.is_alive()):
                return session  # used: a release that came twice still waits for a reply there
            session.end()
        return None

    def _sweep(self) -> None:
        """End sessions that no claim has used in time. The server has ended them as well, if it
        ends silent sessions."""
        moment = now()
        for route, session in list(self._pinned.items()):
            if session.until + GRACE < moment and not session.is_used:
                self._pinned.pop(route, None)
                session.abort()

    def _next(self) -> None:
        for first in list(self._places.values())[:1]:
            first.set()


class Parting:
    """A context in which an error ends the session of the claim. It does not if a reply may still
    come: after an OutcomeUnknown or an interrupt, or while the session waits for the lock."""

    def __init__(self, sessions: Sessions, sql: Dialect, route: Route) -> None:
        self._sessions, self._sql, self._route = sessions, sql, route

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and (found := self.of(error)) is not error:
            raise found from error

    def of(self, error: BaseException) -> BaseException:
        """End the session if need be; returns the error to raise."""
        sessions, route = self._sessions, self._route
        if isinstance(error, SessionEnded):
            sessions.part(route, is_broken=True)
        elif isinstance(error, BackendUnavailable | ConfigurationError):
            session = sessions.of(route)
            if session is None or not session.is_waiting:
                sessions.part(route)
        elif isinstance(error, Refused):
            sessions.part(route)
            return self._sql.failure(error)
        return error


EVERYWHERE: Final[weakref.WeakValueDictionary[Hashable, Sessions]] = weakref.WeakValueDictionary()
"""The sessions of this process, by the settings of their clients."""
