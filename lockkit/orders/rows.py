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
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

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
CHANGED = ("state", "status", "headers", "body")
COLUMNS = ("key", "order_id", "request", "fingerprint", "version", *CHANGED)


_ON_MYSQL = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
_CLOCKS = {
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
    "postgresql": "CAST(date_part('epoch', statement_timestamp()) * 1000000 AS bigint)",
    "mysql": _ON_MYSQL,
    "mariadb": _ON_MYSQL,
}
"""They are constant within a statement, so that an index of times can be used, but go on in a
transaction. SQLite's is the clock of its host."""

_BOUND = (
    "SELECT set_config('lockkit.before', current_setting('lock_timeout'), true), "
    "set_config('lock_timeout', %s, true)"
)
_UNBOUND = "SELECT set_config('lock_timeout', current_setting('lockkit.before'), true)"
"""Of PostgreSQL: a limit of waits for this transaction, and the one from before it."""

LEAST_MS = 100  # with less, PostgreSQL gives up on a free key: a table grows under a lock
LOCK_NOT_AVAILABLE = "55P03"
DIVISION_BY_ZERO = "22012"
LOCK_WAIT_TIMEOUT = 1205


Step = tuple[str, tuple[object, ...]]
"""A statement and its parameters."""


class Database(Protocol):
    """One connection of the application. The adapter translates its errors."""

    @property
    def vendor(self) -> str:
        """The name that Django and SQLAlchemy use."""

    def run(self, *steps: Step, commit: bool = False) -> Any:
        """Statements in this order, in one message if that can be. Returns the rows of the last, or
        the number that it changed. ``%s`` is a parameter.

        ``commit``: they are the last of their transaction, so COMMIT may go with them. The adapter
        commits in any case.
        """

    def say(self, sql: str) -> Sequence[Any] | None:
        """Run a statement, also in a transaction that has failed, and return the first row."""


class _Statements(NamedTuple):
    """The statements about one record, in the words of one database."""

    find: str
    insert: str
    expired: str  #: delete it if it is expired
    update: str
    forget: str


def _statements(vendor: str) -> _Statements:
    """Not kept where the clock is a number."""
    return _kept_statements(vendor) if vendor in _CLOCKS else _statements_of(vendor)


def _statements_of(vendor: str) -> _Statements:
    of_key, now = f"WHERE {_quoted(vendor, 'key')} = %s", clock_of(vendor)
    names = [_quoted(vendor, name) for name in COLUMNS]
    columns, marks = ", ".join(names), _marks(COLUMNS)
    update = f"UPDATE {TABLE} SET {', '.join(f'{name} = %s' for name in CHANGED)} {of_key}"
    if vendor == "postgresql":  # an error if there is no row, because a COMMIT may follow
        update = f"WITH found AS ({update} RETURNING 1) SELECT 1 / count(*) FROM found"
    return _Statements(
        f"SELECT {columns}, expires, expires - {now} FROM {TABLE} {of_key}",
        f"INSERT INTO {TABLE} ({columns}, created, expires) VALUES ({marks}, {now}, {now} + %s)",
        f"DELETE FROM {TABLE} {of_key} AND expires <= {now}",
        update,
        f"DELETE FROM {TABLE} {of_key}",
    )


_kept_statements = lru_cache(_statements_of)


def find(database: Database, key: str) -> Record | None:
    """The record, with the time that it has left."""
    rows = database.run((_statements(database.vendor).find, (key,)))
    if not rows:
        return None
    return recorded(dict(zip((*COLUMNS, "expires"), rows[0], strict=False)), rows[0][-1])


def insert(database: Database, record: Record, *, replaces: bool, wait: float) -> None:
    """Insert a row, which ``replaces`` an expired one. The database refuses an existing key.

    Raises StillRunningError after ``wait`` seconds if another transaction has inserted the key and
    has not ended. Your own limit of waits applies again afterwards. On PostgreSQL the limit is at
    least 0.1 seconds; on MariaDB and MySQL it is in whole seconds, at least one.

    It must be the first write of its transaction: SQLite's driver begins a transaction only at the
    first write, and a SAVEPOINT before that would be a transaction itself. The transaction must be
    rolled back if this raises.
    """
    said = _statements(database.vendor)
    steps: list[Step] = [(said.insert, _values(record))]
    if replaces:  # only an expired row, because another request may have been quicker
        steps.insert(0, (said.expired, (record.key,)))
    try:
        if database.vendor == "postgresql":
            most = str(max(round(wait * 1000), LEAST_MS))
            database.run((_BOUND, (most,)), *steps, (_UNBOUND, ()))
            return
        with _bounded(database, wait):
            database.run(*steps)
    except Exception as error:
        if is_lock_timeout(getattr(error, "orig", None) or error.__cause__):
            raise StillRunningError from error
        raise


