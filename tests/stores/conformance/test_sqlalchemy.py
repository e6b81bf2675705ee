"""A table in a server's database, over connections of SQLAlchemy's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import given_mysql
import mysqlclient
import pytest
import sqlalchemy
from lock_tables import make_table, table_at
from over_a_wire import (
    BY_ANOTHER_DRIVER,
    BY_ANOTHER_DRIVERS_TASKS,
    BY_OTHERS_TASKS,
    BY_TASKS_OF_SQL,
    OverAWire,
    Reached,
    all_of,
)

from lockkit.stores.sql.alchemy import SQLAlchemyMySQL, SQLAlchemyPostgreSQL
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.conformance.queueing import QueueTests
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import MariaDBServer, PostgresServer
from lockkit.testing.targets import MariaDBTarget, PostgresTarget, Proxied, TableTarget, Target


class TestPostgreSQL(StoreConformance):
    schemes = ("postgresql",)
    tested = SQLAlchemyPostgreSQL
    reached = PostgresTarget
    cycles = 600
    by_tasks = BY_TASKS_OF_SQL | all_of(QueueTests)  # messages to tasks

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[PostgresTarget]:
        with PostgresServer() as server, table_at(server) as url:
            yield PostgresTarget(server, url)


class ByEngine(PostgresTarget):
    """An engine of the program's."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        super().__init__(server, "sqlalchemy://", options=over(url))
        self._place = url
        self._way = url

    @contextmanager
    def proxied(self) -> Iterator[Proxied]:
        with FaultProxy("127.0.0.1", self.server.port) as proxy:
            self._way = self._place.replace(f":{self.server.port}", f":{proxy.port}")
            yield Proxied(self.url, proxy)

    def options_for(self, url: str | None) -> dict[str, Any]:
        return over(self._way) if url else self.options


def over(url: str) -> dict[str, Any]:
    return {"options": {"engine": sqlalchemy.create_engine(url.replace(":", "+psycopg:", 1))}}


class TestPostgreSQLByEngine(Reached):
    schemes = ("sqlalchemy",)
    tested = SQLAlchemyPostgreSQL
    reached = ByEngine
    by_tasks = BY_ANOTHER_DRIVERS_TASKS

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, postgres_server: PostgresServer) -> Iterator[ByEngine]:
        with table_at(postgres_server) as url:
            yield ByEngine(postgres_server, url)


class ByPsycopg2(PostgresTarget):
    writes = TableTarget.writes  # it prepares no statements


class TestPostgreSQLByPsycopg2(OverAWire):
    schemes = ("postgresql",)
    tested = SQLAlchemyPostgreSQL
    reached = ByPsycopg2
    by_tasks = BY_ANOTHER_DRIVERS_TASKS
    asked = BY_ANOTHER_DRIVER
    tells = False

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, postgres_server: PostgresServer) -> Iterator[ByPsycopg2]:
        with table_at(postgres_server) as url:
            yield ByPsycopg2(postgres_server, url.replace("postgresql", "postgresql+psycopg2", 1))


class TestMariaDB(StoreConformance):
    schemes = ("mysql", "mariadb")
    tested = SQLAlchemyMySQL
    reached = MariaDBTarget
    by_tasks = BY_TASKS_OF_SQL
    cycles = 600  # of a store without messages

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[MariaDBTarget]:
        with MariaDBServer() as server, table_at(server) as url:
            yield MariaDBTarget(server, url)


if mysqlclient.is_installed():

    class ByMysqlclient(MariaDBTarget):
        writes = mysqlclient.WRITES

    class TestMariaDBByMysqlclient(StoreConformance):
        schemes = ("mysql",)
        tested = SQLAlchemyMySQL
        reached = ByMysqlclient
        by_tasks = BY_OTHERS_TASKS
        cycles = 600

        @pytest.fixture(scope="class")
        @classmethod
        def store(cls) -> Iterator[ByMysqlclient]:
            with MariaDBServer() as server, table_at(server) as url:
                yield ByMysqlclient(server, url.replace("mysql", "mysql+mysqldb", 1))


if given_mysql.URL:

    class TestMySQL(StoreConformance):
        schemes = ("mysql",)
        tested = SQLAlchemyMySQL
        without_faults = given_mysql.NOT_OURS
        cycles = 600
        by_tasks = BY_OTHERS_TASKS

        @pytest.fixture(scope="class")
        @classmethod
        def store(cls) -> Iterator[Target]:
            with given_mysql.a_database() as url:
                make_table(url)
                yield Target(url)
