"""Locks in a database table: SQLite, PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlalchemy


def create_table(engine: sqlalchemy.Engine) -> None:
    """Make the lock table in the database of a server, if it is not there. A Django project gets
    it by ``manage.py migrate`` and need not call this."""
    from lockkit.stores.sql.dialect import load_dialect  # a file needs nothing of the servers'
    from lockkit.stores.sql.vendors import VENDORS

    with engine.begin() as connection:
        connection.exec_driver_sql(load_dialect(VENDORS[engine.dialect.name].name).create)
