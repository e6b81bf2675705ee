"""What performs the engine's flows: with blocking stores and clients, or with those that are
awaited. Both are the same but for the awaiting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

from lockkit.leases.giving_back import give_back, give_back_async
from lockkit.model.errors import BackendError
from lockkit.model.log import log
from lockkit.orders.steps import Acquire, Drop, Find, Finish, Flow, Give, Recover, Step, WriteClaim
from lockkit.runtime.aio_driver import to_its_end

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.leases.client import LockClient
    from lockkit.orders.record import Record
    from lockkit.orders.request import Order, OrderResponse

R = TypeVar("R")
T = TypeVar("T")

RecoverHook = Callable[["Order"], "OrderResponse | Awaitable[OrderResponse | None] | None"]
"""Asks the application what became of an order."""


class RecordStore(Protocol):
    """Where records are: what a method returns, or what awaiting it gives. Raises BackendError
    when the store is not to be reached."""

    def find(self, key: str, *, fresh: bool) -> Record | Awaitable[Record | None] | None: ...


class ClaimStore(RecordStore, Protocol):
    """Records that are no part of a transaction: claimed before the view, finished after it.

    ``fence``: the fencing token of the order's lease. All steps may be repeated.
    """

    def start(self, record: Record, fence: int, *, replaces: bool) -> Awaitable[None] | None:
        """Write a record, in one step with the proof that the lease is held.

        Raises LeaseLost: it is not held, nothing was written. Raises DuplicateKeyError: there is
        another record; with ``replaces``, only one that is not left running by an older lease.
        """

    def finish(self, record: Record, fence: int) -> bool | Awaitable[bool]:
        """Write the end over the claim with this fence. False: the claim is not there any more."""

    def drop(self, key: str, fence: int) -> bool | Awaitable[bool]:
        """Forget the running claim with this fence. False: it is not there."""


def drive(
    flow: Flow[R], store: RecordStore, locks: LockClient, recover: RecoverHook | None = None
) -> R:
    """Run a flow to its end with blocking calls: then nothing is awaited, and one step is all.

    ``store``: a ClaimStore if the settings say STORE "redis". ``recover``: asks the application.
    """
    return at_once(_drive(flow, _Means(store, locks, recover, give_back, value)))


async def adrive(
    flow: Flow[R], store: RecordStore, locks: AsyncLockClient, recover: RecoverHook | None = None
) -> R:
    """Run a flow to its end, awaiting each step. A cancellation is thrown into the flow."""
    return await _drive(flow, _Means(store, locks, recover, give_back_async, to_its_end))


def at_once(doing: Coroutine[Any, Any, R]) -> R:
    """What a coroutine returns that awaits nothing."""
    try:
        doing.send(None)
    except StopIteration as end:
        return cast("R", end.value)
    raise TypeError("what a blocking client does must not be awaited")


async def value(found: T | Awaitable[T]) -> T:
    """What is there, or comes once it is awaited."""
    return await found if isawaitable(found) else found


class _Means(NamedTuple):
    """What steps are done with."""

    store: RecordStore
    locks: Any
    recover: RecoverHook | None
    give_back: Callable[[Any], Awaitable[None] | None]
    to_its_end: Callable[[Coroutine[Any, Any, bool]], Awaitable[bool]]  #: if cancelled as well


async def _drive(flow: Flow[R], means: _Means) -> R:
    try:
        step = next(flow)
        while True:
            try:
                reply = await value(_begun(step, means))
            except BaseException as error:  # noqa: BLE001  the flow cleans up and re-raises
                step = flow.throw(error)
            else:
                step = flow.send(reply)
    except StopIteration as end:
        return cast("R", end.value)


def _begun(step: Step, means: _Means) -> object:
    begun: object
    claims = cast("ClaimStore", means.store)
    match step:
        case Find(key, fresh):
            begun = means.store.find(key, fresh=fresh)
        case Acquire(order, timeout):
            begun = means.locks.lock(order.lock_name, label=order.label).acquire(timeout)
        case Give(lease):
            begun = means.give_back(lease)
        case Recover(order):
            begun = None if means.recover is None else means.recover(order)
        case WriteClaim(record, fence, replaces):
            begun = claims.start(record, fence, replaces=replaces)
        case Finish(record, fence):
            begun = claims.finish(record, fence)
        case Drop():
            begun = means.to_its_end(_dropped(step, claims))
    return begun


async def _dropped(step: Drop, store: ClaimStore) -> bool:
    try:
        return await value(store.drop(*step))
    except BackendError as failure:
        log.error("the claim of an order is not forgotten, so it is an orphan: %s", failure)
        return False
