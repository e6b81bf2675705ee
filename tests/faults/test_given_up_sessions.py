"""Claims of session locks that are given up: in time, and with nothing left at the server."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from servers_of_sessions import ADVISORY, GET_LOCK, MARIADB_ROW, ROW, SERVERS, SessionServer

import lockkit
from lockkit import aio
from lockkit.model.clock import now
from lockkit.model.errors import BackendUnavailable, OutcomeUnknown
from lockkit.model.types import Mode, Release
from lockkit.stores.sessions.connection import Rows
from lockkit.stores.sessions.libpq import PostgresConnection
from lockkit.stores.sessions.pymysql_connection import MySQLConnection
from lockkit.testing import blocking
from lockkit.testing.blocking import AnyClient, AnyLease
from lockkit.testing.conformance.base import SOON, eventually
from lockkit.testing.conformance.steps import claim, granted
from lockkit.testing.proxy import FaultProxy

TTL = 6.0
LONG = 30.0
MOMENT = 0.3
TIMEOUT = 4.0
"""Seconds of a waiter that is seen in the queue of the server before they are over."""

SHORT = 3.0
GIVE_UP = 2
"""As many as there are threads in which replies are read."""

HANGS = 20.0
"""Seconds."""

Connect = Callable[[str], AnyClient]

on_every_server = pytest.mark.parametrize(
    "server", SERVERS, indirect=True, ids=lambda kind: kind.name
)
on_postgresql = pytest.mark.parametrize(
    "server", [ADVISORY, ROW], indirect=True, ids=lambda kind: kind.name
)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[SessionServer]:
    with request.param.of(request) as found:
        yield found


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with ExitStack() as stack:

        def make(url: str) -> AnyClient:
            client: Any = blocking.connect(request.param, url, ttl=LONG)
            stack.callback(client.stop if request.param == "async" else client.close)
            return client  # type: ignore[no-any-return]

        yield make


@pytest.fixture
def other(server: SessionServer) -> Iterator[lockkit.LockClient]:
    """Another process, as it were: with sessions of its own."""
    with lockkit.connect(f"{server.url}&max_sessions=5", ttl=LONG) as client:
        yield client


@pytest.fixture
def _old_libpq(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 17."""
    monkeypatch.setattr(psycopg.capabilities, "has_cancel_safe", lambda: False)


@on_postgresql
@pytest.mark.usefixtures("_old_libpq")
def test_a_waiter_gives_up_in_time_at_a_server_that_hangs(
    server: SessionServer, connect: Connect, other: lockkit.LockClient
) -> None:
    """And it holds up nobody else in its process."""
    lock = connect(server.url).lock("a")
    with (
        ThreadPoolExecutor() as threads,
        lockkit.connect("memory://", ttl=TTL) as memory,
        memory.lock("elsewhere") as elsewhere,
        other.lock("a"),
    ):
        waiting = threads.submit(lock.acquire, TIMEOUT)
        eventually(server.waiters)
        with hanging(server) as hangs:
            assert isinstance(waiting.exception(HANGS + SOON), lockkit.AcquireTimeout)
            assert hangs()
            assert not elsewhere.lost


@on_postgresql
@pytest.mark.usefixtures("_old_libpq")
def test_with_an_old_libpq_too_a_waiter_that_gives_up_leaves_the_queue(
    server: SessionServer, connect: Connect, other: lockkit.LockClient
) -> None:
    """At once, and its session is kept for the next."""
    client, waiting = connect(server.url), claim("a", Mode.ENQUEUE)
    with other.lock("a"):
        client.perform(client.store.acquire(waiting))
        eventually(server.waiters)
        sessions = server.pids()
        client.perform(client.store.release(waiting._replace(queued=True)))
        assert not server.waiters()
    granted(client, claim("a"))
    eventually(lambda: server.pids() == sessions)  # without the one that has cancelled


