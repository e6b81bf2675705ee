"""Records of orders whose time is over, deleted a few at a time."""

from __future__ import annotations

from collections.abc import Iterator

from lockkit.orders.record import VERSION
from lockkit_django.models import OrderRecord
from lockkit_django.orders.gate import store_for
from lockkit_django.orders.store import Clock, typed_errors

__all__ = ["prune"]


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
