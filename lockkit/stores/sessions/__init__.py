"""Locks that belong to a session with a database server: ``?mode=advisory`` and ``?mode=row``."""

from __future__ import annotations

from lockkit.stores.sessions.mysql import GetLockStore, MySQLRowStore
from lockkit.stores.sessions.postgresql import PostgresAdvisoryStore, PostgresRowStore

__all__ = ["GetLockStore", "MySQLRowStore", "PostgresAdvisoryStore", "PostgresRowStore"]
