"""From a request to an open order: the same for the middleware, ``@idempotent`` and the mixin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponseBase

from lockkit.model.errors import BackendError, ConfigurationError
from lockkit.orders import (
    DuplicateKeyError,
    Order,
    OrderResponse,
    Proceed,
    Refusal,
    Replay,
    adrive,
    drive,
    refusals,
)
from lockkit.orders.redis_records import RedisRecords
from lockkit_django.leases.handler import alocks, locks
from lockkit_django.leases.writes import note_what_is_final
from lockkit_django.orders.answers import note_order, refusal, replay
from lockkit_django.orders.authorize import may_replay
from lockkit_django.orders.claim import Claimed
from lockkit_django.orders.commit_in import OwnTransaction
from lockkit_django.orders.endings import Ending, OrderStopped
from lockkit_django.orders.identity import RefusedError, identity_for
from lockkit_django.orders.open_order import OpenOrder, open_order
from lockkit_django.orders.options import ViewOptions
from lockkit_django.orders.recovery import recovered
from lockkit_django.orders.request import request_facts
from lockkit_django.orders.rules import order_rules
from lockkit_django.orders.table import AsyncOrderStore, OrderStore
from lockkit_django.orders.transaction import SharedTransaction
from lockkit_django.signals import tell

if TYPE_CHECKING:
    from lockkit.leases.client import LockClient
    from lockkit.orders.decisions import Decision
    from lockkit.orders.means import Flow

__all__ = ["Gate", "in_thread", "store_for"]

R = TypeVar("R")

MOST_DUPLICATES = 3
"""Times in a row that a duplicate key may turn out to be no order (rolled back, expired)."""

View = Callable[..., Any]


def store_for(using: str | None) -> OrderStore:
    return OrderStore(using or order_rules().settings.using)


class Gate:
    """One request at its view: lets it in with an open order, or answers it.

    ``checked``: the view's own checks were made, because the order is opened below them.
    """

    def __init__(
        self, request: HttpRequest, view: View, options: ViewOptions, *, checked: bool
    ) -> None:
        self._request = request
        self._view = view
        self._options = options
        self._checked = checked
        self._orders = order_rules()
        self._rows = store_for(options.using)
        if self._claims and options.using is not None:
            raise ConfigurationError("using= is for records in a database: STORE is 'redis'")

    def enter(self, *, begin: bool = True) -> HttpResponseBase | None:
        """None: call the view; if it is an order, it is open now. ``begin=False``: BEGIN later."""
        order = self._identify()
        if not isinstance(order, Order):
            return order
        return self._let_in(order, self._drive(self._orders.admit(order)), begin=begin)

    async def aenter(self, *, begin: bool = True) -> HttpResponseBase | None:
        """The twin of ``enter``: waits in the event loop, and queries in the request's thread."""
        order = await in_thread(self._identify)
        if not isinstance(order, Order):
            return order
        decision = await self._adrive(self._orders.admit(order))
        return await self._alet_in(order, decision, begin=begin)

    def resume(self, opened: OpenOrder) -> HttpResponseBase | None:
        """BEGIN for an order that was let in with ``begin=False``; None: call the view."""
        return self._begin(opened.order, opened.admitted)

    async def aresume(self, opened: OpenOrder) -> HttpResponseBase | None:
        return await self._abegin(opened.order, opened.admitted)

    def stopped(self, opened: OpenOrder, stop: OrderStopped) -> HttpResponseBase:
        """The answer to a request that found at its end that somebody else has done its order."""
        if stop.reject is not None:
            return refusal(stop.reject)
        decision = self._drive(self._orders.reconsider(opened.admitted))
        return self._second(opened.order, decision)

    async def astopped(self, opened: OpenOrder, stop: OrderStopped) -> HttpResponseBase:
        if not opened.is_async:
            return await in_thread(self.stopped, opened, stop)
        if stop.reject is not None:
            return refusal(stop.reject)
        decision = await self._adrive(self._orders.reconsider(opened.admitted))
        return await in_thread(self._second, opened.order, decision)

    def _identify(self) -> Order | HttpResponseBase | None:
        identity = partial(
            identity_for, self._request, self._view, self._orders.settings, checked=self._checked
        )
        facts = request_facts(self._request, identity)
        try:
            order = self._orders.identify(
                facts, sources=self._options.sources, required=self._options.required
            )
        except RefusedError as refused:
            return refused.response
        note_what_is_final()
        if isinstance(order, Order):
            note_order(self._request, order.order_id)
        return refusal(order) if isinstance(order, Refusal) else order

    def _let_in(self, order: Order, decision: Decision, *, begin: bool) -> HttpResponseBase | None:
        if not isinstance(decision, Proceed):
            return self._answer(order, decision)
        self._attach(decision)
        tell(decision, order, self._view, self._request)
        return self._begin(order, decision) if begin else None

    async def _alet_in(
        self, order: Order, decision: Decision, *, begin: bool
    ) -> HttpResponseBase | None:
        if not isinstance(decision, Proceed):
            return await in_thread(self._answer, order, decision)
        self._attach(decision)  # before awaiting: a cancellation must find it
        if decision.orphan:
            await in_thread(tell, decision, order, self._view, self._request)
        return await self._abegin(order, decision) if begin else None

    def _begin(self, order: Order, decision: Decision) -> HttpResponseBase | None:
        for _ in range(MOST_DUPLICATES):
            if not isinstance(decision, Proceed):
                return self._answer(order, decision)
            try:
                return _begun(self._attach(decision))
            except DuplicateKeyError:
                decision = self._drive(self._orders.reconsider(decision))
        return refusal(refusals.running(1))

    async def _abegin(self, order: Order, decision: Decision) -> HttpResponseBase | None:
        for _ in range(MOST_DUPLICATES):
            if not isinstance(decision, Proceed):
                return await in_thread(self._answer, order, decision)
            try:
                return await in_thread(_begun, self._attach(decision))
            except DuplicateKeyError:
                decision = await self._adrive(self._orders.reconsider(decision))
        return refusal(refusals.running(1))

    def _attach(self, decision: Proceed) -> OpenOrder:
        opened = open_order(self._request)
        if opened is None:
            opened = OpenOrder(self._request, self._orders, self, self._ending)
        opened.admit(decision)
        return opened

    def _ending(self, opened: OpenOrder) -> Ending:
        if self._claims:
            return Claimed(opened)
        kind = SharedTransaction if self._options.atomic else OwnTransaction
        return kind(opened, self._rows)

    def _second(self, order: Order, decision: Decision) -> HttpResponseBase:
        """The view has run once in this request, and does not run again."""
        if isinstance(decision, Proceed):
            return refusal(refusals.running(1))
        return self._answer(order, decision)

    def _answer(self, order: Order, decision: Replay | Refusal) -> HttpResponseBase:
        if isinstance(decision, Replay) or decision.location is not None:
            refused = self._refused_replay(decision)
            if refused is not None:
                return refused
        tell(decision, order, self._view, self._request)
        if isinstance(decision, Refusal):
            return refusal(decision)
        return replay(self._request, decision.snapshot)

    def _refused_replay(self, decision: Replay | Refusal) -> HttpResponseBase | None:
        """What may not be seen again, or not without asking the view; None: it may."""
        allowed = may_replay(
            self._request, self._view, self._orders.settings, checked=self._checked
        )
        if allowed is None:
            return refusal(refusals.not_replayable())  # its Location is a part of the answer
        return refusal(refusals.NOT_ALLOWED) if allowed is False else None

    def _drive(self, flow: Flow[R]) -> R:
        locks = self._locks
        records = RedisRecords.of(locks) if self._claims else self._rows
        return drive(flow, records, locks, self._recover)

    async def _adrive(self, flow: Flow[R]) -> R:
        locks = alocks[self._orders.settings.alias]
        records = RedisRecords.of(locks) if self._claims else AsyncOrderStore(self._rows)
        return await adrive(flow, records, locks, partial(in_thread, self._recover))

    def _recover(self, order: Order) -> OrderResponse | None:
        """What the application knows of an order that ended without a stored response."""
        path = self._orders.settings.recover
        return None if path is None else recovered(path, self._request, order.order_id)

    @property
    def _claims(self) -> bool:
        return self._orders.settings.claims

    @property
    def _locks(self) -> LockClient:
        return locks[self._orders.settings.alias]


def _begun(opened: OpenOrder) -> HttpResponseBase | None:
    try:
        opened.begin()
    except BackendError as failure:
        return refusal(refusals.not_claimed(failure))
    return None


async def in_thread(function: Callable[..., R], *args: object) -> R:
    """On the thread that has this request's database connections."""
    return await sync_to_async(function, thread_sensitive=True)(*args)
