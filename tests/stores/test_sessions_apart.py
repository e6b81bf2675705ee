"""Sessions of one process do not disturb one another; and a primary that is one no more."""

from __future__ import annotations

import os
import re
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import count
from typing import Any

import pytest
from databases import administrator
from servers_of_sessions import (
    GET_LOCK,
    MARIADB_ROW,
    ROW,
    ROWS,
    SERVERS,
    Kind,
    SessionServer,
    SilentNetwork,
    with_table,
)

import lockkit
from lockkit.engine.effects import Exchange, Park
from lockkit.model.clock import now
from lockkit.model.errors import BackendError, BackendUnavailable, OutcomeUnknown
from lockkit.model.types import Busy, Grant, LeaseState
from lockkit.stores.sessions.connection import Connection, Rows, SessionEnded, Statement
from lockkit.stores.sessions.mysql_dialects import GetLock
from lockkit.stores.sessions.pool import Parting, Route, Sessions
from lockkit.stores.sessions.session import Session
from lockkit.stores.sessions.wire import SessionWire
from lockkit.testing import blocking
from lockkit.testing.conformance.base import SOON, eventually
from lockkit.testing.conformance.steps import claim, granted
from lockkit.testing.proxy import FaultProxy

TTL = 3.0
LONG = 60.0


@pytest.fixture(params=SERVERS, ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest) -> Iterator[SessionServer]:
    with request.param.of(request) as found:
        yield found