def update(database: Database, record: Record, *, commit: bool = False) -> None:
    """Write the end of an order into the row that ``insert`` made. ``commit``: as of ``run``.

    Raises RuntimeError if the row is gone: a COMMIT would leave the order without a record.
    """
    values = (str(record.state), *_answer(record), record.key)
    try:
        changed = database.run((_statements(database.vendor).update, values), commit=commit)
    except Exception as error:
        cause = getattr(error, "orig", None) or error.__cause__
        if DIVISION_BY_ZERO not in _states(cause):
            raise
        changed = 0
    if changed in (0, []):
        raise RuntimeError("the record of this order was deleted while its view was running")


def forget(database: Database, key: str, *, commit: bool = False) -> None:
    """Delete the row of one order. ``commit``: as of ``run``."""
    database.run((_statements(database.vendor).forget, (key,)), commit=commit)


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
                key, now = _quoted(database.vendor, "key"), clock_of(database.vendor)
                expired = f"expires <= {now} AND version <= %s"
                first = f"WHERE {expired} ORDER BY expires LIMIT {batch:d}"
                found = database.run((f"SELECT {key} FROM {TABLE} {first}", (VERSION,)))
                keys = [row[0] for row in found]
                some = f"DELETE FROM {TABLE} WHERE {key} IN ({_marks(keys)}) AND {expired}"
                deleted = database.run((some, (*keys, VERSION))) if keys else 0
            if not keys:
                return
            yield deleted

    def unreadable(self) -> Iterator[str]:
        """The keys of records that cannot be read, as far as the database can tell."""
        states = [str(state) for state in RecordState]
        with self.begin() as database:
            damaged = (
                f"SELECT {_quoted(database.vendor, 'key')} FROM {TABLE} WHERE version <= %s "
                f"AND NOT (state IN ({_marks(states)}) AND status BETWEEN 0 AND 599 "
                f"AND fingerprint LIKE %s AND headers LIKE %s AND headers LIKE %s)"
            )
            like = (f"{FINGERPRINT_VERSION}:%", "[%", "%]")
            found = database.run((damaged, (VERSION, *states, *like)))
            yield from (row[0] for row in found)

    def repair(self, key: str) -> bool:
        """Delete the record of one order if it cannot be read."""
        with self.begin() as database:
            record = find(database, key)
            if record is None or not is_damaged(record):
                return False
            forget(database, key)
            return True


def _quoted(vendor: str, name: str) -> str:
    """The name in quotes: ``key`` is a keyword of MySQL."""
    return f"`{name}`" if vendor in ("mysql", "mariadb") else f'"{name}"'


def _marks(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))


def _values(record: Record) -> tuple[object, ...]:
    """In the order of COLUMNS, and then how long it lives."""
    return (
        *(record.key, record.order_id, record.request, record.fingerprint, record.version),
        *(str(record.state), *_answer(record), int(record.left * MICROSECONDS)),
    )


def _answer(record: Record) -> tuple[object, ...]:
    answer = record.snapshot
    return answer.status, dump_headers(answer.headers), answer.body


def clock_of(database: str) -> str:
    """An SQL expression: microseconds since the epoch, by the clock of the database.

    For a database that lockkit does not know it is a number, by the clock of this host.
    """
    return _CLOCKS.get(database) or str(int(time.time() * MICROSECONDS))


@contextmanager
def _bounded(database: Database, seconds: float) -> Iterator[None]:
    """On MariaDB and MySQL: set the limit for this connection, and always undo it, because others
    may use it later."""
    if database.vendor not in ("mysql", "mariadb"):
        yield
        return
    database.say(
        "SET @lockkit_wait = @@SESSION.innodb_lock_wait_timeout, "
        f"SESSION innodb_lock_wait_timeout = {max(int(seconds), 1)}"
    )
    back = "SET SESSION innodb_lock_wait_timeout = @lockkit_wait"
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the connection is gone, and the limit with it
            database.say(back)
        raise
    database.say(back)


def is_lock_timeout(error: BaseException | None) -> bool:
    """Whether a driver's error says that the time limit for a lock has passed."""
    if LOCK_NOT_AVAILABLE in _states(error):
        return True
    return error is not None and error.args[:1] == (LOCK_WAIT_TIMEOUT,)


def _states(error: BaseException | None) -> tuple[object, object]:
    """The SQLSTATE, as drivers of PostgreSQL tell it."""
    return getattr(error, "sqlstate", None), getattr(error, "pgcode", None)
