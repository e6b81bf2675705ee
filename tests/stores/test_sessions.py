"""Locks of sessions: where other libraries fail, and what differs from other stores."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from tempfile import TemporaryFile
from typing import Any

import psycopg
import pytest
from bouncer import BouncerServer
from claiming import order_of, rules
from forking import in_child
from servers_of_sessions import (
    ADVISORY,
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
from steps import rest_of

import lockkit
from lockkit import aio
from lockkit.aio import AsyncLockClient
from lockkit.model.clock import now
from lockkit.model.errors import (
    AcquireTimeout,
    BackendUnavailable,
    ConfigurationError,
    LeaseLost,
    OutcomeUnknown,
    StoreRefused,
    TooManySessions,
    TooManyWaiters,
    UnsupportedCapability,
)
from lockkit.model.types import Release
from lockkit.orders import Refusal, drive
from lockkit.stores.sessions.postgres_dialects import PostgresAdvisory
from lockkit.testing.agent import Agent
from lockkit.testing.conformance.base import SLACK, SOON, at_least_once, eventually
from lockkit.testing.conformance.steps import claim, granted
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import PostgresServer
from lockkit.testing.targets import Target

TTL = 1.5
LONG = 30.0
A_SECOND = 1.0
MANY = 20

OURS = "(SELECT oid FROM pg_database WHERE datname = current_database())"

Connect = Callable[..., lockkit.LockClient]


@pytest.fixture(params=SERVERS, ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest) -> Iterator[SessionServer]:
    with request.param.of(request) as found:
        yield found


@pytest.fixture
def connect(server: SessionServer) -> Iterator[Connect]:
    with ExitStack() as stack:

        def make(url: str = "", **options: object) -> lockkit.LockClient:
            client = lockkit.connect(url or server.url, **{"ttl": LONG, **options})
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def spawn() -> Iterator[Callable[..., object]]:
    with ThreadPoolExecutor(16) as threads:
        yield threads.submit


@pytest.fixture
def agent(server: SessionServer) -> Iterator[Agent]:
    """Another process."""
    with Agent(Target(server.url, options={"ttl": TTL})) as agent:
        agent.call("connect", api="sync")
        yield agent


def test_one_process_does_not_get_its_own_lock_twice(
    connect: Connect, server: SessionServer
) -> None:
    locks = connect()
    with locks.lock("a").acquire():
        assert locks.lock("a").try_acquire() is None
        assert server.sessions() == 2
    with locks.lock("a", timeout=0):
        pass


def test_a_connection_is_kept_for_the_next_lease(connect: Connect, server: SessionServer) -> None:
    locks = connect()
    for number in range(10):
        locks.lock(f"name:{number}").acquire().release()
    assert server.sessions() == 1
    locks.close()
    eventually(lambda: server.sessions() == 0)


def test_idle_connections_are_closed_by_the_server(connect: Connect, server: SessionServer) -> None:
    """But not in PostgreSQL's row mode, where the end of each lease undoes what was set in it."""
    connect(ttl=A_SECOND).lock("a").acquire().release()
    if server.name == ROW.name:
        assert server.execute("select 1 from pg_sleep(2)") == "1"
        eventually(lambda: server.sessions() == 1)  # and not the one that slept
    else:
        eventually(lambda: server.sessions() == 0)


def test_a_free_name_is_taken_without_a_look_at_other_sessions(
    connect: Connect, server: SessionServer
) -> None:
    """To plan that takes several times as long as the lock itself. In PostgreSQL, a transaction
    locks all that it has looked at; in MariaDB, a listing of sessions is a table of its own."""
    locks = connect()
    if server.name == ROW.name:
        with locks.lock("a"):
            locked = "select relation::regclass from pg_locks where relation is not null and pid ="
            found = server.execute(f"{locked} {server.holders()[0]}").split()
            assert found
            assert all(each.startswith("lockkit_row") for each in found)
    elif server.name != ADVISORY.name:
        counted = "show global status like 'Created_tmp_tables'"
        locks.lock("a").acquire().release()
        before = int(server.execute(counted).split()[-1])
        for _ in range(MANY):
            locks.lock("a").acquire().release()
        assert int(server.execute(counted).split()[-1]) - before < MANY


def test_a_full_queue_refuses(
    connect: Connect, server: SessionServer, spawn: Callable[..., Any]
) -> None:
    locks = connect(max_queue=1)
    with locks.lock("a"), locks.lock("b"):
        waiting = spawn(lambda: locks.lock("a", timeout=SOON).acquire().release())
        eventually(lambda: len(server.waiters()) == 1)
        with pytest.raises(TooManyWaiters):
            locks.lock("a", timeout=SOON).acquire()
        with pytest.raises(AcquireTimeout):  # it has a queue of its own
            locks.lock("b", timeout=0.1).acquire()
    assert waiting.result(SOON)


def test_a_ttl_that_is_longer_than_a_time_limit_of_the_server_is_refused(connect: Connect) -> None:
    """It would end the session sooner."""
    locks, day = connect(), 24 * 3600.0
    for _ in range(2):  # with a new session, and with the one that is idle
        with pytest.raises(ConfigurationError, match=r"ttl is 2160000.0; .* at most 24 days"):
            locks.lock("a", ttl=25 * day).acquire()
        with locks.lock("a", ttl=24 * day) as lease:
            lease.extend()
            with pytest.raises(ConfigurationError, match="at most 24 days"):
                lease.extend(25 * day)
            lease.check()


