"""The asyncio twins of ``enclosing``, for an application that has coroutines."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, Unpack

from lockkit.engine.holding import UNTOLD, Silent
from lockkit.leases.aio_client import AsyncLease, AsyncLock, AsyncLockClient
from lockkit.leases.enclosing import C, ClientsByAlias, FreeLock, takers_of_others
from lockkit.leases.until import (
    InAtomic,
    TransactionOptions,
    Until,
    check_in_atomic,
    only_blocking,
)
from lockkit.model.errors import OpenTransaction
from lockkit.per_loop import PerLoop
from lockkit.runtime import entrants

if TYPE_CHECKING:
    from lockkit.engine.effects import Step
    from lockkit.leases.enclosing import AsyncOptions
    from lockkit.leases.kinds import RWLock
    from lockkit.leases.multi import AsyncMultiLock
    from lockkit.leases.reentry import Entry
    from lockkit.runtime.hold import Hold

A = TypeVar("A", bound="AsyncEnclosingClient")


class AsyncEnclosingLock(AsyncLock):
    __slots__ = ()
    _client: AsyncEnclosingClient

    async def _allow(self) -> None:
        """Raises OpenTransaction, as ``_permitted`` of the blocking twin does."""
        if not self._is_inside():
            await self._client._refuse(self.name)


class AsyncEnclosingLease(AsyncLease):
    """No order keeps it, unlike its blocking twin: the order may end after the event loop."""

    __slots__ = ("_is_free",)  #: as in the blocking twin
    _client: AsyncEnclosingClient

    async def release(self) -> bool:
        if not hasattr(self, "_is_free") and self._client._in_order():  # seldom
            self._client._stay_in_loop(releases=True)
            return await self._client.perform(self._releasing())
        return await super().release()

    def _releasing(self, silent: Silent | None = None) -> Step[bool]:
        """Release. Raises OpenTransaction if an order is open, so that the order is rolled back."""
        if self.released or hasattr(self, "_is_free") or not self._client._in_order():
            return (yield from super()._releasing(silent))
        if entrants.of_task(asyncio.current_task()) in takers_of_others(self):
            return (yield from super()._releasing(silent))
        with suppress(*UNTOLD):  # even so, the lock may be free: raise the error below
            yield from super()._releasing(silent)
        raise OpenTransaction(
            f"the lock {self.name!r} was released while an order that began under it has its "
            f"transaction open: others could take it before the order commits. Put "
            f"@lock_view below @idempotent; in_atomic='allow' is for a lock that protects nothing "
            f"in a database",
            name=self.name,
        )

    def _ends_by(self, error: type[BaseException] | None) -> None:
        """An error that leaves the block rolls the order back, too: the lease may be released."""
        if error is not None:
            self._is_free = True

    def _disown(self) -> None:
        super()._disown()
        self._is_free = True


class _AsyncFreeLock(FreeLock[AsyncLease], AsyncLock):
    __slots__ = ()


class AsyncEnclosingClient(AsyncLockClient):
    """The async twin of ``EnclosingClient``. It refuses ``until``."""

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

    @staticmethod
    @abstractmethod
    def _in_order() -> bool:
        """Whether an order of this task has a transaction open."""

    def _lease(self, hold: Hold, entry: Entry | None = None) -> AsyncLease:
        return AsyncEnclosingLease(self, hold, entry)

    def _class(
        self, in_atomic: InAtomic = "refuse", until: Until | None = None
    ) -> Callable[..., AsyncLock]:
        check_in_atomic(in_atomic)
        only_blocking(until)
        return AsyncEnclosingLock if in_atomic == "refuse" else _AsyncFreeLock


class AsyncClientsByAlias(PerLoop[A]):
    """``clients["default"]``: one client per alias and running event loop, beside the blocking one.

    A client is closed at the end of its loop, even if that is the short loop of one async view.
    """

    def __init__(self, clients: ClientsByAlias[C], kind: type[A]) -> None:
        super().__init__(lambda alias: kind.beside(clients[alias]))
        self._aliases = clients

    def __iter__(self) -> Iterator[str]:
        return iter(self._aliases)
