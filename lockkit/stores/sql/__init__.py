"""Locks in a database table: SQLite, PostgreSQL, MySQL and MariaDB."""

from lockkit.stores.sql.alchemy import SQLAlchemyStore, create_table
from lockkit.stores.sql.sqlite import SQLiteStore

__all__ = ["SQLAlchemyStore", "SQLiteStore", "create_table"]
