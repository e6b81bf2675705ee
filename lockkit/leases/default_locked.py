"""``lockkit.locked``: the decorator for the store of $LOCKKIT_URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockkit.leases.client import Clients, LockClient
from lockkit.leases.decorator import locked_with
from lockkit.leases.default_store import chosen_url
from lockkit.model.settings import settings_from_url
from lockkit.stores.registry import load_store

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.per_loop import PerLoop


def _connected(url: str) -> LockClient:
    settings = settings_from_url(url)
    return LockClient(load_store(settings), settings)


_clients = Clients(_connected)


def forget_client(url: str) -> None:
    """Close the client that ``locked`` has for this URL: for tests."""
    client = _clients._clients.pop(url, None)
    if client is not None:
        client.close()


_per_loop: dict[str, PerLoop[AsyncLockClient]] = {}


def _new_per_loop() -> PerLoop[AsyncLockClient]:
    """Clients of the same stores as the blocking ones, because each client of plain ``memory://``
    would have one of its own. Imports asyncio only here: blocking programs do not need it."""
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.per_loop import PerLoop

    made = PerLoop(lambda url: AsyncLockClient.beside(_clients[url]))
    return _per_loop.setdefault("", made)  # another thread may be first


locked = locked_with(
    lambda _alias: _clients[chosen_url(for_locked=True)],
    lambda _alias: (_per_loop.get("") or _new_per_loop())[chosen_url(for_locked=True)],
    ("ttl", "timeout"),
)
