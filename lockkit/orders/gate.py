"""The way of an order through its request, once for every framework, for threads and for tasks.

What waits is a coroutine. With blocking calls it awaits nothing, so it runs like a plain function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from lockkit.leases.lease import give_back, give_back_async
from lockkit.model.errors import BackendError
from lockkit.orders import refusals
from lockkit.orders.decisions import Proceed
from lockkit.orders.open_order import OrderStopped
from lockkit.orders.order import Order
from lockkit.orders.record import DuplicateKeyError
from lockkit.orders.redis_records import RedisRecords
from lockkit.runtime.either import at_once, value
from lockkit.web.refusal import Refusal

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.leases.client import LockClient
    from lockkit.orders.decisions import Decision, Replay
    from lockkit.orders.open_order import OpenOrder
    from lockkit.orders.request import OrderResponse
    from lockkit.orders.visit import Visit

R = TypeVar("R")

MOST_DUPLICATES = 3
"""Times in a row that a duplicate key may turn out to be no order (rolled back, expired)."""

RecoverHook = Callable[["Order"], "OrderResponse | Awaitable[OrderResponse | None] | None"]
"""Asks the application how an order ended."""


class Means(NamedTuple):
    """What a flow uses: both blocking, or both of asyncio, whose results are awaited."""

    store: Any  #: finds records; with STORE "redis" it has all that RedisRecords has
    locks: Any  #: a client
    recover: RecoverHook | None
    give: Callable[[Any], Any]  #: a lease that will not be used back to its store
    carried_on: Callable[[Coroutine[Any, Any, None]], Awaitable[None]]  #: also if cancelled


Flow = Callable[[Means], Coroutine[Any, Any, R]]
"""The steps that the engine takes for an order."""


def drive(flow: Flow[R], store: Any, locks: LockClient, recover: RecoverHook | None = None) -> R:
    """Run a flow to its end with blocking calls, so that it awaits nothing.

    ``store``: has ``find(key, fresh=…)``, where ``fresh`` means to look where writes go; with STORE
    "redis" it is a RedisRecords. ``recover``: asks the application.
    """
    return at_once(flow(Means(store, locks, recover, give_back, value)))


async def adrive(
    flow: Flow[R], store: Any, locks: AsyncLockClient, recover: RecoverHook | None = None
) -> R:
    """Run a flow to its end, awaiting each step."""
    from lockkit.runtime.aio_run import carried_on  # who blocks does without asyncio

    return await flow(Means(store, locks, recover, give_back_async, carried_on))


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
    flow = visit.orders.admit(order, key_decides=visit.options.atomic)
    decision = await way.ask(flow, visit)
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
