"""Tables in PostgreSQL: what somebody else's transactions and the server's settings may do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from lock_tables import engine_for, make_table
from silent_sessions import SilencingProxy, assert_given_up

import lockkit
from lockkit.model.errors import StoreRefused
from lockkit.stores.sql import create_table, guard
from lockkit.stores.sql.connector import Connection, Missed
from lockkit.stores.sql.vendors import PostgreSQL
from lockkit.testing.conformance.base import eventually
from lockkit.testing.servers import PostgresServer

Locks = Callable[..., lockkit.LockClient]


@pytest.fixture
def url(lock_table_url: str) -> str:
    return lock_table_url


@pytest.fixture
def admin(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def setting(admin: psycopg.Connection, url: str) -> Callable[[str, str], None]:
    """Of all connections to the database that are made from now on."""

    def set_it(name: str, value: str) -> None:
        admin.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {name} = '{value}'")

    return set_it


@pytest.fixture
def scheme() -> str:
    return "postgresql"


@pytest.fixture(scope="module")
def keeper() -> Iterator[PostgresServer]:
    """A server that asks the user ``keeper`` for a password."""
    with PostgresServer() as server:
        rules = server.directory / "data" / "pg_hba.conf"
        rules.write_text(f"host all keeper all scram-sha-256\n{rules.read_text()}")
        server.execute("CREATE ROLE keeper SUPERUSER LOGIN PASSWORD 'first'")
        server.execute("SELECT pg_reload_conf()")
        yield server


by_both_drivers = pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg2"])


@pytest.fixture
def locks(url: str, scheme: str) -> Iterator[Locks]:
    clients: list[lockkit.LockClient] = []

    def connected(**options: Any) -> lockkit.LockClient:
        clients.append(lockkit.connect(url.replace("postgresql", scheme, 1), **options))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


def waits(admin: psycopg.Connection) -> bool:
    row = admin.execute(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ).fetchone()
    return bool(row and row[0])


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_every_isolation_level(
    locks: Locks, setting: Callable[[str, str], None], level: str
) -> None:
    """Where a statement that comes too late is an error (40001), it is tried again."""
    setting("default_transaction_isolation", level)
    clients = [locks() for _ in range(4)]
    counter, start = [0], threading.Barrier(len(clients))

    def work(client: lockkit.LockClient) -> None:
        start.wait()
        for _ in range(25):
            with client.lock("counter", timeout=60):
                seen = counter[0]
                time.sleep(0.0002)
                counter[0] = seen + 1

    with ThreadPoolExecutor() as threads:
        for future in [threads.submit(work, client) for client in clients]:
            future.result()
    assert counter == [100]


@pytest.mark.parametrize("way", ["engine", "client"])
def test_several_processes_make_the_table_at_once(way: str, locks: Locks, url: str) -> None:
    """As they do where each makes it when it starts. ``IF NOT EXISTS`` sees no table that is about
    to be there."""
    engines, clients = [engine_for(url) for _ in range(8)], [locks() for _ in range(8)]
    by_engine = [partial(create_table, engine) for engine in engines]
    makes = by_engine if way == "engine" else [client.store.create_table for client in clients]
    start = threading.Barrier(len(makes))
    with ThreadPoolExecutor(len(makes)) as threads, psycopg.connect(url, autocommit=True) as admin:
        for _ in range(20):
            admin.execute("DROP TABLE IF EXISTS lockkit_lock")
            list(threads.map(lambda make: [start.wait(), make()], makes))
    for engine in engines:
        engine.dispose()


@pytest.fixture
def latin_url(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.url_of("latin")
    postgres_server.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    make_table(url)
    yield url
    postgres_server.drop_database(url)


@by_both_drivers
@pytest.mark.parametrize("option", ["", "?client_encoding=latin1"])
def test_a_name_that_the_database_cannot_write_is_refused(
    latin_url: str, scheme: str, option: str
) -> None:
    """And no other."""
    with lockkit.connect(latin_url.replace("postgresql", scheme, 1) + option) as client:
        with pytest.raises(lockkit.ConfigurationError, match=r"'stock:日本'.*(?i:latin)") as caught:
            client.lock("stock:日本").acquire()
        assert caught.value.name == "stock:日本"
        with client.lock("stock:é"):
            assert [info.name for info in client.holders()] == ["stock:é"]


@by_both_drivers
def test_a_database_without_an_encoding(postgres_server: PostgresServer, scheme: str) -> None:
    postgres_server.execute(
        "CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'"
    )
    url = postgres_server.url_of("plain")
    try:
        with lockkit.connect(url.replace("postgresql", scheme, 1)) as client:
            client.store.create_table()
            with client.lock("stock:日本"):
                assert [info.name for info in client.holders()] == ["stock:日本"]
    finally:
        postgres_server.drop_database(url)


def test_a_statement_that_serialisation_refuses_is_tried_again(
    locks: Locks, admin: psycopg.Connection, setting: Callable[[str, str], None]
) -> None:
    """The row changes while ours waits for it."""
    setting("default_transaction_isolation", "serializable")
    client = locks()
    client.lock("a").acquire().release()
    with ThreadPoolExecutor() as threads, psycopg.connect(admin.info.dsn) as other:
        other.execute("UPDATE lockkit_lock SET version = version + 1")
        taking = threads.submit(client.lock("a").acquire)
        eventually(lambda: waits(admin))
        other.commit()
        assert taking.result(10).release()


@by_both_drivers
def test_a_row_that_somebody_has_locked_is_waited_for(
    locks: Locks, admin: psycopg.Connection, setting: Callable[[str, str], None]
) -> None:
    """Also where the server ends each wait soon (55P03)."""
    setting("lock_timeout", "50ms")
    client = locks()
    client.lock("a").acquire().release()
    with ThreadPoolExecutor() as threads, psycopg.connect(admin.info.dsn) as other:
        other.execute("SELECT * FROM lockkit_lock FOR UPDATE")
        taking = threads.submit(client.lock("a").acquire)
        eventually(lambda: waits(admin))
        eventually(lambda: not waits(admin))  # it was ended
        assert not taking.done()
        other.commit()
        assert taking.result(10).release()


def test_a_step_that_takes_too_long_leaves_nothing_waiting_in_the_server(
    locks: Locks, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that waits for a lock does not notice that its client has gone."""
    client = locks()
    client.lock("a").acquire().release()
    monkeypatch.setattr(guard, "STEP_SECONDS", 1.0)
    with psycopg.connect(admin.info.dsn) as other:
        other.execute("SELECT * FROM lockkit_lock FOR UPDATE")
        for _ in range(3):
            with pytest.raises(lockkit.OutcomeUnknown):
                client.lock("a").acquire(timeout=0)
        client.close()
        if psycopg.capabilities.has_cancel_safe():  # else docs/tables.md tells the limit
            eventually(lambda: not waits(admin))


