"""An order whose view may run: its leases, what the view may ask of it, and its end.

One class for each place of its record: a transaction around the view, a transaction of the view's
own, and, for effects outside a database, the store of the locks. An adapter adds its transactions.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from lockkit.model.errors import BackendError, LeaseLost, LockError
from lockkit.orders import refusals, rows
from lockkit.orders.decisions import Discard
from lockkit.orders.order import Order
from lockkit.orders.record import DuplicateKeyError
from lockkit.orders.request import OrderResponse
from lockkit.runtime.either import at_once

if TYPE_CHECKING:
    from lockkit.orders.decisions import Forget, Keep, Proceed
    from lockkit.orders.record import Record
    from lockkit.orders.visit import Visit
    from lockkit.web.refusal import Refusal

NOT_RUN = OrderResponse(503, (), b"")


class OrderStopped(LockError):
    """This request cannot do its order: somebody else has, or its lease or a store is gone.

    Nothing that it did in ``commit_in`` was saved, or that is not known. Not to be caught: the
    answer is made of it. ``reject``: that answer; None: look who was first.
    """

    def __init__(self, reject: Refusal | None) -> None:
        super().__init__("the order is done elsewhere" if reject is None else reject.title)
        self.reject = reject


class OpenOrder(ABC):
    """``request.order``. It is used once; the middleware or the app ends it."""

    begun = False  #: its record is there, or the view is to write it
    ended = False  #: nothing is open, and nothing is under way
    closed = False  #: the request has no open order any more
    failed = False  #: the view has raised, whatever response was made of that
    error: BaseException | None = None  #: that the view has raised, if it was seen

    def __init__(self, visit: Visit, decision: Proceed) -> None:
        self.visit, self.orders = visit, visit.orders
        self.decision = decision  #: its lease is ours to release from here on
        self._adopted: list[Any] = []

    @property
    def order(self) -> Order:
        return self.decision.order

    @property
    def order_id(self) -> str:
        return self.order.order_id

    @property
    def fencing_token(self) -> int:
        """Grows with each try at this order: a resource elsewhere may refuse smaller ones."""
        return int(self.decision.lease.fencing_token)

    @property
    def orphan(self) -> bool:
        """Whether an earlier try was begun whose end is not known: with ORPHANS "retry"."""
        return self.decision.orphan

    @property
    def patience(self) -> float:
        """Seconds that the claim may still wait for a try that has the order's record."""
        return max(self.decision.until - time.monotonic(), 0.0)

    @property
    def leases(self) -> list[Any]:
        """To be released after COMMIT or ROLLBACK, the last one first."""
        return [*reversed(self._adopted), self.decision.lease]

    @property
    def pending(self) -> bool:
        """Whether it is still to begin, under another lock of the view's."""
        return not (self.begun or self.closed)

    def adopt(self, lease: Any) -> None:
        """Another lease that must outlive the transaction."""
        self._adopted.append(lease)

    def check_leases(self) -> None:
        """Raises LeaseLost."""
        for lease in reversed(self.leases):
            lease.check()

    @abstractmethod
    def begin(self) -> None:
        """Have the record there before the view runs: a second runner stops here.

        Raises DuplicateKeyError or a BackendError; then nothing is open.
        """

    def fail(self, error: BaseException) -> Any:
        """The view raised. Returns a better answer than 500, if there is one."""
        self.failed, self.error = True, error

    def close(self, response: Any) -> Any:
        """Make the effects final with their record, or undo them. Returns what to answer.

        Raises OrderStopped if somebody else has done the order.
        """
        try:
            return self._end(response)
        finally:
            self.ended = True

    @abstractmethod
    def abandon(self) -> None:
        """Undo what was not closed: the request was cancelled, or the process must end."""

    def detach(self) -> None:
        """The request has no open order any more."""
        self.closed = True

    @abstractmethod
    def _end(self, response: Any) -> Any: ...

    def _verdict(self, response: Any) -> Keep | Forget | Discard:
        """What becomes of the order by this response."""
        answered = self.visit.answered(response)
        return Discard() if answered is None else self.orders.conclude(self.order, answered)


class ClaimedOrder(OpenOrder):
    """STORE "redis": the engine claims the order when it lets it in, and the response is stored by
    the fence of the claim after the view. No transaction is opened.

    A claim that is not settled outlives the request as an orphan: nobody knows what the view did,
    and it may be a payment.
    """

    def begin(self) -> None:
        self.begun = True

    def abandon(self) -> None:
        """An orphan, if the view was begun; it may have waited for a lock of its own."""
        if not (self.begun or self.ended):
            self._settle(NOT_RUN, failed=False)

    def _end(self, response: Any) -> Any:
        self.ended = True  # an interrupt leaves an orphan
        failed = self.begun and self._is_accident(response)
        reject = self._settle(self.visit.answered(response), failed=failed)
        return response if reject is None else self.visit.refuse(reject)

    @abstractmethod
    def _is_accident(self, response: Any) -> bool:
        """Whether the response was made of an exception that is not an answer of the view's."""

    def _settle(self, answered: OrderResponse | None, *, failed: bool) -> Refusal | None:
        flow = self.orders.settle(self.decision, answered, failed=failed)
        return at_once(self.visit.thread.ask(flow, self.visit))


class OrderInDatabase(OpenOrder):
    """Its record is in a database of the application's."""

    table: rows.Table

    def _insert(self, database: rows.Database, record: Record) -> None:
        replaces, wait = self.decision.replaces, self.patience
        rows.insert(database, record, replaces=replaces, wait=wait)

    def _write(self, database: rows.Database, record: Record | None) -> None:
        """The last of a transaction. ``record``: None to delete what was written when the order
        began."""
        if record is None:
            rows.forget(database, self.order.key, commit=True)
        else:
            rows.update(database, record, commit=True)

    def _keep_refusal(self, record: Record, response: Any) -> Any:
        """Write the record of an order that changed nothing, in a transaction of its own.

        A database that fails is allowed to: the next try is then refused anew. A success stands:
        its view has saved elsewhere what nobody can undo.
        """
        try:
            if response.status_code >= HTTPStatus.BAD_REQUEST:
                self.check_leases()
            with suppress(BackendError), self.table.begin() as database:
                self._insert(database, record)
        except LeaseLost:
            return self.visit.refuse(refusals.LEASE_LOST)
        except DuplicateKeyError:
            raise OrderStopped(None) from None
        return response
