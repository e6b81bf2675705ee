"""mysqlclient, which has to be compiled: tested where it is installed."""

from __future__ import annotations

from importlib import import_module

from lockkit.testing.store import TableStore


def is_installed() -> bool:
    """And not PyMySQL in its place."""
    try:
        return import_module("MySQLdb").__name__ == "MySQLdb"
    except ImportError:
        return False


SCHEMES = ["mysql", *(["mysql+mysqldb"] if is_installed() else [])]
"""Of MariaDB's URLs: PyMySQL's, and its own."""

WRITES = TableStore.writes
"""It prepares nothing."""
