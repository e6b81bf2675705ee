"""``@locked``: a task, job or command that runs while it holds a lock of the current app."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from lockkit.decorating import refuse_bare
from lockkit.decorator import WhenHeld, locked_by
from lockkit.types import UNSET, Unset
from lockkit_flask.extension import app_locks

if TYPE_CHECKING:
    from lockkit.aio import AsyncLockClient
    from lockkit.client import LockClient

__all__ = ["locked"]

F = TypeVar("F", bound=Callable[..., Any])


def locked(
    name: str | Callable[..., str],
    *,
    ttl: float | Unset = UNSET,
    timeout: float | None | Unset = UNSET,
    when_held: WhenHeld = "raise",
    lease_as: str | None = None,
    alias: str = "default",
) -> Callable[[F], F]:
    """As ``lockkit.locked``, with the alias of the current app: a call needs an app context."""
    refuse_bare("locked", name)
    return locked_by(
        _Alias(alias), name, ttl=ttl, timeout=timeout, when_held=when_held, lease_as=lease_as
    )


class _Alias:
    def __init__(self, alias: str) -> None:
        self._alias = alias

    def blocking(self) -> LockClient:
        return app_locks()[self._alias]

    def in_loop(self) -> AsyncLockClient:
        return app_locks().in_loop(self._alias)
