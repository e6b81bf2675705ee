"""Databases of a server, with the lock table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy
from databases import empty_database

from lockkit.stores.sql import create_table
from lockkit.testing.servers import MariaDBServer, PostgresServer

DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


def engine_for(url: str) -> sqlalchemy.Engine:
    scheme, _, rest = url.partition("://")
    return sqlalchemy.create_engine(f"{DRIVERS.get(scheme, scheme)}://{rest}")


def make_table(url: str) -> None:
    engine = engine_for(url)
    try:
        create_table(engine)
    finally:
        engine.dispose()


@contextmanager
def table_at(server: PostgresServer | MariaDBServer) -> Iterator[str]:
    """The URL of a new database with the lock table."""
    with empty_database(server) as url:
        make_table(url)
        yield url
