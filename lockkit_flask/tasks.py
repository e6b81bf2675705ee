"""``@locked``: a task, job or command that runs while it holds a lock of the current app."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockkit.leases.decorating import refuse_bare
from lockkit.leases.enclosing import AliasClients, as_locked, locked_with
from lockkit_flask.state import alocks, locks

if TYPE_CHECKING:
    from lockkit.leases.decorated import Name

CLIENTS = AliasClients(locks.__getitem__, alocks.__getitem__)


@as_locked
def locked(
    name: Name, *, when_held: str = "raise", lease_as: str | None = None, **options: Any
) -> Callable[..., Any]:
    """As ``lockkit.locked``, with the alias of the current app: a call needs an app context.

    Called with changes in ``db.session`` or inside an order it raises OpenTransaction, as they
    would be committed after the release. ``until="commit"`` holds the lock until they are;
    ``in_atomic="allow"`` is for what is not in the database.
    """
    refuse_bare("locked", name)
    options |= {"when_held": when_held, "lease_as": lease_as}
    return locked_with(CLIENTS, name, **options)
