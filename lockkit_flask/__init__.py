"""lockkit for Flask: locks and orders, per app.

>>> from flask import Flask
>>> from lockkit_flask import LockKit, lock_view
>>> app = Flask("shop")
>>> app.config["LOCKKIT_URL"] = "memory://"
>>> lock_kit = LockKit(app)
>>> @app.post("/orders/<order_id>/pay")
... @lock_view("order:{order_id:str}")
... def pay(order_id: str) -> str:
...     return "paid"
"""

from __future__ import annotations

from lockkit.model.errors import DriverMissing, OpenTransaction

try:
    from lockkit_flask.extension import LockKit
    from lockkit_flask.leases.request_leases import current_lease
    from lockkit_flask.orders.app_orders import idempotent
    from lockkit_flask.orders.forms import new_order_id, order_id_field, remember_guest
    from lockkit_flask.orders.open_order import CurrentOrder, current_order, on_commit
    from lockkit_flask.signals import order_conflict, order_orphaned, order_replayed
    from lockkit_flask.state import AppLocks, alocks, locked, locks
    from lockkit_flask.web.lock_view import lock_view
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("flask", "werkzeug"):
        raise
    raise DriverMissing("lockkit_flask needs Flask: pip install 'lockkit[flask]'") from error

__all__ = [
    "AppLocks",
    "CurrentOrder",
    "LockKit",
    "OpenTransaction",
    "alocks",
    "current_lease",
    "current_order",
    "idempotent",
    "lock_view",
    "locked",
    "locks",
    "new_order_id",
    "on_commit",
    "order_conflict",
    "order_id_field",
    "order_orphaned",
    "order_replayed",
    "remember_guest",
]
