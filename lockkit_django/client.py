"""Clients that know of Django's transactions: locks enclose them, never the other way round.

A lock acquired inside an open ``atomic()`` block is released before that block commits, so
somebody else can take it and read what was there before. Such an acquire raises OpenTransaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, Unpack

from asgiref.sync import sync_to_async

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
from lockkit_django.settle import to_its_end, until_thread_is_idle
from lockkit_django.transactions import refuse_open_transactions
from lockkit_django.until import open_transactions

if TYPE_CHECKING:
    from types import TracebackType

    from lockkit.multi import AsyncMultiLock, MultiLock

__all__ = [
    "AsyncDjangoLock",
    "AsyncDjangoLockClient",
    "DjangoLock",
    "DjangoLockClient",
]

L = TypeVar("L", bound=BaseLock)


class _LockOptions(LockOptions, TransactionOptions, total=False): ...


class _OwnedOptions(OwnedOptions, TransactionOptions, total=False): ...


class _MutexOptions(MutexOptions, TransactionOptions, total=False): ...


class _KindOptions(KindOptions, TransactionOptions, total=False): ...


class _DjangoKinds(Kinds[L]):
    """Every lock has ``in_atomic`` and ``until``, too."""

    _own_options = TransactionOptions.__optional_keys__

    if TYPE_CHECKING:

        def lock(self, name: str, **options: Unpack[_MutexOptions]) -> L: ...
        def semaphore(self, name: str, permits: int, **options: Unpack[_LockOptions]) -> L: ...
        def rwlock(self, name: str, **options: Unpack[_OwnedOptions]) -> RWLock[L]: ...
        def of_kind(self, kind: str, name: str, **options: Unpack[_KindOptions]) -> L: ...


class DjangoLockClient(_DjangoKinds[Lock], LockClient):
    """``LockClient``, whose locks refuse to be acquired inside an open ``atomic()`` block."""

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
        kind = DjangoLock if in_atomic == "refuse" else Lock
        return kind(self, terms)


class DjangoLock(Lock):
    __slots__ = ()

    def acquire(
        self,
        timeout: float | Unset | None = UNSET,
        *,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> Lease:
        """As ``Lock.acquire``. Raises OpenTransaction inside an ``atomic()`` block, unless the lock
        was held before the block began and is entered again."""
        if not self._is_inside():
            refuse_open_transactions(self.name)
        return super().acquire(timeout, on_lost=on_lost)


class AsyncDjangoLockClient(_DjangoKinds[AsyncLock], AsyncLockClient):
    """The async twin of ``DjangoLockClient``."""

    if TYPE_CHECKING:

        def multi(
            self, *names: str, kind: str = "mutex", **options: Unpack[_KindOptions]
        ) -> AsyncMultiLock: ...

    def _make(
        self, terms: Terms, in_atomic: InAtomic = "refuse", until: Until | None = None
    ) -> AsyncLock:
        check_in_atomic(in_atomic)
        only_blocking(until)
        kind = AsyncDjangoLock if in_atomic == "refuse" else AsyncLock
        return kind(self, terms)


class AsyncDjangoLock(AsyncLock):
    __slots__ = ()

    async def acquire(
        self,
        timeout: float | Unset | None = UNSET,  # noqa: ASYNC109  (it leaves the store's queue)
        *,
        on_lost: Callable[[AsyncLease], object] | None = None,
    ) -> AsyncLease:
        """As ``AsyncLock.acquire``. Raises OpenTransaction inside an ``atomic()`` block.

        The block would be in the thread that Django runs this coroutine's queries in.
        """
        if not self._is_inside():
            await sync_to_async(refuse_open_transactions, thread_sensitive=True)(self.name)
        return await super().acquire(timeout, on_lost=on_lost)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is not None:  # a query that was cancelled goes on in its thread
                await to_its_end(until_thread_is_idle())
        finally:
            await super().__aexit__(kind, error, traceback)
