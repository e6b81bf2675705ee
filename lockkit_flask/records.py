"""The records of orders: a table in the app's own database, and what is done with its rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError

from lockkit.model.errors import BackendUnavailable, ConfigurationError, LockError
from lockkit.model.log import log
from lockkit.orders import (
    Record,
    StillRunningError,
    dump_headers,
)
from lockkit.orders.databases import MICROSECONDS, claiming, clock_of, is_lock_timeout
from lockkit.orders.record import VERSION, recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["TABLE_NAME", "Records", "record_table"]

TABLE_NAME = "lockkit_order"
LARGEST_BODY = 2**24 - 1  # has MySQL choose MEDIUMBLOB; a plain BLOB ends at 64 KiB


def record_table(metadata: sa.MetaData) -> sa.Table:
    """The table, within the app's metadata: ``create_all()`` makes it and Alembic sees it.

    The columns mean the same as in Django's table of the same name: the two may be one.
    """
    if TABLE_NAME in metadata.tables:
        return metadata.tables[TABLE_NAME]
    return sa.Table(
        TABLE_NAME,
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


class Records:
    """The rows of one app. ``engine`` is asked for at each use: tests exchange engines."""

    def __init__(self, table: sa.Table, engine: Callable[[], sa.Engine]) -> None:
        self.table = table
        self.engine = engine

    def find(self, key: str, *, fresh: bool) -> Record | None:
        """What is recorded, outside of any transaction.

        Raises BackendUnavailable, and ConfigurationError if the table was never made.
        """
        left = self.table.c.expires - self._clock()
        query = sa.select(self.table, left.label("left")).where(self.table.c.key == key)
        try:
            with _for_one_query(self.engine()) as connection:
                row = connection.execute(query).mappings().first()
        except SQLAlchemyError as error:
            raise self._failure(error) from error
        return None if row is None else recorded(dict(row), row["left"])

    def insert(
        self, connection: sa.Connection, record: Record, *, replaces: bool, wait: float
    ) -> None:
        """A new row; it ``replaces`` an expired one. Raises IntegrityError when the key is there.

        Raises StillRunningError after ``wait`` seconds behind somebody who has inserted the key
        and has not ended. It is the first write of its transaction, and must be: SQLite's driver
        begins transactions at the first write only, and a SAVEPOINT before that would be one of
        its own.
        """
        execute = partial(_execute, connection)
        with claiming(connection.dialect.name, execute, wait):
            try:
                self._insert(connection, record, replaces=replaces)
            except OperationalError as error:
                if is_lock_timeout(error.orig):
                    raise StillRunningError from error
                raise

    def _insert(self, connection: sa.Connection, record: Record, *, replaces: bool) -> None:
        if replaces:  # only the expired one: another request may have been quicker
            expired = self.table.c.expires <= self._clock()
            mine = self.table.c.key == record.key
            connection.execute(sa.delete(self.table).where(mine, expired))
        row = {**self._row(record), "key": record.key, "created": self._clock()}
        connection.execute(sa.insert(self.table).values(**row))

    def update(self, connection: sa.Connection, record: Record) -> None:
        """The end of an order, into the row that ``insert`` made.

        Raises RuntimeError if that is gone: a COMMIT would leave the order without a record.
        """
        mine = self.table.c.key == record.key
        found = connection.execute(sa.update(self.table).where(mine).values(**self._row(record)))
        if found.rowcount != 1:
            raise RuntimeError("the record of this order was deleted while its view was running")

    def forget(self, connection: sa.Connection, key: str) -> None:
        """Delete the row that ``insert`` made."""
        connection.execute(sa.delete(self.table).where(self.table.c.key == key))

    def prune(self, batch: int) -> Iterator[int]:
        """Delete what has expired, so many at a time; yields how many, after each COMMIT.

        Those of a newer release stay: what their columns mean is not known here. Raises
        BackendUnavailable.
        """
        is_over = self.table.c.expires <= self._clock()
        expired = sa.and_(is_over, self.table.c.version <= VERSION)
        some = sa.select(self.table.c.key).where(expired).limit(batch)
        while True:
            try:
                with self.engine().begin() as connection:
                    keys = list(connection.scalars(some))
                    gone = sa.delete(self.table).where(self.table.c.key.in_(keys), expired)
                    count = connection.execute(gone).rowcount if keys else 0
            except SQLAlchemyError as error:
                raise self._failure(error) from error
            if not keys:
                return
            yield count

    def keep(self, record: Record, *, replaces: bool, wait: float) -> None:
        """A refusal, in a transaction of its own: the one of the order is rolled back."""
        with self.engine().begin() as connection:
            self.insert(connection, record, replaces=replaces, wait=wait)

    def _clock(self) -> sa.ColumnElement[int]:
        return sa.literal_column(clock_of(self.engine().dialect.name), sa.BigInteger)

    def _row(self, record: Record) -> dict[str, Any]:
        return {
            "order_id": record.order_id,
            "request": record.request,
            "fingerprint": record.fingerprint,
            "expires": self._clock() + int(record.left * MICROSECONDS),
            "state": str(record.state),
            "version": record.version,
            "status": record.snapshot.status,
            "headers": dump_headers(record.snapshot.headers),
            "body": record.snapshot.body,
        }

    def _failure(self, error: SQLAlchemyError) -> LockError:
        """An outage passes, and repeating helps; a table that was never made does not come."""
        if not self._is_missing(error):
            return unavailable(error)
        return ConfigurationError(
            f"the database has no table {TABLE_NAME!r} for the records of orders: make it with "
            f"LockKit.create_tables(), db.create_all() or a migration"
        )

    def _is_missing(self, error: SQLAlchemyError) -> bool:
        """Asked only where the database has answered: SQLite says OperationalError for all."""
        answered = isinstance(error, ProgrammingError) or "no such table" in str(error)
        try:
            return answered and not sa.inspect(self.engine()).has_table(self.table.name)
        except SQLAlchemyError:
            return False


def _execute(connection: sa.Connection, sql: str) -> Sequence[Any] | None:
    result = connection.exec_driver_sql(sql)
    return result.first() if result.returns_rows else None


def _for_one_query(engine: sa.Engine) -> sa.Connection:
    """On PostgreSQL without BEGIN and ROLLBACK around it: each would be a round trip."""
    connection = engine.connect()
    if engine.dialect.name == "postgresql":
        connection.execution_options(isolation_level="AUTOCOMMIT")
    return connection


def unavailable(error: SQLAlchemyError) -> BackendUnavailable:
    """Logs the driver's words, which have no parameters in them."""
    log.error("the order records cannot be used: %s", getattr(error, "orig", None) or error)
    return BackendUnavailable("the order records cannot be used")
