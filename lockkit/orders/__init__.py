"""Orders: requests with an order ID, which take effect once, however often clients repeat them.

Each request for an order is a *try*; those after the first are *duplicates*. Nothing here needs a
framework: an adapter describes a request as a ``visit.Visit`` and its transaction as a
``gate.OpenOrder``, and takes these steps::

    orders = Orders(read_order_settings(mapping))          # once per application
    answer = await gate.enter(visit, runner)               # an OpenOrder, an answer, or None
    answer = await gate.begin(opened, runner)              # an answer, or None: call the view
    answer = await gate.close(opened, response, runner)    # COMMIT or ROLLBACK, whichever is right
    await gate.leave(opened, runner)                       # release, in every case

The engine, which ``gate`` asks, makes the decisions::

    order = orders.identify(OrderRequest(…))            # Order, Refusal, or None: not an order
    decision = drive(orders.admit(order), store, locks) # Proceed, Replay or Refusal
    ending = orders.conclude(order, OrderResponse(…))   # Keep, Forget or Discard

Guarantee: an order takes effect exactly once within TTL in the database that holds its record,
if the record with its unique key is in the same transaction as the effects. The lock only
keeps duplicates from waiting inside transactions; the key decides. Limit: effects outside
that database (mail, payments) happen again if the view fails after them.
"""

from __future__ import annotations

from lockkit.orders.decisions import Discard, Forget, Keep, Proceed, Replay
from lockkit.orders.engine import Orders
from lockkit.orders.flow import adrive, drive
from lockkit.orders.order import Order
from lockkit.orders.record import (
    DuplicateKeyError,
    Identity,
    OrderRequest,
    OrderResponse,
    Payload,
    Record,
    Snapshot,
    StillRunningError,
)
from lockkit.orders.settings import OrderSettings, read_order_settings
from lockkit.web.refusal import Refusal

__all__ = [
    "Discard", "DuplicateKeyError", "Forget", "Identity", "Keep", "Order", "OrderRequest",
    "OrderResponse", "OrderSettings", "Orders", "Payload", "Proceed", "Record", "Refusal",
    "Replay", "Snapshot", "StillRunningError", "adrive", "drive", "read_order_settings",
]  # fmt: skip
