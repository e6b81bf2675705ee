"""From a request to an open order: the same for the middleware, ``@idempotent`` and the mixin.

What waits is written once, as coroutines: THREAD performs them with blocking calls, LOOP awaits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from asgiref.sync import sync_to_async
from django.http import HttpResponseBase

from lockkit.leases.lease import give_back
from lockkit.model.errors import BackendError, ConfigurationError
from lockkit.orders import (
    DuplicateKeyError,
    Order,
    Proceed,
    Refusal,
    Replay,
    adrive,
    drive,
    refusals,
)
from lockkit.orders.judging import met_orphan
from lockkit.orders.redis_records import RedisRecords
from lockkit.orders.settings import ViewOptions, options_in
from lockkit.runtime.either import at_once
from lockkit_django.leases.aliases import alocks, locks
from lockkit_django.leases.client import give_back_from_loop
from lockkit_django.leases.transactions import note_what_is_final
from lockkit_django.orders.answers import note_order, recovered, refusal, replay
from lockkit_django.orders.authorize import may_replay
from lockkit_django.orders.commit_in import OwnTransaction
from lockkit_django.orders.errors import OrderStopped
from lockkit_django.orders.identity import RefusedError, identity_for
from lockkit_django.orders.open_order import ClaimedOrder, OpenOrder, Visit
from lockkit_django.orders.request import order_request
from lockkit_django.orders.rules import order_rules
from lockkit_django.orders.table import OrderTable
from lockkit_django.orders.transaction import SharedTransaction
from lockkit_django.signals import tell
from lockkit_django.web.view_functions import PendingOrder, class_of, functions_of, leave_pending

if TYPE_CHECKING:
    from lockkit.orders import OrderResponse, Orders, Record
    from lockkit.orders.decisions import Decision
    from lockkit.orders.means import Flow

R = TypeVar("R")

MOST_DUPLICATES = 3
"""Times in a row that a duplicate key may turn out to be no order (rolled back, expired)."""


class Way(Protocol):
    """How what waits is done."""

    async def do(self, function: Callable[..., R], *args: object) -> R:
        """On the thread that has this request's database connections."""

    async def ask(
        self, flow: Flow[R], orders: Orders, table: OrderTable | None, recover: Recover
    ) -> R:
        """``table``: None if records are in Redis."""

    async def give_back(self, lease: Any) -> None: ...


Recover = Callable[[Order], "OrderResponse | None"]


class _Thread:
    """The thread of the request does it."""

    async def do(self, function: Callable[..., R], *args: object) -> R:
        return function(*args)

    async def ask(
        self, flow: Flow[R], orders: Orders, table: OrderTable | None, recover: Recover
    ) -> R:
        client = locks[orders.settings.alias]
        return drive(flow, table or RedisRecords.of(client), client, recover)

    async def give_back(self, lease: Any) -> None:
        give_back(lease)


class _Loop:
    """The event loop waits, and the thread of the request queries."""

    async def do(self, function: Callable[..., R], *args: object) -> R:
        return await in_thread(function, *args)

    async def ask(
        self, flow: Flow[R], orders: Orders, table: OrderTable | None, recover: Recover
    ) -> R:
        client = alocks[orders.settings.alias]
        records = RedisRecords.of(client) if table is None else _Found(table)
        return await adrive(flow, records, client, partial(in_thread, recover))

    async def give_back(self, lease: Any) -> None:
        await give_back_from_loop(lease)


class _Found:
    """Records, found on the thread of the request."""

    def __init__(self, table: OrderTable) -> None:
        self._table = table

    def find(self, key: str, *, fresh: bool) -> Awaitable[Record | None]:
        return in_thread(partial(self._table.find, key, fresh=fresh))


THREAD: Way = _Thread()
LOOP: Way = _Loop()