def test_an_attempt_in_vain_leaves_no_ttl_to_the_next_lease(connect: Connect) -> None:
    """They have one session after the other: the server ends it by what it was told last."""
    locks = connect()
    with locks.lock("held"):
        locks.lock("a").acquire().release()
        assert locks.lock("held", ttl=A_SECOND).try_acquire() is None
        with locks.lock("a"), pytest.raises(AcquireTimeout):
            locks.lock("a", timeout=TTL).acquire()


def test_a_waiter_whose_statement_the_server_ends_goes_on_waiting(
    connect: Connect, server: SessionServer, spawn: Callable[..., object]
) -> None:
    """A time limit of the server's, say. It may have been granted all the same: it is asked."""
    locks = connect()
    lease = locks.lock("a").acquire()
    waiting = spawn(locks.lock("a").acquire)
    for _ in range(5):
        server.cancel(*eventually(server.waiters))
        time.sleep(0.02)
    assert not waiting.done()
    assert lease.release()
    with waiting.result(SOON):
        assert locks.lock("a").try_acquire() is None


def test_time_limits_of_the_server_do_not_end_a_wait(
    connect: Connect, server: SessionServer, spawn: Callable[..., object]
) -> None:
    server.limit_statements()
    locks = connect()
    lease = locks.lock("a").acquire()
    waiting = spawn(locks.lock("a").acquire)
    pid = eventually(server.waiters)
    time.sleep(server.limit * 2)
    assert eventually(server.waiters) == pid
    assert lease.release()
    waiting.result(SOON).release()


def test_a_killed_session_is_noticed_within_a_heartbeat_and_a_second(
    connect: Connect, server: SessionServer
) -> None:
    client, other = connect(ttl=2 * TTL), connect()

    def soon() -> bool:
        lost: list[float] = []
        lease = client.lock("a", on_lost=lambda _: lost.append(now())).acquire()
        server.kill(*eventually(server.holders))
        killed = now()
        with other.lock("a", timeout=SOON):
            eventually(lambda: lost)
            assert lease.lost
            with pytest.raises(LeaseLost):
                lease.check()
            assert not lease.release()
        return lost[0] - killed < 2 * TTL / 3 + A_SECOND

    at_least_once(soon)


def test_a_restart_of_the_server_ends_all_leases(connect: Connect, server: SessionServer) -> None:
    lease = connect(ttl=2 * TTL).lock("a").acquire()
    server.server.kill()
    server.server.start()
    is_over(lease, connect)


@pytest.mark.parametrize("server", [ADVISORY, ROW], ids=lambda kind: kind.name, indirect=True)
def test_so_does_a_process_of_the_server_that_crashes(
    connect: Connect, server: SessionServer
) -> None:
    """PostgreSQL ends all others then, as they may have written into memory that they share."""
    lease = connect(ttl=2 * TTL).lock("a").acquire()
    with psycopg.connect(server.bare, autocommit=True) as unrelated:
        server.server.kill_backend(unrelated.info.backend_pid)
        is_over(lease, connect)


def is_over(lease: lockkit.Lease, connect: Connect) -> None:
    eventually(lambda: lease.lost)
    with pytest.raises(LeaseLost):
        lease.extend()
    assert not lease.release()

    def is_free() -> bool:
        with suppress(BackendUnavailable), connect().lock("a", timeout=SOON):
            return True
        return False  # the server is not up yet

    eventually(is_free)


def test_a_session_that_has_ended_is_never_connected_again(
    connect: Connect, server: SessionServer
) -> None:
    lease = connect().lock("a").acquire()
    server.kill(*eventually(server.holders))
    eventually(lambda: server.sessions() == 0)
    with pytest.raises(LeaseLost):
        lease.extend()
    assert server.sessions() == 0
    assert not lease.release()


def test_an_idle_session_that_the_server_has_ended_is_replaced(
    connect: Connect, server: SessionServer
) -> None:
    locks = connect()
    for _ in range(5):
        locks.lock("a").acquire().release()
        server.kill(*server.pids())
        with locks.lock("a", timeout=0):
            pass


def test_a_stopped_holder_is_passed_by_after_its_ttl(
    connect: Connect, server: SessionServer, agent: Agent
) -> None:
    """Also if its session served leases of another TTL before."""
    for ttl in (LONG, TTL):
        agent.call("acquire", handle="a", api="sync", name="a", ttl=ttl)
        if ttl == LONG:
            agent.call("release", handle="a")
    locks = connect()
    agent.pause()
    paused = now()
    with locks.lock("a", timeout=SOON):
        waited = now() - paused
        assert waited < server.silence(TTL) + SLACK
        agent.resume()
        assert agent.call("lost", handle="a")
        assert agent.call("release", handle="a") is False


def test_a_killed_holder_is_followed_at_once(connect: Connect, agent: Agent) -> None:
    agent.call("acquire", handle="a", api="sync", name="a", ttl=LONG)
    locks = connect()
    assert locks.lock("a").try_acquire() is None
    agent.kill()
    with locks.lock("a", timeout=SOON):
        pass


def test_a_stopped_waiter_costs_the_others_one_ttl(
    connect: Connect, server: SessionServer, agent: Agent, spawn: Callable[..., object]
) -> None:
    locks = connect()
    lease = locks.lock("a").acquire()
    stopped = agent.send("acquire", handle="a", api="sync", name="a", timeout=None, ttl=TTL)
    eventually(lambda: len(server.waiters()) == 1)
    agent.pause()
    waiting = spawn(locks.lock("a", timeout=SOON).acquire)
    eventually(lambda: len(server.waiters()) == 2)
    assert lease.release()
    released = now()
    taken = waiting.result(SOON)
    assert now() - released < server.silence(TTL) + SLACK
    agent.resume()
    assert taken.release()
    stopped.result(SOON)
    assert agent.call("release", handle="a")


