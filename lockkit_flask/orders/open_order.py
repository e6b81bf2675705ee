"""The order of the current request: what the app may see of it, and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from flask import has_request_context, request
from werkzeug.exceptions import HTTPException
from werkzeug.local import LocalProxy

from lockkit.orders import gate, redis_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Response

    from lockkit.leases.until import Transaction
    from lockkit_flask.orders.visit import Visit


class OpenOrder(gate.OpenOrder):
    """``request.order``: has ``order_id``, ``fencing_token``, ``orphan`` and ``on_commit``."""

    visit: Visit
    context: Any  #: the context of its request
    active = False  #: the app's sessions work inside the order's transaction
    undone = False  #: what the view did, a login for one, was rolled back
    kept: Transaction | None = None  #: the leases that its end gives back: until="commit"

    def capture(self, response: Response) -> None:
        """The view's answer, before hooks change it or save something."""
        self.visit.capture(response)

    def on_commit(self, function: Callable[[], object]) -> None:
        """Have a function called after the COMMIT of the order: not at all if nothing is saved.

        With STORE "redis" it is called at once, because what the view has committed is saved.
        """
        function()

    def overrule(self) -> None:
        """An ``after_request`` hook has failed, or has turned the view's answer into a failure.
        Other statuses that a hook sets say nothing about how the view has ended."""
        if self.visit.captured is not None:
            self.visit.captured = self.visit.captured._replace(status=500)


class ClaimedOrder(redis_records.ClaimedOrder, OpenOrder):
    """An order with STORE "redis". An HTTP exception is the view's answer; any other exception says
    nothing about what was done.

    The same holds for what an error handler makes of it, unless that response ends the order.
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


CurrentOrder = OpenOrder
"""The type of ``current_order``."""


def _current() -> Any:
    order = getattr(request, "order", None) if has_request_context() else None
    if order is None:
        raise RuntimeError("no order runs in this request")
    return order


current_order = cast(OpenOrder, LocalProxy(_current))
"""The order that the running view makes; false if the request is not an order."""