@on_postgresql
@pytest.mark.usefixtures("_old_libpq")
def test_a_wait_is_cancelled_at_the_server_where_it_is(
    server: SessionServer, connect: Connect, other: lockkit.LockClient
) -> None:
    """The first host of the URL was down when the session began. By now it is up."""
    with FaultProxy("127.0.0.1", server.port) as first:
        first.refuse()
        here = f"127.0.0.1:{server.port}"
        client = connect(server.url.replace(here, f"127.0.0.1:{first.port},{here}"))
        waiting = claim("a", Mode.ENQUEUE)
        with other.lock("a"):
            client.perform(client.store.acquire(waiting))
            eventually(server.waiters)
            first.refuse(False)
            before = first.connections
            client.perform(client.store.release(waiting._replace(queued=True)))
            assert not server.waiters()
        assert first.connections == before


@pytest.mark.parametrize("server", [ADVISORY], indirect=True, ids=lambda kind: kind.name)
@pytest.mark.usefixtures("_old_libpq")
def test_a_session_that_only_has_the_same_number_is_not_cancelled(server: SessionServer) -> None:
    """One of another server, to which the address leads by now."""
    with (
        psycopg.connect(server.bare) as other,
        closing(PostgresConnection(lambda: conninfo_to_dict(server.bare))) as session,
    ):
        other.execute("SELECT pg_advisory_xact_lock(42)")
        session.started = "2000-01-01 00:00:00+00"
        session.send("SELECT pg_advisory_xact_lock(42)")
        eventually(server.waiters)
        session.cancel()
        other.commit()
        eventually(lambda: session.fetch() is not None)


