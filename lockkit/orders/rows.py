# ruff: noqa: S608  names are ours, and values are parameters
"""The records of orders in a table of the application's database, in SQL for every framework.

Guarantee: a key exists once. Expiry goes by the clock of the database. A row of a newer release
is not touched, because the meaning of its columns is not known here.

The claim of an order is the INSERT of its record. If another transaction has inserted the same key
and has not ended, the INSERT waits, by default without limit (PostgreSQL) or for 50 seconds
(MariaDB, MySQL). SQLite has one writer and a limit of its own, the driver's timeout.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

from lockkit.orders.order import FINGERPRINT_VERSION
from lockkit.orders.record import (
    MICROSECONDS,
    VERSION,
    Record,
    RecordState,
    StillRunningError,
    dump_headers,
    is_damaged,
    recorded,
)

TABLE = "lockkit_order"
COLUMNS = (
    *("key", "order_id", "request", "fingerprint", "state", "version", "status"),
    *("headers", "body"),
)


_ON_MYSQL = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
_CLOCKS = {
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
    "postgresql": "CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint)",
    "mysql": _ON_MYSQL,
    "mariadb": _ON_MYSQL,
}
"""They are constant within a statement, so that an index of times can be used, but go on in a
transaction. SQLite's is the clock of its host."""

Execute = Callable[[str], Sequence[Any] | None]
"""Runs one statement on the connection that claims, in any state; returns the first row."""

LEAST_MS = 100  # with less, PostgreSQL gives up on a free key: a table grows under a lock
LOCK_NOT_AVAILABLE = "55P03"
LOCK_WAIT_TIMEOUT = 1205


class Database(Protocol):
    """One connection of the application. The adapter translates its errors."""

    @property
    def vendor(self) -> str:
        """The name that Django and SQLAlchemy use."""

    def run(self, sql: str, *parameters: object) -> Any:
        """The rows of a statement, or the number that it changed. ``%s`` is a parameter."""

    def say(self, sql: str) -> Sequence[Any] | None:
        """Run a statement, also in a transaction that has failed, and return the first row."""


def find(database: Database, key: str) -> Record | None:
    """The record, with the time that it has left."""
    read = (*COLUMNS, "expires")
    columns = ", ".join(_quoted(database, name) for name in read)
    left = f"expires - {clock_of(database.vendor)}"
    rows = database.run(f"SELECT {columns}, {left} FROM {TABLE} {_of_key(database)}", key)
    if not rows:
        return None
    return recorded(dict(zip(read, rows[0], strict=False)), rows[0][-1])


def insert(database: Database, record: Record, *, replaces: bool, wait: float) -> None:
    """Insert a row, which ``replaces`` an expired one. The database refuses an existing key.

    Raises StillRunningError after ``wait`` seconds if another transaction has inserted the key and
    has not ended. It must be the first write of its transaction: SQLite's driver begins a
    transaction only at the first write, and a SAVEPOINT before that would be a transaction itself.
    """
    with claiming(database.vendor, database.say, wait):
        try:
            _insert(database, record, replaces=replaces)
        except Exception as error:
            if is_lock_timeout(getattr(error, "orig", None) or error.__cause__):
                raise StillRunningError from error
            raise


def _insert(database: Database, record: Record, *, replaces: bool) -> None:
    now = clock_of(database.vendor)
    if replaces:  # only an expired row, because another request may have been quicker
        expired = f"{_of_key(database)} AND expires <= {now}"
        database.run(f"DELETE FROM {TABLE} {expired}", record.key)
    columns = ", ".join(_quoted(database, name) for name in COLUMNS)
    database.run(
        f"INSERT INTO {TABLE} ({columns}, created, expires) "
        f"VALUES ({_marks(COLUMNS)}, {now}, {now} + %s)",
        *_values(record),
        int(record.left * MICROSECONDS),
    )


def update(database: Database, record: Record) -> None:
    """Write the end of an order into the row that ``insert`` made.

    Raises RuntimeError if the row is gone: a COMMIT would leave the order without a record.
    """
    columns = ", ".join(f"{name} = %s" for name in COLUMNS[1:])
    changed = database.run(
        f"UPDATE {TABLE} SET {columns}, expires = {clock_of(database.vendor)} + %s "
        f"{_of_key(database)}",
        *_values(record)[1:],
        int(record.left * MICROSECONDS),
        record.key,
    )
    if changed != 1:
        raise RuntimeError("the record of this order was deleted while its view was running")


def forget(database: Database, key: str) -> None:
    """Delete the row of one order."""
    database.run(f"DELETE FROM {TABLE} {_of_key(database)}", key)


