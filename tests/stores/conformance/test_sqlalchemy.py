"""sqlalchemy+postgresql://: a table in a server's database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lock_tables import table_at

from lockkit.stores.sql.alchemy import SQLAlchemyServer
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.servers import PostgresServer
from lockkit.testing.store import Store


class TestSQLAlchemy(StoreConformance):
    schemes = ("sqlalchemy",)
    tested = SQLAlchemyServer
    cycles = 600  # of a store without messages

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, postgres_server: PostgresServer) -> Iterator[Store]:
        with table_at(postgres_server) as url:
            yield Store(f"sqlalchemy+{url}")
