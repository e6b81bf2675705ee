"""django:// on PostgreSQL: the table, the private connection, and what is not supported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_django
from database_settings import complete, environment, postgresql, sqlite
from django.contrib.postgres.signals import get_hstore_oids, register_type_handlers
from django.core.management import call_command
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.backends.utils import CursorWrapper
from django.db.utils import ConnectionDoesNotExist, load_backend
from django.test import override_settings
from django_pairs import Proxied, requests_of_pairs
from silent_sessions import SilencingProxy, assert_given_up
from system_checks import shown_until_silenced

import lockkit
from lockkit.stores.sql.connector import Connector
from lockkit.stores.sql.dialect import load_dialect
from lockkit.testing.conformance.base import eventually
from lockkit.testing.servers import PostgresServer
from lockkit_django.operate.checks import check_store
from lockkit_django.operate.order_checks import check_records
from lockkit_django.stores import database as database_store

MIGRATE = "import django; django.setup(); from django.core.management import call_command as c; "
LOCKS = "import django; django.setup(); import lockkit; "
WITH_PSYCOPG2 = """
import sys
sys.modules["psycopg"] = None  # as if it was not installed

import django
django.setup()

from django.core.management import call_command
from django.db import connection
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path
from lockkit_django import locks
from lockkit_django.orders import idempotent

@idempotent
def view(request):
    with locks["default"].lock("stock", until="commit") as lease:
        return HttpResponse(str(lease.fencing_token))

urlpatterns = [path("", view)]
call_command("migrate", "lockkit_django", verbosity=0)
sent = {"Idempotency-Key": "A-1", "Authorization": "Token a"}
settings = {
    "ALLOWED_HOSTS": ["*"],
    "LOCKKIT_ORDERS": {"PATHS": []},
    "MIDDLEWARE": ["lockkit_django.middleware.IdempotentOrderMiddleware"],
    "ROOT_URLCONF": "__main__",
}
with override_settings(**settings):
    first, again = [Client().post("/", headers=sent) for _ in range(2)]
assert first.content == again.content
assert again["Idempotent-Replayed"] == "true"
assert not list(locks["default"].holders())
print(connection.Database.__name__)
"""


@pytest.fixture(autouse=True)
def unblocked(django_db_blocker: pytest_django.DjangoDbBlocker) -> Iterator[None]:
    """These databases are made for one test: none of Django's test databases is used."""
    with django_db_blocker.unblock():
        yield


@pytest.fixture
def database(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A PostgreSQL alias without tables, with a pool of one connection."""
    database = postgresql(postgres_url, pool={"min_size": 1, "max_size": 1, "timeout": 30})
    monkeypatch.setitem(connections.settings, "orders", complete(database))
    yield database
    connections["orders"].close()
    connections["orders"].close_pool()
    del connections["orders"]


@pytest.fixture
def client(database: dict[str, Any]) -> Iterator[lockkit.LockClient]:
    client = lockkit.connect("django://orders")
    yield client
    client.close()


def run(program: str, database: dict[str, Any]) -> str:
    """In a process of its own, where this database is Django's default."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment(database)},
        check=True,
        text=True,
        capture_output=True,
    ).stdout


def test_a_missing_table_of_an_application_that_is_not_installed(
    client: lockkit.LockClient, settings: Any
) -> None:
    settings.INSTALLED_APPS = ["django.contrib.contenttypes"]
    with pytest.raises(lockkit.ConfigurationError, match="add 'lockkit_django' to INSTALLED_APPS"):
        client.lock("a").acquire()


def test_a_missing_table_says_how_to_make_it(client: lockkit.LockClient) -> None:
    said = "migrate lockkit_django --database orders', .* where DATABASE_ROUTERS let it"
    with pytest.raises(lockkit.ConfigurationError, match=said):
        client.lock("a").acquire()
    client.store.create_table()
    client.lock("a").acquire().release()


