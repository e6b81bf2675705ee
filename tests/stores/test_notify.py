"""PostgreSQL wakes those who wait by messages; behind a transaction pooler they poll."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import django
import psycopg
import pytest
from bouncer import BouncerServer
from database_settings import complete, postgresql
from django.db import connections
from forking import in_child
from lock_tables import make_table

import lockkit
from lockkit import aio
from lockkit.model.clock import now
from lockkit.stores.sql import inbox
from lockkit.stores.sql.connector import Connection, Connector, Ear, Missed
from lockkit.stores.sql.dialect import Dialect
from lockkit.testing.conformance.base import PROMPT, at_least_once, eventually, queued, waiters
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import PostgresServer

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")
django.setup()

Locks = Callable[..., lockkit.LockClient]

AT_ONCE = 40


@pytest.fixture
def url(lock_table_url: str) -> str:
    return lock_table_url


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    with ExitStack() as stack:

        def connected(where: str = url, **options: Any) -> lockkit.LockClient:
            return stack.enter_context(lockkit.connect(where, **options))

        yield connected


@pytest.fixture
def admin(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def inbox_of(client: Any) -> inbox.Inbox:
    found: inbox.Inbox = client.store._inbox
    return found


def listeners(admin: psycopg.Connection) -> int:
    row = admin.execute(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE query LIKE 'LISTEN %' AND datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0])


def transactions(admin: psycopg.Connection) -> int:
    admin.execute("SELECT pg_stat_clear_snapshot()")
    row = admin.execute(
        "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture
def _late_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "PROOF_SECONDS", 15.0)


on_a_busy_machine = pytest.mark.usefixtures("_late_proof")
"""Its first notification may come late: who gives it up polls for a minute."""


@on_a_busy_machine
def test_a_waiter_is_woken_and_asks_seldom(locks: Locks, admin: psycopg.Connection) -> None:
    """By polling it has about 80 transactions in the same time. The server counts them late."""
    client, other = locks(), locks()
    lease = other.lock("a").acquire()

    def asks_seldom() -> bool:
        before = transactions(admin)
        time.sleep(3)
        return transactions(admin) - before < 20

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.lock("a").acquire, timeout=60)
        eventually(lambda: inbox_of(client).is_open)
        at_least_once(asks_seldom)
        assert lease.release()
        assert waiting.result(10).release()
    assert listeners(admin) == 1


@on_a_busy_machine
def test_handoffs_take_no_poll(locks: Locks) -> None:
    client, other = locks(), locks()

    def handoff() -> bool:
        lease = other.lock("a").acquire()
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(client.lock("a").acquire)
            queued(other, "a", 1)
            eventually(lambda: inbox_of(client).is_open)
            time.sleep(0.2)  # it is asleep
            released = now()
            lease.release()
            taken = waiting.result(10)
            woken = now() - released
            taken.release()
        return woken < 0.1

    at_least_once(handoff)


@on_a_busy_machine
def test_tasks_are_woken_as_threads_are(url: str) -> None:
    async def handoffs() -> bool:
        async with aio.connect(url, ttl=60) as client, aio.connect(url, ttl=60) as other:
            lease = await other.lock("a").acquire()
            tasks = [asyncio.create_task(take(client)) for _ in range(5)]
            while not inbox_of(client).is_open:  # noqa: ASYNC110  it has no event for tasks
                await asyncio.sleep(0.01)
            await lease.release()
            started = now()
            await asyncio.gather(*tasks)
            return now() - started < PROMPT

    at_least_once(lambda: asyncio.run(handoffs()))


async def take(client: aio.AsyncLockClient) -> None:
    async with client.lock("a"):
        pass


def test_nobody_is_told_where_nobody_waits(
    locks: Locks, admin: psycopg.Connection, url: str
) -> None:
    """Commits that notify wait for one another, on the whole server."""
    client = locks()
    with psycopg.connect(url, autocommit=True) as spy:
        client.lock("a").acquire().release()
        spy.execute(f"LISTEN {inbox_of(client).channel}")
        for _ in range(5):
            client.lock("a").acquire().release()
        admin.execute(f"NOTIFY {inbox_of(client).channel}, 'the end'")
        told = [message.payload for message in spy.notifies(timeout=10, stop_after=1)]
    assert told == ["the end"]
    eventually(lambda: listeners(admin) == 0)  # who never waited has no connection for it


def test_many_that_come_at_once_are_all_queued(locks: Locks) -> None:
    """Each over a connection of its own, where every write makes those of the others in vain."""
    clients = [locks(acquire_timeout=None) for _ in range(AT_ONCE)]
    holder, together = locks().lock("a").acquire(), threading.Barrier(AT_ONCE)

    def take(client: lockkit.LockClient) -> bool:
        client.lock("warm-up").acquire().release()
        together.wait()
        return client.lock("a").acquire().release()

    with ThreadPoolExecutor(AT_ONCE) as threads:
        served = [threads.submit(take, client) for client in clients]
        queued(clients[0], "a", AT_ONCE)
        holder.release()
        assert all(each.result() for each in served)


@on_a_busy_machine
def test_threads_of_a_client_share_one_connection(locks: Locks, admin: psycopg.Connection) -> None:
    client, other = locks(), locks()
    leases = [other.lock(f"n{number}").acquire() for number in range(6)]
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(client.lock(f"n{number}").acquire) for number in range(6)]
        for number in range(6):
            queued(other, f"n{number}", 1)
        eventually(lambda: inbox_of(client).is_open)
        assert listeners(admin) == 1
        for lease, future in zip(leases, waiting, strict=True):
            assert lease.release()
            assert future.result(10).release()
    client.close()
    eventually(lambda: listeners(admin) == 0)


# Whoever may read the table may send messages to those who wait


class Forger:
    """Knows what the row of a name says of the first who waits."""

    def __init__(self, url: str, reader: str, name: str) -> None:
        self._connected = partial(psycopg.connect, url, user=reader)
        with self._connected() as connection:
            row = connection.execute(
                "SELECT state FROM lockkit_lock WHERE name = %s", [name]
            ).fetchone()
        assert row is not None
        state = json.loads(row[0])
        self.digest, _, self.ticket, *_ = state["queue"][0]
        self._channel = state["channels"][self.digest]

    def send(self, message: str) -> None:
        with self._connected() as connection:
            connection.execute("SELECT pg_notify(%s, %s)", [self._channel, message])


@pytest.fixture
def reader(admin: psycopg.Connection) -> Iterator[str]:
    """A role that may SELECT, and nothing else."""
    admin.execute("CREATE ROLE reader LOGIN; GRANT SELECT ON lockkit_lock TO reader")
    yield "reader"
    admin.execute("DROP OWNED BY reader; DROP ROLE reader")


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "x",
        "{ticket}",
        "{ticket} x y",
        "{ticket} 2 3 4",
        "{ticket} 7 {late}",
        "{ticket} 7 {endless}",
        "{ticket} -7 {soon}",
    ],
)
@on_a_busy_machine
def test_a_forged_message_grants_nothing(locks: Locks, url: str, reader: str, forged: str) -> None:
    """Not even for longer than any grant by message is: see docs/tables.md for shorter."""
    client, other = locks(ttl=30), locks(ttl=60)
    lease = other.lock("a").acquire()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.lock("a").acquire)
        queued(other, "a", 1)
        eventually(lambda: inbox_of(client).is_open)
        forger = Forger(url, reader, "a")
        claim = inbox_of(client)._claims[forger.digest]
        soon, late = (round((time.time() + after) * 1e6) for after in (1, 60))
        said = forged.format(ticket=forger.ticket, soon=soon, late=late, endless="9" * 400)
        before = claim.seen
        forger.send(f"{forger.digest} {said}")
        eventually(lambda: waiting.done() or claim.seen > before)  # it has asked
        assert not waiting.done()
        assert lease.release()
        assert waiting.result(10).release()


def test_a_silent_connection_is_made_anew(
    locks: Locks,
    url: str,
    postgres_server: PostgresServer,
    admin: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A firewall has forgotten it: nobody says so."""
    monkeypatch.setattr(inbox, "PULSE", 0.2)
    monkeypatch.setattr(inbox, "PROOF_SECONDS", 5.0)
    with FaultProxy("127.0.0.1", postgres_server.port) as proxy:
        far = locks(url.replace(f":{postgres_server.port}", f":{proxy.port}"), ttl=60)
        other = locks()
        lease = other.lock("a").acquire()
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(far.lock("a").acquire)
            eventually(lambda: inbox_of(far).is_open)
            first = inbox_of(far)._connection
            assert proxy.lose_store(matching=b"LISTEN") == 1
            eventually(lambda: inbox_of(far)._connection not in (None, first))
            eventually(lambda: inbox_of(far).is_open)
            assert lease.release()
            assert waiting.result(10).release()


