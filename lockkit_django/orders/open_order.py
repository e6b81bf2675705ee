"""An order whose view is running: its lease, what the view may ask of it, and its end.

The methods belong on the thread that has the request's database connection.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponseBase

from lockkit.leases.aio_client import AsyncLease
from lockkit_django.orders.visit import SessionBefore
from lockkit_django.web.pending import OPEN_ORDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django.db.transaction import Atomic

    from lockkit.orders import Order, Orders, Proceed
    from lockkit.web.view_lock import AnyAsyncLease, AnyLease
    from lockkit_django.orders.endings import Ending
    from lockkit_django.orders.gate import Gate

__all__ = ["OpenOrder", "open_order"]


def open_order(request: HttpRequest) -> OpenOrder | None:
    """The order that this request has opened, until its transaction and its lock are gone."""
    return getattr(request, OPEN_ORDER, None)


class OpenOrder:
    """Attached to the request before anything is done, so that whatever happens it is undone.

    ``request.order`` is this object. For the view: ``order_id``, ``fencing_token``, and in a view
    that commits itself ``commit_in`` and ``respond_with``.
    """

    def __init__(
        self,
        request: HttpRequest,
        orders: Orders,
        gate: Gate,
        make_ending: Callable[[OpenOrder], Ending],
    ) -> None:
        self.request = request
        self.orders = orders
        self.gate = gate
        self.front: Any = request  #: the request as the view sees it: DRF wraps one
        self.ended = False  #: nothing is open, and nothing is under way
        self.closed = False
        self._decision: Proceed | None = None
        self._adopted: list[AnyLease | AnyAsyncLease] = []
        self.error: Exception | None = None  #: that the view has raised, if it was seen
        self.in_request_block = False  #: the order's transaction is that of ATOMIC_REQUESTS, too
        self._failed = False
        self._before: SessionBefore | None = None
        self._ending = make_ending(self)
        setattr(request, OPEN_ORDER, self)

    @property
    def order_id(self) -> str:
        return self.order.order_id

    @property
    def fencing_token(self) -> int:
        """Grows with each try at this order: a resource outside the database may compare it."""
        return int(self.admitted.lease.fencing_token)

    @property
    def orphan(self) -> bool:
        """Whether an earlier try was begun whose end is not known: with ORPHANS "retry"."""
        return self.admitted.orphan

    def commit_in(self, block: Atomic) -> AbstractContextManager[None]:
        """``with request.order.commit_in(transaction.atomic(durable=True)): …``

        For a view below ``@idempotent(atomic=False)``, which commits itself: the order is done
        when this block commits, and not if it is rolled back. Use it for the one block that has
        the order's effects. Without ``respond_with`` inside, a process that is killed between
        this COMMIT and the response leaves an order that is done and has no response to repeat.

        Raises ConfigurationError for another block or database, and OrderStopped, which is not
        to be caught, if the order cannot be done by this request.
        """
        return self._ending.commit_in(block)

    def respond_with(self, response: Any) -> Any:
        """Store this response with the effects, inside ``commit_in``; returns it.

        It is rendered now, and it is what the client gets. Raises ConfigurationError outside of
        ``commit_in``, and for a status that is not stored.
        """
        return self._ending.respond_with(response)

    @property
    def leases(self) -> list[Any]:
        """To be released after COMMIT or ROLLBACK, the last one first."""
        own = [] if self._decision is None else [self._decision.lease]
        return [*reversed(self._adopted), *own]

    @property
    def admitted(self) -> Proceed:
        assert self._decision is not None
        return self._decision

    @property
    def order(self) -> Order:
        return self.admitted.order

    @property
    def is_async(self) -> bool:
        """Whether the event loop that runs the view also ends the order: not so under WSGI."""
        return isinstance(self.admitted.lease, AsyncLease)

    @property
    def pending(self) -> bool:
        """Whether the transaction is still to be begun, under another lock of the view's."""
        return self._decision is not None and not self._ending.begun and not self.closed

    def admit(self, decision: Proceed) -> None:
        """The lease is ours to release from here on."""
        self._decision = decision
        self.request.order = self  # type: ignore[attr-defined]

    def adopt(self, lease: AnyLease | AnyAsyncLease) -> None:
        """Another lease that must outlive the transaction."""
        self._adopted.append(lease)

    def check_leases(self) -> None:
        """Raises LeaseLost."""
        for lease in reversed(self.leases):
            lease.check()

    def begin(self) -> None:
        """Insert the record: a stale second runner stops here, before its view.

        Raises DuplicateKeyError or a BackendError; then nothing is open.
        """
        self._before = SessionBefore(self.request)
        self._ending.begin()

    def besides(self, aliases: Iterable[str]) -> list[str]:
        """Those databases that need a transaction of their own around the view."""
        aliases = list(aliases)
        self.in_request_block = self._ending.database in aliases
        return [alias for alias in aliases if alias != self._ending.database]

    def fail(self, error: Exception) -> HttpResponseBase | None:
        """The view raised: it has not answered, whatever response is made of it."""
        self._failed, self.error = True, error
        return self._ending.answer_to(error)

    def close(self, response: HttpResponseBase) -> HttpResponseBase:
        """COMMIT the effects with their record, or ROLLBACK. Returns what to answer."""
        try:
            return self._ending.end(response, failed=self._failed)
        finally:
            self.ended = True
            if self._before is not None and self._ending.undone:
                self._before.restore()

    def abandon(self) -> None:
        """ROLLBACK, if it was not closed: the request was cancelled, or the process must end."""
        self._ending.abandon()

    def detach(self) -> None:
        """The request has no open order any more."""
        self.closed = True
        with suppress(AttributeError):
            delattr(self.request, OPEN_ORDER)
