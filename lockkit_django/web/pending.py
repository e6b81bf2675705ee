"""An order whose view takes a lock of its own: which comes first, and who releases it.

Locks enclose transactions. The middleware locks the order and leaves its transaction to be begun
by ``lock_view``, under the view's lock; that lock is then released by the middleware, after COMMIT.
This module knows no model, so that it can be imported before Django's applications are ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from lockkit_django.web.view_functions import handlers

if TYPE_CHECKING:
    from django.http import HttpRequest

    from lockkit.web.view_lock import ViewLock
    from lockkit_django.orders.open_order import OpenOrder

__all__ = ["OPEN_ORDER", "guards_of", "has_lock", "mark_locked", "pending_order"]

OPEN_ORDER = "_lockkit_open_order"
"""Attribute of a request: the order it has opened."""

HAS_LOCK = "_lockkit_lock_view"

V = TypeVar("V")


def pending_order(request: HttpRequest) -> OpenOrder | None:
    """The order of this request, if its transaction is still to be begun."""
    order: OpenOrder | None = getattr(request, OPEN_ORDER, None)
    return order if order is not None and order.pending else None


def mark_locked(view: V, guard: ViewLock) -> V:
    """Say of a view that it is decorated with ``lock_view``; other decorators hand it on."""
    setattr(view, HAS_LOCK, (guard, *getattr(view, HAS_LOCK, ())))
    return view


def has_lock(view: Any, method: str | None = None) -> bool:
    """Whether a view, or one of the functions for this HTTP method, is so decorated."""
    return any(hasattr(each, HAS_LOCK) for each in (view, *handlers(view, method)))


def guards_of(view: Any, method: str | None = None) -> tuple[ViewLock, ...]:
    """What it is decorated with, each once."""
    marked = (getattr(each, HAS_LOCK, ()) for each in (view, *handlers(view, method)))
    return tuple(dict.fromkeys(guard for guards in marked for guard in guards))
