"""The order of the current request: what the app may see of it, and how it ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from flask import current_app, has_request_context, request
from werkzeug.exceptions import HTTPException
from werkzeug.local import LocalProxy

from lockkit.orders import OrderResponse, drive
from lockkit_flask.leases.db_session import ORDER
from lockkit_flask.orders.request import is_of_guest
from lockkit_flask.state import app_locks
from lockkit_flask.web.refusals import refused

if TYPE_CHECKING:
    from flask import Flask, Response

    from lockkit.leases.until import Transaction
    from lockkit.orders import Orders, Proceed, Refusal

NOT_RUN = OrderResponse(HTTPStatus.SERVICE_UNAVAILABLE, (), b"")


class CurrentOrder(NamedTuple):
    """The order that the running view makes: ``request.order``."""

    order_id: str
    fencing_token: int  #: grows with each try: a resource elsewhere may refuse smaller ones
    orphan: bool = False  #: an earlier try was begun, and its end is not known: ORPHANS "retry"


class OpenOrder(ABC):
    """One order while its request runs. It holds the lock of the order, and is used once."""

    active = False  #: the app's sessions work inside its transaction
    can_undo = True  #: what the view did; then an ``after_request`` hook may yet make it a failure
    kept: Transaction | None = None  #: the leases that its end gives back: until="commit"
    answered: OrderResponse | None = None  #: what the view has answered
    status = 0  #: of the response that they were taken from

    def __init__(self, orders: Orders, proceed: Proceed, records: Any, *, below: Any) -> None:
        """From now on it is the order of the current request.

        ``below``: what is below ``@idempotent``; None: it was opened above the view.
        """
        self.orders, self.proceed, self.records, self.below = orders, proceed, records, below
        self.of_guest = is_of_guest(request)
        self.app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]
        self.environ = request.environ
        self._outer = ORDER.get()
        ORDER.set(self)
        order, lease = proceed.order, proceed.lease
        current = CurrentOrder(order.order_id, int(lease.fencing_token), proceed.orphan)
        request.order = current  # type: ignore[attr-defined]

    @abstractmethod
    def begin(self) -> None:
        """Have the record there before the view runs.

        Raises DuplicateKeyError or BackendError; then nothing is open.
        """

    def forgo(self) -> None:
        """The view is not called after all: nothing is left of this try."""
        self.close()

    @abstractmethod
    def note_failure(self, error: BaseException) -> None:
        """The view has raised."""

    @abstractmethod
    def conclude(self, response: Response) -> Response:
        """Make final what the view has answered, by ``answered``. Returns what to answer.

        Raises DuplicateKeyError: nothing of it is left, and the order is another runner's.
        """

    def close(self) -> None:
        """Undo what was not concluded, if it can be undone. Idempotent."""
        if ORDER.get() is self:  # a view may have sent an app another order
            ORDER.set(self._outer)


class ClaimedOrder(OpenOrder):
    """STORE = "redis", for effects in no database of ours: the claim is there before the view.

    Nothing that the view does can be rolled back here: what counts is what is known about it. See
    ``Orders.settle``. A claim that was not settled outlives the request, as an orphan.
    """

    can_undo = False
    _failed = False

    def begin(self) -> None:
        """The claim is written: the engine does it under the lock."""

    def forgo(self) -> None:
        self._settle(NOT_RUN)
        self.close()

    def note_failure(self, error: BaseException) -> None:
        """An HTTP exception is the view's answer; any other says nothing about what was done.

        Nor does what an error handler makes of that, unless it ends the order.
        """
        self._failed = not isinstance(error, HTTPException)

    def conclude(self, response: Response) -> Response:
        reject = self._settle(self.answered)
        return response if reject is None else refused(reject)

    def _settle(self, answered: OrderResponse | None) -> Refusal | None:
        flow = self.orders.settle(self.proceed, answered, failed=self._failed)
        return drive(flow, self.records, app_locks()[self.orders.settings.alias])


def of_request() -> OpenOrder | None:
    """The order of this request. A view may send an app another one."""
    found = ORDER.get()
    if found is None or not has_request_context() or found.environ is not request.environ:
        return None
    return found


def _current() -> CurrentOrder:
    if not has_request_context() or getattr(request, "order", None) is None:
        raise RuntimeError("no order runs in this request")
    return cast(CurrentOrder, request.order)  # type: ignore[attr-defined]


current_order: CurrentOrder = LocalProxy(_current)  # type: ignore[assignment]
"""The order that the running view makes; false when the request is none."""
