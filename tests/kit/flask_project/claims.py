"""A shop that keeps nothing in a database: its effects are lines of a file. Tests only."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flask import Flask, Request, abort, current_app, request

from lockkit_flask import LockKit, current_order, lock_view

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue


class Refused(Exception):
    """An error of the app with a handler of its own."""


def create_app(paid: Path, url: str, **orders: Any) -> Flask:
    """``paid``: the file of the effects. ``orders``: of LOCKKIT_ORDERS."""
    app = Flask(__name__)
    app.config.update(
        PAID=paid,
        LOCKKIT={"default": {"LOCATION": url, "TTL": 30}},
        LOCKKIT_USER=lambda: request.headers.get("X-User"),
        LOCKKIT_ORDERS={
            "ORDER_ID": ["header:X-Order-ID"],
            "PATHS": ["^/"],
            "WAIT": 50,
            "STORE": "redis",
            "NAMESPACE": "shop",
            **orders,
        },
    )
    LockKit(app)
    app.register_error_handler(Refused, lambda error: error.args)
    for view in (answers, aborts, refuses, raises, dies, locked):
        app.add_url_rule(f"/{view.__name__}", view_func=view, methods=["POST"])
    return app


def pay() -> str:
    """The effect. Returns what tells it from any other."""
    line = f"{current_order.order_id} {current_order.fencing_token}\n"
    with Path(current_app.config["PAID"]).open("a", encoding="utf-8") as file:
        file.write(line)
    return line


def status() -> int:
    return int(request.headers.get("X-Status", "201"))


def answers() -> ResponseReturnValue:
    return pay(), status(), {"Location": "/paid/1", "Set-Cookie": "secret=1"}


def aborts() -> ResponseReturnValue:
    pay()
    abort(status())


def refuses() -> ResponseReturnValue:
    raise Refused(pay(), status())


def raises() -> ResponseReturnValue:
    pay()
    raise RuntimeError


def dies() -> ResponseReturnValue:
    paid = pay()
    if request.headers.get("X-Die"):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{paid} orphan: {current_order.orphan}"


@lock_view("stock:42", timeout=0, on_busy=lambda _: "busy")
def locked() -> ResponseReturnValue:
    return pay()


def recover(request: Request, order_id: str) -> ResponseReturnValue | None:
    """A hook that asks the payment service, which knows an order ID when it has seen it."""
    paid = Path(current_app.config["PAID"])
    if request.headers.get("X-Unknown") or not paid.exists():
        return None
    return f"known: {order_id}", 201


def die(paid: Path, url: str) -> None:
    """Order in a process that is killed meanwhile, in a module that a spawned one can import."""
    headers = {"X-Order-ID": "A-1", "X-User": "alice", "X-Die": "1"}
    create_app(paid, url).test_client().post("/dies", headers=headers)
