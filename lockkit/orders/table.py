# ruff: noqa: S608  names are ours, and values are parameters
"""Records in a database, for operators: prune, find damage, repair. See ``rows`` for requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from lockkit.orders.record import VERSION, Record, is_damaged, recorded, unreadable
from lockkit.orders.rows import COLUMNS, TABLE, Database, clock_of, forget, marks, quoted

PAGE = 500
"""Rows that are looked at in one transaction."""

MOST = 10_000
"""Rows that are deleted in one transaction: databases limit the parameters of a statement."""


class Table(ABC):
    """The table of records in one database of the application."""

    @abstractmethod
    def begin(self) -> AbstractContextManager[Database]:
        """A transaction of its own. Raises DuplicateKeyError, BackendError, and ConfigurationError
        if there is no table."""

    def prune(self, batch: int = 1000) -> Iterator[int]:
        """Delete expired rows, ``batch`` in a transaction; yield their number after each COMMIT.
        Records of a newer release stay: that release deletes them."""
        while True:
            with self.begin() as database:
                key, now = quoted(database.vendor, "key"), clock_of(database.vendor)
                expired = f"expires <= {now} AND version <= %s"
                first = f"WHERE {expired} ORDER BY expires LIMIT {min(batch, MOST):d}"
                if database.vendor in ("mysql", "mariadb"):  # in two steps, the second may conflict
                    found = deleted = database.run((f"DELETE FROM {TABLE} {first}", (VERSION,)))
                else:
                    found = database.run((f"SELECT {key} FROM {TABLE} {first}", (VERSION,)))
                    keys = [row[0] for row in found]
                    some = f"DELETE FROM {TABLE} WHERE {key} IN ({marks(keys)}) AND {expired}"
                    deleted = database.run((some, (*keys, VERSION))) if keys else 0
            if not found:
                return
            yield deleted

    def unreadable(self) -> Iterator[str]:
        """The keys of records that cannot be read. The table is read in pages, without bodies."""
        after, more = "", True
        while more:
            with self.begin() as database:
                key = quoted(database.vendor, "key")
                later = "CAST(%s AS TEXT)" if database.vendor == "sqlite" else "%s"
                found = _look(database, f"{key} > {later} ORDER BY {key} LIMIT {PAGE:d}", after)
            yield from (record.key for record in map(_recorded, found) if is_damaged(record))
            if more := len(found) == PAGE:
                after = found[-1][0]

    def is_unreadable(self, key: str) -> bool:
        """Whether there is a record of this order that cannot be read."""
        with self.begin() as database:
            return _is_unreadable(database, key)

    def repair(self, key: str) -> bool:
        """Delete the record of one order if it cannot be read. False if there is no such record."""
        with self.begin() as database:
            if found := _is_unreadable(database, key):
                forget(database, key)
            return found


def _is_unreadable(database: Database, key: str) -> bool:
    found = _look(database, f"{quoted(database.vendor, 'key')} = %s", key)
    return any(map(is_damaged, map(_recorded, found)))


def _look(database: Database, which: str, value: object) -> Sequence[Sequence[Any]]:
    """Rows for ``_recorded``, with empty bodies, because only the type of a body counts. SQLite's
    SUBSTR makes NULL of an empty body. SQLite's texts are read as bytes: they may hold any bytes.
    """
    names = [quoted(database.vendor, name) for name in COLUMNS[:-1]]
    if database.vendor == "sqlite":
        as_bytes = "CASE TYPEOF({0}) WHEN 'text' THEN CAST({0} AS BLOB) WHEN 'integer' THEN {0} END"
        names = [as_bytes.format(name) for name in names]
    columns = f"{', '.join(names)}, COALESCE(SUBSTR(body, 1, 0), body), expires, 0"
    found: Sequence[Sequence[Any]] = database.run(
        (f"SELECT {columns} FROM {TABLE} WHERE {which}", (value,))
    )
    return found


def _recorded(row: Sequence[Any]) -> Record:
    *told, body, expires, now = row
    try:
        told = [text.decode() if isinstance(text, bytes) else text for text in told]
    except UnicodeDecodeError:
        return unreadable(bytes(told[0] or b"").decode(errors="replace"))
    return recorded([*told, body, expires, now])
