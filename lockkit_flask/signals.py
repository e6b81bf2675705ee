"""Blinker signals that tell what became of an order. The sender is the app.

>>> from lockkit_flask import order_conflict
>>> @order_conflict.connect
... def suspicious(app, *, request, order_id):
...     app.logger.warning("order ID %r was used for another request", order_id)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blinker import NamedSignal, Namespace
from flask import current_app, request

from lockkit.model.log import log
from lockkit_flask.leases.db_session import behind

if TYPE_CHECKING:
    from lockkit.orders import Order

_signals = Namespace()

order_replayed = _signals.signal("order-replayed", "A repeated request got a stored answer.")
order_conflict = _signals.signal("order-conflict", "An order ID came with another request: 422.")
order_orphaned = _signals.signal("order-orphaned", "It is not known how an earlier try ended.")


def send(signal: NamedSignal, order: Order) -> None:
    """Call the receivers. An exception of a receiver is logged and does not break the request."""
    app = behind(current_app)
    for receiver in list(signal.receivers_for(app)):
        try:
            app.ensure_sync(receiver)(app, request=request, order_id=order.order_id)
        except Exception:  # noqa: BLE001  whatever it is, the request goes on
            log.exception("a receiver of the signal %r failed", signal.name)