class Table(ABC):
    """The records in one database of the application's: what operators do with them."""

    @abstractmethod
    def begin(self) -> AbstractContextManager[Database]:
        """A transaction of its own. Raises DuplicateKeyError, BackendError, and ConfigurationError
        if there is no table."""

    def prune(self, batch: int = 1000) -> Iterator[int]:
        """Delete expired rows, ``batch`` in a transaction; yield their number after each COMMIT.
        Records of a newer release are left to it."""
        while True:
            with self.begin() as database:
                key, now = _quoted(database, "key"), clock_of(database.vendor)
                expired = f"expires <= {now} AND version <= %s"
                found = database.run(
                    f"SELECT {key} FROM {TABLE} WHERE {expired} ORDER BY expires LIMIT {batch:d}",
                    VERSION,
                )
                keys = [row[0] for row in found]
                some = f"DELETE FROM {TABLE} WHERE {key} IN ({_marks(keys)}) AND {expired}"
                deleted = database.run(some, *keys, VERSION) if keys else 0
            if not keys:
                return
            yield deleted

    def unreadable(self) -> Iterator[str]:
        """The keys of records that cannot be read, as far as the database can tell."""
        states = [str(state) for state in RecordState]
        with self.begin() as database:
            found = database.run(
                f"SELECT {_quoted(database, 'key')} FROM {TABLE} WHERE version <= %s AND NOT ("
                f"state IN ({_marks(states)}) AND status BETWEEN 0 AND 599 "
                f"AND fingerprint LIKE %s AND headers LIKE %s AND headers LIKE %s)",
                *(VERSION, *states, f"{FINGERPRINT_VERSION}:%", "[%", "%]"),
            )
            yield from (row[0] for row in found)

    def repair(self, key: str) -> bool:
        """Delete the record of one order if it cannot be read."""
        with self.begin() as database:
            record = find(database, key)
            if record is None or not is_damaged(record):
                return False
            forget(database, key)
            return True


def _quoted(database: Database, name: str) -> str:
    """The name in quotes: ``key`` is a keyword of MySQL."""
    return f"`{name}`" if database.vendor in ("mysql", "mariadb") else f'"{name}"'


def _of_key(database: Database) -> str:
    return f"WHERE {_quoted(database, 'key')} = %s"


def _marks(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))


def _values(record: Record) -> tuple[object, ...]:
    """In the order of COLUMNS."""
    answer = record.snapshot
    return (
        *(record.key, record.order_id, record.request, record.fingerprint, str(record.state)),
        *(record.version, answer.status, dump_headers(answer.headers), answer.body),
    )


def clock_of(database: str) -> str:
    """An SQL expression: microseconds since the epoch, by the clock of the database.

    For a database that lockkit does not know it is a number, by the clock of this host.
    """
    return _CLOCKS.get(database) or str(int(time.time() * MICROSECONDS))


@contextmanager
def claiming(database: str, execute: Execute, seconds: float) -> Iterator[None]:
    """In the block, wait for a lock for at most ``seconds``; the old limit is back afterwards.

    It must be in a transaction that is rolled back if the body raises. The limit is at least 0.1
    seconds on PostgreSQL. On MariaDB and MySQL it is in whole seconds, at least one.
    """
    bound = {"postgresql": _on_postgresql, "mysql": _on_mysql, "mariadb": _on_mysql}.get(database)
    if bound is None:
        yield
        return
    with bound(execute, seconds):
        yield


@contextmanager
def _on_postgresql(execute: Execute, seconds: float) -> Iterator[None]:
    """Set the limit for this transaction; a rollback undoes it."""
    most = max(round(seconds * 1000), LEAST_MS)
    row = execute(
        f"SELECT current_setting('lock_timeout'), set_config('lock_timeout', '{most}', true)"
    )
    before = row[0] if row else 0
    yield
    execute(f"SET LOCAL lock_timeout = '{before}'")


@contextmanager
def _on_mysql(execute: Execute, seconds: float) -> Iterator[None]:
    """Set the limit for this connection, and always undo it: others may use it later."""
    execute(
        "SET @lockkit_wait = @@SESSION.innodb_lock_wait_timeout, "
        f"SESSION innodb_lock_wait_timeout = {max(int(seconds), 1)}"
    )
    back = "SET SESSION innodb_lock_wait_timeout = @lockkit_wait"
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the connection is gone, and the limit with it
            execute(back)
        raise
    execute(back)


def is_lock_timeout(error: BaseException | None) -> bool:
    """Whether a driver's error says that the time limit for a lock has passed."""
    if LOCK_NOT_AVAILABLE in (getattr(error, "sqlstate", None), getattr(error, "pgcode", None)):
        return True
    return error is not None and error.args[:1] == (LOCK_WAIT_TIMEOUT,)
