"""Clients of the store that $LOCKKIT_URL names, for what has no client of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lockkit.leases.client import LockClient
from lockkit.leases.default_store import chosen_url, default_url
from lockkit.model.settings import settings_from_url
from lockkit.runtime import process
from lockkit.stores.registry import load_store

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.per_loop import PerLoop


class Environment:
    """Clients of the store that $LOCKKIT_URL names now: one per process, or per loop."""

    def __init__(self) -> None:
        self._clients: dict[str, LockClient] = {}
        self._in_loops: PerLoop[AsyncLockClient] | None = None
        self._renew_mutex()
        process.after_fork(self._renew_mutex)

    def _renew_mutex(self) -> None:
        """A thread that stayed in the parent may have been making a client."""
        self._mutex = threading.Lock()

    def blocking(self) -> LockClient:
        url = default_url()
        client = self._clients.get(url)
        if client is None:
            chosen_url()
            with self._mutex:
                client = self._clients.get(url) or self._make(url)
                self._clients[url] = client
        return client

    def in_loop(self) -> AsyncLockClient:
        """Imports asyncio only here: blocking programs do without."""
        clients = self._in_loops
        if clients is None:
            from lockkit.leases import aio_client
            from lockkit.per_loop import PerLoop

            with self._mutex:
                clients = self._in_loops = self._in_loops or PerLoop(aio_client.connect)
        return clients[default_url()]

    def _make(self, url: str) -> LockClient:
        settings = settings_from_url(url)
        return LockClient(load_store(settings), settings)


environment = Environment()