@on_a_busy_machine
async def test_nobody_listens_for_those_who_left_while_the_server_was_down(
    locks: Locks, url: str, postgres_server: PostgresServer
) -> None:
    other = locks(ttl=60)
    lease = other.lock("a").acquire()
    with FaultProxy("127.0.0.1", postgres_server.port) as proxy:
        far = url.replace(f":{postgres_server.port}", f":{proxy.port}")
        async with aio.connect(far, ttl=2) as client, asyncio.timeout(60):
            tasks = [asyncio.create_task(take(client)) for _ in range(20)]
            while not inbox_of(client).is_open or waiters(other, "a") < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            proxy.refuse()
            proxy.cut()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            while inbox_of(client).is_awaited:  # noqa: ASYNC110  it has no event for tasks
                await asyncio.sleep(0.01)
    assert lease.release()


@on_a_busy_machine
def test_a_forked_child_listens_for_itself(locks: Locks, admin: psycopg.Connection) -> None:
    client, other = locks(), locks()

    def wait_for(name: str) -> bool:
        lease = other.lock(name).acquire()
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(client.lock(name).acquire)
            eventually(lambda: inbox_of(client).is_open)
            lease.release()
            return waiting.result(10).release()

    assert wait_for("a")
    channel = inbox_of(client).channel

    def child() -> None:
        assert wait_for("b")
        assert inbox_of(client).channel != channel

    in_child(child)
    assert wait_for("c")
    assert inbox_of(client).channel == channel


