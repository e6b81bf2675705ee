"""The asyncio twins of ``enclosing``, for an application that has coroutines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, TypeVar, Unpack

from lockkit.leases.aio_client import AsyncLock, AsyncLockClient
from lockkit.leases.enclosing import C, ClientsByAlias
from lockkit.leases.until import (
    InAtomic,
    TransactionOptions,
    Until,
    check_in_atomic,
    only_blocking,
)
from lockkit.per_loop import PerLoop

if TYPE_CHECKING:
    from lockkit.leases.enclosing import AsyncOptions
    from lockkit.leases.kinds import RWLock
    from lockkit.leases.multi import AsyncMultiLock

A = TypeVar("A", bound="AsyncEnclosingClient")


class AsyncEnclosingLock(AsyncLock):
    __slots__ = ()
    _client: AsyncEnclosingClient

    async def _allow(self) -> None:
        """Raises as the blocking twin."""
        if not self._is_inside():
            await self._client._refuse(self.name)


class AsyncEnclosingClient(AsyncLockClient):
    """The async twin of ``EnclosingClient``. ``until`` is refused."""

    _lock_class: ClassVar[type[AsyncEnclosingLock]] = AsyncEnclosingLock
    _own_options = TransactionOptions.__optional_keys__

    if TYPE_CHECKING:

        def lock(self, name: str, **options: Unpack[AsyncOptions]) -> AsyncLock: ...
        def semaphore(
            self, name: str, permits: int, **options: Unpack[AsyncOptions]
        ) -> AsyncLock: ...
        def rwlock(self, name: str, **options: Unpack[AsyncOptions]) -> RWLock[AsyncLock]: ...
        def multi(
            self,
            *names: str,
            kind: str = "mutex",
            permits: int | None = None,
            **options: Unpack[AsyncOptions],
        ) -> AsyncMultiLock: ...

    @staticmethod
    @abstractmethod
    async def _refuse(name: str) -> None:
        """As in the blocking twin."""

    def _class(
        self, in_atomic: InAtomic = "refuse", until: Until | None = None
    ) -> Callable[..., AsyncLock]:
        check_in_atomic(in_atomic)
        only_blocking(until)
        return self._lock_class if in_atomic == "refuse" else AsyncLock


class AsyncClientsByAlias(PerLoop[A]):
    """``clients["default"]``: one client per alias and running event loop, of the store of the
    blocking client. It is closed at the end of its loop, also of the short loop of one async view.
    """

    def __init__(self, clients: ClientsByAlias[C], kind: type[A]) -> None:
        super().__init__(lambda alias: kind.beside(clients[alias]))
        self._aliases = clients

    def __iter__(self) -> Iterator[str]:
        return iter(self._aliases)