def test_an_alias_that_is_gone_keeps_no_test_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test may have had it."""
    with monkeypatch.context() as patch:
        patch.setitem(connections.settings, "gone", complete(sqlite(tmp_path / "gone")))
        client = lockkit.connect("django://gone")
        client.lock("a").acquire().release()
    backend = load_backend("django.db.backends.sqlite3")
    other = backend.DatabaseWrapper(complete(sqlite(tmp_path / "other")), "other")
    (tmp_path / "other").touch()
    other.creation.destroy_test_db(verbosity=0)
    assert not (tmp_path / "other").exists()
    client.close()


def test_beside_django_contrib_postgres(client: lockkit.LockClient) -> None:
    """It looks each new connection up by its alias, and asks it for types of the database."""
    client.store.create_table()
    client.close()
    get_hstore_oids.cache_clear()  # it asks once
    connection_created.connect(register_type_handlers)
    try:
        client.lock("a").acquire().release()
    finally:
        connection_created.disconnect(register_type_handlers)
    assert get_hstore_oids.cache_info().misses == 1
    with pytest.raises(ConnectionDoesNotExist):
        connections["lockkit:orders"]


def test_another_driver_is_refused(
    client: lockkit.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DatabaseWrapper, "Database", ModuleType("pg8000"))
    with pytest.raises(lockkit.ConfigurationError, match=r"PyMySQL or mysqlclient, not pg8000$"):
        client.lock("a").acquire()


def test_locks_and_orders_where_only_psycopg2_is_installed(postgres_url: str) -> None:
    assert run(WITH_PSYCOPG2, postgresql(postgres_url)) == "psycopg2\n"


def test_a_deployment_check_finds_missing_tables(database: dict[str, Any]) -> None:
    orders = {
        "LOCKKIT_ORDERS": {"USING": "orders", "PATHS": []},
        "LOCKKIT": {"default": "django://orders"},
    }
    with override_settings(**orders):
        (locks,), (records,) = check_store(), check_records()
        assert (locks.id, records.id) == ("lockkit.E010", "lockkit.E110")
        assert "migrate lockkit_django --database orders" in locks.msg
        assert "answer 500" in locks.hint
        assert "migrate lockkit_django --database orders" in records.msg
        assert shown_until_silenced("lockkit.E110", "--deploy")
        run(MIGRATE + "c('migrate', 'lockkit_django', verbosity=0)", database)
        assert [*check_store(), *check_records()] == []
    with override_settings(LOCKKIT_ORDERS=None, MIDDLEWARE=[]):
        assert check_records() == []  # there are no orders


def test_migrate_makes_the_table_of_the_dialect(
    client: lockkit.LockClient, database: dict[str, Any]
) -> None:
    run(MIGRATE + "c('migrate', 'lockkit_django', verbosity=0)", database)
    with client.lock("a") as lease:
        lease.extend()
        assert run(LOCKS + "print(lockkit.connect('django://').lock('a').try_acquire())", database)
    with connections["orders"].cursor() as cursor:
        migrated = columns(cursor)
        cursor.execute("DROP TABLE lockkit_lock")
        cursor.execute(load_dialect("postgresql").create)
        assert columns(cursor) == migrated


def test_migrate_takes_over_a_table_that_was_made_before(
    client: lockkit.LockClient, database: dict[str, Any]
) -> None:
    with connections["orders"].cursor() as cursor:
        cursor.execute(load_dialect("postgresql").create)
    lease = client.lock("a").acquire()
    run(MIGRATE + "c('migrate', 'lockkit_django', fake_initial=True, verbosity=0)", database)
    assert lease.release()
    with override_settings(LOCKKIT={"default": "django://orders"}):
        assert [*check_store(), *check_records()] == []


def columns(cursor: Any) -> list[tuple[Any, ...]]:
    cursor.execute(
        "SELECT column_name, data_type, character_maximum_length, is_nullable "
        "FROM information_schema.columns WHERE table_name = 'lockkit_lock' ORDER BY 1"
    )
    return list(cursor.fetchall())


def test_it_uses_neither_the_request_s_connection_nor_its_pool(
    client: lockkit.LockClient, database: dict[str, Any]
) -> None:
    run(MIGRATE + "c('migrate', 'lockkit_django', verbosity=0)", database)
    with connections["orders"].cursor() as cursor:  # the only one of the pool
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT count(*) FROM lockkit_lock")
        with client.lock("a"):
            cursor.execute("SELECT count(*) FROM lockkit_lock")
            assert cursor.fetchone() == (0,)
        cursor.execute("ROLLBACK")
        cursor.execute("SELECT count(*) FROM lockkit_lock")
        assert cursor.fetchone() == (1,)


def test_a_killed_connection_is_opened_again(
    client: lockkit.LockClient, database: dict[str, Any]
) -> None:
    run(MIGRATE + "c('migrate', 'lockkit_django', verbosity=0)", database)
    lease = client.lock("a").acquire()
    with connections["orders"].cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        eventually(lambda: backends(cursor) == 1)
    assert client.lock("a").try_acquire() is None
    lease.extend()
    assert lease.release()


def test_waiters_hear_from_wherever_the_settings_lead(
    client: lockkit.LockClient,
    database: dict[str, Any],
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tests exchange the database of an alias; its holders are told in the new one."""
    elsewhere = postgres_server.create_database()
    try:
        for place in (database, {**postgresql(elsewhere), "OPTIONS": {}}):
            monkeypatch.setitem(connections.settings, "orders", complete(place))
            run(MIGRATE + "c('migrate', 'lockkit_django', verbosity=0)", place)
            lease = client.lock("a", ttl=60).acquire()
            with ThreadPoolExecutor() as threads:
                waiting = threads.submit(client.lock("a", ttl=60).acquire)
                eventually(lambda: listens(postgres_server, place["NAME"]))  # noqa: B023
                assert lease.release()
                assert waiting.result(60).release()
    finally:
        client.close()
        postgres_server.drop_database(elsewhere)


