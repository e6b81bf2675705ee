"""The shop as real servers run it. Tests only."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from flask import Flask, request

from flask_project import create_app, db, put
from lockkit import BackendUnavailable
from lockkit_flask.state import app_locks

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue

LARGEST_REQUEST = 1000
LARGEST_RESPONSE = 2000
MOST_WAITERS = 9
PATIENCE = 60.0


class Gate(NamedTuple):
    entered: threading.Event
    released: threading.Event


gates: dict[str, Gate] = {}


def wsgi() -> Flask:
    app = create_app(
        LOCKKIT_ORDERS={
            "ORDER_ID": ["header:Idempotency-Key", "json:order_id"],
            "PATHS": ["^/covered/"],
            "REQUIRED": True,
            "TENANT": "flask_project.hooks.of_header",
            "WAIT": 50,
            "MAX_WAITERS": MOST_WAITERS,
            "MAX_REQUEST": LARGEST_REQUEST,
            "MAX_RESPONSE": LARGEST_RESPONSE,
        }
    )
    for rule in list(app.url_map.iter_rules()):
        if rule.methods is not None and "POST" in rule.methods:
            view = app.view_functions[rule.endpoint]
            app.add_url_rule(
                f"/covered{rule.rule}", f"covered-{rule.endpoint}", view, methods=["POST"]
            )
    for rule, view in (
        ("/covered/held/<name>", held),
        ("/covered/large", large),
        ("/covered/returns/<int:status>", returns),
        ("/entered/<name>", wait_for_entry),
        ("/release/<name>", release),
    ):
        app.add_url_rule(rule, view_func=view, methods=["POST"])
    _break_on_demand(app)
    with app.app_context():
        db.create_all()
    return app


def asgi() -> Any:
    from a2wsgi import WSGIMiddleware

    app = wsgi()

    def to_its_end(environ: dict[str, Any], start_response: Any) -> Any:
        """Without this, Werkzeug takes a body without a length for an empty one."""
        environ["wsgi.input_terminated"] = True
        return app(environ, start_response)

    return WSGIMiddleware(to_its_end, workers=16)


def held(name: str) -> ResponseReturnValue:
    put(name)
    db.session.commit()
    gate(name).entered.set()
    gate(name).released.wait(PATIENCE)
    return "ok"


def wait_for_entry(name: str) -> ResponseReturnValue:
    return "", 204 if gate(name).entered.wait(PATIENCE) else 504


def release(name: str) -> ResponseReturnValue:
    gate(name).released.set()
    return "", 204


def gate(name: str) -> Gate:
    return gates.setdefault(name, Gate(threading.Event(), threading.Event()))


def returns(status: int) -> ResponseReturnValue:
    put("returns")
    db.session.commit()
    return "not now", status


def large() -> ResponseReturnValue:
    return "x" * (LARGEST_RESPONSE + 1), {"Location": "/here"}


def _break_on_demand(app: Flask) -> None:
    """As when the database cannot be reached."""
    orders = app_locks(app).orders
    assert orders is not None
    records: Any = orders.records
    looks_first = records.check_engine

    def fail_on_demand() -> None:
        if request.headers.get("X-Down"):
            raise BackendUnavailable("down")
        looks_first()

    records.check_engine = fail_on_demand
