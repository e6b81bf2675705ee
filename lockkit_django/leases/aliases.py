"""``locks`` and ``alocks``: the clients of the settings' aliases.

Django's own handlers keep one connection per thread and task. A lock client is made to be shared,
so ``locks`` keeps one per process and alias, and ``alocks`` one per event loop and alias.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.core.signals import setting_changed
from django.utils.connection import BaseConnectionHandler

from lockkit.model.checks import unknown_key
from lockkit.model.settings import AliasSettings
from lockkit.per_loop import PerLoop
from lockkit.runtime import process
from lockkit.stores.registry import load_store
from lockkit_django.conf import lock_settings
from lockkit_django.leases.client import AsyncDjangoLockClient, DjangoLockClient

if TYPE_CHECKING:
    _Handler = BaseConnectionHandler[DjangoLockClient]
else:
    _Handler = BaseConnectionHandler  # generic in the stubs only

RESETTING = frozenset({"LOCKKIT", "DATABASES", "CACHES"})
"""Settings whose change makes other clients."""


class LockHandler(_Handler):
    """``locks["default"]``: one client per alias in this process, for all its threads and tasks.

    Raises ConfigurationError for an alias that is not configured, or a setting that is wrong.
    A forked child goes on with the same clients, which make connections of their own.
    """

    settings_name = "LOCKKIT"

    def __init__(self) -> None:
        super().__init__()
        self._clients: dict[str, DjangoLockClient] = {}
        self._renew_mutex()
        process.after_fork(self._renew_mutex)

    def _renew_mutex(self) -> None:
        self._mutex = threading.RLock()

    def configure_settings(self, settings: Any) -> dict[str, AliasSettings]:
        return lock_settings()

    def create_connection(self, alias: str) -> DjangoLockClient:
        settings = self.alias_settings(alias)
        return DjangoLockClient(load_store(settings), settings)

    def alias_settings(self, alias: str) -> AliasSettings:
        """The validated settings of an alias. Raises ConfigurationError."""
        configured: dict[str, AliasSettings] = self.settings
        if alias not in configured:
            raise unknown_key("LOCKKIT", alias, configured)
        return configured[alias]

    def __getitem__(self, alias: str) -> DjangoLockClient:
        client = self._clients.get(alias)
        if client is None:
            with self._mutex:
                client = self._clients.get(alias)
                if client is None:
                    client = self._clients[alias] = self.create_connection(alias)
        return client

    def __setitem__(self, alias: str, client: DjangoLockClient) -> None:
        with self._mutex:
            self._clients[alias] = client

    def __delitem__(self, alias: str) -> None:
        with self._mutex:
            del self._clients[alias]

    def all(self, initialized_only: bool = False) -> list[DjangoLockClient]:
        return [self[alias] for alias in self if not initialized_only or alias in self._clients]

    def close_all(self) -> None:
        """Close the clients' connections. They stay usable and then connect again."""
        for client in list(self._clients.values()):
            client.close()

    def reset(self) -> None:
        """Close and forget all clients and settings, as after ``override_settings``."""
        with self._mutex:
            clients, self._clients = self._clients, {}
            self._settings = None
            self.__dict__.pop("settings", None)
        for client in clients.values():
            client.close()


class AsyncLockHandler:
    """``alocks["default"]``: one client per alias and running event loop, of the store of
    ``locks["default"]``.

    A client is closed at the end of its loop, also of the short loop in which Django runs one
    async view under WSGI.
    """

    def __init__(self, handler: LockHandler) -> None:
        self._handler = handler
        self._clients = PerLoop(self._make)

    def __getitem__(self, alias: str) -> AsyncDjangoLockClient:
        return self._clients[alias]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handler)

    def reset(self) -> None:
        """Forget all clients; each is closed by its loop."""
        self._clients.clear()

    def _make(self, alias: str) -> AsyncDjangoLockClient:
        return AsyncDjangoLockClient.beside(self._handler[alias])


locks = LockHandler()
alocks = AsyncLockHandler(locks)


def _reset(*, setting: str, **_: Any) -> None:
    if setting in RESETTING:
        locks.reset()
        alocks.reset()


setting_changed.connect(_reset, dispatch_uid="lockkit_django.leases.aliases")
