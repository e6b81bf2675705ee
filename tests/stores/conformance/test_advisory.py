"""postgresql://…?mode=advisory: the sessions of a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockkit.stores.sessions import PostgresAdvisoryStore
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.servers import PostgresServer
from lockkit.testing.store import Store

MANY = {"options": {"max_sessions": 100}}


class TestPostgresAdvisory(StoreConformance):
    schemes = ("postgresql?mode=advisory",)
    tested = PostgresAdvisoryStore
    cycles = 600

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[Store]:
        with PostgresServer("max_connections=500") as server:
            yield Store(f"{server.url}?mode=advisory", options=MANY)
