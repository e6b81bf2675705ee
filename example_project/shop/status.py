"""What the page shows of the shop and its locks, as plain values for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from lockkit import BackendError, LockInfo
from lockkit.operate.inspect import stuck
from shop.page import Shelf

MOST_LOCKS = 50


def held(holders: Callable[[], Iterator[LockInfo]]) -> tuple[list[dict[str, object]], str | None]:
    """What is held, queued for or stuck; and what is wrong with the store, if it is."""
    try:
        return [_lock(info) for info in islice(holders(), MOST_LOCKS)], None
    except BackendError as error:
        return [], f"the lock store does not answer ({type(error).__name__})"


def product(shelf: Shelf) -> dict[str, object]:
    return {"sku": shelf.sku, "title": shelf.title, "stock": shelf.stock}


def _lock(info: LockInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "state": info.state.value,
        "stuck": found.reason if (found := stuck(info)) else None,
        "owner": str(info.owner or ""),
        "age": _seconds(info.age),
        "left": _seconds(info.left),
        "waiters": info.waiters,
    }


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f} s"
