"""django://: the project's own database. What Django does without any setting of lockkit's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import django
import given_mysql
import mysqlclient
import pytest
import pytest_django
from database_settings import complete, environment, mariadb, postgresql, sqlite
from django.core.management import call_command
from django.db import connections
from orders_django import mysql
from over_a_wire import BY_ANOTHER_DRIVERS_TASKS, BY_OTHERS_TASKS, OverAWire, Reached

from lockkit.stores.sql.sqlite import SQLiteStore
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import MariaDBServer, PostgresServer
from lockkit.testing.targets import MariaDBTarget, PostgresTarget, Proxied, TableTarget, Target
from lockkit_django.stores.database import DatabaseMySQL, DatabasePostgreSQL

__all__ = ["mysql"]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")
django.setup()


class TestDjangoDatabase(OverAWire):
    schemes = ("django",)
    tested = SQLiteStore
    by_tasks = BY_OTHERS_TASKS

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
        database = sqlite(tmp_path_factory.mktemp("django") / "shop.sqlite3")
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(connections.settings, "default", complete(database))
            yield Target(
                "django://default", setup="django:setup", environment=environment(database)
            )


class OfDjango(TableTarget):
    """A database of Django's: another alias of it leads through the proxy."""

    def __init__(self, server: PostgresServer | MariaDBServer, database: dict[str, Any]) -> None:
        known = environment(database)
        super().__init__(server, "django://default", setup="django:setup", environment=known)
        self._database = database

    @contextmanager
    def proxied(self) -> Iterator[Proxied]:
        with FaultProxy("127.0.0.1", self.server.port) as proxy:
            alias = f"by-{proxy.port}"
            with aliased(alias, {**self._database, "PORT": proxy.port}):
                yield Proxied(f"django://{alias}", proxy)


class PostgreSQLOfDjango(OfDjango, PostgresTarget):
    pass


class OfPsycopg2(PostgreSQLOfDjango):
    writes = TableTarget.writes  # it prepares no statements


class MariaDBOfDjango(OfDjango, MariaDBTarget):
    if mysqlclient.is_installed():
        writes = mysqlclient.WRITES


@contextmanager
def aliased(alias: str, database: dict[str, Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connections.settings, alias, complete(database))
        yield


@contextmanager
def migrated(database: dict[str, Any]) -> Iterator[None]:
    """The default database, with lockkit's tables."""
    with ExitStack() as stack:
        stack.enter_context(aliased("default", database))
        before = getattr(connections._connections, "default", None)
        if before is not None:
            del connections["default"]
        try:
            call_command("migrate", "lockkit_django", verbosity=0)
        finally:
            connections["default"].close()
            del connections["default"]
            if before is not None:
                connections["default"] = before
        yield


class TestDjangoPostgreSQL(OverAWire):
    schemes = ("django",)
    tested = DatabasePostgreSQL
    by_tasks = BY_OTHERS_TASKS
    reached = PostgreSQLOfDjango

    @pytest.fixture(scope="class")
    @classmethod
    def store(
        cls, django_db_blocker: pytest_django.DjangoDbBlocker
    ) -> Iterator[PostgreSQLOfDjango]:
        with PostgresServer() as server:
            database = postgresql(server.create_database())
            with django_db_blocker.unblock(), migrated(database):
                yield PostgreSQLOfDjango(server, database)


class TestDjangoPostgreSQLByPsycopg2(Reached):
    schemes = ("django",)
    tested = DatabasePostgreSQL
    by_tasks = BY_ANOTHER_DRIVERS_TASKS
    reached = OfPsycopg2
    tells = False

    @pytest.fixture(scope="class")
    @classmethod
    def store(
        cls, postgres_server: PostgresServer, django_db_blocker: pytest_django.DjangoDbBlocker
    ) -> Iterator[OfPsycopg2]:
        database = postgresql(postgres_server.create_database()) | {"ENGINE": "django_psycopg2"}
        with django_db_blocker.unblock(), migrated(database):
            yield OfPsycopg2(postgres_server, database)


class TestDjangoMariaDB(OverAWire):
    schemes = ("django",)
    tested = DatabaseMySQL
    by_tasks = BY_OTHERS_TASKS
    reached = MariaDBOfDjango

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, django_db_blocker: pytest_django.DjangoDbBlocker) -> Iterator[MariaDBOfDjango]:
        with MariaDBServer() as server:
            database = mariadb(server.create_database())
            with django_db_blocker.unblock(), migrated(database):
                yield MariaDBOfDjango(server, database)


if given_mysql.URL:

    class TestDjangoMySQL(OverAWire):
        schemes = ("django",)
        tested = DatabaseMySQL
        without_faults = given_mysql.NOT_OURS
        by_tasks = BY_OTHERS_TASKS

        @pytest.fixture(scope="class")
        @classmethod
        def store(cls, django_db_blocker: pytest_django.DjangoDbBlocker) -> Iterator[Target]:
            with given_mysql.a_database() as url:
                database = mariadb(url)
                with django_db_blocker.unblock(), migrated(database):
                    yield Target(
                        "django://default", setup="django:setup", environment=environment(database)
                    )
