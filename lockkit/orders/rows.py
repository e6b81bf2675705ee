# ruff: noqa: S608  names are ours, and values are parameters
"""The records of orders in a table of the application's database, in SQL for every framework.

Guarantee: a key is there once. Expiry goes by the clock of the database. A row of a newer release
is left to it, as what its columns mean is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from lockkit.orders.databases import MICROSECONDS, claiming, clock_of, is_lock_timeout
from lockkit.orders.judging import is_damaged
from lockkit.orders.record import (
    VERSION,
    Record,
    RecordState,
    StillRunningError,
    dump_headers,
    recorded,
)
from lockkit.orders.request import FINGERPRINT_VERSION

TABLE = "lockkit_order"
COLUMNS = (
    *("key", "order_id", "request", "fingerprint", "state", "version", "status"),
    *("headers", "body"),
)


class Database(Protocol):
    """One connection of the application's. Its errors are translated by the adapter."""

    @property
    def vendor(self) -> str:
        """As Django and SQLAlchemy call it."""

    def run(self, sql: str, *parameters: object) -> Any:
        """The rows of a statement, or how many it has changed. ``%s`` stands for a parameter."""

    def say(self, sql: str) -> Sequence[Any] | None:
        """The first row, also in a transaction that has failed."""


def find(database: Database, key: str) -> Record | None:
    """What is recorded, with what is left of it by now."""
    read = (*COLUMNS, "expires")
    columns = ", ".join(_quoted(database, name) for name in read)
    left = f"expires - {clock_of(database.vendor)}"
    rows = database.run(f"SELECT {columns}, {left} FROM {TABLE} {_of_key(database)}", key)
    if not rows:
        return None
    return recorded(dict(zip(read, rows[0], strict=False)), rows[0][-1])


def insert(database: Database, record: Record, *, replaces: bool, wait: float) -> None:
    """A new row; it ``replaces`` an expired one. The database refuses a key that is there.

    Raises StillRunningError after ``wait`` seconds behind somebody who has inserted the key and
    has not ended. It is the first write of its transaction, and must be: SQLite's driver begins
    transactions at the first write only, and a SAVEPOINT before that would be one of its own.
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
    if replaces:  # only the expired one: another request may have been quicker
        expired = f"{_of_key(database)} AND expires <= {now}"
        database.run(f"DELETE FROM {TABLE} {expired}", record.key)
    columns = ", ".join(_quoted(database, name) for name in COLUMNS)
    values = _values(record)
    database.run(
        f"INSERT INTO {TABLE} ({columns}, created, expires) "
        f"VALUES ({_marks(COLUMNS)}, {now}, {now} + %s)",
        *(values[name] for name in COLUMNS),
        int(record.left * MICROSECONDS),
    )


def update(database: Database, record: Record) -> None:
    """The end of an order, into the row that ``insert`` made.

    Raises RuntimeError if that is gone: a COMMIT would leave the order without a record.
    """
    values = _values(record)
    columns = ", ".join(f"{name} = %s" for name in COLUMNS[1:])
    changed = database.run(
        f"UPDATE {TABLE} SET {columns}, expires = {clock_of(database.vendor)} + %s "
        f"{_of_key(database)}",
        *(values[name] for name in COLUMNS[1:]),
        int(record.left * MICROSECONDS),
        record.key,
    )
    if changed != 1:
        raise RuntimeError("the record of this order was deleted while its view was running")


def forget(database: Database, key: str) -> None:
    """Delete the row of one order."""
    database.run(f"DELETE FROM {TABLE} {_of_key(database)}", key)


def prune(begin: Callable[[], AbstractContextManager[Database]], batch: int) -> Iterator[int]:
    """Delete what has expired, so many in each transaction; yields how many, after each COMMIT."""
    while True:
        with begin() as database:
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


def unreadable_keys(database: Database) -> list[str]:
    """Of orders whose record cannot be read, as far as the database can tell."""
    states = [str(state) for state in RecordState]
    found = database.run(
        f"SELECT {_quoted(database, 'key')} FROM {TABLE} WHERE version <= %s AND NOT ("
        f"state IN ({_marks(states)}) AND status BETWEEN 0 AND 599 AND fingerprint LIKE %s "
        f"AND headers LIKE %s AND headers LIKE %s)",
        *(VERSION, *states, f"{FINGERPRINT_VERSION}:%", "[%", "%]"),
    )
    return [row[0] for row in found]


def repair(database: Database, key: str) -> bool:
    """Delete the record of one order if it cannot be read."""
    record = find(database, key)
    if record is None or not is_damaged(record):
        return False
    forget(database, key)
    return True


def _quoted(database: Database, name: str) -> str:
    """``key`` is a word of MySQL's."""
    return f"`{name}`" if database.vendor in ("mysql", "mariadb") else f'"{name}"'


def _of_key(database: Database) -> str:
    return f"WHERE {_quoted(database, 'key')} = %s"


def _marks(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))


def _values(record: Record) -> dict[str, object]:
    return {
        "key": record.key,
        "order_id": record.order_id,
        "request": record.request,
        "fingerprint": record.fingerprint,
        "state": str(record.state),
        "version": record.version,
        "status": record.snapshot.status,
        "headers": dump_headers(record.snapshot.headers),
        "body": record.snapshot.body,
    }
