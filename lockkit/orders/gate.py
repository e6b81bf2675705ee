"""The way of an order through its request, once for every framework, for threads and for tasks.

What waits is a coroutine. With blocking calls it awaits nothing, so it runs like a plain function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from lockkit.leases.lease import give_back, give_back_async
from lockkit.model.errors import BackendError
from lockkit.model.log import log
from lockkit.orders import refusals
from lockkit.orders.decisions import Proceed
from lockkit.orders.open_order import OrderStopped
from lockkit.orders.order import Order
from lockkit.orders.record import DuplicateKeyError
from lockkit.orders.redis_records import RedisRecords
from lockkit.runtime.aio_run import to_its_end
from lockkit.runtime.either import at_once, value
from lockkit.web.refusal import Refusal

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.leases.client import LockClient
    from lockkit.orders.decisions import Decision, Replay
    from lockkit.orders.open_order import OpenOrder
    from lockkit.orders.record import Record
    from lockkit.orders.request import OrderResponse
    from lockkit.orders.visit import Visit

R = TypeVar("R")

MOST_DUPLICATES = 3
"""Times in a row that a duplicate key may turn out to be no order (rolled back, expired)."""

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


class Way(Protocol):
    """How what waits is done: by the thread of the request, or by an event loop."""

    async def do(self, function: Callable[..., R], *args: object) -> R:
        """Call it on the thread that has the request's database connections."""

    async def ask(self, flow: Flow[R], visit: Visit, lease: Any = None) -> R:
        """Perform a flow of the engine. ``lease``: the one that it has already, if any."""

    async def give_back(self, lease: Any) -> None: ...


class Thread:
    """The way of a blocking request. ``client``: returns the client of an alias."""

    def __init__(self, client: Callable[[str], LockClient]) -> None:
        self._client = client

    async def do(self, function: Callable[..., R], *args: object) -> R:
        return function(*args)

    async def ask(self, flow: Flow[R], visit: Visit, lease: Any = None) -> R:
        client = self._client(visit.orders.settings.alias)
        return drive(flow, visit.records or RedisRecords.of(client), client, visit.recover)

    async def give_back(self, lease: Any) -> None:
        if not lease.released:
            give_back(lease)


async def enter(visit: Visit, way: Way) -> Any:
    """An OpenOrder that is to begin; None if the request is not an order; otherwise its answer."""
    order = await way.do(visit.identify)
    if not isinstance(order, Order):
        return order
    decision = await way.ask(visit.orders.admit(order), visit)
    if not isinstance(decision, Proceed):
        return await way.do(_answer, visit, order, decision)
    opened = visit.open(decision)  # before awaiting: a cancellation must find it
    if decision.orphan:
        await way.do(visit.tell, decision, order)
    return opened


async def begin(opened: OpenOrder, way: Way) -> Any:
    """None if the view may run now; otherwise the answer, and nothing was begun."""
    visit = opened.visit
    for _ in range(MOST_DUPLICATES):
        try:
            await way.do(opened.begin)
        except DuplicateKeyError:
            decision = await _reconsidered(opened, way)
        except BackendError as failure:
            decision = refusals.not_claimed(failure)
        else:
            return None
        if not isinstance(decision, Proceed):
            return await way.do(_answer, visit, opened.order, decision)
        opened.decision = decision
    return visit.refuse(refusals.running(1))


async def close(opened: OpenOrder, response: Any, way: Way) -> Any:
    """Make final what the view did, or undo it. Returns what to answer."""
    try:
        return await way.do(opened.close, response)
    except OrderStopped as stop:
        return await stopped(opened, stop, way)


async def stopped(opened: OpenOrder, stop: OrderStopped, way: Way) -> Any:
    """The answer to a request that found at its end that somebody else has done its order."""
    visit = opened.visit
    if stop.reject is not None:
        return visit.refuse(stop.reject)
    decision = await _reconsidered(opened, way)
    if isinstance(decision, Proceed):  # the view does not run a second time in one request
        return visit.refuse(refusals.running(1))
    return await way.do(_answer, visit, opened.order, decision)


async def leave(opened: OpenOrder, way: Way) -> None:
    """At last, whatever happened: undo what was not made final, and release the leases."""
    try:
        if not opened.ended:
            await way.do(opened.abandon)
    finally:
        opened.detach()
        for lease in opened.leases:
            await way.give_back(lease)


async def _reconsidered(opened: OpenOrder, way: Way) -> Decision:
    decision = opened.decision
    return await way.ask(opened.orders.reconsider(decision), opened.visit, decision.lease)


def _answer(visit: Visit, order: Order, decision: Replay | Refusal) -> Any:
    """A stored response, and where the order's result is, are not for everybody."""

    def given() -> Any:
        visit.tell(decision, order)
        if isinstance(decision, Refusal):
            return visit.refuse(decision)
        return visit.replay(decision.snapshot)

    is_open = isinstance(decision, Refusal) and decision.location is None
    return given() if is_open else visit.guarded(given)
