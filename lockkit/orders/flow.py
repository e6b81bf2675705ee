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
"""Asks the application how an order ended (RECOVER); None: it does not know."""


class Means(NamedTuple):
    """What a flow works with. ``store`` and ``locks`` are both blocking, or both for asyncio."""

    store: Any  #: finds records; with STORE "redis" it has all that RedisOrderRecords has
    locks: Any  #: the client of the lock alias
    recover: RecoverHook | None
    give: Callable[[Any], Any]  #: releases a lease that will not be used
    carried_on: Callable[[Coroutine[Any, Any, None]], Awaitable[None]]  #: goes on if cancelled


Flow = Callable[[Means], Coroutine[Any, Any, R]]
"""Steps that the engine has prepared. Call them with ``Means``, and await the result."""


def drive(flow: Flow[R], store: Any, locks: LockClient, recover: RecoverHook | None = None) -> R:
    """Run a flow to its end with blocking calls; it never suspends.

    ``store``: has ``find(key, fresh=…)``, where ``fresh`` means: do not look in a replica. With
    STORE "redis" it is a RedisOrderRecords.
    """
    return result_of(flow(Means(store, locks, recover, give_back, value)))


async def adrive(
    flow: Flow[R], store: Any, locks: AsyncLockClient, recover: RecoverHook | None = None
) -> R:
    """Run a flow to its end, awaiting each step."""
    from lockkit.runtime.aio_run import carried_on  # blocking callers need no asyncio

    return await flow(Means(store, locks, recover, give_back_async, carried_on))
