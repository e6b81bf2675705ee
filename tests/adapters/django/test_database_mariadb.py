"""django:// on MariaDB: the table of the migrations, in a database of another character set."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import pytest_django
from database_settings import complete, environment, mariadb
from django.db import connections
from django.db.backends.signals import connection_created
from django_pairs import Proxied, requests_of_pairs
from interrupting import TimeLimit
from orders_django import mysql

import lockkit
from lockkit.stores.sql.dialect import load_dialect
from lockkit.testing.servers import MariaDBServer
from lockkit_django.stores import database as database_store

__all__ = ["mysql"]

MIGRATE = (
    "import django; django.setup(); from django.core.management import call_command as c; "
    "c('migrate', 'lockkit_django', verbosity=0)"
)
CANARY = "canary"
LOOK_ALIKE = ["a", "A", "a ", "\u00e9", "e\u0301", "\u2603", "\U0001f512"]


@pytest.fixture(autouse=True)
def unblocked(django_db_blocker: pytest_django.DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


@pytest.fixture
def database(
    mariadb_url: str, mariadb_server: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """An alias without tables, in a database with an old default, as which connections speak."""
    mariadb_server.execute(f"ALTER DATABASE {mariadb_url.rpartition('/')[2]} CHARACTER SET latin1")
    database = mariadb(mariadb_url, charset="latin1")
    monkeypatch.setitem(connections.settings, "orders", complete(database))
    yield database
    connections["orders"].close()
    del connections["orders"]


@pytest.fixture
def client(database: dict[str, Any]) -> Iterator[lockkit.LockClient]:
    client = lockkit.connect("django://orders")
    yield client
    client.close()


def migrate(database: dict[str, Any]) -> None:
    environ = {**os.environ, **environment(database)}
    subprocess.run([sys.executable, "-c", MIGRATE], env=environ, check=True)


def test_a_missing_table_says_how_to_make_it(client: lockkit.LockClient) -> None:
    with pytest.raises(lockkit.ConfigurationError, match="migrate lockkit_django --database ord"):
        client.lock("a").acquire()


def test_a_driver_that_lacks_what_a_password_needs_is_told(
    client: lockkit.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyMySQL raises no error of its own then."""

    def connect(**_: object) -> None:
        raise RuntimeError("'cryptography' package is required for caching_sha2_password")

    with monkeypatch.context() as patch:
        patch.setattr(connections["orders"].Database, "connect", connect)
        with pytest.raises(lockkit.BackendUnavailable, match="'cryptography' package is required"):
            client.lock("a").acquire()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeLimit(), TimeLimit),
        (OSError(f"GET https://tokens/?key={CANARY}"), lockkit.BackendUnavailable),
        (UnicodeEncodeError("latin-1", CANARY, 0, 1, "beyond"), lockkit.ConfigurationError),
        (TypeError(f"no token: {CANARY}"), lockkit.ConfigurationError),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_ends_a_connecting_is_told_without_secrets(
    client: lockkit.LockClient,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kind: type[Exception],
) -> None:
    """But a time limit is left to the task that it ends."""

    def connect(**_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(connections["orders"].Database, "connect", connect)
        with pytest.raises(kind) as caught:
            client.lock("a").acquire()
    assert CANARY not in str(caught.value)


def test_a_server_that_greets_nobody_is_given_up(
    database: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections, and says nothing."""
    monkeypatch.setattr(database_store, "CONNECT_SECONDS", 1)
    with ThreadPoolExecutor() as threads, socket.create_server(("127.0.0.1", 0)) as silent:
        where = {"HOST": "127.0.0.1", "PORT": silent.getsockname()[1]}
        monkeypatch.setitem(connections.settings, "orders", complete(database | where))
        client = lockkit.connect("django://orders")
        with pytest.raises(lockkit.BackendUnavailable, match="cannot connect"):
            threads.submit(client.lock("a").acquire).result(20)


def test_every_name_is_a_lock_of_its_own(
    client: lockkit.LockClient, database: dict[str, Any]
) -> None:
    migrate(database)
    leases = [client.lock(name).acquire(timeout=0) for name in LOOK_ALIKE]
    assert {info.name for info in client.holders()} == set(LOOK_ALIKE)
    assert all(lease.release() for lease in leases)


def test_migrate_makes_the_table_of_the_dialect(database: dict[str, Any]) -> None:
    migrate(database)
    with connections["orders"].cursor() as cursor:
        migrated = columns(cursor)
        cursor.execute("DROP TABLE lockkit_lock")
        cursor.execute(load_dialect("mysql").create)
        assert columns(cursor) == migrated


def test_the_tables_have_transactions_whatever_the_server_s_default(
    database: dict[str, Any],
) -> None:
    """The record of an order is rolled back with what the order has saved."""
    database["OPTIONS"]["init_command"] = "SET default_storage_engine = MyISAM"
    migrate(database)
    with connections["orders"].cursor() as cursor:
        cursor.execute(
            "SELECT table_name, engine FROM information_schema.tables "
            "WHERE table_schema = DATABASE() AND table_name LIKE 'lockkit%'"
        )
        found = dict(cursor.fetchall())
    assert found == {"lockkit_lock": "InnoDB", "lockkit_order": "InnoDB"}


def columns(cursor: Any) -> list[tuple[Any, ...]]:
    cursor.execute(
        "SELECT column_name, column_type, collation_name, is_nullable, column_key, engine "
        "FROM information_schema.columns JOIN information_schema.tables "
        "USING (table_schema, table_name) "
        "WHERE table_name = 'lockkit_lock' AND table_schema = DATABASE() ORDER BY 1"
    )
    return list(cursor.fetchall())


def test_a_request_s_transaction_is_left_alone(
    client: lockkit.LockClient, database: dict[str, Any]
) -> None:
    """Neither committed by a lock nor seen by it."""
    migrate(database)
    with connections["orders"].cursor() as cursor:
        cursor.execute("CREATE TABLE stock (units int) ENGINE=InnoDB")
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO stock VALUES (1)")
        with client.lock("a"):
            assert client.lock("a").try_acquire() is None
        cursor.execute("ROLLBACK")
        cursor.execute("SELECT count(*) FROM stock")
        assert cursor.fetchone() == (0,)


def test_a_grant_is_committed_where_a_commit_begins_the_next_transaction(
    client: lockkit.LockClient, database: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver of ``connection_created`` commits, before the first step."""
    migrate(database)
    chains = {**database["OPTIONS"], "init_command": "SET completion_type = CHAIN"}
    monkeypatch.setitem(connections.settings["orders"], "OPTIONS", chains)

    def commit(connection: Any, **_: object) -> None:
        connection.commit()

    connection_created.connect(commit)
    try:
        with client.lock("a"), lockkit.connect("django://orders") as other:
            assert other.lock("a").try_acquire() is None
    finally:
        connection_created.disconnect(commit)


def test_a_pair_is_two_statements(
    database: dict[str, Any], proxy: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(database)
    assert requests_of_pairs(database, proxy, monkeypatch, 5) == 10
