# ruff: noqa: S608  names are ours, and values are parameters
"""What operators do with the records in a database: see ``rows`` for what requests do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager

from lockkit.orders.record import VERSION, is_damaged, recorded
from lockkit.orders.rows import COLUMNS, TABLE, Database, clock_of, find, forget, marks, quoted

PAGE = 500
"""Rows that are looked at in one transaction."""


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
                key, now = quoted(database.vendor, "key"), clock_of(database.vendor)
                expired = f"expires <= {now} AND version <= %s"
                first = f"WHERE {expired} ORDER BY expires LIMIT {batch:d}"
                found = database.run((f"SELECT {key} FROM {TABLE} {first}", (VERSION,)))
                keys = [row[0] for row in found]
                some = f"DELETE FROM {TABLE} WHERE {key} IN ({marks(keys)}) AND {expired}"
                deleted = database.run((some, (*keys, VERSION))) if keys else 0
            if not keys:
                return
            yield deleted

    def unreadable(self) -> Iterator[str]:
        """The keys of records that cannot be read. The table is read in pages, and of the bodies
        only the type: SQLite's SUBSTR makes NULL of an empty one."""
        after, more = "", True
        while more:
            with self.begin() as database:
                names = [quoted(database.vendor, name) for name in COLUMNS[:-1]]
                columns = f"{', '.join(names)}, COALESCE(SUBSTR(body, 1, 0), body), expires, 0"
                some = f"WHERE {names[0]} > %s ORDER BY {names[0]} LIMIT {PAGE:d}"
                found = database.run((f"SELECT {columns} FROM {TABLE} {some}", (after,)))
            yield from (str(row[0]) for row in found if is_damaged(recorded(row)))
            if more := len(found) == PAGE:
                after = found[-1][0]

    def repair(self, key: str) -> bool:
        """Delete the record of one order if it cannot be read."""
        with self.begin() as database:
            record = find(database, key)
            if record is None or not is_damaged(record):
                return False
            forget(database, key)
            return True
