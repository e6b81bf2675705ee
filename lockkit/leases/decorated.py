"""The types of ``@locked``, for type checkers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

from lockkit.leases.client import Lease
from lockkit.leases.until import TransactionOptions
from lockkit.model.types import Unset

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLease

Name: TypeAlias = str | Callable[..., str]
"""A template over the arguments, or a callable that gets them and returns a name."""

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
Later: TypeAlias = Coroutine[Any, Any, R]


class LockedOptions(TransactionOptions, total=False):
    """The options of ``@locked``. Only adapters have ``alias`` and those for transactions."""

    ttl: float | Unset
    timeout: float | None | Unset
    alias: str


class Skipped(Protocol):
    """``when_held="skip"``: the result is None if the lock was held, and the call was skipped."""

    @overload
    def __call__(self, function: Callable[P, Later[R]], /) -> Callable[P, Later[R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


class WithLease(Protocol):
    """``lease_as="lease"``: callers leave out the lease.

    If the lease is the first parameter, type checkers check the others. If it is another one, they
    check none, because no type can say this.
    """

    @overload
    def __call__(self, function: Callable[Concatenate[Lease, P], R], /) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[AsyncLease, P], R], /) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: Callable[..., R], /) -> Callable[..., R]: ...


class LeasedOrSkipped(Protocol):
    """Both ``when_held="skip"`` and ``lease_as``."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncLease, P], Later[R]], /
    ) -> Callable[P, Later[R | None]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Lease, P], R], /
    ) -> Callable[P, R | None]: ...
    @overload
    def __call__(self, function: Callable[..., Later[R]], /) -> Callable[..., Later[R | None]]: ...
    @overload
    def __call__(self, function: Callable[..., R], /) -> Callable[..., R | None]: ...


class Locked(Protocol):
    """``@locked``."""

    @overload
    def __call__(
        self,
        name: Name,
        *,
        when_held: Literal["raise"] = ...,
        lease_as: None = ...,
        **options: Unpack[LockedOptions],
    ) -> Callable[[F], F]: ...
    @overload
    def __call__(
        self,
        name: Name,
        *,
        when_held: Literal["skip"],
        lease_as: None = ...,
        **options: Unpack[LockedOptions],
    ) -> Skipped: ...
    @overload
    def __call__(
        self,
        name: Name,
        *,
        when_held: Literal["raise"] = ...,
        lease_as: str,
        **options: Unpack[LockedOptions],
    ) -> WithLease: ...
    @overload
    def __call__(
        self,
        name: Name,
        *,
        when_held: Literal["skip"],
        lease_as: str,
        **options: Unpack[LockedOptions],
    ) -> LeasedOrSkipped: ...
