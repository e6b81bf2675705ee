"""An order whose view is running: its lease, its transaction, its record, and how it ends.

The methods belong on the thread that has the request's database connection.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
from django.http import HttpRequest, HttpResponseBase

from lockkit.aio import AsyncLease
from lockkit.errors import BackendUnavailable, LeaseLost
from lockkit.idempotency import Discard, Keep, Record, replies
from lockkit_django.orders.facts import asks_to_log_in, response_facts
from lockkit_django.orders.responses import refusal
from lockkit_django.orders.store import DuplicateKeyError, OrderStore
from lockkit_django.pending import OPEN_ORDER

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from lockkit.client import Lease
    from lockkit.idempotency import Order, Orders, Proceed
    from lockkit_django.orders.gate import Gate

__all__ = ["OpenOrder", "open_order"]

FIRST_ERROR = 400


def open_order(request: HttpRequest) -> OpenOrder | None:
    """The order that this request has opened, until its transaction and its lock are gone."""
    return getattr(request, OPEN_ORDER, None)


class OpenOrder:
    """Attached to the request before anything is done, so that whatever happens it is undone.

    ``request.order`` is this object: ``order_id`` and ``fencing_token`` are for the view.
    """

    def __init__(self, request: HttpRequest, orders: Orders, store: OrderStore, gate: Gate) -> None:
        self._request = request
        self._orders = orders
        self._store = store
        self._using = store.using
        self.gate = gate
        self._decision: Proceed | None = None
        self._block: transaction.Atomic | None = None
        self._failed = False
        self.ended = False  #: no transaction is open, and none is under way
        self._adopted: list[Lease | AsyncLease] = []
        self.closed = False
        setattr(request, OPEN_ORDER, self)

    @property
    def order_id(self) -> str:
        return self._order.order_id

    @property
    def fencing_token(self) -> int:
        """Grows with each try at this order: a resource outside the database may compare it."""
        return int(self.admitted.lease.fencing_token)

    @property
    def leases(self) -> list[Any]:
        """To be released after COMMIT or ROLLBACK, the last one first."""
        own = [] if self._decision is None else [self._decision.lease]
        return [*reversed(self._adopted), *own]

    def admit(self, decision: Proceed) -> None:
        """The lease is ours to release from here on."""
        self._decision = decision
        self._request.order = self  # type: ignore[attr-defined]

    @property
    def is_async(self) -> bool:
        """Whether the event loop that runs the view also ends the order: not so under WSGI."""
        return isinstance(self.admitted.lease, AsyncLease)

    @property
    def pending(self) -> bool:
        """Whether the transaction is still to be begun, under another lock of the view's."""
        return self._decision is not None and self._block is None and not self.closed

    def adopt(self, lease: Lease | AsyncLease) -> None:
        """Another lease that must outlive the transaction."""
        self._adopted.append(lease)

    def begin(self) -> None:
        """BEGIN, and insert the record: a stale second runner stops here, before its view.

        Raises DuplicateKeyError or a BackendError; then nothing is open.
        """
        try:
            self._enter_block()
            running = self._orders.running(self._order)
            self._store.start(running, replaces=self.admitted.replaces)
        except BaseException:
            self._roll_back()
            raise

    def fail(self) -> None:
        """The view raised: its effects are rolled back, whatever response is made of it."""
        self._failed = True

    def close(self, response: HttpResponseBase) -> HttpResponseBase:
        """COMMIT the effects with their record, or ROLLBACK. Returns what to answer."""
        if self._block is None:
            self.ended = True
            return response
        try:
            return self._conclude(response)
        except LeaseLost:
            return refusal(replies.lease_lost())
        finally:
            self._roll_back()  # nothing, if it is committed
            self.ended = True

    def abandon(self) -> None:
        """ROLLBACK, if it was not closed: the request was cancelled, or the process must end."""
        self._roll_back()

    def detach(self) -> None:
        """The request has no open order any more."""
        self.closed = True
        with suppress(AttributeError):
            delattr(self._request, OPEN_ORDER)

    def _conclude(self, response: HttpResponseBase) -> HttpResponseBase:
        verdict = self._orders.conclude(self._order, response_facts(response))
        if asks_to_log_in(self._request, response):
            return response  # a refusal, whatever its status says
        if isinstance(verdict, Discard):
            return response
        if not self._is_rolled_back():
            return self._commit(verdict, response)
        broken = not self._failed and self._is_broken()
        self._roll_back()
        if response.status_code >= FIRST_ERROR:
            self._keep_refusal(verdict.record)
            return response
        return refusal(replies.not_saved()) if broken else response

    def _commit(self, verdict: Keep, response: HttpResponseBase) -> HttpResponseBase:
        self.admitted.lease.check()
        for lease in self._adopted:
            lease.check()
        try:
            self._store.finish(verdict.record)
            self._leave_block()
        except (OperationalError, InterfaceError):
            return refusal(replies.outcome_unknown())
        return response

    def _keep_refusal(self, record: Record) -> None:
        """The record of an order that changed nothing, in a transaction of its own.

        Failing is allowed: the next try is then refused anew.
        """
        with (
            suppress(DatabaseError, InterfaceError, BackendUnavailable, DuplicateKeyError),
            transaction.atomic(using=self._using, durable=True),
        ):
            self._store.start(record, replaces=self.admitted.replaces)

    def _is_rolled_back(self) -> bool:
        connection = connections[self._using]
        return self._failed or connection.needs_rollback or connection.closed_in_transaction

    def _is_broken(self) -> bool:
        """Whether the view says that all is well, and the database says that nothing is saved.

        A view that asks for the rollback itself, with ``set_rollback``, knows what it answers.
        """
        connection = connections[self._using]
        return connection.closed_in_transaction or _error_of(connection) is not None

    def _enter_block(self) -> None:
        block = transaction.Atomic(self._using, savepoint=True, durable=True)
        try:
            block.__enter__()
        except (OperationalError, InterfaceError) as error:
            raise BackendUnavailable("the database of the order is not available") from error
        self._block = block
        vars(connections[self._using])["rollback_exc"] = None  # of an earlier transaction

    def _leave_block(self) -> None:
        """COMMIT. Hooks of ``on_commit`` run in here; what they raise is raised."""
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(None, None, None)

    def _roll_back(self) -> None:
        if self._block is not None:
            connections[self._using].needs_rollback = True
            self._leave_block()

    @property
    def admitted(self) -> Proceed:
        assert self._decision is not None
        return self._decision

    @property
    def _order(self) -> Order:
        return self.admitted.order


def _error_of(connection: BaseDatabaseWrapper) -> Exception | None:
    """The database error that has doomed the transaction, if one has."""
    error: Exception | None = vars(connection).get("rollback_exc")
    return error
