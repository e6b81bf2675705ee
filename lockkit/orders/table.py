# ruff: noqa: S608  names are ours, and values are parameters
"""What operators do with the records in a database: see ``rows`` for what requests do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager

from lockkit.orders.order import FINGERPRINT_VERSION
from lockkit.orders.record import VERSION, RecordState, is_damaged
from lockkit.orders.rows import TABLE, Database, clock_of, find, forget, marks, quoted


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
        """The keys of records that cannot be read, as far as the database can tell."""
        states = [str(state) for state in RecordState]
        with self.begin() as database:
            damaged = (
                f"SELECT {quoted(database.vendor, 'key')} FROM {TABLE} WHERE version <= %s "
                f"AND NOT (state IN ({marks(states)}) AND status BETWEEN 0 AND 599 "
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
