"""Clients that know of the transaction of ``db.session``: locks enclose it.

A lock that is acquired inside a transaction is released before that commits, so somebody else can
take it and read what was there before. A transaction that has only read is ended instead; inside
an order, or with changes in the session, such an acquire raises OpenTransaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, Unpack

from flask import has_app_context

from lockkit.aio import AsyncLease, AsyncLock, AsyncLockClient
from lockkit.client import Lease, Lock, LockClient
from lockkit.kinds import Kinds, RWLock
from lockkit.lease import BaseLock, Terms
from lockkit.options import KindOptions, LockOptions, MutexOptions, OwnedOptions
from lockkit.types import UNSET, Unset
from lockkit.until import (
    CommitLock,
    InAtomic,
    TransactionOptions,
    Until,
    check_in_atomic,
    check_until,
    only_blocking,
)
from lockkit_flask import sessions
from lockkit_flask.until import open_transactions

if TYPE_CHECKING:
    from lockkit.multi import AsyncMultiLock, MultiLock

__all__ = ["AsyncFlaskLockClient", "FlaskLockClient"]

L = TypeVar("L", bound=BaseLock)


class _LockOptions(LockOptions, TransactionOptions, total=False): ...


class _OwnedOptions(OwnedOptions, TransactionOptions, total=False): ...


class _MutexOptions(MutexOptions, TransactionOptions, total=False): ...


class _KindOptions(KindOptions, TransactionOptions, total=False): ...


class _FlaskKinds(Kinds[L]):
    """Every lock has ``in_atomic`` and ``until``, too."""

    _own_options = TransactionOptions.__optional_keys__

    if TYPE_CHECKING:

        def lock(self, name: str, **options: Unpack[_MutexOptions]) -> L: ...
        def semaphore(self, name: str, permits: int, **options: Unpack[_LockOptions]) -> L: ...
        def rwlock(self, name: str, **options: Unpack[_OwnedOptions]) -> RWLock[L]: ...
        def of_kind(self, kind: str, name: str, **options: Unpack[_KindOptions]) -> L: ...


class FlaskLockClient(_FlaskKinds[Lock], LockClient):
    """``LockClient``, whose locks refuse to be acquired inside a transaction with changes."""

    if TYPE_CHECKING:

        def multi(
            self, *names: str, kind: str = "mutex", **options: Unpack[_KindOptions]
        ) -> MultiLock: ...

    def _make(
        self, terms: Terms, in_atomic: InAtomic = "refuse", until: Until | None = None
    ) -> Lock:
        check_in_atomic(in_atomic)
        check_until(until)
        if until is not None:
            return CommitLock(self, terms, open_transactions)
        kind = _FlaskLock if in_atomic == "refuse" else Lock
        return kind(self, terms)


class _FlaskLock(Lock):
    __slots__ = ()

    def acquire(
        self,
        timeout: float | Unset | None = UNSET,
        *,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> Lease:
        """As ``Lock.acquire``. Raises OpenTransaction inside an order, or with changes in the
        session, unless the lock was held before and is entered again."""
        if not self._is_inside() and has_app_context():
            sessions.end_read()
        return super().acquire(timeout, on_lost=on_lost)


class AsyncFlaskLockClient(_FlaskKinds[AsyncLock], AsyncLockClient):
    """The async twin of ``FlaskLockClient``."""

    if TYPE_CHECKING:

        def multi(
            self, *names: str, kind: str = "mutex", **options: Unpack[_KindOptions]
        ) -> AsyncMultiLock: ...

    def _make(
        self, terms: Terms, in_atomic: InAtomic = "refuse", until: Until | None = None
    ) -> AsyncLock:
        check_in_atomic(in_atomic)
        only_blocking(until)
        kind = _AsyncFlaskLock if in_atomic == "refuse" else AsyncLock
        return kind(self, terms)


class _AsyncFlaskLock(AsyncLock):
    __slots__ = ()

    async def acquire(
        self,
        timeout: float | Unset | None = UNSET,  # noqa: ASYNC109  (it leaves the store's queue)
        *,
        on_lost: Callable[[AsyncLease], object] | None = None,
    ) -> AsyncLease:
        """As ``AsyncLock.acquire``; raises as the blocking twin."""
        if not self._is_inside() and has_app_context():
            sessions.end_read()
        return await super().acquire(timeout, on_lost=on_lost)
