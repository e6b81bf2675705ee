"""Databases of a server, with the lock table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy

from lockkit.stores.sql import create_table
from lockkit.testing.servers import PostgresServer


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