@pytest.mark.parametrize(
    "kind", [psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure]
)
def test_what_only_came_at_a_bad_moment_is_tried_again(kind: type[psycopg.Error]) -> None:
    assert issubclass(type(PostgreSQL().failure(kind("words"), "UPDATE", "")), Missed)


def test_a_step_that_takes_too_long_is_an_error_of_ours_with_psycopg_3_1(
    locks: Locks, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django supports it. It cannot say whether libpq cancels safely."""
    client = locks()
    client.lock("a").acquire().release()
    monkeypatch.setattr(guard, "STEP_SECONDS", 0.5)
    monkeypatch.delattr(psycopg, "capabilities")
    with psycopg.connect(admin.info.dsn) as other:
        other.execute("SELECT * FROM lockkit_lock FOR UPDATE")
        with pytest.raises(lockkit.OutcomeUnknown):
            client.lock("a").acquire(timeout=0)


@pytest.fixture
def silencing(postgres_server: PostgresServer) -> Iterator[SilencingProxy]:
    with SilencingProxy(postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
def far(url: str, scheme: str, silencing: SilencingProxy) -> str:
    """A URL that leads through the proxy."""
    name = url.rpartition("/")[2]
    return f"{scheme}://postgres@127.0.0.1:{silencing.port}/{name}"


@by_both_drivers
@pytest.mark.parametrize("again", [False, True])
def test_a_server_that_falls_silent_when_a_session_has_begun_is_given_up(
    far: str, silencing: SilencingProxy, again: bool
) -> None:
    """At first, SQLAlchemy has asked it something."""
    with lockkit.connect(far) as client:
        assert_given_up(client, silencing, again=again)


@by_both_drivers
@pytest.mark.parametrize("listened", ["one engine", "all engines"])
def test_so_is_one_that_leaves_a_listener_waiting(
    far: str, silencing: SilencingProxy, listened: str
) -> None:
    def choose(connection: Any, _: object) -> None:
        connection.cursor().execute("SET search_path TO public")

    engine = engine_for(far)
    target = engine if listened == "one engine" else sa.Engine
    sa.event.listen(target, "connect", choose)
    try:
        with lockkit.connect(client=engine) as client:
            assert_given_up(client, silencing, again=True)
    finally:
        sa.event.remove(target, "connect", choose)
    engine.dispose()


@pytest.mark.parametrize(
    "change", ["DEALLOCATE ALL", "ALTER TABLE lockkit_lock ALTER state TYPE varchar"]
)
def test_statements_that_were_prepared_in_vain(
    locks: Locks, admin: psycopg.Connection, change: str
) -> None:
    """By a pooler's reset, or a change of the table: they are sent as they are, from then on."""
    client: Any = locks()
    client.lock("a").acquire().release()
    prepared = client.store._steps.use(lambda c: c.execute("TABLE pg_prepared_statements", {}))
    assert {row[0].rpartition("_")[0] for row in prepared.rows} == {"lockkit_write"}
    client.store._steps.use(lambda c: c.execute(change, {}))
    for _ in range(3):
        with client.lock("a"):
            assert locks().lock("a").try_acquire() is None
    assert not client.store._steps.use(lambda c: c._prepared)


@by_both_drivers
def test_a_connection_in_a_transaction_that_has_failed_is_not_used_again(locks: Locks) -> None:
    client: Any = locks(options={"timeout": 0.5})

    def fail(connection: Connection) -> None:
        connection.execute("BEGIN", {})
        with pytest.raises(lockkit.BackendUnavailable):
            connection.execute("SELECT 1 / 0", {})

    client.store._steps.use(fail)
    assert client.lock("a").acquire().release()


def test_a_statement_by_whose_name_there_is_another_one(locks: Locks) -> None:
    """Behind a pooler, by another release: it is not used."""
    client: Any = locks()
    client.lock("a").acquire().release()
    ours = client.store._steps.use(lambda c: c.execute("TABLE pg_prepared_statements", {})).rows

    def forget(connection: Any) -> None:
        connection._prepared.clear()

    client.store._steps.use(forget)
    with client.lock("a") as lease:
        assert lease.fencing_token
    assert ours


@pytest.mark.parametrize(
    ("scheme", "mode"),
    [
        ("postgresql", ""),
        ("postgresql+psycopg2", ""),
        ("postgresql", "?mode=advisory"),
        ("postgresql", "?mode=row"),
    ],
)
def test_a_password_may_change(keeper: PostgresServer, scheme: str, mode: str) -> None:
    """A function is asked for it at each new connection."""
    said = ["first"]

    def change(password: str) -> None:
        keeper.execute(f"ALTER ROLE keeper PASSWORD '{password}'")
        ends = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
        keeper.execute(f"{ends} WHERE usename = 'keeper'")  # they have ended, and are known to have

    change("first")
    url = f"{scheme}://keeper@127.0.0.1:{keeper.port}/postgres{mode}"
    options = {"password": lambda: said[-1]}
    with lockkit.connect(url, options=options) as client:
        if not mode.endswith("advisory"):
            client.store.create_table()
        assert client.lock("a").acquire().release()
        change("second")
        with lockkit.connect(url, options=options) as late, pytest.raises(StoreRefused) as refused:
            late.lock("a").acquire()
        assert "first" not in str(refused.value)
        said.append("second")
        assert client.lock("a").acquire().release()
