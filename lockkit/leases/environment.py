"""Clients of the store that $LOCKKIT_URL names now, for what has no client of its own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from lockkit.leases.client import Clients, LockClient
from lockkit.leases.default_store import chosen_url, default_url
from lockkit.model.settings import settings_from_url
from lockkit.stores.registry import load_store

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.per_loop import PerLoop


def _connected(url: str) -> LockClient:
    settings = settings_from_url(url)
    return LockClient(load_store(settings), settings)


_clients = Clients(_connected)


def blocking() -> LockClient:
    return _clients[chosen_url()]


def in_loop() -> AsyncLockClient:
    return _in_loops()[default_url()]


@cache
def _in_loops() -> PerLoop[AsyncLockClient]:
    """Imports asyncio only here: blocking programs do without."""
    from lockkit.leases import aio_client
    from lockkit.per_loop import PerLoop

    return PerLoop(aio_client.connect)
