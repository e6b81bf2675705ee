"""Locks of the sessions of servers."""

from __future__ import annotations

from collections.abc import Iterator

import given_mysql
import pytest
from over_a_wire import BY_OTHERS_TASKS, BY_TASKS_OF_SQL
from servers_of_sessions import with_table

from lockkit.stores.sessions.mysql import GetLockStore, MySQLRowStore
from lockkit.stores.sessions.postgresql import PostgresAdvisoryStore, PostgresRowStore
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.servers import MariaDBServer, PostgresServer
from lockkit.testing.targets import SessionTarget, Target

MANY = {"options": {"max_sessions": 100}}


class TestPostgresAdvisory(StoreConformance):
    schemes = ("postgresql?mode=advisory",)
    tested = PostgresAdvisoryStore
    reached = SessionTarget
    cycles = 600

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[Target]:
        with PostgresServer("max_connections=500") as server:
            yield SessionTarget(server, f"{server.url}?mode=advisory", options=MANY)


class TestPostgresRow(StoreConformance):
    schemes = ("postgresql?mode=row",)
    tested = PostgresRowStore
    reached = SessionTarget
    cycles = 600
    by_tasks = BY_TASKS_OF_SQL

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[Target]:
        with PostgresServer("max_connections=500") as server:
            url = f"{server.url}?mode=row"
            with_table(url)
            yield SessionTarget(server, url, options=MANY)


class TestGetLock(StoreConformance):
    schemes = ("mysql?mode=advisory", "mariadb?mode=advisory")
    tested = GetLockStore
    reached = SessionTarget
    cycles = 600
    by_tasks = BY_TASKS_OF_SQL

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[Target]:
        with MariaDBServer("--max-connections=500") as server:
            yield SessionTarget(server, f"{server.url}?mode=advisory", options=MANY)


class TestMariaDBRow(StoreConformance):
    schemes = ("mysql?mode=row", "mariadb?mode=row")
    tested = MySQLRowStore
    reached = SessionTarget
    cycles = 600
    by_tasks = BY_TASKS_OF_SQL

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[Target]:
        with MariaDBServer("--max-connections=500") as server:
            url = f"{server.url}?mode=row"
            with_table(url)
            yield SessionTarget(server, url, options=MANY)


if given_mysql.URL:

    class TestMySQLGetLock(StoreConformance):
        schemes = ("mysql?mode=advisory",)
        tested = GetLockStore
        without_faults = given_mysql.NOT_OURS
        cycles = 600
        by_tasks = BY_OTHERS_TASKS

        @pytest.fixture(scope="class")
        @classmethod
        def store(cls) -> Iterator[Target]:
            with given_mysql.a_database() as url:
                yield Target(f"{url}?mode=advisory", options=MANY)

    class TestMySQLRow(StoreConformance):
        schemes = ("mysql?mode=row",)
        tested = MySQLRowStore
        without_faults = given_mysql.NOT_OURS
        cycles = 600
        by_tasks = BY_OTHERS_TASKS

        @pytest.fixture(scope="class")
        @classmethod
        def store(cls) -> Iterator[Target]:
            with given_mysql.a_database() as url:
                with_table(f"{url}?mode=row")
                yield Target(f"{url}?mode=row", options=MANY)
