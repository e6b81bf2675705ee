"""Clients that know of Django's transactions: locks enclose them, never the other way round.

A lock acquired inside an open ``atomic()`` block is released before that block commits, so
somebody else can take it and read what was there before. Such an acquire raises OpenTransaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, TypeVar, Unpack

from asgiref.sync import sync_to_async

from lockkit.aio import AsyncLease, AsyncLock, AsyncLockClient
from lockkit.client import Lease, Lock, LockClient
from lockkit.errors import ConfigurationError
from lockkit.kinds import Kinds, RWLock
from lockkit.lease import BaseLock, Terms
from lockkit.options import KindOptions, LockOptions, MutexOptions, OwnedOptions
from lockkit.types import UNSET, Unset
from lockkit_django.settle import to_its_end, until_thread_is_idle
from lockkit_django.transactions import refuse_open_transactions

if TYPE_CHECKING:
    from types import TracebackType

    from lockkit.multi import AsyncMultiLock, MultiLock

__all__ = [
    "AsyncDjangoLock",
    "AsyncDjangoLockClient",
    "DjangoLock",
    "DjangoLockClient",
    "InAtomic",
    "Options",
    "check_in_atomic",
]

L = TypeVar("L", bound=BaseLock)

InAtomic: TypeAlias = Literal["refuse", "allow"]


def check_in_atomic(value: object) -> None:
    if value not in ("refuse", "allow"):
        raise ConfigurationError(f"in_atomic is {value!r}; it must be 'refuse' or 'allow'")


class Options(TypedDict, total=False):
    """``in_atomic="allow"``: for what is not in the database."""

    in_atomic: InAtomic


class _LockOptions(LockOptions, Options, total=False): ...


class _OwnedOptions(OwnedOptions, Options, total=False): ...


class _MutexOptions(MutexOptions, Options, total=False): ...


class _KindOptions(KindOptions, Options, total=False): ...


class _DjangoKinds(Kinds[L]):
    """Every lock has ``in_atomic``, too."""

    _own_options = Options.__optional_keys__

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

    def _make(self, terms: Terms, in_atomic: InAtomic = "refuse") -> Lock:
        check_in_atomic(in_atomic)
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

    def _make(self, terms: Terms, in_atomic: InAtomic = "refuse") -> AsyncLock:
        check_in_atomic(in_atomic)
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