def test_a_dead_waiter_leaves_the_queue_of_the_server(
    connect: Connect, server: SessionServer, agent: Agent
) -> None:
    """Before anything is granted to it, where the server can look whether it is there."""
    with connect().lock("a").acquire():
        agent.send("acquire", handle="a", api="sync", name="a", timeout=None, ttl=LONG)
        eventually(lambda: len(server.waiters()) == 1)
        agent.kill()
        if server.hears_of_dead_waiters:
            eventually(lambda: not server.waiters())
    with connect().lock("a", timeout=SOON):
        pass


def test_a_process_has_twenty_sessions_unless_told(connect: Connect) -> None:
    locks = connect()
    leases = [locks.lock(f"a{number}", ttl=LONG).acquire() for number in range(20)]
    with pytest.raises(TooManySessions, match="20 sessions are in use"):
        locks.lock("b").acquire(timeout=0)
    assert all(lease.release() for lease in leases)


def test_sessions_are_bounded(
    connect: Connect, server: SessionServer, spawn: Callable[..., object]
) -> None:
    locks = connect(options={"max_sessions": 2})
    others = connect(options={"max_sessions": 2})
    first, second = locks.lock("a").acquire(), others.lock("b").acquire()
    started = now()
    with pytest.raises(TooManySessions, match="2 sessions are in use, which is max_sessions"):
        locks.lock("c").acquire(timeout=0.2)
    assert 0.2 <= now() - started < SLACK
    for give_up in (locks.lock("c").try_acquire, lambda: locks.lock("c").acquire(timeout=0)):
        with pytest.raises(TooManySessions):
            give_up()
    waiting = [spawn(client.lock("c").acquire) for client in (locks, others)]
    assert server.sessions() == 2
    assert first.release()
    taken = eventually(lambda: next((w for w in waiting if w.done()), None)).result()
    assert taken.release()
    for each in waiting:
        lease = each.result(SOON)
        lease.release()
    assert second.release()
    assert server.sessions() == 2


def test_an_order_that_gets_no_session_is_refused_like_one_that_waits_with_too_many(
    connect: Connect,
) -> None:
    class NoRecords:
        def find(self, key: str, *, fresh: bool) -> None:
            return None

    locks = connect(options={"max_sessions": 1})
    orders = rules(STORE="database", WAIT=0.1)
    with locks.lock("a", timeout=0):
        answer = drive(orders.admit(order_of(orders)), NoRecords(), locks)
    assert isinstance(answer, Refusal)
    assert (answer.status, answer.code) == (503, "order-waiting-room-full")


def test_more_names_at_once_than_sessions_are_refused_at_once(connect: Connect) -> None:
    """Each needs one, so waiting for them would end only by a timeout, or never."""
    locks = connect(options={"max_sessions": 2})
    with pytest.raises(ConfigurationError, match=r"3 names at once .*2, which is max_sessions"):
        locks.multi("a", "b", "c", timeout=SOON)
    with locks.multi("a", "b", "a", timeout=SOON) as leases:
        assert leases.names == ("a", "b")


