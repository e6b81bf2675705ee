"""Orders exactly once: the decisions, without a framework, a database or a clock to wait on.

An adapter translates: facts of the request in, ``Proceed | Replay | Reject`` out::

    orders = Orders(read_order_settings(mapping))           # once per application

    facts = RequestFacts(method="POST", path="/orders/", route="orders/", header=headers.get,
                         media_type="application/json",
                         read_payload=lambda: Payload(body=raw),
                         read_identity=lambda: Identity(user="auth.User:7"))
    order = orders.identify(facts)                          # None: not an order; Reject: say so
    decision = drive(orders.admit(order), store, locks)     # or: await adrive(...)
    match decision:
        case Replay(snapshot):                              # snapshot.status, .headers, .body
            ...                                             # + REPLAYED_HEADER; no view
        case Reject():                                      # .status, .headers(), .problem()
            ...
        case Proceed(order, lease):
            # 1. begin the transaction; if decision.replaces, delete the row of order.key
            # 2. insert orders.running(order); on a duplicate key roll back, and go on with
            #    decision = drive(orders.reconsider(decision), store, locks)
            # 3. call the view, render the response
            # 4. match orders.conclude(order, ResponseFacts(...)):
            #        Keep(record): lease.check(), update the row, commit
            #        Refused(): lease.check(), delete the row, commit what the view has saved
            #        Discard(): roll back
            #    an exception rolls back as well; a response made of it may be kept
            #    afterwards, in a transaction of its own
            # 5. release the lease, in every case and after COMMIT or ROLLBACK

``store`` finds records (``RecordStore``), ``locks`` is a LockClient.
The lease belongs to the adapter once it was told Proceed. ``replies`` has the refusals that only
an adapter can notice: a lost lease, a store that fails in the middle, a replay not allowed.

Guarantee: an order takes effect exactly once within TTL, in the database that holds its record,
provided that the unique key on the record is in the same transaction as the effects. The lock
keeps duplicates from waiting inside transactions; the key alone decides. Limit: effects outside
that database (mail, payments) happen at least once, and at most once at a time.
"""

from __future__ import annotations

from lockkit.orders.drivers import (
    ClaimStore,
    RecordStore,
    RecoverHook,
    adrive,
    drive,
)
from lockkit.orders.engine import Orders
from lockkit.orders.facts import (
    FileFacts,
    Identity,
    Order,
    Payload,
    RequestFacts,
    ResponseFacts,
)
from lockkit.orders.forms import FormIds
from lockkit.orders.judging import met_orphan
from lockkit.orders.orderid import IdSource, MalformedOrderIdError, parse_order_id
from lockkit.orders.record import (
    DuplicateKeyError,
    Record,
    Snapshot,
    State,
    StillRunningError,
    dump_headers,
    load_headers,
)
from lockkit.orders.replies import REPLAYED_HEADER, Reject, Replay
from lockkit.orders.settings import OrderSettings, read_order_settings
from lockkit.orders.steps import (
    Acquire,
    Claim,
    Decision,
    Discard,
    Drop,
    Find,
    Finish,
    Flow,
    Give,
    Keep,
    Proceed,
    Recover,
    Refused,
)

__all__ = [
    "REPLAYED_HEADER",
    "Acquire",
    "Claim",
    "ClaimStore",
    "Decision",
    "Discard",
    "Drop",
    "DuplicateKeyError",
    "FileFacts",
    "Find",
    "Finish",
    "Flow",
    "FormIds",
    "Give",
    "IdSource",
    "Identity",
    "Keep",
    "MalformedOrderIdError",
    "Order",
    "OrderSettings",
    "Orders",
    "Payload",
    "Proceed",
    "Record",
    "RecordStore",
    "Recover",
    "RecoverHook",
    "Refused",
    "Reject",
    "Replay",
    "RequestFacts",
    "ResponseFacts",
    "Snapshot",
    "State",
    "StillRunningError",
    "adrive",
    "drive",
    "dump_headers",
    "load_headers",
    "met_orphan",
    "parse_order_id",
    "read_order_settings",
]