@pytest.mark.parametrize("server", [GET_LOCK, MARIADB_ROW], indirect=True, ids=lambda k: k.name)
@pytest.mark.parametrize("connect", ["async"], indirect=True)
def test_waiters_that_give_up_hold_up_no_renewal(
    server: SessionServer,
    connect: Connect,
    other: lockkit.LockClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each cancels its statement over a connection that takes long, in a worker thread."""
    client, cancel, arrived, go_on = connect(server.url), MySQLConnection.cancel, [], []

    def cancel_late(connection: MySQLConnection) -> None:
        arrived.append(connection)
        eventually(lambda: go_on)
        cancel(connection)

    monkeypatch.setattr(MySQLConnection, "cancel", cancel_late)
    with ThreadPoolExecutor() as threads, other.lock("a"):
        lease = client.lock("b", ttl=SHORT).acquire()
        waiting = [threads.submit(client.lock("a").acquire, MOMENT) for _ in range(GIVE_UP)]
        eventually(lambda: len(arrived) == GIVE_UP)
        end = now() + SHORT
        eventually(lambda: lease.lost or now() + lease.remaining() > end + MOMENT)
        assert not lease.lost
        go_on.append(True)
        for each in waiting:
            assert isinstance(each.exception(SOON), lockkit.AcquireTimeout)
        assert lease.release()


@on_every_server
def test_steps_of_one_lease_take_turns(server: SessionServer, connect: Connect) -> None:
    with ThreadPoolExecutor() as threads, extending(server, connect) as (lease, extension, go_on):
        releasing = threads.submit(lease.release)
        with pytest.raises(TimeoutError):
            releasing.result(MOMENT)
        go_on()
        extension.result(SOON)
        assert releasing.result(SOON)


@on_every_server
def test_a_step_waits_so_long_for_others_of_its_lease(
    server: SessionServer,
    connect: Connect,
    other: lockkit.LockClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A release that gives up ends the session, and what is under way in it."""
    monkeypatch.setattr("lockkit.stores.sessions.session.TURN_SECONDS", MOMENT)
    with extending(server, connect) as (lease, extension, go_on):
        with pytest.raises(BackendUnavailable, match="used the session for"):
            lease.release()
        go_on()
        assert isinstance(extension.exception(SOON), lockkit.LockError)
        with other.lock("a", timeout=SOON):
            pass


@pytest.mark.parametrize("cancelled", ["acquire", "extend"])
@pytest.mark.parametrize("server", [GET_LOCK, MARIADB_ROW], indirect=True, ids=lambda k: k.name)
def test_a_task_that_is_cancelled_as_its_reply_is_read(
    server: SessionServer,
    other: lockkit.LockClient,
    monkeypatch: pytest.MonkeyPatch,
    cancelled: str,
) -> None:
    """A worker thread has read it: the release that follows waits for no other."""
    monkeypatch.setattr("lockkit.stores.sessions.session.ANSWER_SECONDS", 3 * SOON)
    fetch, go_on = MySQLConnection.fetch, threading.Event()

    async def scene() -> None:
        loop, has_read = asyncio.get_running_loop(), asyncio.Event()

        def held(connection: MySQLConnection) -> Rows | None:
            rows = fetch(connection)
            if rows is not None:
                loop.call_soon_threadsafe(has_read.set)
                assert go_on.wait(SOON)
            return rows

        def begin(step: str) -> None:
            if step == cancelled:
                monkeypatch.setattr(MySQLConnection, "fetch", held)

        async def use(locks: aio.AsyncLockClient) -> None:
            begin("acquire")
            async with locks.lock("a") as lease:
                begin("extend")
                await lease.extend()

        async with aio.connect(server.url, ttl=LONG) as locks:
            async with locks.lock("first"):
                pass
            task = asyncio.create_task(use(locks))
            await has_read.wait()
            task.cancel()
            await asyncio.sleep(MOMENT)  # its release is on its way
            go_on.set()
            await asyncio.wait([task], timeout=SOON)
            assert task.cancelled()
            lease = await asyncio.to_thread(other.lock("a").try_acquire)
            assert lease
            lease.release()

    asyncio.run(scene())


@on_every_server
@pytest.mark.parametrize("finder", ["release", "acquire"])
def test_what_remains_of_a_session_is_ended_by_a_later_try(
    server: SessionServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, finder: str
) -> None:
    """Its network is silent, and at first also that of the session which is to end it."""
    with FaultProxy("127.0.0.1", server.port) as proxy:
        client, request = connect(f"{server.through(proxy.port)}&max_sessions=1"), claim("a")
        client.lock("first").acquire().release()
        (silent,) = server.pids()
        proxy.delay_requests(matching=server.takes)
        finding = proxy.delay_requests(matching=server.finds)

        def ask(step: str) -> object:
            return client.perform(getattr(client.store, step)(request))

        with monkeypatch.context() as patch:
            patch.setattr("lockkit.stores.sessions.session.ANSWER_SECONDS", MOMENT)
            for step in ("acquire", "release", finder):
                with pytest.raises(OutcomeUnknown):
                    ask(step)
        assert finding.arrived.wait(SOON)
        finding.release()
        assert ask("release") is Release.ABSENT
        eventually(lambda: silent not in server.pids())
        assert client.lock("b").acquire(timeout=0).release()  # in the session that is left over


@contextmanager
def extending(
    server: SessionServer, connect: Connect
) -> Iterator[tuple[AnyLease, Future[object], Callable[[], None]]]:
    """A lease whose extension is on its way until it is let go on."""
    with FaultProxy("127.0.0.1", server.port) as proxy, ThreadPoolExecutor() as threads:
        lease = connect(server.through(proxy.port)).lock("a").acquire()
        fault = proxy.delay_requests()
        extension = threads.submit(lease.extend)
        assert fault.arrived.wait(SOON)
        yield lease, extension, fault.release


@contextmanager
def hanging(server: SessionServer) -> Iterator[Callable[[], bool]]:
    """Whether it still hangs. Another process lets it go on, because this one may be frozen."""
    resume = f"os.kill({server.server.pid}, {signal.SIGCONT})"
    program = f"import os, time; time.sleep({HANGS}); {resume}"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        server.server.pause()
        try:
            yield lambda: process.poll() is None
        finally:
            server.server.resume()
            process.kill()
