"""Clients of adapters that know of transactions: locks enclose them, never the other way round.

A lock that is acquired inside a transaction is released before that commits, so somebody else can
take it and read what was there before. Such an acquire raises OpenTransaction, unless it is told
otherwise by ``in_atomic="allow"`` or ``until="commit"``.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from lockkit.leases.client import Lock, LockClient
from lockkit.leases.decorated import LeasedOrSkipped, LockedOptions, Name, Skipped, WithLease
from lockkit.leases.decorating import refuse_bare
from lockkit.leases.decorator import locked_by
from lockkit.leases.kinds import RWLock
from lockkit.leases.until import (
    CommitLock,
    InAtomic,
    InAtomicOptions,
    Transaction,
    TransactionOptions,
    Until,
    check_in_atomic,
    check_until,
    only_blocking,
)
from lockkit.model.options import MutexOptions, check_options
from lockkit.model.settings import DEFAULT_ALIAS

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.leases.multi import MultiLock

F = TypeVar("F", bound=Callable[..., Any])


class AsyncOptions(MutexOptions, InAtomicOptions, total=False):
    """For type checkers: those of all kinds. Which kind takes which is checked when it is made."""


class Options(AsyncOptions, TransactionOptions, total=False):
    """The same, of the blocking client."""


class _LockedOptions(LockedOptions, TransactionOptions, total=False):
    """``alias``: of the settings."""

    alias: str


class EnclosingClient(LockClient):
    """``LockClient``, whose locks refuse to be acquired inside a transaction of this thread."""

    _own_options = TransactionOptions.__optional_keys__

    if TYPE_CHECKING:

        def lock(self, name: str, **options: Unpack[Options]) -> Lock: ...
        def semaphore(self, name: str, permits: int, **options: Unpack[Options]) -> Lock: ...
        def rwlock(self, name: str, **options: Unpack[Options]) -> RWLock[Lock]: ...
        def multi(
            self,
            *names: str,
            kind: str = "mutex",
            permits: int | None = None,
            **options: Unpack[Options],
        ) -> MultiLock: ...

    @staticmethod
    @abstractmethod
    def _refuse(name: str) -> None:
        """Raise OpenTransaction for a lock of this name, if a transaction is open."""

    @staticmethod
    @abstractmethod
    def _transactions() -> Sequence[Transaction]:
        """Those that ``until="commit"`` is about."""

    def _class(
        self, in_atomic: InAtomic = "refuse", until: Until | None = None
    ) -> Callable[..., Lock]:
        if in_atomic != "refuse":
            check_in_atomic(in_atomic)
        if until is not None:
            check_until(until)
            return partial(CommitLock, self._transactions)
        return _EnclosingLock if in_atomic == "refuse" else Lock


class _EnclosingLock(Lock):
    __slots__ = ()
    _client: EnclosingClient

    def _permitted(self) -> None:
        """Raises OpenTransaction inside a transaction, unless the lock was held before that began
        and is entered again."""
        if not self._is_inside():
            self._client._refuse(self.name)


class Locked(Protocol):
    """``@locked`` of an adapter, for type checkers."""

    @overload
    def __call__(
        self,
        name: Name,
        *,
        when_held: Literal["raise"] = ...,
        lease_as: None = ...,
        **options: Unpack[_LockedOptions],
    ) -> Callable[[F], F]: ...
    @overload
    def __call__(
        self,
        name: Name,
        *,
        when_held: Literal["skip"],
        lease_as: None = ...,
        **options: Unpack[_LockedOptions],
    ) -> Skipped: ...
    @overload
    def __call__(
        self,
        name: Name,
        *,
        when_held: Literal["raise"] = ...,
        lease_as: str,
        **options: Unpack[_LockedOptions],
    ) -> WithLease: ...
    @overload
    def __call__(
        self,
        name: Name,
        *,
        when_held: Literal["skip"],
        lease_as: str,
        **options: Unpack[_LockedOptions],
    ) -> LeasedOrSkipped: ...


def locked_by_alias(
    blocking: Callable[[str], LockClient], in_loop: Callable[[str], AsyncLockClient]
) -> Locked:
    """``locked`` of an adapter, whose clients these functions find when a call needs one."""

    def locked(
        name: Name, *, when_held: str = "raise", lease_as: str | None = None, **options: Any
    ) -> Callable[..., Any]:
        """As ``lockkit.locked``, with the lock alias ``alias`` of LOCKKIT.

        The function's transactions belong inside it: called inside one that is open, it raises
        OpenTransaction, as that would COMMIT after the release. (In Flask: with changes in
        ``db.session``, or inside an order; a call needs an app context.) ``until="commit"`` holds
        the lock until that has ended; ``in_atomic="allow"`` is for what is not in the database.
        """
        refuse_bare("locked", name)
        check_options("@locked", options, _LOCKED_OPTIONS)
        check_in_atomic(options.get("in_atomic", "refuse"))
        check_until(options.get("until"))
        alias = options.pop("alias", DEFAULT_ALIAS)
        clients = partial(blocking, alias), partial(in_loop, alias)
        decorate = locked_by(
            *clients, name, when_held=when_held, lease_as=lease_as, options=options
        )

        def decorate_checked(function: Callable[..., Any]) -> Callable[..., Any]:
            wrapper: Callable[..., Any] = decorate(function)
            if inspect.iscoroutinefunction(wrapper):
                only_blocking(options.get("until"))
            return wrapper

        return decorate_checked

    return locked


_LOCKED_OPTIONS = (*_LockedOptions.__optional_keys__, "when_held", "lease_as")