def test_a_session_that_falls_silent_holds_up_no_other(
    server: SessionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SilentNetwork(server.port) as network:
        client = lockkit.connect(server.through(network.port), ttl=TTL)
        silent = [client.lock(name).acquire() for name in ("a", "b")]
        network.silence()
        heard = client.lock("c").acquire()  # over a new connection
        eventually(lambda: all(lease.lost for lease in silent))
        end = now() + TTL
        eventually(lambda: heard.lost or now() + heard.remaining() > end + 2.0)
        assert not heard.lost
        assert heard.release()
        with lockkit.connect(server.url, ttl=TTL) as other, other.lock("a", timeout=2 * TTL):
            pass  # the server has ended the session
        monkeypatch.setattr("lockkit.stores.sessions.session.ANSWER_SECONDS", 0.1)
        for lease in silent:
            with suppress(BackendError):
                lease.release()
        client.close()


def test_a_long_ttl_whose_session_falls_silent_holds_up_no_short_one(
    server: SessionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for its answer for longer than the other one lasts."""
    with SilentNetwork(server.port) as network:
        client = lockkit.connect(server.through(network.port), ttl=TTL)
        silent = client.lock("a", ttl=6 * TTL).acquire()
        network.silence()
        heard = client.lock("b").acquire()  # over a new connection
        eventually(lambda: silent.state is not LeaseState.HELD)
        eventually(lambda: heard.lost or heard.state is LeaseState.HELD)
        assert heard.release()
        monkeypatch.setattr("lockkit.stores.sessions.session.ANSWER_SECONDS", 0.1)
        with suppress(BackendError):
            silent.release()
        client.close()


def test_a_claim_without_an_answer_that_is_given_back_holds_up_no_renewal(
    server: SessionServer,
) -> None:
    """Whoever gives it back renews as well, and does not wait for that answer."""
    with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        lockkit.connect(server.through(proxy.port), ttl=TTL) as client,
    ):
        heard, lock = client.lock("a").acquire(), client.lock("b", ttl=6 * TTL)
        lock.acquire().release()
        proxy.delay_requests(matching=server.takes)
        with pytest.raises(OutcomeUnknown):
            lock.acquire()
        end = now() + TTL
        eventually(lambda: heard.lost or now() + heard.remaining() > end + 2.0)
        assert not heard.lost
        assert heard.release()
        eventually(lock.try_acquire).release()


def test_an_extension_without_an_answer_holds_up_no_other_renewal(server: SessionServer) -> None:
    """The pass of a watchdog waits for its turn no longer than for an answer."""
    first, second = claim("a", ttl=LONG), claim("b", ttl=4 * TTL)
    with (
        SilentNetwork(server.port) as network,
        ThreadPoolExecutor() as threads,
        lockkit.connect(server.through(network.port)) as client,
    ):
        store: Any = client.store
        granted(client, first)
        network.silence()
        granted(client, second)  # over a new connection
        extending = threads.submit(client.perform, store.extend([first._replace(number=1)]))
        eventually(lambda: store._sessions.of((first.name, first.token)).is_owed)
        both = [each._replace(number=2) for each in (first, second)]
        unknown, renewed = client.perform(store.renew(both))
        assert not extending.done()
        assert isinstance(unknown.error, BackendUnavailable)
        assert renewed.left


@pytest.mark.parametrize("api", ["sync", "async"])
@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.name)
def test_databases_of_one_server_do_not_exclude_one_another(
    request: pytest.FixtureRequest, kind: Kind, api: blocking.Api
) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            server = stack.enter_context(kind.of(request))
            client: Any = blocking.connect(api, server.url, ttl=TTL)
            stack.callback(client.stop if api == "async" else client.close)
            lease = client.lock("a").try_acquire()
            assert lease is not None
            stack.callback(lease.release)


@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.name)
def test_waiters_in_other_databases_do_not_count(
    request: pytest.FixtureRequest, kind: Kind
) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(kind.of(request)) for _ in range(2)]
        each_has_one_waiter([(server, server.url) for server in servers])


def test_waiters_for_the_row_of_another_table_do_not_count(request: pytest.FixtureRequest) -> None:
    """It is in another schema."""
    with ROW.of(request) as server:
        server.execute("create schema other")
        elsewhere = f"{server.url}&options=-c%20search_path%3Dother"
        with_table(elsewhere)
        each_has_one_waiter([(server, server.url), (server, elsewhere)])


def each_has_one_waiter(places: Sequence[tuple[SessionServer, str]]) -> None:
    """And no more are allowed."""
    with ThreadPoolExecutor() as threads, ExitStack() as stack:
        waiting = []
        for server, url in places:
            client = stack.enter_context(lockkit.connect(url, ttl=LONG, max_queue=1))
            lease = client.lock("a").acquire()
            waiting.append((lease, joined(client, server, threads)))
        for lease, waiter in waiting:
            assert lease.release()
            waiter.result(SOON)


@pytest.fixture
def users(server: SessionServer) -> Iterator[list[str]]:
    """The URLs of two users who do not see one another's sessions, and of one who sees all."""
    names = ["web", "worker"]
    tables = "lockkit_row" if "postgres" in server.url else f"{server.database}.*"
    for name in names:
        server.execute(f"create user {name}")
        server.execute(f"grant select, insert, update, delete on {tables} to {name}")
    yield [re.sub("//[a-z]*@", f"//{name}@", server.url) for name in names] + [server.url]
    for name in names:
        server.execute(f"revoke select, insert, update, delete on {tables} from {name}")
        server.execute(f"drop user {name}")


@pytest.mark.parametrize(
    "server", [ROW, GET_LOCK, MARIADB_ROW], indirect=True, ids=lambda k: k.name
)
def test_waiters_of_users_who_cannot_be_seen_do_not_count(
    server: SessionServer, users: list[str]
) -> None:
    web, worker, anybody = users
    with ThreadPoolExecutor() as threads, lockkit.connect(web, ttl=LONG) as client:
        lease = client.lock("a").acquire()
        waiter = joined(client, server, threads)
        for url, error in (
            (web, lockkit.TooManyWaiters),
            (worker, lockkit.AcquireTimeout),
            (anybody, lockkit.TooManyWaiters),
        ):
            with lockkit.connect(url, max_queue=1) as other, pytest.raises(error) as refused:
                other.lock("a").acquire(timeout=0.1)
            assert type(refused.value) is error
        assert lease.release()
        waiter.result(SOON)


def joined(
    client: lockkit.LockClient, server: SessionServer, threads: ThreadPoolExecutor
) -> Future[object]:
    """A claim that waits for "a", or has given up."""
    before = len(server.waiters())
    waiter = threads.submit(lambda: client.lock("a").acquire().release())
    eventually(lambda: waiter.done() or len(server.waiters()) > before)
    return waiter


@pytest.mark.parametrize("server", [GET_LOCK, MARIADB_ROW], indirect=True, ids=lambda k: k.name)
def test_a_claim_that_asks_how_many_wait_is_none_of_them(server: SessionServer) -> None:
    """Another one asks at the same moment."""
    with (
        lockkit.connect(server.url, ttl=LONG, max_queue=1) as client,
        ThreadPoolExecutor() as threads,
        closing(administrator(server.server)) as other,
    ):
        store: Any = client.store
        question = server.dialect().waiting(store._key(claim("a")))
        lease = client.lock("a").acquire()
        with other.cursor() as cursor:
            cursor.execute(f"use {server.database}")
            slow = question.replace("connection_id()", f"sleep({LONG})", 1)
            asking = threads.submit(cursor.execute, slow)
            (pid,) = eventually(lambda: server.pids("info like 'select sleep%'"))
            waiter = joined(client, server, threads)
            assert lease.release()
            waiter.result(SOON)
            server.kill(pid)
            assert asking.exception(SOON)


@pytest.mark.parametrize("server", [GET_LOCK, MARIADB_ROW], indirect=True, ids=lambda k: k.name)
def test_a_primary_that_is_made_read_only_locks_no_more(server: SessionServer) -> None:
    """It is a replica now, and its sessions go on."""
    with lockkit.connect(server.url, ttl=TTL) as client:
        lease = client.lock("a").acquire()
        client.lock("b").acquire().release()
        server.server.execute("set global read_only = 1")
        try:
            with pytest.raises(BackendUnavailable):
                client.lock("b").acquire(timeout=0)  # in the session that is there
            with pytest.raises(lockkit.LeaseLost):
                lease.extend()
            with pytest.raises(BackendUnavailable, match="read only"):
                client.lock("b").acquire(timeout=0)
        finally:
            server.server.execute("set global read_only = 0")
        assert not lease.release()
        assert client.lock("a").acquire().release()


@pytest.mark.parametrize("server", [MARIADB_ROW], indirect=True, ids=lambda k: k.name)
def test_no_name_is_made_on_one_that_is_read_only(server: SessionServer) -> None:
    """Not even by a user who has the right to: only the replica would have that row."""
    with lockkit.connect(server.url) as client:
        client.lock("old").acquire().release()
        server.server.execute("set global read_only = 1")
        try:
            with pytest.raises(BackendUnavailable):
                client.lock("new").acquire(timeout=0)  # in the session that is there
        finally:
            server.server.execute("set global read_only = 0")
        assert server.names() == ["old"]


@pytest.mark.parametrize("server", ROWS, indirect=True, ids=lambda k: k.name)
def test_whoever_makes_a_name_has_none_of_others_meanwhile(server: SessionServer) -> None:
    """Old names are deleted then, and it may be stopped at any moment."""
    with (
        lockkit.connect(server.url) as client,
        lockkit.connect(f"{server.url}&max_sessions=5") as other,
    ):
        other.lock("old").acquire().release()
        server.make_old()
        performed(client, lambda _: other.lock("old").acquire(timeout=0).release())


@pytest.mark.parametrize("server", ROWS, indirect=True, ids=lambda k: k.name)
@pytest.mark.parametrize("after", range(1, 5))
def test_of_two_that_make_a_name_one_has_it_and_the_other_hears_at_once(
    server: SessionServer, after: int
) -> None:
    """The other comes in between ``after`` so many requests of the one."""
    with (
        lockkit.connect(server.url) as client,
        lockkit.connect(f"{server.url}&max_sessions=5") as other,
    ):
        leases: list[lockkit.Lease | None] = []

        def take(number: int) -> None:
            if number == after:
                leases.append(other.lock("new").try_acquire())

        found = performed(client, take)
        assert other.lock("new").try_acquire() is None
        assert isinstance(found, Busy if any(leases) else Grant)
        for lease in leases:
            assert lease is None or lease.release()


def performed(client: lockkit.LockClient, between: Callable[[int], object]) -> object:
    """Take "new", with something done before each request, and after the last."""
    step, wire, reply = client.store.acquire(claim("new")), client.store.wire(), None
    try:
        for number in count():
            between(number)
            reply = wire.exchange(step.send(reply))
    except StopIteration as end:
        return end.value


def test_over_a_unix_socket_no_session_is_taken_for_another() -> None:
    """All come from ``localhost``, and a server that restarts counts them anew."""
    assert GetLock().find("7", "localhost") == "select connection_id(), 0"
    assert "id = 7 and host = '10.0.0.7:5123'" in GetLock().find("7", "10.0.0.7:5123")


def test_two_sessions_that_come_free_at_once_are_for_two() -> None:
    owner = object
    sessions = Sessions(lambda: pytest.fail("nothing is asked"), 2)
    routes: list[Route] = [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]
    pinned = [(route, sessions.pin(route, owner)) for route in routes[:2]]
    assert not any(sessions.pin(route, owner, waits=True) for route in routes[2:])
    for route, session in pinned:
        assert session is not None
        sessions.unpin(route, session)
    assert sessions.pin(routes[2], owner, waits=True)
    following = sessions.waits(routes[3])
    assert following is not None
    assert following.is_set


def test_a_session_that_is_not_connected_yet_is_not_taken_for_forgotten() -> None:
    """Another claim looks for room just then."""
    sessions = Sessions(lambda: pytest.fail("nothing is asked"), 1)
    session = sessions.pin(("a", "1"), object)
    assert session is not None
    assert sessions.pin(("b", "2"), object) is None
    assert not session.is_over


def test_a_session_that_is_given_back_while_it_ends() -> None:
    """The thread of a renewal has just heard that it is over."""
    sessions, route = Sessions(lambda: pytest.fail("nothing is asked"), 1), ("a", "1")

    class Watched(dict[Route, Session]):
        def get(self, route: Route, default: Any = None) -> Any:
            found = super().get(route, default)
            if threading.current_thread() is threading.main_thread():
                ending.append(threads.submit(sessions.part, route))
                wait(ending, 0.1)
            return found

    ending: list[Future[None]] = []
    session = sessions.pin(route, object)
    assert session is not None
    with ThreadPoolExecutor() as threads:
        sessions._pinned = Watched(sessions._pinned)
        sessions.unpin(route, session)
        ending[0].result()
    assert not sessions._pinned


def test_a_close_ends_no_session_that_serves_somebody_else_by_then() -> None:
    """It was given back, and taken by another client, while it was looked whose it is."""
    sessions, ours, theirs = (
        Sessions(lambda: pytest.fail("nothing is asked"), 2),
        Client(),
        Client(),
    )
    session = sessions.pin(("a", "1"), ours)
    assert session is not None

    def looked_up() -> object:
        sessions.unpin(("a", "1"), session)
        sessions._idle.clear()
        sessions._pinned["b", "2"] = session
        session.owner = weakref.ref(theirs)
        return ours

    session.owner = looked_up  # type: ignore[assignment]
    sessions.close(ours)
    assert sessions.of(("b", "2")) is session


class Client:
    """Whose sessions they are."""


def test_the_end_of_a_session_ends_no_socket_that_has_its_number_by_then() -> None:
    """Another thread waits for its turn there; the next socket of the process gets the number."""
    sockets = socket.socketpair()
    connection = Broken(sockets[0])
    sessions, route = Sessions(lambda: connection, 2), ("a", "1")
    session = sessions.pin(route, object)
    assert session is not None
    SessionWire(lambda: None).exchange(
        Exchange(partial(session.in_turn, route, session.opening(route)))
    )
    asks, waits = (session.say(route, "select 1") for _ in range(2))
    next(asks)
    with ThreadPoolExecutor() as threads:
        assert isinstance(threads.submit(next, waits).result(), Park)
    with pytest.raises(SessionEnded), Parting(sessions, GetLock(), route):
        next(asks)
    assert connection.successors is not None
    ours, theirs = connection.successors
    theirs.send(b"unharmed")
    assert ours.recv(8) == b"unharmed"
    waits.close()
    for each in (*sockets, ours, theirs):
        each.close()


class Broken(Connection):
    """It ends as soon as it is asked; its number goes to another socket when it is closed."""

    identity, started, ends_silence = "1", "now", True

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.successors: tuple[socket.socket, socket.socket] | None = None
        self.reads_from(end.fileno())

    @property
    def is_closed(self) -> bool:
        return self._end.fileno() < 0

    def send(self, statement: Statement) -> None:
        self.is_owed = True

    def fetch(self) -> Rows | None:
        raise SessionEnded("it was restarted")

    def is_alive(self) -> bool:
        return not self.is_closed

    def cancel(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        if not self.is_closed:
            ours, theirs = socket.socketpair()
            os.dup2(ours.fileno(), self._end.detach())
            ours.close()
            self.successors = socket.socket(fileno=self.descriptor), theirs
