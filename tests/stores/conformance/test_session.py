"""A double of a session lock: whoever holds it holds it by a connection, and loses it with that."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import ClassVar

import pytest
from broken_stores import OverRedis

import lockkit
from lockkit.engine.effects import Step, at_once
from lockkit.model.clock import now
from lockkit.model.errors import LeaseLost
from lockkit.model.settings import AliasSettings
from lockkit.model.types import Busy, Gone, Grant, Release, Renewal, Request
from lockkit.runtime.aio_wires import ThreadWire
from lockkit.runtime.wires import CallWire
from lockkit.stores.contract import ProcessLocal, Sessioned
from lockkit.stores.memory import MemoryStore
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.targets import ServerTarget, Target


class Session:
    """A connection: silent for a TTL, or killed, it ends, and what it holds is free."""

    def __init__(self, ttl: float) -> None:
        self.ends = now() + ttl
        self.number = 0

    @property
    def is_open(self) -> bool:
        return now() < self.ends


class SessionStore(Sessioned, ProcessLocal):
    """One session for each claim, as a lock of a database's session has."""

    _mutex = threading.Lock()
    sessions: ClassVar[dict[str, tuple[str, Session]]] = {}  #: name: token, session

    def __init__(self) -> None:
        self._own: list[Session] = []

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> SessionStore:
        return cls()

    def for_asyncio(self) -> SessionStore:
        return type(self)()

    def wire(self) -> CallWire:
        return CallWire(self.close)

    def async_wire(self, *, is_shared: bool = False) -> ThreadWire:
        return ThreadWire(self.close)

    def close(self) -> None:
        for session in self._own:
            session.ends = 0.0

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        with self._mutex:
            session = self._session(request)
            if session is None:
                if request.name in self.sessions:
                    return at_once(Busy())
                session = Session(request.ttl)
                self._own.append(session)
                self.sessions[request.name] = request.token, session
            return at_once(Grant(request.token, None, session.ends - now()))

    def release(self, request: Request) -> Step[Release]:
        with self._mutex:
            if self._session(request) is None:
                return at_once(Release.ABSENT)
            del self.sessions[request.name]
            return at_once(Release.RELEASED)

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        return at_once([self._beat(request) for request in requests])

    def kill(self, name: str) -> None:
        """As an operator kills a backend of the database."""
        self.sessions[name][1].ends = 0.0

    def _beat(self, request: Request) -> Renewal:
        with self._mutex:
            session = self._session(request)
            if session is None:
                return Renewal(None)
            if request.number >= session.number:
                session.number, session.ends = request.number, now() + request.ttl
            return Renewal(session.ends - now())

    def _session(self, request: Request) -> Session | None:
        """The claim's own; what has ended holds nothing."""
        token, session = self.sessions.get(request.name, ("", None))
        if session is not None and not session.is_open:
            del self.sessions[request.name]
            return None
        return session if token == request.token else None


MODULE = sys.modules[__name__]
OPTIONS = {"backend": "session_double:SessionStore"}
sys.modules["session_double"] = MODULE


class TestSession(StoreConformance):
    schemes = ("session",)
    tested = SessionStore

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Target:
        return Target("session://", options=OPTIONS)


def test_it_dies_with_its_connection() -> None:
    store = SessionStore()
    client = lockkit.LockClient(store, lockkit.connect("memory://", ttl=30).settings)
    lease = client.lock("killed").acquire()
    store.kill("killed")
    with pytest.raises(LeaseLost):
        lease.extend()
    assert not lease.release()
    with client.lock("killed", timeout=0):
        pass
    client.close()


def test_no_test_is_switched_off_by_hand() -> None:
    with pytest.raises(TypeError, match="test_busy_at_once"):

        class _(StoreConformance):
            test_busy_at_once = None  # type: ignore[assignment]


class Passing:
    def test_busy_at_once(self) -> None:
        """And promises nothing."""


def test_nor_replaced() -> None:
    with pytest.raises(TypeError, match="test_busy_at_once"):

        class _(StoreConformance):
            test_busy_at_once = Passing.test_busy_at_once  # type: ignore[assignment]

    with pytest.raises(TypeError, match="test_busy_at_once"):

        class _Mixed(Passing, StoreConformance):  # type: ignore[misc]
            pass


def test_a_server_is_made_to_fail_unless_the_class_says_why_not() -> None:
    with pytest.raises(TypeError, match="without_faults"):

        class _(StoreConformance):
            schemes = ("redis",)
            tested = OverRedis

    class Said(StoreConformance):
        schemes = ("redis",)
        tested = OverRedis
        without_faults = "it has none here"

    class Broken(Said):
        reached = ServerTarget

    test = "test_its_server_is_made_to_fail"
    assert test in asked(Said)
    assert test not in asked(Broken) | asked(TestSession)


def asked(suite: type[StoreConformance]) -> set[str]:
    return {each for each in dir(suite) if each.startswith("test_") and getattr(suite, each)}


def test_a_class_below_another_is_asked_what_it_can_be_asked_itself() -> None:
    class Switch:
        test_busy_at_once = None

    class Alone(StoreConformance):
        schemes = ("session",)
        tested = MemoryStore
        reached = ServerTarget

    class Narrow(Switch, StoreConformance):
        schemes = ("session",)
        tested = SessionStore

    class Below(Narrow):
        tested = MemoryStore  # type: ignore[assignment]
        reached = ServerTarget

    class Again(Below):
        tested = SessionStore
        reached = Target

    assert asked(Narrow) == asked(Again) == asked(TestSession)
    assert asked(Below) == asked(Alone) != asked(TestSession)
