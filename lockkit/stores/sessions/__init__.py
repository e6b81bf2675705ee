"""Locks that belong to a session with a database server: ``?mode=advisory``."""

from __future__ import annotations

from lockkit.stores.sessions.postgresql import PostgresAdvisoryStore

__all__ = ["PostgresAdvisoryStore"]