def test_over_psycopg2_waiters_poll(url: str, locks: Locks) -> None:
    other = locks()
    lease = other.lock("a").acquire()
    with (
        lockkit.connect(url.replace("postgresql", "postgresql+psycopg2", 1)) as client,
        ThreadPoolExecutor() as threads,
    ):
        waiting = threads.submit(client.lock("a").acquire)
        queued(other, "a", 1)
        eventually(lambda: not inbox_of(client)._is_idle)
        lease.release()
        assert waiting.result(10).release()
        assert not inbox_of(client).is_open


@on_a_busy_machine
def test_waiters_survive_a_crash_of_the_server_or_are_told() -> None:
    """SIGKILL of any backend makes PostgreSQL end all others, and recover."""
    with PostgresServer() as server:
        make_table(server.url)
        with lockkit.connect(server.url, ttl=60) as client, lockkit.connect(server.url) as other:
            lease = other.lock("a", ttl=60).acquire()
            with ThreadPoolExecutor() as threads:
                waiting = threads.submit(taken_or_told, client)
                eventually(lambda: inbox_of(client).is_open)
                server.kill_backend(server.backends()[0])
                eventually(lambda: waiting.done() or inbox_of(client).is_open)
                again = threads.submit(taken_or_told, client)
                eventually(lambda: inbox_of(client).is_open)
                assert lease.release()
                assert again.result(20) is None
                waiting.result(20)