def test_sessions_that_nobody_renews_or_releases_are_given_to_others(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockkit.stores.sessions.pool.GRACE", 0.0)
    locks = connect(options={"max_sessions": 2}, max_hold=0)
    leases = [locks.lock(name, ttl=0.2).acquire() for name in ("a", "b")]
    with locks.lock("c", timeout=SOON), locks.lock("d", timeout=SOON):
        assert all(lease.lost for lease in leases)
    assert not any(lease.release() for lease in leases)


def test_a_release_that_comes_twice_releases_nothing_of_others(connect: Connect) -> None:
    """The second one was on its way when the session was given to another claim."""
    locks, others = connect(), connect()
    request, following = claim("a"), claim("b")
    granted(locks, request)
    second = locks.store.release(request)
    exchange = second.send(None)
    assert locks.perform(locks.store.release(request))
    granted(locks, following)
    with pytest.raises(OutcomeUnknown):
        locks.store.wire().exchange(exchange)
    assert others.lock("b").try_acquire() is None
    assert locks.perform(locks.store.release(following))


def test_a_release_that_is_late_takes_no_session_from_another_one(connect: Connect) -> None:
    """Of the same claim: its session counts as broken, so what is left of it is ended over a new
    one."""
    locks: Any = connect()
    request, wire = claim("a"), locks.store.wire()
    granted(locks, request)
    late, other = locks.store.release(request), locks.store.release(request)
    reply = wire.exchange(late.send(None))
    locks.store._sessions.part((request.name, request.token), is_broken=True)
    opening = other.send(None)
    with pytest.raises(StopIteration):
        late.send(reply)
    wire.exchange(opening)
    assert locks.perform(rest_of(other, None)) is Release.ABSENT
    with locks.lock("a"):
        assert len(locks.store._sessions._pinned) == 1


def test_closing_loses_what_is_held(connect: Connect) -> None:
    locks = connect()
    lease = locks.lock("a").acquire()
    locks.close()
    assert lease.lost
    assert not lease.release()
    with connect().lock("a", timeout=SOON):
        pass


def test_closing_under_asyncio_loses_what_is_held(connect: Connect, server: SessionServer) -> None:
    async def scene() -> None:
        locks = aio.connect(server.url, ttl=LONG)
        lease = await locks.lock("a").acquire()
        await locks.close()
        assert lease.lost
        assert not await lease.release()

    asyncio.run(scene())
    with connect().lock("a", timeout=SOON):
        pass


def test_clients_of_one_url_close_only_what_is_theirs(connect: Connect) -> None:
    locks, others = connect(), connect()
    with others.lock("a").acquire() as lease:
        closed = locks.lock("b").acquire()
        locks.close()
        assert not closed.release()
        lease.extend()
        assert others.lock("b", timeout=SOON).acquire().release()


def test_a_blocking_client_and_the_one_beside_it_close_only_what_is_theirs(
    connect: Connect, server: SessionServer
) -> None:
    """As ``locks`` and ``alocks`` are."""
    locks = connect()

    async def scene() -> None:
        alocks = AsyncLockClient.beside(locks)
        lease, closed = await alocks.lock("a").acquire(), locks.lock("b").acquire()
        locks.close()
        assert closed.lost
        assert not closed.release()
        await lease.extend()
        with locks.lock("b", timeout=SOON).acquire() as own:
            await alocks.close()
            assert lease.lost
            assert not await lease.release()
            own.extend()
        assert locks.lock("a", timeout=SOON).acquire().release()

    asyncio.run(scene())


def test_a_loop_that_ends_leaves_idle_connections_to_the_blocking_client(
    connect: Connect, server: SessionServer
) -> None:
    """Otherwise each async view of a WSGI server would connect anew."""
    locks = connect()

    async def scene() -> None:
        alocks = AsyncLockClient.beside(locks)
        await (await alocks.lock("a").acquire()).release()
        await alocks.close()

    asyncio.run(scene())
    assert server.sessions() == 1
    locks.close()
    eventually(lambda: server.sessions() == 0)


def test_a_pair_is_two_requests(connect: Connect, server: SessionServer) -> None:
    """On PostgreSQL both were planned when the session began."""
    with FaultProxy("127.0.0.1", server.port) as proxy:
        lock = connect(server.through(proxy.port)).lock("a")
        lock.acquire().release()
        before = proxy.requests
        for _ in range(5):
            lock.acquire().release()
        assert proxy.requests - before == 10


@pytest.mark.parametrize("server", [GET_LOCK], ids=lambda kind: kind.name, indirect=True)
def test_a_lock_that_the_server_is_about_to_free_is_not_held_by_somebody_else(
    connect: Connect, server: SessionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply was lost with the connection. Its session is ended, and undoes at first what else
    was done there: that takes longer than the next attempt."""
    monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", SOON)
    server.execute("create table work (id int primary key)")
    with FaultProxy("127.0.0.1", server.port) as proxy:
        far: Any = connect(server.through(proxy.port))
        far.lock("warm").acquire().release()
        (idle,) = far.store._sessions._idle
        with idle.connection._driver.cursor() as cursor:
            cursor.execute("start transaction")
            for start in range(0, 100_000, 20_000):
                cursor.execute(f"insert into work select {start} + seq from seq_1_to_20000")
        fault = proxy.drop_replies(matching=server.takes)
        lease = far.lock("a").try_acquire()
        assert fault.happened.wait(SOON)
        assert lease
        assert lease.release()


def connections(locks: Any, count: int) -> list[Any]:
    """Those of the claims, once there are so many."""
    pinned = list(locks.store._sessions._pinned.values())
    found = [session.connection for session in pinned if session.connection is not None]
    return found if len(found) == count else []


def test_the_kernel_asks_whether_a_silent_connection_is_still_there(
    connect: Connect, server: SessionServer, spawn: Callable[..., object]
) -> None:
    """Nothing else is sent while a claim waits, so nothing else can tell."""
    locks: Any = connect()
    with locks.lock("a").acquire():
        waiting: Any = spawn(locks.lock("a").acquire)
        eventually(lambda: len(server.waiters()) == 1)
        for connection in eventually(lambda: connections(locks, 2)):
            with socket.socket(fileno=os.dup(connection.descriptor)) as end:
                assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                idle, every, times = (
                    end.getsockopt(socket.IPPROTO_TCP, option)
                    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                )
                assert idle + every * times <= 30
    assert waiting.result(SOON).release()


def test_a_release_over_a_connection_that_is_silent_is_told_over_another(
    connect: Connect, server: SessionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", SOON)
    with SilentNetwork(server.port) as network:
        far = connect(server.through(network.port))
        lease = far.lock("a").acquire()
        monkeypatch.setattr("lockkit.stores.sessions.session.ANSWER_SECONDS", 1.0)
        network.silence()
        assert lease.release()
        with connect().lock("a", timeout=SOON):
            pass
        far.close()


def test_a_store_that_is_down(connect: Connect, server: SessionServer) -> None:
    with FaultProxy("127.0.0.1", server.port) as proxy:
        far = connect(server.through(proxy.port))
        lease = far.lock("a").acquire()
        proxy.refuse()
        proxy.cut()
        with pytest.raises(BackendUnavailable):
            far.lock("b").acquire()
        with pytest.raises(LeaseLost):
            lease.extend()
        with pytest.raises(BackendUnavailable):
            lease.release()
        proxy.refuse(False)
        far.lock("b").acquire().release()


@pytest.mark.parametrize("server", [ADVISORY, ROW], ids=lambda kind: kind.name, indirect=True)
def test_a_server_that_falls_silent_as_a_session_begins(
    connect: Connect,
    server: SessionServer,
    spawn: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has let the client in. PyMySQL has time limits of its own."""
    monkeypatch.setattr("lockkit.stores.sessions.libpq.ANSWER_SECONDS", 0.5)
    with FaultProxy("127.0.0.1", server.port) as proxy:
        fault = proxy.delay_requests(matching=server.begins)
        waiting = spawn(connect(server.through(proxy.port)).lock("a").acquire)
        assert fault.arrived.wait(SOON)
        try:
            assert isinstance(waiting.exception(SOON), BackendUnavailable)
        finally:
            fault.release()


def test_what_it_cannot_is_refused(connect: Connect) -> None:
    locks = connect()
    with locks.lock("a") as lease, pytest.raises(UnsupportedCapability, match="redis"):
        _ = lease.fencing_token
    with pytest.raises(UnsupportedCapability, match="redis"):
        locks.semaphore("a", 2)
    with pytest.raises(UnsupportedCapability, match="redis"):
        locks.rwlock("a")


def test_what_operators_see_and_do(connect: Connect, server: SessionServer) -> None:
    """As docs/sessions.md says."""
    shown = subprocess.run(
        [sys.executable, "-m", "lockkit", "--url", server.url, "locks"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (shown.returncode, "nothing can be listed" in shown.stderr) == (1, True)
    if server.name == "PostgreSQL advisory":
        lease = connect().lock("a").acquire()
        with psycopg.connect(server.url.partition("?")[0], autocommit=True) as operator:
            holds = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
            (row,) = operator.execute(f"{holds} AND database = {OURS}").fetchall()
            operator.execute("SELECT pg_terminate_backend(%s)", row)
        with pytest.raises(LeaseLost):
            lease.extend()
        assert not lease.release()


def test_ten_thousand_names_have_as_many_keys(server: SessionServer) -> None:
    dialect = server.dialect()
    names = [f"{kind}:{number}" for kind in ("Stock", "stock", "é" * 100) for number in range(4000)]
    keys = {dialect.key_of(name) for name in names}
    assert len(keys) == len(names)
    assert all(server.is_key(key) for key in keys)


def test_keys_of_advisory_locks_have_64_bits() -> None:
    keys = [int(PostgresAdvisory.key_of(f"stock:{number}")) for number in range(100)]
    assert min(keys) < -(2**62) < 2**62 < max(keys)
    assert len({key % 2**32 for key in keys}) == len(keys)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_sessions": 0}, "max_sessions"),
        ({"max_sesions": 3}, "max_sessions"),
        ({"password": 7}, "password"),
    ],
)
def test_options_are_checked(connect: Connect, options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        connect(options=options)


def test_the_url_says_how_many_sessions(connect: Connect, server: SessionServer) -> None:
    locks = connect(f"{server.url}&max_sessions=1")
    with locks.lock("a").acquire(), pytest.raises(TooManySessions):
        locks.lock("b").acquire(timeout=0)
    with pytest.raises(ConfigurationError, match="both say"):
        connect(f"{server.url}&max_sessions=1", options={"max_sessions": 2})


def test_a_call_is_skipped_for_a_lock_that_is_held_and_not_for_want_of_a_session(
    connect: Connect, server: SessionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}&max_sessions=1"
    monkeypatch.setenv("LOCKKIT_URL", url)

    @lockkit.locked("b", when_held="skip")
    def job() -> str:
        return "done"

    @lockkit.locked("b", when_held="skip")
    async def coroutine() -> str:
        return "done"

    with connect(url).lock("a").acquire():
        with pytest.raises(TooManySessions):
            job()
        with pytest.raises(TooManySessions):
            asyncio.run(coroutine())
    with connect().lock("b").acquire():
        assert job() is None
    assert job() == "done"


def test_what_a_url_says_may_have_spaces(connect: Connect, server: SessionServer) -> None:
    """Libpq takes a plus sign for one."""
    is_libpq = server.url.startswith("postgresql")
    option = "options=-c%20application_name%3Dshop" if is_libpq else "ssl_mode=DISABLED"
    assert connect(f"{server.url}&{option}").lock("a").acquire().release()


def test_no_url_and_no_password_is_shown(connect: Connect, server: SessionServer) -> None:
    secret = "a-canary"
    url = server.url.replace("@", f":{secret}@", 1)
    for broken in (f"{url}&{secret}=1", url.replace(str(server.port), f"{server.port}x")):
        with pytest.raises(ConfigurationError) as refused:
            connect(broken).lock("a").acquire()
        assert secret not in str(refused.value)
        assert refused.value.__cause__ is None
    locks = connect(url)
    assert secret not in repr(locks) + repr(locks.store)


def test_the_password_is_asked_for_each_new_connection(
    connect: Connect, server: SessionServer
) -> None:
    asked = []

    def password() -> str:
        asked.append(1)
        return ""

    locks = connect(options={"password": password})
    with locks.lock("a"), locks.lock("b"):
        assert len(asked) == 2


@pytest.mark.parametrize("knows", [True, False], ids=["psycopg 3.2", "psycopg 3.1"])
def test_also_for_the_one_that_cancels_a_statement(
    connect: Connect, server: SessionServer, knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A libpq before 17 and PyMySQL need it: the password may have changed meanwhile."""
    if knows:
        monkeypatch.setattr(psycopg.capabilities, "has_cancel_safe", lambda: False)
    else:
        monkeypatch.delattr(psycopg, "capabilities")
    asked = []

    def password() -> str:
        asked.append(1)
        return ""

    waiting = connect(options={"password": password})
    with connect().lock("a"), pytest.raises(AcquireTimeout):
        waiting.lock("a").acquire(timeout=0.1)
    assert len(asked) == 2


@pytest.mark.parametrize(
    "server", [GET_LOCK, MARIADB_ROW], ids=lambda kind: kind.name, indirect=True
)
@pytest.mark.parametrize("unusable", ["canary€", 5])
def test_one_that_cannot_be_sent_is_shown_nowhere(
    connect: Connect, server: SessionServer, unusable: object
) -> None:
    """At first it is an error. When a wait is cancelled, its session ends without it."""
    with pytest.raises(ConfigurationError, match="PyMySQL cannot send the user or") as refused:
        connect(options={"password": lambda: unusable}).lock("a").acquire()
    assert "canary" not in repr(refused.value) + repr(refused.value.__cause__)
    answers: list[object] = ["", unusable]
    waiting = connect(options={"password": lambda: answers.pop(0)})
    with connect().lock("a"), pytest.raises(AcquireTimeout):
        waiting.lock("a").acquire(timeout=0.1)
    eventually(lambda: not server.waiters())


class Vault:
    """A function without a hash, as that of a dataclass."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> str:
        return ""


def test_what_gives_the_password_need_not_have_a_hash(connect: Connect) -> None:
    vault = Vault()
    one, same, another = (connect(options={"password": each}) for each in (vault, vault, Vault()))
    with one.lock("a"):
        assert same.lock("a").try_acquire() is None
    assert one.store._sessions is same.store._sessions is not another.store._sessions  # type: ignore[attr-defined]


def test_a_password_that_cannot_be_had_is_an_error_and_asked_for_again(connect: Connect) -> None:
    answers: list[object] = [OSError("the vault is shut"), ""]

    locks = connect(options={"password": lambda: answer(answers.pop(0))})
    with pytest.raises(BackendUnavailable, match=r"OPTIONS\['password'\] has failed") as caught:
        locks.lock("a").acquire()
    assert isinstance(caught.value.__cause__, OSError)
    assert locks.lock("a").acquire().release()


def answer(said: object) -> object:
    if isinstance(said, Exception):
        raise said
    return said


def test_a_database_that_is_not_there(connect: Connect, server: SessionServer) -> None:
    with pytest.raises(StoreRefused):
        connect(server.of_database("nobody_made_it")).lock("a").acquire()


def test_health_and_check(connect: Connect, server: SessionServer) -> None:
    locks = connect()
    assert locks.perform(locks.store.health()) == []
    locks.perform(locks.store.check())
    assert server.sessions() == 1


@pytest.mark.parametrize("server", [ADVISORY], ids=lambda kind: kind.name, indirect=True)
def test_where_the_server_cannot_end_a_silent_session_it_is_said(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, server: SessionServer
) -> None:
    monkeypatch.setattr("lockkit.stores.sessions.libpq.HAS_TIMEOUTS", 990_000)
    locks = connect(options={"max_sessions": 3})
    (danger,) = locks.perform(locks.store.health())
    assert danger.code == "no-session-timeout"
    with locks.lock("a", timeout=0):
        pass


@pytest.fixture(params=ROWS, ids=lambda kind: kind.name)
def rows(request: pytest.FixtureRequest) -> Iterator[SessionServer]:
    with request.param.of(request) as found:
        yield found


def test_time_limits_of_idle_transactions_end_no_lease(rows: SessionServer) -> None:
    rows.limit_idling()
    with lockkit.connect(rows.url, ttl=LONG) as locks, locks.lock("a") as lease:
        rows.outlast_a_transaction()
        with lockkit.connect(f"{rows.url}&max_sessions=5") as others:
            assert others.lock("a").try_acquire() is None
        lease.extend()


def test_a_missing_table_is_said_and_made(rows: SessionServer) -> None:
    rows.execute("drop table lockkit_row")
    with lockkit.connect(rows.url) as locks:
        with pytest.raises(ConfigurationError, match="CREATE TABLE IF NOT EXISTS lockkit_row"):
            locks.lock("a").acquire()
        for _ in range(2):
            locks.store.create_table()
        with locks.lock("a", timeout=0):
            pass


def test_a_table_that_is_there_is_made_by_anyone_who_may_use_it(rows: SessionServer) -> None:
    """The server would refuse even CREATE TABLE IF NOT EXISTS."""
    rows.execute("create user weak")
    rows.execute("grant select, insert, update, delete on lockkit_row to weak")
    try:
        with lockkit.connect(re.sub("//[a-z]*@", "//weak@", rows.url)) as locks:
            locks.store.create_table()
            assert locks.lock("a").acquire(timeout=0).release()
    finally:
        rows.execute("revoke select, insert, update, delete on lockkit_row from weak")
        rows.execute("drop user weak")


def test_the_table_is_made_by_two_processes_at_once(
    request: pytest.FixtureRequest, spawn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, IF NOT EXISTS alone would fail for one of them."""
    monkeypatch.setattr("lockkit.stores.sessions.session.ANSWER_SECONDS", SOON)
    with ROW.of(request) as server, psycopg.connect(server.bare) as other:
        other.execute("drop table lockkit_row")
        other.commit()
        other.execute("lock table pg_type in share mode")  # each looks, and then has to wait
        with lockkit.connect(server.url) as one, lockkit.connect(server.url) as two:
            making = [spawn(client.store.create_table) for client in (one, two)]
            eventually(lambda: len(server.waiters()) == 2)
            other.rollback()
            for made in making:
                made.result(SOON)
            with one.lock("a", timeout=0):
                assert two.lock("a").try_acquire() is None


def test_old_rows_that_cannot_be_deleted_fail_no_lock(
    rows: SessionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without the right to delete."""
    with lockkit.connect(rows.url, ttl=LONG) as locks:
        monkeypatch.setattr(type(locks.store._sql), "prune", lambda _: "select nothing from none")
        with locks.lock("a", timeout=0), locks.lock("b", timeout=0):
            pass


def test_a_row_whose_making_ends_a_deadlock_is_made_anew(rows: SessionServer) -> None:
    """MySQL may choose it, among those who make and prune other rows."""
    rows.undo_two_inserts()
    with lockkit.connect(rows.url, ttl=LONG) as locks:
        with locks.lock("a", timeout=0):
            assert locks.lock("a").try_acquire() is None
        assert rows.names() == ["a"]


def test_old_rows_that_nobody_has_locked_are_deleted(rows: SessionServer) -> None:
    with lockkit.connect(rows.url, ttl=LONG) as locks:
        with locks.lock("held", timeout=0):
            locks.lock("idle").acquire().release()
            rows.make_old()
            locks.lock("new").acquire().release()
            assert rows.names() == ["held", "new"]
        with locks.lock("idle", timeout=0):
            assert rows.names() == ["idle", "new"] or rows.names() == ["held", "idle", "new"]


def test_a_waiter_whose_row_is_deleted_goes_on_waiting(
    rows: SessionServer, spawn: Callable[..., object]
) -> None:
    with lockkit.connect(rows.url, ttl=LONG) as locks:
        locks.lock("a").acquire().release()
        with rows.deleting():
            waiting = spawn(locks.lock("a").acquire)
            eventually(lambda: len(rows.waiters()) == 1)
        with waiting.result(SOON):
            assert locks.lock("a").try_acquire() is None


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_name_that_two_make_at_once_is_locked_at_any_isolation(
    request: pytest.FixtureRequest,
    spawn: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    level: str,
) -> None:
    """That of a database, which an administrator has set."""
    monkeypatch.setattr("lockkit.stores.sessions.session.ANSWER_SECONDS", SOON)
    with ROW.of(request) as server:
        preference = f"default_transaction_isolation = '{level}'"
        server.execute(f"alter database {server.database} set {preference}")
        with lockkit.connect(server.url, ttl=LONG) as locks, psycopg.connect(server.bare) as other:
            key = locks.store._key(claim("a"))
            other.execute("insert into lockkit_row (id, name) values (%s, 'a')", [key])
            making = spawn(locks.lock("a").acquire)
            eventually(server.waiters)
            other.commit()
            making.result(SOON).release()


@pytest.mark.parametrize("server", [ADVISORY, ROW], ids=lambda kind: kind.name, indirect=True)
def test_only_row_mode_holds_back_vacuum(server: SessionServer, connect: Connect) -> None:
    with connect().lock("a"):
        server.execute("create table shop as select generate_series(1, 100) as id")
        server.execute("delete from shop")
        said = server.execute("vacuum (verbose) shop")
    assert ("100 are dead but not yet removable" in said) == (server.name == ROW.name)


@pytest.fixture(params=["sync", "async"])
def try_at(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Lock once at a URL."""

    async def alock(url: str, **options: object) -> None:
        async with aio.connect(url, **options) as locks, locks.lock("a", timeout=0):
            pass

    def lock(url: str, **options: object) -> None:
        if request.param == "async":
            asyncio.run(alock(url, **options))
            return
        with lockkit.connect(url, **options) as locks, locks.lock("a", timeout=0):
            pass

    return lock


of_both = pytest.mark.parametrize("kind", [ADVISORY, ROW], ids=lambda kind: kind.name)


@of_both
def test_a_transaction_pooler_is_refused(
    kind: Kind, postgres_server: PostgresServer, postgres_url: str, try_at: Callable[..., None]
) -> None:
    with_table(kind.made(postgres_server, postgres_url).url)
    with BouncerServer(postgres_server, "transaction") as bouncer:
        url = kind.made(bouncer, bouncer.of(postgres_url)).url
        with pytest.raises(ConfigurationError, match="transaction mode"):
            try_at(url)


def test_a_transaction_pooler_that_is_said_to_be_none_is_refused(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """As soon as two of its clients have one session."""
    pooled = {"options": {"session_pooler": True}}
    with BouncerServer(postgres_server, "transaction") as bouncer:
        url = ADVISORY.made(bouncer, bouncer.of(postgres_url)).url
        refused = pytest.raises(ConfigurationError, match="transaction mode")
        with lockkit.connect(url, **pooled) as locks, locks.lock("a"), refused:
            locks.lock("b").acquire()


@of_both
def test_a_session_pooler_is_refused_unless_it_is_said(
    kind: Kind, postgres_server: PostgresServer, postgres_url: str, try_at: Callable[..., None]
) -> None:
    with_table(kind.made(postgres_server, postgres_url).url)
    with BouncerServer(postgres_server, "session") as bouncer:
        url = kind.made(bouncer, bouncer.of(postgres_url)).url
        with pytest.raises(ConfigurationError, match="session_pooler"):
            try_at(url)
        try_at(url, options={"session_pooler": True})


def test_a_session_that_a_pooler_has_given_to_somebody_else_is_not_ended(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its number is that of the session whose connection broke."""
    monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", SOON)
    with (
        BouncerServer(postgres_server, "session") as bouncer,
        FaultProxy("127.0.0.1", bouncer.port) as proxy,
        ExitStack() as stack,
    ):
        url = ADVISORY.made(bouncer, bouncer.of(postgres_url)).url
        near = url.replace(f":{bouncer.port}", f":{proxy.port}")
        locks = stack.enter_context(lockkit.connect(near, options={"session_pooler": True}))
        lease = locks.lock("a").acquire()
        (connection,) = connections(locks, 1)
        has = f"select from pg_locks where locktype = 'advisory' and pid = {connection.identity}"
        proxy.cut()
        eventually(lambda: postgres_server.execute(f"select exists ({has})").strip() == "f")

        def session_of(client: Any) -> str:
            return str(client.execute("select pg_backend_pid()").fetchone()[0])

        others = (psycopg.connect(bouncer.of(postgres_url), autocommit=True) for _ in range(9))
        clients = (stack.enter_context(each) for each in others)
        other = next(each for each in clients if session_of(each) == connection.identity)
        assert not lease.release()
        assert session_of(other) == connection.identity


def test_a_forked_child_has_nothing_of_its_parents(connect: Connect, agent: Agent) -> None:
    """And ends none of its sessions, whatever becomes of the child."""
    agent.call("acquire", handle="a", api="sync", name="a", ttl=LONG)
    for _ in range(3):
        child = agent.call("fork", handle="a", api="sync")
        assert child == {
            "lost": True, "remaining": 0.0, "released": False, "taken": False, "own": True,
        }  # fmt: skip
        assert agent.call("lost", handle="a") is False
        assert connect().lock("a").try_acquire() is None
    assert agent.call("release", handle="a") is True


def test_a_forked_child_that_forgets_the_client_ends_no_session(server: SessionServer) -> None:
    client = lockkit.connect(server.url, ttl=LONG)
    held: list[Any] = [client, client.lock("a").acquire()]
    del client

    def forget() -> None:
        held.clear()
        gc.collect()

    in_child(forget)
    client, lease = held
    lease.extend()
    assert lease.release()
    client.close()


HOLDS_AND_FORKS = """
import os, sys, lockkit
lease = lockkit.connect(sys.argv[1], ttl=30).lock("a").acquire()
if not os.fork():
    print("forked", flush=True)
sys.stdin.read()
os._exit(0)
"""


def test_a_forked_child_that_outlives_its_parent_keeps_nothing(
    connect: Connect, server: SessionServer
) -> None:
    """Else the server does not see that the parent has died."""
    run = [sys.executable, "-W", "ignore", "-c", HOLDS_AND_FORKS, server.url]
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == b"forked\n"
        parent.kill()
        with connect().lock("a", timeout=SOON):
            pass


def test_a_child_that_is_forked_as_a_session_begins_keeps_nothing(
    connect: Connect,
    server: SessionServer,
    spawn: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lockkit.stores.sessions.libpq.ANSWER_SECONDS", SOON)
    monkeypatch.setattr("lockkit.stores.sessions.mysql.SECONDS", SOON)
    with FaultProxy("127.0.0.1", server.port) as proxy:
        fault = proxy.delay_requests(matching=server.begins)
        acquiring = spawn(connect(server.through(proxy.port)).lock("a").acquire)
        assert fault.arrived.wait(SOON)
        in_child(lambda: has_no_socket_to(proxy.port))
        fault.release()
        assert acquiring.result(SOON).release()


def test_the_file_of_a_daemon_that_forks_is_not_taken_for_a_session(
    connect: Connect, server: SessionServer
) -> None:
    """It was forked, has closed all files, as daemons do, and opened its own."""
    locks: Any = connect()
    lease = locks.lock("a").acquire()
    (connection,) = connections(locks, 1)

    def be_a_daemon() -> None:
        with TemporaryFile() as own:
            os.dup2(own.fileno(), connection.descriptor)
            expected = os.fstat(own.fileno())
            in_child(lambda: has_there(expected))

    def has_there(expected: os.stat_result) -> None:
        assert os.path.samestat(os.fstat(connection.descriptor), expected)

    in_child(be_a_daemon)
    assert lease.release()


def has_no_socket_to(port: int) -> None:
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as found:
            assert found.getpeername()[1:] != (port,)


def test_a_holder_that_is_cut_off_hears_within_a_heartbeat(
    connect: Connect, server: SessionServer
) -> None:
    """And the next one gets it before that: the server has heard of it at once."""
    heard = threading.Event()
    with FaultProxy("127.0.0.1", server.port) as proxy:
        far = connect(server.through(proxy.port), ttl=3)
        lease = far.lock("a", on_lost=lambda _: heard.set()).acquire()
        proxy.cut()
        with connect().lock("a", timeout=SOON):
            assert heard.wait(SOON)
        with pytest.raises(LeaseLost):
            lease.check()
        assert not lease.release()


@pytest.mark.parametrize("mode", ["", "?mode=advisory", "?mode=row"])
def test_a_pooler_of_statements_is_refused_and_told_what_to_do(
    postgres_server: PostgresServer,
    postgres_url: str,
    try_at: Callable[..., None],
    mode: str,
) -> None:
    options = {"options": {"session_pooler": True}} if mode else {}
    refused = pytest.raises(StoreRefused, match="set its pool_mode to session or transaction")
    with BouncerServer(postgres_server, "statement") as bouncer, refused:
        try_at(f"{bouncer.of(postgres_url)}{mode}", **options)
