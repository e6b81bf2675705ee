"""``@locked``: a task, job or command that runs while it holds a lock of the current app."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from lockkit.decorated import LeasedOrSkipped, LockedOptions, Name, Skipped, WithLease
from lockkit.decorating import refuse_bare
from lockkit.decorator import locked_by
from lockkit.options import check_options
from lockkit.until import TransactionOptions, check_in_atomic, check_until
from lockkit_flask.extension import app_locks

if TYPE_CHECKING:
    from lockkit.aio import AsyncLockClient
    from lockkit.client import LockClient

__all__ = ["locked"]

F = TypeVar("F", bound=Callable[..., Any])


class _Options(LockedOptions, TransactionOptions, total=False):
    """``alias``: of LOCKKIT."""

    alias: str


@overload
def locked(
    name: Name,
    *,
    when_held: Literal["raise"] = ...,
    lease_as: None = ...,
    **options: Unpack[_Options],
) -> Callable[[F], F]: ...
@overload
def locked(
    name: Name,
    *,
    when_held: Literal["skip"],
    lease_as: None = ...,
    **options: Unpack[_Options],
) -> Skipped: ...
@overload
def locked(
    name: Name,
    *,
    when_held: Literal["raise"] = ...,
    lease_as: str,
    **options: Unpack[_Options],
) -> WithLease: ...
@overload
def locked(
    name: Name, *, when_held: Literal["skip"], lease_as: str, **options: Unpack[_Options]
) -> LeasedOrSkipped: ...
def locked(
    name: Name, *, when_held: str = "raise", lease_as: str | None = None, **options: Any
) -> Callable[..., Any]:
    """As ``lockkit.locked``, with the alias of the current app: a call needs an app context.

    Called with changes in ``db.session`` or inside an order it raises OpenTransaction, as they
    would be committed after the release. ``until="commit"`` holds the lock until they are;
    ``in_atomic="allow"`` is for what is not in the database.
    """
    check_in_atomic(options.get("in_atomic", "refuse"))
    check_until(options.get("until"))
    refuse_bare("locked", name)
    check_options("@locked", options, _Options.__optional_keys__)
    clients = _Alias(options.pop("alias", "default"))
    return locked_by(clients, name, when_held, lease_as, options)


class _Alias:
    def __init__(self, alias: str) -> None:
        self._alias = alias

    def blocking(self) -> LockClient:
        return app_locks()[self._alias]

    def in_loop(self) -> AsyncLockClient:
        return app_locks().in_loop(self._alias)