def taken_or_told(client: lockkit.LockClient) -> lockkit.BackendError | None:
    try:
        with client.lock("a", timeout=60):
            return None
    except lockkit.BackendError as error:
        return error


# Behind PgBouncer


@pytest.fixture(scope="module")
def bouncer(postgres_server: PostgresServer) -> Iterator[BouncerServer]:
    with BouncerServer(postgres_server, "transaction") as server:
        yield server


@pytest.fixture(params=["sqlalchemy", "django"])
def pooled(
    request: pytest.FixtureRequest,
    bouncer: BouncerServer,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    if request.param == "sqlalchemy":
        return bouncer.of(url)
    database = {**postgresql(url), "PORT": bouncer.port}
    monkeypatch.setitem(connections.settings, "pooled", complete(database))
    return "django://pooled"


def test_tables_work_behind_a_transaction_pooler(pooled: str, url: str, locks: Locks) -> None:
    """Many statements over sessions that change: what one has prepared the other does not know."""
    clients = [locks(pooled) for _ in range(4)]
    counter = [0]
    start = threading.Barrier(len(clients))

    def work(client: lockkit.LockClient) -> None:
        start.wait()
        for _ in range(25):
            with client.lock("counter", timeout=30):
                seen = counter[0]
                time.sleep(0.0005)
                counter[0] = seen + 1

    with ThreadPoolExecutor() as threads:
        for future in [threads.submit(work, client) for client in clients]:
            future.result()
    assert counter == [100]
    with clients[0].lock("a"):
        assert locks(url).lock("a").try_acquire() is None, "the same locks"


def test_waiters_behind_a_transaction_pooler_poll_and_say_so(
    pooled: str, locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    """A notification to oneself does not come within a second."""
    client, other = locks(pooled, ttl=60), locks(pooled, ttl=60)

    def handoff() -> float:
        lease = other.lock("a").acquire()
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(client.lock("a").acquire)
            queued(other, "a", 1)
            released = now()
            lease.release()
            waiting.result(10).release()
        return now() - released

    with caplog.at_level(logging.WARNING, logger="lockkit"):
        handoff()
        lease = other.lock("a").acquire()
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(client.lock("a").acquire)
            eventually(lambda: "transaction pooler" in caplog.text)
            lease.release()
            waiting.result(10).release()
    assert not inbox_of(client).is_open
    at_least_once(lambda: handoff() < PROMPT)


def test_a_proof_that_is_sent_late_is_waited_for_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection that sends it may be in use."""
    monkeypatch.setattr(inbox, "PROOF_SECONDS", 2.0)
    found = inbox.Inbox(Listening(), lambda _: time.sleep(2.1))
    found.seen("waiter", 0)
    found.work()
    assert found.is_open
    assert not caplog.records
    found.ended()


def test_a_broken_connection_is_dropped_even_if_nobody_can_be_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Listening):
        def messages(self, seconds: float) -> list[str]:
            raise Missed

    def fail(_: object) -> bool:
        raise ZeroDivisionError

    caplog.set_level(logging.DEBUG, logger="lockkit")
    found = inbox.Inbox(Broken(), lambda _: None)
    found.seen("waiter", 0)
    monkeypatch.setattr(logging.getLogger("lockkit"), "filters", [fail])
    with pytest.raises(ZeroDivisionError):  # of which the thread tells
        found.work()
    assert found._connection is None
    assert found._pause > 0, "it connects again after that"


class Listening(Connector):
    """Its messages take a while."""

    descriptor = None

    @property
    def dialect(self) -> Dialect:
        raise NotImplementedError

    def connect(self) -> Connection:
        raise NotImplementedError

    def identity(self) -> object:
        return None

    def listen(self, channel: str) -> Ear:
        return self

    def messages(self, seconds: float) -> list[str]:
        return [""] if seconds > 0.5 else []

    def close(self) -> None:
        pass
