"""Locks in a database table: SQLite and PostgreSQL; another database is another dialect."""

from lockkit.stores.sql.alchemy import SQLAlchemyBackend, create_table
from lockkit.stores.sql.sqlite import SQLiteBackend

__all__ = ["SQLAlchemyBackend", "SQLiteBackend", "create_table"]
