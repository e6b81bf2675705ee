"""Runs the engine's flows with blocking stores and clients, or with those of asyncio.

A flow is a coroutine. With blocking calls it awaits nothing, so it runs like a plain function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from lockkit.leases.lease import give_back, give_back_async
from lockkit.model.errors import BackendError
from lockkit.model.log import log
from lockkit.runtime.aio_run import to_its_end
from lockkit.runtime.either import at_once, value

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.leases.client import LockClient
    from lockkit.orders.record import Record
    from lockkit.orders.request import Order, OrderResponse

R = TypeVar("R")

RecoverHook = Callable[["Order"], "OrderResponse | Awaitable[OrderResponse | None] | None"]
"""Asks the application how an order ended."""


class RecordStore(Protocol):
    """A store of records. A method returns its result, or an awaitable of it. Raises BackendError
    if the store cannot be reached."""

    def find(self, key: str, *, fresh: bool) -> Record | Awaitable[Record | None] | None: ...


class ClaimStore(RecordStore, Protocol):
    """Records outside of transactions: they are claimed before the view, and finished after it.

    ``fence``: the fencing token of the order's lease. All steps may be repeated.
    """

    def start(self, record: Record, fence: int, *, replaces: bool) -> Awaitable[None] | None:
        """Write a record, in one step with the proof that the lease is held.

        Raises LeaseLost if the lease is not held; then nothing was written. Raises
        DuplicateKeyError if there is another record. With ``replaces``, a record that an older
        lease left running is replaced.
        """

    def finish(self, record: Record, fence: int) -> bool | Awaitable[bool]:
        """Write the end over the claim with this fence. False if the claim is gone."""

    def drop(self, key: str, fence: int) -> bool | Awaitable[bool]:
        """Delete the running claim with this fence. False if it is not there."""


def drive(
    flow: Flow[R], store: RecordStore, locks: LockClient, recover: RecoverHook | None = None
) -> R:
    """Run a flow to its end with blocking calls, so that it awaits nothing.

    ``store``: a ClaimStore if the settings have STORE "redis". ``recover``: asks the application.
    """
    return at_once(flow(Means(store, locks, recover, give_back, value)))


async def adrive(
    flow: Flow[R], store: RecordStore, locks: AsyncLockClient, recover: RecoverHook | None = None
) -> R:
    """Run a flow to its end, awaiting each step."""
    return await flow(Means(store, locks, recover, give_back_async, to_its_end))


class Means:
    """The actions of a flow, with a store of records and a client of locks."""

    def __init__(
        self,
        store: RecordStore,
        locks: Any,
        recover: RecoverHook | None,
        give: Callable[[Any], Awaitable[None] | None],
        to_its_end: Callable[[Coroutine[Any, Any, None]], Awaitable[None]],
    ) -> None:
        self._store = store
        self._locks = locks
        self._recover = recover
        self._give = give
        self._to_its_end = to_its_end

    async def find(self, key: str, *, fresh: bool) -> Record | None:
        """``fresh``: read where writes go, never from a replica."""
        return await value(self._store.find(key, fresh=fresh))

    async def acquire(self, order: Order, seconds: float) -> Any:
        """Wait at most ``seconds`` for a lease. Errors as of ``Lock.acquire``."""
        lock = self._locks.lock(order.lock_name, label=order.label)
        return await value(lock.acquire(seconds))

    async def give(self, lease: Any) -> None:
        """Release a lease that will not be used. If the store cannot be told, nothing is raised."""
        await value(self._give(lease))

    async def recover(self, order: Order) -> OrderResponse | None:
        """The application's answer on how an order ended; None if it does not know."""
        return None if self._recover is None else await value(self._recover(order))

    async def start(self, record: Record, fence: int, *, replaces: bool) -> None:
        """See ``ClaimStore``."""
        await value(self._claims.start(record, fence, replaces=replaces))

    async def finish(self, record: Record, fence: int) -> bool:
        """See ``ClaimStore``."""
        return await value(self._claims.finish(record, fence))

    async def drop(self, key: str, fence: int) -> None:
        """See ``ClaimStore``. It runs to its end even if cancelled. If the store cannot be told,
        nothing is raised, and an orphan stays."""
        await self._to_its_end(self._drop(key, fence))

    async def _drop(self, key: str, fence: int) -> None:
        try:
            await value(self._claims.drop(key, fence))
        except BackendError as failure:
            log.error("the claim of an order is not deleted, so it is an orphan: %s", failure)

    @property
    def _claims(self) -> ClaimStore:
        return cast("ClaimStore", self._store)


Flow = Callable[[Means], Coroutine[Any, Any, R]]
"""The steps that the engine takes for an order."""
