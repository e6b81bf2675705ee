"""The order of the current request: what the app may see of it, and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from flask import current_app, has_request_context, request
from werkzeug.exceptions import HTTPException
from werkzeug.local import LocalProxy

from lockkit.orders import gate, redis_records
from lockkit_flask.leases import request_leases
from lockkit_flask.leases.db_session import ORDER

if TYPE_CHECKING:
    from flask import Flask

    from lockkit.leases.until import Transaction
    from lockkit.orders import Proceed
    from lockkit_flask.orders.visit import Visit


class OpenOrder(gate.OpenOrder):
    """``request.order``: has ``order_id``, ``fencing_token`` and ``orphan``."""

    visit: Visit
    active = False  #: the app's sessions work inside its transaction
    can_undo = True  #: what the view did; then an ``after_request`` hook may yet make it a failure
    kept: Transaction | None = None  #: the leases that its end gives back: until="commit"

    def __init__(self, visit: Visit, decision: Proceed) -> None:
        """From now on it is the order of the current request."""
        super().__init__(visit, decision)
        self.app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]
        self.environ = visit.request.environ
        self._outer = ORDER.get()
        ORDER.set(self)
        visit.request.order = self
        request_leases.add(visit, decision.lease, is_view=False)

    def check_leases(self) -> None:
        request_leases.check_all()

    def detach(self) -> None:
        if ORDER.get() is self:  # a view may have sent an app another order
            ORDER.set(self._outer)
        if self.kept is not None:
            self.kept.give_back()


class ClaimedOrder(redis_records.ClaimedOrder, OpenOrder):
    """An HTTP exception is the view's answer; any other says nothing about what was done.

    Nor does what an error handler makes of that, unless it ends the order.
    """

    can_undo = False

    def _is_accident(self, response: Any) -> bool:
        return self.failed and not isinstance(self.error, HTTPException)


def of_request() -> OpenOrder | None:
    """The order of this request. A view may send an app another one."""
    found = ORDER.get()
    if found is None or not has_request_context() or found.environ is not request.environ:
        return None
    return found


CurrentOrder = OpenOrder
"""The type of ``current_order``."""


def _current() -> OpenOrder:
    if not has_request_context() or getattr(request, "order", None) is None:
        raise RuntimeError("no order runs in this request")
    return cast(OpenOrder, request.order)  # type: ignore[attr-defined]


current_order: OpenOrder = LocalProxy(_current)  # type: ignore[assignment]
"""The order that the running view makes; false when the request is none."""
