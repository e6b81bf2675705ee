"""The order of the current request: what the app may see of it, and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from flask import current_app, has_app_context, has_request_context, request
from werkzeug.exceptions import HTTPException
from werkzeug.local import LocalProxy

from lockkit.orders import gate, redis_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Response

    from lockkit.leases.until import Transaction
    from lockkit_flask.orders.visit import Visit


class OpenOrder(gate.OpenOrder):
    """``request.order``: has ``order_id``, ``fencing_token`` and ``orphan``."""

    visit: Visit
    context: Any  #: the context of its request
    active = False  #: the app's sessions work inside the order's transaction
    undone = False  #: what the view did, a login for one, was rolled back
    kept: Transaction | None = None  #: the leases that its end gives back: until="commit"

    def capture(self, response: Response) -> None:
        """The view's answer, before hooks change it or save something."""
        self.visit.capture(response)

    def on_commit(self, function: Callable[[], object]) -> None:
        """See the function. With STORE "redis", what the view has committed is saved."""
        function()

    def overrule(self) -> None:
        """An ``after_request`` hook has failed, or has turned the view's answer into a failure.
        Other statuses that a hook sets say nothing about how the view has ended."""
        if self.visit.captured is not None:
            self.visit.captured = self.visit.captured._replace(status=500)


class ClaimedOrder(redis_records.ClaimedOrder, OpenOrder):
    """An order with STORE "redis". An HTTP exception is the view's answer; any other exception says
    nothing about what was done.

    The same holds for what an error handler makes of it, unless that is a 4xx that is stored.
    """

    def overrule(self) -> None:
        """Does nothing: what the view did cannot be undone."""

    def abandon(self) -> None:
        """If a hook fails on the error page, too, Flask ends the request without ``close``. Then
        the view's answer stands."""
        captured = self.visit.captured
        if captured is None:
            super().abandon()
        else:
            self._settle(captured, failed=self._is_accident(None))

    def _is_accident(self, response: Any) -> bool:
        return self.failed and not isinstance(self.error, HTTPException)

    def _raised_status(self) -> int | None:
        return status_of(self.error) if isinstance(self.error, HTTPException) else None


def asking_for_bind(connect: Callable[..., Any]) -> Callable[..., Any]:
    """``Session.connection``, which would use a bind that is named there without ``get_bind``."""

    def connection(session: Any, bind_arguments: Any = None, *args: Any, **kwargs: Any) -> Any:
        if bind_arguments:
            bind_arguments = {"bind": session.get_bind(**bind_arguments)}
        return connect(session, bind_arguments, *args, **kwargs)

    return connection


def may_write(session: Any, clause: Any) -> bool:
    """Whether a session may write what it asks for a bind for. A text may do anything, and so may a
    connection, for which it asks without a clause."""
    from sqlalchemy.sql import visitors

    if session._flushing or not getattr(clause, "is_select", False):
        return True
    return any(_writes(each) for each in visitors.iterate(clause))


def _writes(part: Any) -> bool:
    """Whether this part of a query, such as a CTE, is a statement that writes, or a text."""
    return bool(getattr(part, "is_dml", False) or getattr(part, "is_text", False))


def status_of(error: HTTPException) -> int:
    return error.response.status_code if error.response else error.code or 500


CurrentOrder = OpenOrder
"""The type of ``current_order``."""


def _current() -> Any:
    order = getattr(request, "order", None) if has_request_context() else None
    if order is None:
        raise RuntimeError("no order runs in this request")
    return order


def on_commit(function: Callable[[], object]) -> None:
    """Have a function called once the transaction of this request's order is committed; not at all
    if nothing is saved. At once, if the request is not an order, the COMMIT is done, or STORE is
    "redis": then what the view has committed is saved. At most once: not again if it raises, or if
    the process dies.

    It may be a coroutine function, as a view may. If it raises in an order, the answer is 500, the
    order stays, and functions that were to be called after it are not called.
    """
    if has_app_context():
        function = current_app.ensure_sync(function)
    order = getattr(request, "order", None) if has_request_context() else None
    if order is None:
        function()
    else:
        order.on_commit(function)


current_order = cast(OpenOrder, LocalProxy(_current))
"""The order that the running view makes; false if the request is not an order."""
