"""The locks and orders of an app, as ``LockKit`` has put them there: by alias, for every module.

What needs its app's settings asks here, and imports nothing that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from flask import current_app

from lockkit.model.checks import unknown_key
from lockkit.model.errors import ConfigurationError
from lockkit.per_loop import PerLoop
from lockkit.stores.registry import load_store
from lockkit_flask.leases.client import AsyncFlaskLockClient, FlaskLockClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flask import Flask

    from lockkit_flask.conf import Config
    from lockkit_flask.orders.gate import Gate

C = TypeVar("C")
EXTENSION = "lockkit"


class AppLocks:
    """The locks of one app, by alias: ``app.extensions["lockkit"]["default"]``."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.orders: Gate | None = None  #: None: LOCKKIT_ORDERS is not set
        self._clients = {
            alias: FlaskLockClient(load_store(settings), settings)
            for alias, settings in config.aliases.items()
        }
        self._in_loops = PerLoop(self._make_async)

    def __getitem__(self, alias: str) -> FlaskLockClient:
        try:
            return self._clients[alias]
        except KeyError:
            raise unknown_key("LOCKKIT", alias, self._clients) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def in_loop(self, alias: str) -> AsyncFlaskLockClient:
        """The async client of this alias for the running event loop, which closes it at its end."""
        return self._in_loops[alias]

    def _make_async(self, alias: str) -> AsyncFlaskLockClient:
        return AsyncFlaskLockClient.beside(self[alias])

    def close(self) -> None:
        """Close the connections of the blocking clients. They open again when used."""
        for client in self._clients.values():
            client.close()


def app_locks(app: Flask | None = None) -> AppLocks:
    """The locks of an app (default: the current one). Raises ConfigurationError without LockKit."""
    found = (app or current_app).extensions.get(EXTENSION)
    if not isinstance(found, AppLocks):
        raise ConfigurationError("lockkit is not set up on this app: LockKit(app)")
    return found


class CurrentLocks(Generic[C]):
    """The clients of the current app by alias, wherever there is an app context."""

    def __init__(self, client: Callable[[str], C]) -> None:
        self._client = client

    def __getitem__(self, alias: str) -> C:
        """Raises ConfigurationError for an alias that is not in LOCKKIT."""
        return self._client(alias)

    def __iter__(self) -> Iterator[str]:
        return iter(app_locks())


locks = CurrentLocks(lambda alias: app_locks()[alias])
alocks = CurrentLocks(lambda alias: app_locks().in_loop(alias))
"""The async clients of the running event loop. Flask gives every async view a loop of its own, so
a client lives as long as one request: use ``locks`` where blocking is no harm."""