def backends(cursor: CursorWrapper) -> int:
    """Of this database."""
    cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    return int(cursor.fetchone()[0])


def listens(server: PostgresServer, database: str) -> bool:
    sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN %%' AND datname = '%s'"
    return int(server.execute(sql % database)) == 1


def test_a_pair_is_two_statements(
    database: dict[str, Any], proxy: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the driver: Django's cursors, which time and log them, are not in the way."""
    run(MIGRATE + "c('migrate', 'lockkit_django', verbosity=0)", database)
    assert requests_of_pairs(database, proxy, monkeypatch, 5) == 10


def test_a_server_that_is_down(database: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    down = complete({**database, "HOST": "127.0.0.1", "PORT": "1", "PASSWORD": "canary"})
    monkeypatch.setitem(connections.settings, "down", down)
    client = lockkit.connect("django://down")
    with pytest.raises(lockkit.BackendUnavailable, match="cannot connect") as caught:
        client.lock("a").acquire()
    assert "canary" not in str(caught.value)
    client.close()


@pytest.mark.parametrize("engine", ["django.db.backends.postgresql", "django_psycopg2"])
@pytest.mark.parametrize("again", [False, True])
def test_a_server_that_falls_silent_when_a_session_has_begun_is_given_up(
    lock_table_url: str,
    postgres_server: PostgresServer,
    engine: str,
    again: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Django sets its time zone first. Receivers of ``connection_created`` may ask, too."""
    with SilencingProxy(postgres_server.port) as proxy:
        there = {"ENGINE": engine, "PORT": proxy.port, "TIME_ZONE": "Europe/Berlin"}
        database = complete(postgresql(lock_table_url) | there)
        monkeypatch.setitem(connections.settings, "far", database)
        with lockkit.connect("django://far") as client:
            assert_given_up(client, proxy, again=again)


def test_a_file_without_its_directory_is_found_by_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = sqlite(tmp_path / "gone" / "shop.sqlite3")
    monkeypatch.setitem(connections.settings, "apart", complete(database))
    with (
        lockkit.connect("django://apart") as client,
        pytest.raises(lockkit.BackendUnavailable, match="there is no directory"),
    ):
        client.perform(client.store.check())


def test_a_database_that_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = "django.db.backends.oracle"
    monkeypatch.setattr(database_store, "_vendor", lambda _: "oracle")
    monkeypatch.setitem(connections.settings, "other", complete({"ENGINE": engine, "NAME": "x"}))
    with pytest.raises(lockkit.ConfigurationError, match="no locks in a oracle database"):
        lockkit.connect("django://other")


def test_a_database_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Django has a backend for that, which it does not know either."""
    dummy = complete({"ENGINE": "django.db.backends.dummy"})
    monkeypatch.setitem(connections.settings, "other", dummy)
    with pytest.raises(lockkit.ConfigurationError, match=r"DATABASES\['other'\] has no ENGINE"):
        lockkit.connect("django://other")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("django://default?mode=tabel", "has no mode '…'; a database may have table"),
        ("django://default?mode=advisory", r"own URL, postgresql://…\?mode=advisory or mysql://"),
        ("django://default?mode=row", r"own URL, postgresql://…\?mode=row or mysql://"),
        ("django://default?tll=5", "no key 'tll'"),
    ],
)
def test_queries_that_are_not_understood(url: str, message: str) -> None:
    with pytest.raises(lockkit.ConfigurationError, match=message):
        lockkit.connect(url)


def test_an_unknown_alias() -> None:
    with pytest.raises(lockkit.ConfigurationError, match="did you mean 'default'"):
        lockkit.connect("django://defualt")


def test_the_migrations_are_complete() -> None:
    call_command("makemigrations", "lockkit_django", "--check", "--dry-run", verbosity=0)


def test_two_first_uses_at_once_lead_to_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary file of the one would be removed by the other, with the lease in it."""
    connector = database_store.DjangoConnector("default")
    make = database_store._connector
    others: list[Connector] = []

    def made_meanwhile(alias: str) -> Connector:
        monkeypatch.setattr(database_store, "_connector", make)
        others.append(connector._current())
        return make(alias)

    monkeypatch.setattr(database_store, "_connector", made_meanwhile)
    assert connector._current() is others[0]
    assert connector._current() is others[0]
