"""sqlalchemy+postgresql://: a table in a server's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy

from lockkit.stores.sql import create_table
from lockkit.testing.conformance import KINDS, BackendConformance, Needs
from lockkit.testing.servers import PostgresServer
from lockkit.testing.store import Store


@contextmanager
def table_at(server: PostgresServer) -> Iterator[str]:
    """The URL, for SQLAlchemy, of a new database with the lock table."""
    database = server.create_database()
    url = database.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url)
    try:
        create_table(engine)
        engine.dispose()
        yield url
    finally:
        server.drop_database(database)


class TestSQLAlchemy(BackendConformance):
    schemes = ("sqlalchemy",)
    provides = Needs.PROCESSES | KINDS
    cycles = 600  # of a store without messages

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, postgres_server: PostgresServer) -> Iterator[Store]:
        with table_at(postgres_server) as url:
            yield Store(f"sqlalchemy+{url}")

    test_it_provides_what_its_capabilities_claim = None
    """A server, but not yet with the promises under a failing network: those need a socket
    timeout, which libpq has not."""
