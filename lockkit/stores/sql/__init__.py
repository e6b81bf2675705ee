"""Locks in a database table: SQLite and PostgreSQL; another database is another dialect."""

from lockkit.stores.sql.alchemy import SQLAlchemyStore, create_table
from lockkit.stores.sql.sqlite import SQLiteStore

__all__ = ["SQLAlchemyStore", "SQLiteStore", "create_table"]
