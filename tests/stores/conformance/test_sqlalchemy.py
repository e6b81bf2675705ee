"""A table in a server's database, over connections of SQLAlchemy's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from lock_tables import make_table, table_at

from lockkit.stores.sql.alchemy import SQLAlchemyMySQL, SQLAlchemyPostgreSQL
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.servers import MariaDBServer, PostgresServer
from lockkit.testing.store import MariaDBTable, PostgresTable, Store


class TestPostgreSQL(StoreConformance):
    schemes = ("postgresql", "sqlalchemy")
    tested = SQLAlchemyPostgreSQL
    reached = PostgresTable
    cycles = 600

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[PostgresTable]:
        with PostgresServer() as server, table_at(server) as url:
            yield PostgresTable(server, url)


class TestMariaDB(StoreConformance):
    schemes = ("mysql", "mariadb")
    tested = SQLAlchemyMySQL
    reached = MariaDBTable
    cycles = 600  # of a store without messages

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[MariaDBTable]:
        with MariaDBServer() as server, table_at(server) as url:
            yield MariaDBTable(server, url)


if url_of_mysql := os.environ.get("LOCKKIT_TEST_MYSQL_URL"):

    class TestMySQL(StoreConformance):
        """MySQL 8, which Debian does not have: an empty database of a server that runs already."""

        schemes = ("mysql",)
        tested = SQLAlchemyMySQL
        cycles = 600

        @pytest.fixture(scope="class")
        @classmethod
        def store(cls) -> Store:
            assert url_of_mysql is not None
            make_table(url_of_mysql)
            return Store(url_of_mysql)
