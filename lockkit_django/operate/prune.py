"""Records of orders whose time is over, deleted a few at a time; and those that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

from lockkit.orders import rows
from lockkit_django.orders.rules import order_rules
from lockkit_django.orders.table import OrderTable

__all__ = ["RecordTable", "prune"]


def prune(batch: int = 1000, *, using: str | None = None) -> Iterator[int]:
    """Delete expired records, at most ``batch`` in one transaction; yields how many each time.

    ``using``: the database; None: that of the settings. Records of a newer release are left to
    it. Raises BackendUnavailable, and ConfigurationError if there is no table.
    """
    yield from rows.prune(OrderTable(using or order_rules().settings.using).begin, batch)


class RecordTable:
    """What ``locks prune`` does with the records in one database."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._begin = OrderTable(using).begin

    def prune(self, batch: int) -> Iterator[int]:
        return prune(batch, using=self._using)

    def unreadable(self) -> Iterator[str]:
        with self._begin() as database:
            yield from rows.unreadable_keys(database)

    def repair(self, key: str) -> bool:
        with self._begin() as database:
            return rows.repair(database, key)