class Gate:
    """The orders of a project: which request is one, whose, and whether its view may run."""

    def __init__(self) -> None:
        self._orders = order_rules()

    async def enter(self, visit: Visit, way: Way, *, begin: bool) -> HttpResponseBase | None:
        """None: call the view; if it is an order, it is open now. ``begin=False``: BEGIN is left
        to the view's own lock."""
        order = await way.do(self._identify, visit)
        if not isinstance(order, Order):
            return order
        decision = await self._ask(visit, way, self._orders.admit(order))
        if not isinstance(decision, Proceed):
            return await way.do(self._answer, visit, order, decision)
        opened = self._open(visit, decision)  # before awaiting: a cancellation must find it
        if met_orphan(decision):
            await way.do(tell, decision, order, visit.view, visit.request)
        if begin:
            return await self._begin(opened, way)
        resume = partial(self._begin, opened)
        pending = PendingOrder(opened, lambda: at_once(resume(THREAD)), lambda: resume(LOOP))
        leave_pending(visit.request, pending)
        return None

    async def stopped(self, opened: OpenOrder, stop: OrderStopped, way: Way) -> HttpResponseBase:
        """The answer to a request that found at its end that somebody else has done its order."""
        if stop.reject is not None:
            return refusal(stop.reject)
        if way is LOOP and not opened.is_async:  # a thread has acquired its lease
            return await in_thread(lambda: at_once(self.stopped(opened, stop, THREAD)))
        decision = await self._ask(opened.visit, way, self._orders.reconsider(opened.decision))
        if isinstance(decision, Proceed):  # the view does not run a second time in one request
            return refusal(refusals.running(1))
        return await way.do(self._answer, opened.visit, opened.order, decision)

    def _identify(self, visit: Visit) -> Order | HttpResponseBase | None:
        request, view, options, checked = visit
        settings = self._orders.settings
        read = order_request(
            request, partial(identity_for, request, view, settings, checked=checked)
        )
        try:
            order = self._orders.identify(read, sources=options.sources, required=options.required)
        except RefusedError as refused:
            return refused.response
        note_what_is_final()
        if isinstance(order, Order):
            note_order(request, order.order_id)
        return refusal(order) if isinstance(order, Refusal) else order

    def _open(self, visit: Visit, decision: Proceed) -> OpenOrder:
        if self._orders.settings.claims:
            return ClaimedOrder(visit, self._orders, decision)
        kind = SharedTransaction if visit.options.atomic else OwnTransaction
        return kind(visit, self._orders, decision)

    async def _begin(self, opened: OpenOrder, way: Way) -> HttpResponseBase | None:
        for _ in range(MOST_DUPLICATES):
            try:
                return await way.do(_begun, opened)
            except DuplicateKeyError:
                decision = await self._ask(
                    opened.visit, way, self._orders.reconsider(opened.decision)
                )
            if not isinstance(decision, Proceed):
                return await way.do(self._answer, opened.visit, opened.order, decision)
            opened.decision = decision
        return refusal(refusals.running(1))

    def _answer(self, visit: Visit, order: Order, decision: Replay | Refusal) -> HttpResponseBase:
        """What is not for everybody: a stored response, and where the order's result is."""
        if isinstance(decision, Replay) or decision.location is not None:
            allowed = may_replay(
                visit.request, visit.view, self._orders.settings, checked=visit.checked
            )
            if allowed is None:
                return refusal(refusals.not_replayable())
            if not allowed:
                return refusal(refusals.NOT_ALLOWED)
        tell(decision, order, visit.view, visit.request)
        if isinstance(decision, Refusal):
            return refusal(decision)
        return replay(visit.request, decision.snapshot)

    async def _ask(self, visit: Visit, way: Way, flow: Flow[Decision]) -> Decision:
        settings, using = self._orders.settings, visit.options.using
        if settings.claims and using is not None:
            raise ConfigurationError("using= is for records in a database: STORE is 'redis'")
        table = None if settings.claims else OrderTable(using or settings.using)
        return await way.ask(flow, self._orders, table, partial(self._recover, visit))

    def _recover(self, visit: Visit, order: Order) -> OrderResponse | None:
        """What the application knows of an order that ended without a stored response."""
        path = self._orders.settings.recover
        return None if path is None else recovered(path, visit.request, order.order_id)


def options_of(callback: Callable[..., Any], method: str | None = None) -> ViewOptions:
    """The options of a view: on the callback, its class, or what answers this HTTP method."""
    return options_in((callback, class_of(callback), *functions_of(callback, method)))


def _begun(opened: OpenOrder) -> HttpResponseBase | None:
    try:
        opened.begin()
    except BackendError as failure:
        return refusal(refusals.not_claimed(failure))
    return None


async def in_thread(function: Callable[..., R], *args: object) -> R:
    """On the thread that has this request's database connections."""
    return await sync_to_async(function, thread_sensitive=True)(*args)
