"""Locks in a database table: SQLite and PostgreSQL; another database is another dialect."""

from lockkit.backends.sql.alchemy import SQLAlchemyBackend, create_table
from lockkit.backends.sql.sqlite import SQLiteBackend

__all__ = ["SQLAlchemyBackend", "SQLiteBackend", "create_table"]
