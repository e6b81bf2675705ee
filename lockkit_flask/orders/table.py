"""The records of orders: a table in the app's own database, and what is done with its rows."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from lockkit.model.errors import BackendUnavailable, ConfigurationError
from lockkit.model.log import log
from lockkit.orders import DuplicateKeyError, Record, StillRunningError, dump_headers
from lockkit.orders.databases import MICROSECONDS, claiming, clock_of, is_lock_timeout
from lockkit.orders.facts import FINGERPRINT_VERSION
from lockkit.orders.judging import is_damaged
from lockkit.orders.record import VERSION, State, recorded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flask_sqlalchemy import SQLAlchemy

TABLE_NAME = "lockkit_order"
EARLIER_TABLE = "lockkit_order_record"
"""Of a release whose keys of orders cannot be found by this one."""
LARGEST_BODY = 2**24 - 1  # has MySQL choose MEDIUMBLOB; a plain BLOB ends at 64 KiB


class OrderTable:
    """The records in one database of the current app, by its bind key.

    The engine is asked for at each use: tests exchange engines. Raises BackendUnavailable, and
    ConfigurationError for what is no bind key, or if the table was never made, or if there is one
    of an earlier release.
    """

    MISSING = (
        f"the database has no table {TABLE_NAME!r} for the records of orders",
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
        """What is recorded, outside of any transaction."""
        self._refuse_earlier()
        left = self.table.c.expires - self._clock()
        query = sa.select(self.table, left.label("left")).where(self.table.c.key == key)
        with self.typed_errors(), _for_one_query(self.engine) as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else recorded(dict(row), row["left"])

    def _refuse_earlier(self) -> None:
        """Once. Its orders would be made again when they are repeated."""
        if self.table.info.get(EARLIER_TABLE) is False:
            return
        with self.typed_errors():
            found = sa.inspect(self.engine).has_table(EARLIER_TABLE)
        if found:
            raise ConfigurationError(
                f"the database has the table {EARLIER_TABLE!r} of an earlier release of lockkit, "
                f"whose orders this release would make again if their clients repeat them: take "
                f"no orders until the TTL of the last one is over, or accept that, and drop it"
            )
        self.table.info[EARLIER_TABLE] = False

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

        Those of a newer release stay: what their columns mean is not known here.
        """
        is_over = self.table.c.expires <= self._clock()
        expired = sa.and_(is_over, self.table.c.version <= VERSION)
        some = sa.select(self.table.c.key).where(expired).limit(batch)
        while True:
            with self.typed_errors(), self.engine.begin() as connection:
                keys = list(connection.scalars(some))
                gone = sa.delete(self.table).where(self.table.c.key.in_(keys), expired)
                count = connection.execute(gone).rowcount if keys else 0
            if not keys:
                return
            yield count

    def unreadable(self) -> Iterator[str]:
        """The keys of orders whose record cannot be read, as far as the database can tell."""
        c = self.table.c
        whole = sa.and_(
            c.state.in_(list(State)),
            c.status.between(0, 599),
            c.fingerprint.startswith(f"{FINGERPRINT_VERSION}:"),
            c.headers.startswith("["),
            c.headers.endswith("]"),
        )
        with self.typed_errors(), self.engine.connect() as connection:
            query = sa.select(c.key).where(c.version <= VERSION, sa.not_(whole))
            yield from connection.scalars(query)

    def repair(self, key: str) -> bool:
        """Delete the record of one order if it cannot be read."""
        record = self.find(key, fresh=True)
        if record is None or not is_damaged(record):
            return False
        with self.typed_errors(), self.engine.begin() as connection:
            connection.execute(sa.delete(self.table).where(self.table.c.key == key))
        return True

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
            if self._has_answered(error) and self.is_missing():
                raise ConfigurationError(": ".join(self.MISSING)) from error
            raise unavailable(error) from error

    def is_missing(self) -> bool:
        """Raises BackendUnavailable."""
        try:
            return not sa.inspect(self.engine).has_table(self.table.name)
        except SQLAlchemyError as error:
            raise unavailable(error) from error

    @staticmethod
    def _has_answered(error: SQLAlchemyError) -> bool:
        """SQLite says OperationalError for all."""
        return isinstance(error, ProgrammingError) or "no such table" in str(error)

    def _clock(self) -> sa.ColumnElement[int]:
        return sa.literal_column(clock_of(self.engine.dialect.name), sa.BigInteger)

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


def _table(metadata: sa.MetaData) -> sa.Table:
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
