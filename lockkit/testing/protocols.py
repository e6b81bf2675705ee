"""The members that both APIs share, as blocking calls. ``blocking`` wraps asyncio to have them."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from lockkit.model.types import UNSET, LeaseState, LockInfo, Unset

if TYPE_CHECKING:
    from lockkit.engine.effects import Step
    from lockkit.stores.contract import Store

__all__ = [
    "AnyClient",
    "AnyLease",
    "AnyLock",
    "AnyMultiLease",
    "AnyMultiLock",
    "AnyRWLock",
]

R = TypeVar("R")


class _AnyHeld(Protocol):
    """The members that a lease and the leases of several names share."""

    @property
    def lost(self) -> bool: ...
    @property
    def state(self) -> LeaseState: ...
    def remaining(self) -> float: ...
    def check(self) -> None: ...
    def extend(self, ttl: float | None = None) -> None: ...
    def release(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class AnyLease(_AnyHeld, Protocol):
    """The members that ``Lease`` and ``AsyncLease`` share."""

    released: bool

    @property
    def name(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def fencing_token(self) -> int: ...
    @property
    def shared(self) -> bool: ...
    def downgrade(self) -> None: ...


class AnyLock(Protocol):
    """The members that ``Lock`` and ``AsyncLock`` share."""

    def acquire(self, timeout: float | None | Unset = UNSET) -> AnyLease: ...
    def try_acquire(self) -> AnyLease | None: ...


class AnyMultiLease(_AnyHeld, Protocol):
    """The members that ``MultiLease`` and ``AsyncMultiLease`` share."""

    def __getitem__(self, name: str) -> AnyLease: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def released(self) -> bool: ...


class AnyMultiLock(Protocol):
    """The members that ``MultiLock`` and ``AsyncMultiLock`` share."""

    def acquire(self, timeout: float | None | Unset = UNSET) -> AnyMultiLease: ...
    def try_acquire(self) -> AnyMultiLease | None: ...


class AnyRWLock(Protocol):
    """A reader-writer lock of either API."""

    def read(self) -> AnyLock: ...
    def write(self) -> AnyLock: ...


class AnyClient(Protocol):
    """The members that ``LockClient`` and ``AsyncLockClient`` share."""

    @property
    def store(self) -> Store: ...
    def perform(self, step: Step[R]) -> R: ...
    def lock(
        self,
        name: str,
        *,
        ttl: float | Unset = UNSET,
        timeout: float | None | Unset = UNSET,
        label: str = "",
        reentrant: bool = False,
        owner: str = "",
        fair: bool = True,
    ) -> AnyLock: ...
    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        ttl: float | Unset = UNSET,
        timeout: float | None | Unset = UNSET,
        label: str = "",
        fair: bool = True,
    ) -> AnyLock: ...
    def rwlock(
        self,
        name: str,
        *,
        ttl: float | Unset = UNSET,
        timeout: float | None | Unset = UNSET,
        label: str = "",
        owner: str = "",
        fair: bool = True,
    ) -> AnyRWLock: ...
    def multi(
        self,
        *names: str,
        ttl: float | Unset = UNSET,
        timeout: float | None | Unset = UNSET,
        label: str = "",
        kind: str = "mutex",
    ) -> AnyMultiLock: ...
    def holders(self, name: str | None = None) -> Iterator[LockInfo]: ...
    def inspect(self, name: str) -> LockInfo | None: ...
    def break_(self, name: str, *, fence: int, by: str = "") -> bool: ...
    def close(self) -> None: ...
