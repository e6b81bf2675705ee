"""Locks in a database table: SQLite now; other databases are a dialect each."""

from lockkit.backends.sql.sqlite import SQLiteBackend

__all__ = ["SQLiteBackend"]
