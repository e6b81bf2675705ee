"""Orders exactly once: the decisions, without a framework, a database or a clock to wait on.

An adapter translates: a request in, ``Proceed | Replay | Refusal`` out::

    orders = Orders(read_order_settings(mapping))           # once per application

    request = OrderRequest(method="POST", path="/orders/", route="orders/", header=headers.get,
                           media_type="application/json",
                           read_payload=lambda: Payload(body=raw),
                           read_identity=lambda: Identity(user="auth.User:7"))
    order = orders.identify(request)                        # None: not an order; Refusal: answer it
    decision = drive(orders.admit(order), store, locks)     # or: await adrive(...)
    match decision:
        case Replay(snapshot):                              # snapshot.status, .headers, .body
            ...                                             # + REPLAYED_HEADER; no view
        case Refusal():                                     # .status, .headers(), .problem()
            ...
        case Proceed(order, lease):
            # 1. begin the transaction; if decision.replaces, delete the row of order.key
            # 2. insert orders.running(order); on a duplicate key roll back, and continue with
            #    decision = drive(orders.reconsider(decision), store, locks)
            # 3. call the view, render the response
            # 4. match orders.conclude(order, OrderResponse(...)):
            #        Keep(record): lease.check(), update the row, commit
            #        Forget(): lease.check(), delete the row, commit the view's changes
            #        Discard(): roll back
            #    an exception rolls back as well; a response made from it may be kept
            #    afterwards, in a transaction of its own
            # 5. release the lease in every case, after COMMIT or ROLLBACK

``store`` finds records (``RecordStore``), ``locks`` is a LockClient.
After Proceed the lease belongs to the adapter. ``refusals`` has the refusals that only an
adapter can notice: a lost lease, a store that fails in the middle.

Guarantee: an order takes effect exactly once within TTL in the database that holds its record,
if the record with its unique key is in the same transaction as the effects. The lock only
keeps duplicates from waiting inside transactions; the key decides. Limit: effects outside
that database (mail, payments) happen at least once, and at most once at a time.
"""

from __future__ import annotations

from lockkit.orders.decisions import Discard, Forget, Keep, Proceed, Replay
from lockkit.orders.engine import Orders
from lockkit.orders.gate import adrive, drive
from lockkit.orders.order import Order
from lockkit.orders.record import DuplicateKeyError, Record, Snapshot, StillRunningError
from lockkit.orders.request import Identity, OrderRequest, OrderResponse, Payload
from lockkit.orders.settings import OrderSettings, read_order_settings
from lockkit.web.refusal import Refusal

__all__ = [
    "Discard", "DuplicateKeyError", "Forget", "Identity", "Keep", "Order", "OrderRequest",
    "OrderResponse", "OrderSettings", "Orders", "Payload", "Proceed", "Record", "Refusal",
    "Replay", "Snapshot", "StillRunningError", "adrive", "drive", "read_order_settings",
]  # fmt: skip
