"""Records of orders whose time is over, deleted a few at a time; and those that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Q

from lockkit.orders.facts import FINGERPRINT_VERSION
from lockkit.orders.judging import is_damaged
from lockkit.orders.record import VERSION, State
from lockkit_django.models import OrderRecord
from lockkit_django.orders.gate import store_for
from lockkit_django.orders.table import Clock, OrderStore, typed_errors

__all__ = ["RecordTable", "prune"]


def prune(batch: int = 1000, *, using: str | None = None) -> Iterator[int]:
    """Delete expired records, at most ``batch`` in one transaction; yields how many each time.

    ``using``: the database; None: that of the settings. Records of a newer release are left to
    it. Raises BackendUnavailable, and ConfigurationError if there is no table.
    """
    with typed_errors():
        yield from _prune(batch, using or store_for(None).using)


def _prune(batch: int, using: str) -> Iterator[int]:
    rows = OrderRecord.objects.using(using)
    expired = rows.filter(expires__lte=Clock(), version__lte=VERSION)
    while keys := list(expired.order_by("expires").values_list("key", flat=True)[:batch]):
        deleted, _ = expired.filter(key__in=keys).delete()
        yield deleted


class RecordTable:
    """What ``locks prune`` does with the records in one database."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._rows = OrderRecord.objects.using(using).filter(version__lte=VERSION)

    def prune(self, batch: int) -> Iterator[int]:
        return prune(batch, using=self._using)

    def unreadable(self) -> Iterator[str]:
        """The keys of orders whose record cannot be read, as far as the database can tell."""
        whole = Q(
            state__in=list(State),
            status__lt=600,
            fingerprint__startswith=f"{FINGERPRINT_VERSION}:",
            headers__startswith="[",
            headers__endswith="]",
        )
        with typed_errors():
            yield from self._rows.exclude(whole).values_list("key", flat=True)

    def repair(self, key: str) -> bool:
        """Delete the record of one order if it cannot be read."""
        record = OrderStore(self._using).find(key, fresh=True)
        if record is None or not is_damaged(record):
            return False
        with typed_errors():
            deleted, _ = self._rows.filter(key=key).delete()
        return bool(deleted)
