"""mysqlclient, which has to be compiled: tested where it is installed."""

from __future__ import annotations

from importlib import import_module

from lockkit.testing.targets import TableTarget


def is_installed() -> bool:
    """Whether it is, and not PyMySQL in its place."""
    try:
        return import_module("MySQLdb").__name__ == "MySQLdb"
    except ImportError:
        return False


SCHEMES = ["mysql", *(["mysql+mysqldb"] if is_installed() else [])]
"""The schemes for MariaDB: PyMySQL's, and its own."""

WRITES = TableTarget.writes
"""mysqlclient prepares no statements."""
