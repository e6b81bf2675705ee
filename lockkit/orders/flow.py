"""The steps that the engine takes for an order, written once for threads and tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from lockkit.leases.lease import give_back, give_back_async, result_of, value

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.leases.client import LockClient
    from lockkit.orders.order import Order
    from lockkit.orders.record import OrderResponse

R = TypeVar("R")

RecoverHook = Callable[["Order"], "OrderResponse | Awaitable[OrderResponse | None] | None"]
"""Asks the application how an order ended."""


class Means(NamedTuple):
    """What a flow uses. ``store`` and ``locks`` are both blocking, or both of asyncio."""

    store: Any  #: finds records; with STORE "redis" it has all that RedisOrderRecords has
    locks: Any  #: a client
    recover: RecoverHook | None
    give: Callable[[Any], Any]  #: gives a lease that will not be used back to its store
    carried_on: Callable[[Coroutine[Any, Any, None]], Awaitable[None]]  #: even if cancelled


Flow = Callable[[Means], Coroutine[Any, Any, R]]
"""The steps that the engine takes for an order."""


def drive(flow: Flow[R], store: Any, locks: LockClient, recover: RecoverHook | None = None) -> R:
    """Run a flow to its end with blocking calls; it never suspends.

    ``store``: has ``find(key, fresh=…)``, where ``fresh`` means to look where writes go; with STORE
    "redis" it is a RedisOrderRecords. ``recover``: asks the application.
    """
    return result_of(flow(Means(store, locks, recover, give_back, value)))


async def adrive(
    flow: Flow[R], store: Any, locks: AsyncLockClient, recover: RecoverHook | None = None
) -> R:
    """Run a flow to its end, awaiting each step."""
    from lockkit.runtime.aio_run import carried_on  # blocking callers need no asyncio

    return await flow(Means(store, locks, recover, give_back_async, carried_on))
