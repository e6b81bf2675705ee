"""The records of orders in a table of the app's own database: see ``lockkit.orders.rows``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError

from lockkit.model.errors import ConfigurationError
from lockkit.model.log import log
from lockkit.orders import DuplicateKeyError, Record, rows
from lockkit.orders.rows import TABLE
from lockkit.orders.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flask_sqlalchemy import SQLAlchemy

    from lockkit.model.errors import BackendUnavailable

EARLIER_TABLE = "lockkit_order_record"
"""The table of a release whose keys of orders this one cannot find."""
_without_earlier: WeakSet[sa.Engine] = WeakSet()

LARGEST_BODY = 2**24 - 1  # has MySQL choose MEDIUMBLOB; a plain BLOB ends at 64 KiB

LISTENED = ("begin", "before_cursor_execute", "after_cursor_execute", "commit")
"""Listeners may choose a tenant's schema, or refuse a COMMIT."""


class OrderTable(Table):
    """The records in one database of the current app, by its bind key.

    The engine is asked for at each use: tests exchange engines. Raises BackendUnavailable, and
    ConfigurationError for an unknown bind key, or if the table was never made, or if there is one
    of an earlier release.
    """

    MISSING = (
        f"the database has no table {TABLE!r} for the records of orders",
        "make it with LockKit.create_tables(), db.create_all() or a migration",
    )

    def __init__(self, db: SQLAlchemy, using: str | None) -> None:
        if using not in db.metadatas:
            raise ConfigurationError(
                f"LOCKKIT_ORDERS['USING'], or that of @idempotent, is not a bind key: {using!r}"
            )
        self.table = _table(db.metadatas[using])
        self.using = using
        self._db = db

    @property
    def engine(self) -> sa.Engine:
        return self._db.engines[self.using]

    def of(self, using: str) -> OrderTable:
        """Those in another database; this one, if it is that."""
        return self if using == self.using else OrderTable(self._db, using)

    def create(self) -> None:
        """Unless it is there."""
        self.table.create(self.engine, checkfirst=True)

    def find(self, key: str, *, fresh: bool) -> Record | None:
        """The record, read outside of any transaction."""
        self.refuse_earlier()
        with self.typed_errors(), _for_one_query(self.engine) as connection:
            return rows.find(Sql(connection), key)

    def refuse_earlier(self) -> None:
        """Once for each engine. Its orders would be made again when they are repeated."""
        engine = self.engine
        if engine in _without_earlier:
            return
        with self.typed_errors():
            found = sa.inspect(engine).has_table(EARLIER_TABLE)
        if found:
            raise ConfigurationError(
                f"the database has the table {EARLIER_TABLE!r} of an earlier release of lockkit, "
                f"whose orders this release would make again if their clients repeat them: take "
                f"no orders until the TTL of the last one is over, or accept that, and drop it"
            )
        _without_earlier.add(engine)

    @contextmanager
    def begin(self) -> Iterator[Sql]:
        with self.typed_errors(), self.engine.begin() as connection:
            yield Sql(connection)

    @contextmanager
    def typed_errors(self) -> Iterator[None]:
        """An outage passes, and repeating helps; a table that was never made does not come.

        Raises DuplicateKeyError for a key that is there.
        """
        try:
            yield
        except IntegrityError as error:
            raise DuplicateKeyError from error
        except SQLAlchemyError as error:
            # SQLite says OperationalError for all
            answered = isinstance(error, ProgrammingError) or "no such table" in str(error)
            if answered and self.is_missing():
                raise ConfigurationError(": ".join(self.MISSING)) from error
            raise unavailable(error) from error

    def is_missing(self) -> bool:
        """Raises BackendUnavailable."""
        try:
            return not sa.inspect(self.engine).has_table(TABLE)
        except SQLAlchemyError as error:
            raise unavailable(error) from error


class Sql:
    """A connection, as ``lockkit.orders.rows`` uses it."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._dialect = connection.dialect
        self.vendor = self._dialect.name

    def run(self, *steps: rows.Step, commit: bool = False) -> Any:
        """Past SQLAlchemy where it only hands over, unless somebody listens to what is done."""
        heard: Any = self._connection.engine.dispatch
        if not any(getattr(heard, event) for event in LISTENED):
            driver: Any = self._connection.connection.driver_connection
            if rows.is_plain(driver):
                return self._run_on(driver, steps, commit=commit)
        result: Any = None
        for sql, parameters in steps:
            said = sql.replace("%s", "?") if self._dialect.paramstyle == "qmark" else sql
            result = self._connection.exec_driver_sql(said, parameters)
        return result.fetchall() if result.returns_rows else result.rowcount

    def _run_on(self, driver: Any, steps: Sequence[rows.Step], *, commit: bool) -> Any:
        kind: Any = self._dialect.loaded_dbapi.Error
        try:
            return rows.send(driver, steps, commit=commit)
        except kind as error:
            lost = self._dialect.is_disconnect(error, driver, None)
            if lost:
                self._connection.invalidate(error)
            text = steps[0][0]
            raise DBAPIError.instance(
                text, (), error, kind, connection_invalidated=lost, dialect=self._dialect
            ) from error


def _table(metadata: sa.MetaData) -> sa.Table:
    """The table, within the app's metadata: ``create_all()`` makes it and Alembic sees it.

    The columns mean the same as in Django's table of the same name: the two may be one.
    """
    if TABLE in metadata.tables:
        return metadata.tables[TABLE]
    return sa.Table(
        TABLE,
        metadata,
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("order_id", sa.String(255), nullable=False),
        sa.Column("request", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(100), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False, index=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("headers", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary(LARGEST_BODY), nullable=False),
    )


def _for_one_query(engine: sa.Engine) -> sa.Connection:
    """On PostgreSQL without BEGIN and ROLLBACK around it: each would be a round trip."""
    connection = engine.connect()
    if engine.dialect.name == "postgresql":
        connection.execution_options(isolation_level="AUTOCOMMIT")
    return connection


def unavailable(error: SQLAlchemyError) -> BackendUnavailable:
    """Logs the driver's words, which have no parameters in them."""
    from lockkit.stores.sql import vendors

    said = getattr(error, "orig", None) or error
    log.error("the order records cannot be used: %s", said)
    return vendors.unavailable("the database of the order records", said)
