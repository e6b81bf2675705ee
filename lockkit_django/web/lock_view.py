"""``@lock_view``: a view that runs while it holds a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lockkit.leases.decorating import refuse_bare
from lockkit.model.types import UNSET, Unset
from lockkit.web.view_lock import ViewLock
from lockkit_django.leases.transactions import note_each_request
from lockkit_django.web.locked_view import LockedView, OnBusy

V = TypeVar("V", bound=Callable[..., Any])


def lock_view(
    *names: str | Callable[..., str],
    timeout: float | Unset | None = UNSET,
    ttl: float | Unset = UNSET,
    alias: str = "default",
    kind: str = "mutex",
    permits: int | None = None,
    on_busy: OnBusy | None = None,
) -> Callable[[V], V]:
    """Have a view hold the lock of this name, or of all these names, while it runs.

    names: each a template over the request, such as ``"stock:{sku}"``, or a callable that gets the
    view's arguments and returns a name; several are taken all or none. timeout: seconds to wait
    (default LOCKKIT_VIEWS; 0: do not; None: for ever). ttl: seconds the lease lives unrenewed
    (default: the alias'). kind: "mutex", "reentrant", "read" or "write" of a reader-writer lock,
    or "semaphore" with its number of permits.
    on_busy(request, error): the response when somebody else has it; else 423 with Retry-After.

    For function views, methods of class views (also by ``method_decorator``), ``as_view()``, and
    DRF's views and actions; sync and async. Raises ConfigurationError at once for a wrong
    argument. The lease is ``request.lease`` while the view runs; that of several names is a
    ``MultiLease``: ``request.lease["stock:42"].fencing_token``.
    """
    refuse_bare("lock_view", names[0] if names else None)
    view_lock = ViewLock(*names, timeout=timeout, ttl=ttl, alias=alias, kind=kind, permits=permits)
    note_each_request()
    return LockedView(view_lock, on_busy).around
