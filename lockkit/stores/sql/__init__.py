"""Locks in a database table: SQLite, PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockkit.stores.sql.alchemy import SQLAlchemyStore, create_table
    from lockkit.stores.sql.sqlite import SQLiteStore

__all__ = ["SQLAlchemyStore", "SQLiteStore", "create_table"]

_MODULES = {"SQLAlchemyStore": "alchemy", "SQLiteStore": "sqlite", "create_table": "alchemy"}


def __getattr__(name: str) -> Any:
    """Imported at first use: a file of SQLite needs nothing of the servers'."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
