"""Shops of two machines, per class of tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("crashing.stories", "crashing.orphans", "crashing.own")

from crashing.configuration import Configuration  # noqa: E402  rewritten first
from crashing.stories import TTL  # noqa: E402

from lockkit.testing.servers import PostgresServer, RedisServer  # noqa: E402

Place = Callable[[str], Configuration]


@pytest.fixture(scope="class")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shop")


@pytest.fixture(scope="class")
def on_sqlite(directory: Path) -> Configuration:
    """Nothing but files: the shop's, and lockkit's."""
    return Configuration(
        f"sqlite:///{directory}/shop.sqlite3", f"sqlite:///{directory}/locks.sqlite3", TTL
    )


@pytest.fixture(scope="class")
def on_postgres(
    postgres_server: PostgresServer, redis_server: RedisServer
) -> Iterator[Configuration]:
    """PostgreSQL, and locks in Redis."""
    url = postgres_server.create_database()
    redis_server.flush()
    yield Configuration(url, redis_server.url, TTL)
    postgres_server.drop_database(url)
