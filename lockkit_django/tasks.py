"""``@locked``: a task, job or management command that runs while it holds a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockkit.leases.decorating import refuse_bare
from lockkit.leases.enclosing import AliasClients, as_locked, locked_with
from lockkit_django.leases.aliases import alocks, locks

if TYPE_CHECKING:
    from lockkit.leases.decorated import Name

CLIENTS = AliasClients(locks.__getitem__, alocks.__getitem__)


@as_locked
def locked(
    name: Name, *, when_held: str = "raise", lease_as: str | None = None, **options: Any
) -> Callable[..., Any]:
    """As ``lockkit.locked``, with the lock alias ``alias`` of LOCKKIT.

    The function's transactions belong inside it: called within an ``atomic()`` block it raises
    OpenTransaction, as that block would COMMIT after the release. ``until="commit"`` holds the
    lock until that block has ended; ``in_atomic="allow"`` is for what is not in the database.
    """
    refuse_bare("locked", name)
    options |= {"when_held": when_held, "lease_as": lease_as}
    return locked_with(CLIENTS, name, **options)
