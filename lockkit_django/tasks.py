"""``@locked``: a task, job or management command that runs while it holds a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from lockkit.decorating import refuse_bare
from lockkit.decorator import WhenHeld, locked_by
from lockkit.types import UNSET, Unset
from lockkit_django.client import InAtomic, check_in_atomic
from lockkit_django.handler import alocks, locks

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
    in_atomic: InAtomic = "refuse",
) -> Callable[[F], F]:
    """As ``lockkit.locked``, with the lock alias ``alias`` of LOCKKIT.

    The function's transactions belong inside it: called within an ``atomic()`` block it raises
    OpenTransaction, unless ``in_atomic="allow"``, as that block would COMMIT after the release.
    """
    check_in_atomic(in_atomic)
    refuse_bare("locked", name)
    return locked_by(
        _Alias(alias),
        name,
        ttl=ttl,
        timeout=timeout,
        when_held=when_held,
        lease_as=lease_as,
        in_atomic=in_atomic,
    )


class _Alias:
    def __init__(self, alias: str) -> None:
        self._alias = alias

    def blocking(self) -> LockClient:
        return locks[self._alias]

    def in_loop(self) -> AsyncLockClient:
        return alocks[self._alias]
