"""The locks of the current app, by alias: the same words in every module of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockkit_flask.extension import app_locks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockkit_flask.client import AsyncFlaskLockClient, FlaskLockClient

__all__ = ["alocks", "locks"]


class Locks:
    """``locks["default"].lock("nightly-report")``, wherever there is an app context."""

    def __getitem__(self, alias: str) -> FlaskLockClient:
        """Raises ConfigurationError for an alias that is not in LOCKKIT."""
        return app_locks()[alias]

    def __iter__(self) -> Iterator[str]:
        return iter(app_locks())


class AsyncLocks:
    """``alocks["default"]``: the async client of the running event loop.

    Flask gives every async view a loop of its own, so a client lives as long as one request: use
    ``locks`` where blocking is no harm.
    """

    def __getitem__(self, alias: str) -> AsyncFlaskLockClient:
        """Raises ConfigurationError for an alias that is not in LOCKKIT."""
        return app_locks().in_loop(alias)

    def __iter__(self) -> Iterator[str]:
        return iter(app_locks())


locks = Locks()
alocks = AsyncLocks()
