"""The clients of an application's aliases, for adapters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from lockkit.leases.enclosing import EnclosingClient
from lockkit.model.checks import unknown_key
from lockkit.runtime import process
from lockkit.stores.registry import load_store

if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings

C = TypeVar("C", bound=EnclosingClient)


class ClientsByAlias(Generic[C]):
    """``clients["default"]``: one client per alias, for all threads and tasks of this process.

    A forked child goes on with the same clients, which make connections of their own.
    """

    def __init__(self, read: Callable[[], Mapping[str, AliasSettings]], kind: type[C]) -> None:
        """``read``: the settings, asked for when they are first needed. Raises nothing."""
        self._read = read
        self._kind = kind
        self._settings: Mapping[str, AliasSettings] | None = None
        self._clients: dict[str, C] = {}
        self._renew_mutex()
        process.after_fork(self._renew_mutex)

    def _renew_mutex(self) -> None:
        self._mutex = threading.RLock()

    def __getitem__(self, alias: str) -> C:
        """Raises ConfigurationError for an alias that is not in LOCKKIT, or a wrong setting."""
        client = self._clients.get(alias)
        if client is None:
            with self._mutex:
                client = self._clients.get(alias) or self._make(alias)
                self._clients[alias] = client
        return client

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def close(self) -> None:
        """Close the clients' connections. Still usable; reconnects on demand."""
        for client in list(self._clients.values()):
            client.close()

    def reset(self) -> None:
        """Close and forget all clients, and the settings."""
        with self._mutex:
            clients, self._clients = self._clients, {}
            self._settings = None
        for client in clients.values():
            client.close()

    def _make(self, alias: str) -> C:
        aliases = self._known()
        if alias not in aliases:
            raise unknown_key("LOCKKIT", alias, aliases)
        return self._kind(load_store(aliases[alias]), aliases[alias])

    def _known(self) -> Mapping[str, AliasSettings]:
        if self._settings is None:
            self._settings = self._read()
        return self._settings
