"""Locks in a database table: SQLite, PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlalchemy


def create_table(engine: sqlalchemy.Engine) -> None:
    """Make the lock table in a PostgreSQL, MySQL or MariaDB database, if it is missing. Raises the
    errors of SQLAlchemy, and ConfigurationError for another database. Not for SQLite: a file gets
    its table at the first lock. A Django project gets the table by ``manage.py migrate`` and need
    not call this."""
    from sqlalchemy import inspect
    from sqlalchemy.exc import DBAPIError

    from lockkit.model.errors import ConfigurationError
    from lockkit.stores.sql.dialect import load_dialect  # here, as locks in a file do not need it
    from lockkit.stores.sql.vendors import VENDORS

    vendor = VENDORS.get(engine.dialect.name)
    if vendor is None:
        raise ConfigurationError(
            f"lockkit makes tables in PostgreSQL, MySQL and MariaDB, not in {engine.dialect.name}"
        )
    if inspect(engine).has_table("lockkit_lock"):
        return  # the user may be one that may not make it
    try:
        _run(engine, load_dialect(vendor.name).create)
    except DBAPIError as error:  # PostgreSQL's, if another process makes it at the same moment
        if error.orig is None or vendor.code(error.orig) not in vendor.missed:
            raise
        _run(engine, load_dialect(vendor.name).create)


def _run(engine: sqlalchemy.Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
