"""What tables on servers have in common: their rows go, damaged ones are seen and repaired."""

from __future__ import annotations

import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import mysqlclient
import pytest
import sqlalchemy as sa
from interrupting import TimeLimit
from lock_tables import engine_for, make_table

import lockkit
from lockkit.engine.holding import renew
from lockkit.model.errors import BackendUnavailable, StoreRefused
from lockkit.model.types import LockState
from lockkit.stores.sql import create_table, engines, guard
from lockkit.stores.sql import rows as table_rows
from lockkit.stores.sql import store as sql_store
from lockkit.testing.conformance.base import queued
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import MariaDBServer

CANARY = "canary"
OLD = 2 * 24 * 3600 * 1_000_000


PREFERRED = ["postgres", *(f"mariadb {scheme}" for scheme in mysqlclient.SCHEMES)]


@pytest.fixture(params=[*PREFERRED, "postgres postgresql+psycopg2"])
def engine(request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    server, _, scheme = request.param.partition(" ")
    url = str(request.getfixturevalue(f"{server}_url"))
    url = f"{scheme or 'postgresql'}://{url.partition('://')[2]}"
    make_table(url)
    engine = engine_for(url)
    yield engine
    engine.dispose()


@pytest.fixture
def time_limit() -> Iterator[Callable[[type[Exception]], str]]:
    """A function in which the handler of a signal raises an exception of this type."""
    before = signal.getsignal(signal.SIGUSR1)

    def limited(kind: type[Exception]) -> str:
        def end(*_: object) -> None:
            raise kind

        signal.signal(signal.SIGUSR1, end)
        signal.raise_signal(signal.SIGUSR1)
        return "it was not ended"

    yield limited
    signal.signal(signal.SIGUSR1, before)


def scheme_of(engine: sa.Engine) -> str:
    """A URL's, which leads to the same driver."""
    is_named = engine.driver in {"mysqldb", "psycopg2"}
    return engine.url.drivername if is_named else engine.url.get_backend_name()


@pytest.fixture
def client(engine: sa.Engine) -> Iterator[lockkit.LockClient]:
    with lockkit.connect(client=engine) as client:
        yield client


def run(engine: sa.Engine, statement: str, *values: object) -> list[Any]:
    with engine.begin() as connection:
        result = connection.exec_driver_sql(statement, values)
        return [tuple(row) for row in result] if result.returns_rows else []


@pytest.mark.parametrize(
    ("error", "kind", "shown"),
    [
        (ConnectionRefusedError(111, "Connection refused", CANARY), BackendUnavailable, "refused"),
        (OSError(f"GET https://tokens/?key={CANARY}"), BackendUnavailable, "database: OSError"),
        (TypeError(f"no token: {CANARY}"), lockkit.ConfigurationError, "take its options"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_an_application_does_to_connect_may_fail(
    error: Exception, kind: type[Exception], shown: str
) -> None:
    """It may ask another server for a token, say, and nobody is shown its secrets."""

    def fail() -> None:
        raise error

    engine = sa.create_engine("postgresql+psycopg://", creator=fail)
    with lockkit.connect(client=engine) as client, pytest.raises(kind, match=shown) as caught:
        client.lock("a").acquire()
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("limit", [TimeLimit, TimeoutError])
@pytest.mark.parametrize("mode", ["table", "advisory"])
def test_a_time_limit_that_ends_a_password_function_is_no_failure(
    limit: type[Exception], mode: str, time_limit: Callable[[type[Exception]], str]
) -> None:
    """It is for the caller, such as a task of Celery that is to end."""
    url, password = f"postgresql://shop@127.0.0.1/shop?mode={mode}", partial(time_limit, limit)
    with lockkit.connect(url, options={"password": password}) as client, pytest.raises(limit):
        client.lock("a").acquire()


@pytest.mark.parametrize("limit", [TimeLimit, TimeoutError])
def test_a_time_limit_that_ends_a_connecting_is_no_failure(
    limit: type[Exception], time_limit: Callable[[type[Exception]], str]
) -> None:
    engine = sa.create_engine("postgresql+psycopg://", creator=partial(time_limit, limit))
    with lockkit.connect(client=engine) as client, pytest.raises(limit):
        client.lock("a").acquire()


@pytest.mark.parametrize("mode", ["table", "advisory"])
def test_a_password_that_a_driver_cannot_send_is_not_shown(mode: str) -> None:
    url, options = f"mysql+pymysql://shop@127.0.0.1/shop?mode={mode}", {"password": f"{CANARY}€"}
    with (
        lockkit.connect(url, options=options) as client,
        pytest.raises(lockkit.ConfigurationError, match="Latin-1") as caught,
    ):
        client.lock("a").acquire()
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_free_rows_are_pruned_after_a_day_and_fences_still_grow(
    client: lockkit.LockClient, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_store, "PRUNE_EVERY", 1)
    monkeypatch.setattr(table_rows.secrets, "token_hex", lambda _: "")
    with client.lock("old").acquire() as first:
        pass
    with client.lock("kept", ttl=7 * 24 * 3600).acquire() as kept:
        run(engine, "UPDATE lockkit_lock SET updated = updated - %s", OLD)
        client.lock("new").acquire().release()
        names = run(engine, "SELECT name FROM lockkit_lock ORDER BY name")
        assert names == [("kept",), ("new",)]
        kept.extend()
    with client.lock("old").acquire() as second:
        assert second.fencing_token > first.fencing_token


def test_a_block_whose_table_is_dropped_ends_as_if_the_store_were_down(
    client: lockkit.LockClient, engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """It had the lock to its end. An error of its own is not hidden, and ``release`` raises."""
    lease = client.lock("c", ttl=60).acquire()
    with client.lock("a", ttl=60), client.multi("d", "e", ttl=60):
        run(engine, "ALTER TABLE lockkit_lock RENAME TO lockkit_gone")
    assert "release of 'a' not confirmed: the lock database has no table" in caplog.text
    assert "release of 'e' not confirmed: the lock database has no table" in caplog.text
    with pytest.raises(lockkit.MissingTable, match=r"store\.create_table\(\)"):
        lease.extend()
    client.perform(renew(client.store, [lease._hold]))
    assert lease.state is lockkit.LeaseState.UNKNOWN
    run(engine, "ALTER TABLE lockkit_gone RENAME TO lockkit_lock")
    with pytest.raises(ZeroDivisionError), client.lock("b", ttl=60):
        run(engine, "ALTER TABLE lockkit_lock RENAME TO lockkit_gone") or 1 / 0
    with pytest.raises(lockkit.MissingTable):
        lease.release()


@pytest.mark.parametrize("engine", PREFERRED, indirect=True)
@pytest.mark.parametrize(
    "damage",
    [
        "state = 'to be, or not to be'",
        'state = \'{"v": 4, "queue": 7}\'',
        'state = \'{"v": 4, "queue": [["t", "", 1, 1, 1, 1, null]], "channels": {"t": 7}}\'',
        'state = \'{"v": 4, "queue": [["t", "", 1, 1, 1, 1, null]], "channels": []}\'',
        "fence = -5",
        "version = -5",
    ],
)
def test_a_damaged_row_is_seen_and_repaired(
    client: lockkit.LockClient, engine: sa.Engine, damage: str
) -> None:
    leases = [client.lock(name, ttl=60).acquire() for name in ("a", "b")]
    run(engine, f"UPDATE lockkit_lock SET {damage.replace('%', '%%')} WHERE name = 'a'")
    with pytest.raises(lockkit.DamagedRecord):
        client.lock("a").acquire(timeout=0)
    states = {info.name: info.state for info in client.holders()}
    assert states == {"a": LockState.DAMAGED, "b": LockState.HELD}
    assert client.repair("a", by="ann") is True
    assert client.repair("b", by="ann") is False
    (words,) = client.last_words("a")
    assert (words.name, words.broken_by) == ("a", "repaired its record: ann")
    assert (words.owner, words.fence, words.ttl) == (None, None, None)
    assert [found.broken_by for found in client.last_words()] == [words.broken_by]
    client.lock("a").acquire().release()
    assert [lease.release() for lease in leases] == [False, True]


@pytest.mark.parametrize("engine", PREFERRED, indirect=True)
def test_a_refusal_keeps_its_connection(engine: sa.Engine) -> None:
    """The server has answered: who is refused again and again need not connect again."""
    connected: list[object] = []
    sa.event.listen(engine, "connect", lambda connection, _: connected.append(connection))
    with lockkit.connect(client=engine, ttl=600) as client:
        rw = client.rwlock("rw")
        for name, state in (("damaged", "?"), ("of a later release", '{"v": 99}')):
            client.lock(name).acquire().release()
            run(engine, "UPDATE lockkit_lock SET state = %s WHERE name = %s", state, name)
        with client.lock("a"), rw.read():
            before = len(connected)
            for lock, refusal in (
                (client.semaphore("a", 3), lockkit.KindMismatch),
                (rw.write(), lockkit.UpgradeRefused),
                (client.lock("damaged"), lockkit.DamagedRecord),
                (client.lock("of a later release"), lockkit.LayoutMismatch),
                (client.lock("a"), lockkit.AcquireTimeout),
            ):
                with pytest.raises(refusal):
                    lock.acquire(timeout=0)
            assert len(connected) == before


@pytest.fixture
def least(engine: sa.Engine) -> Iterator[str]:
    """The URL of a user who may do what docs/tables.md says, and nothing else."""
    grants = "GRANT SELECT, INSERT, UPDATE, DELETE ON lockkit_lock TO app"
    run(engine, "CREATE USER app")
    run(engine, grants)
    url = engine.url.set(username="app", drivername=scheme_of(engine))
    yield url.render_as_string(hide_password=False)
    if url.get_backend_name() == "postgresql":
        run(engine, "DROP OWNED BY app")
    run(engine, "DROP USER app")


def test_four_grants_are_enough(least: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_store, "PRUNE_EVERY", 1)
    with lockkit.connect(least, ttl=60) as client, lockkit.connect(least) as other:
        lease = client.lock("a").acquire()
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(other.lock("a").acquire)
            queued(client, "a", 1)
            lease.extend()
            assert [info.name for info in client.holders()] == ["a"]
            assert client.perform(client.store.break_("a", lease.fencing_token, "test"))  # type: ignore[attr-defined]
            assert waiting.result(20).release()
        assert [info.broken_by for info in client.last_words()] == ["test"]
        assert client.perform(client.store.prefixes()) == {}
        assert lease.release() is False


def test_a_table_that_is_there_is_made_by_anyone_who_may_use_it(least: str) -> None:
    """PostgreSQL and MariaDB would refuse even CREATE TABLE IF NOT EXISTS."""
    engine = engine_for(least)
    create_table(engine)
    engine.dispose()
    with lockkit.connect(least) as client:
        client.store.create_table()
        assert client.lock("a").acquire().release()


def test_a_user_who_may_only_make_the_table_makes_it(engine: sa.Engine) -> None:
    """MariaDB refuses it a look, also at a table that is missing."""
    run(engine, "DROP TABLE lockkit_lock")
    run(engine, "CREATE USER app")
    is_mariadb = engine.dialect.name == "mysql"
    place = f"{engine.url.database}.*" if is_mariadb else "SCHEMA public"
    run(engine, f"GRANT CREATE ON {place} TO app")
    url = engine.url.set(username="app", drivername=scheme_of(engine))
    with lockkit.connect(url.render_as_string(hide_password=False)) as client:
        client.store.create_table()
    assert sa.inspect(engine).has_table("lockkit_lock")
    run(engine, "DROP USER app" if is_mariadb else "DROP OWNED BY app; DROP USER app")


def test_a_password_that_cannot_be_had_is_an_error_and_asked_for_again(engine: sa.Engine) -> None:
    vault = {"open": False}

    def password() -> str:
        if not vault["open"]:
            raise OSError("the vault is shut")
        return ""

    url = engine.url.set(drivername=scheme_of(engine))
    text = url.render_as_string(hide_password=False)
    with lockkit.connect(text, options={"password": password}) as client:
        with pytest.raises(BackendUnavailable, match=r"OPTIONS\['password'\] has failed") as caught:
            client.lock("a").acquire()
        assert isinstance(caught.value.__cause__, OSError)
        vault["open"] = True
        assert client.lock("a").acquire().release()


def test_a_server_that_greets_nobody_is_given_up(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections, and says nothing."""
    monkeypatch.setattr(engines, "PATIENCE", {"read_timeout": "1"})
    with ThreadPoolExecutor() as threads, socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"{scheme_of(engine)}://shop@127.0.0.1:{silent.getsockname()[1]}/shop"
        refused = pytest.raises(BackendUnavailable, match="cannot connect")
        with lockkit.connect(f"{where}?connect_timeout=2") as client, refused:
            threads.submit(client.lock("a").acquire).result(20)


@pytest.mark.parametrize("scheme", mysqlclient.SCHEMES)
def test_a_mariadb_server_that_falls_silent_when_a_connection_is_prepared_is_given_up(
    mariadb_url: str, mariadb_server: MariaDBServer, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is made by an engine whose driver would wait without end. Another one is made."""
    make_table(mariadb_url)
    monkeypatch.setattr(guard, "STEP_SECONDS", 0.5)
    with FaultProxy("127.0.0.1", mariadb_server.port) as proxy:
        far = mariadb_url.replace(str(mariadb_server.port), str(proxy.port))
        engine = engine_for(f"{scheme}://{far.partition('://')[2]}")
        fault = proxy.delay_requests(matching=b"innodb_lock_wait_timeout")
        with lockkit.connect(client=engine) as client, ThreadPoolExecutor() as threads:
            asked = threads.submit(client.lock("a").acquire)
            try:
                assert asked.result(20).release()
            finally:
                fault.release()
        engine.dispose()


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg2"])
def test_a_postgresql_server_that_is_read_only_refuses(postgres_url: str, scheme: str) -> None:
    served = f"{scheme}://{postgres_url.partition('://')[2]}"
    with lockkit.connect(served) as locks:
        with pytest.raises(lockkit.ConfigurationError, match="has no table lockkit_lock"):
            locks.lock("a").acquire()
        locks.store.create_table()
    url = f"{served}?options=-c%20default_transaction_read_only%3Don"
    with lockkit.connect(url) as locks, pytest.raises(StoreRefused, match="read-only"):
        locks.lock("a").acquire()


def test_a_mariadb_server_that_is_read_only_refuses(
    mariadb_url: str, mariadb_server: MariaDBServer
) -> None:
    with lockkit.connect(mariadb_url) as locks:
        locks.store.create_table()
    mariadb_server.execute(
        "CREATE USER IF NOT EXISTS reader@'%'; GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO "
        "reader@'%'; SET GLOBAL read_only = 1"
    )
    try:
        url = mariadb_url.replace("root@", "reader@")
        with lockkit.connect(url) as locks, pytest.raises(StoreRefused, match="read-only"):
            locks.lock("a").acquire()
    finally:
        mariadb_server.execute("SET GLOBAL read_only = 0; DROP USER reader@'%'")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_listener_of_the_engine_may_run_statements(postgres_url: str, when: str) -> None:
    """What it sets counts for lockkit's connections as for the engine's own: also if the listener
    was added after the client, but before its first connection."""
    engine = engine_for(postgres_url)
    run(engine, "CREATE SCHEMA shop")
    engine.dispose()

    def choose(connection: Any, _: object) -> None:
        connection.cursor().execute("SET search_path TO shop")

    if when == "before":
        sa.event.listen(engine, "connect", choose)
    with lockkit.connect(client=engine) as client:
        if when == "after":
            sa.event.listen(engine, "connect", choose)
        client.store.create_table()
        with client.lock("a").acquire():
            assert run(engine, "SELECT name FROM shop.lockkit_lock") == [("a",)]
    engine.dispose()
