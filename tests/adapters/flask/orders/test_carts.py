"""The session of an order that is rolled back: a cart must not be gone when there is no order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from flask import Flask, flash, get_flashed_messages, session
from flask_project import db, put

from lockkit.model.errors import LeaseLost
from lockkit_flask import current_order, locks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flask.testing import FlaskClient
    from flask.typing import ResponseReturnValue
    from werkzeug.test import TestResponse

BEFORE = {"cart": {"A1": [1]}, "shown": True}


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.sqlite3'}"


def fill() -> ResponseReturnValue:
    session["cart"] = {"A1": [1]}
    session["shown"] = True
    return "", 204


def order(end: Callable[[], ResponseReturnValue]) -> Callable[[], ResponseReturnValue]:
    def view() -> ResponseReturnValue:
        put("sold")
        db.session.commit()
        session["cart"]["A1"].append(2)
        session.pop("cart")
        session["thanks"] = True
        return end()

    return view


def is_handled() -> ResponseReturnValue:
    raise KeyError


def tell(error: Exception) -> ResponseReturnValue:
    flash("sorry")
    return "sorry", 500


def forgets() -> ResponseReturnValue:
    put("forgotten")
    return "not committed"


def loses() -> ResponseReturnValue:
    """Somebody breaks its lock meanwhile."""
    (lease,) = current_order.leases
    assert locks["default"].break_(lease.name, fence=current_order.fencing_token)
    with pytest.raises(LeaseLost):
        lease.extend()
    return "", 201


DEFERRED = """CREATE TABLE stock
    (shelf INTEGER REFERENCES shelf (id) DEFERRABLE INITIALLY DEFERRED)"""


CHECKED = "PRAGMA foreign_keys = ON"


def breaks_a_deferred_constraint() -> ResponseReturnValue:
    db.session.execute(sa.text("INSERT INTO stock VALUES (9)"))
    db.session.commit()
    return "", 201


ENDS: dict[str, Callable[[], Any]] = {
    "returns-500": lambda: ("", 500),
    "is-handled": is_handled,
    "forgets": forgets,
    "loses": loses,
    "listener": lambda: ("", 201),
    "database": breaks_a_deferred_constraint,
}


@pytest.fixture
def visitor(make_shop: Callable[..., Flask]) -> FlaskClient:
    app = make_shop()
    app.add_url_rule("/fill", view_func=fill)
    app.add_url_rule("/cart", "cart", lambda: dict(session))
    app.add_url_rule("/told", view_func=get_flashed_messages)
    for name, end in ENDS.items():
        app.add_url_rule(f"/buy-{name}", f"buy-{name}", order(end), methods=["POST"])
    app.register_error_handler(KeyError, tell)
    client = app.test_client()
    client.get("/fill")
    return client


def buy(visitor: FlaskClient, end: str) -> TestResponse:
    return visitor.post(f"/buy-{end}", headers={"X-User": "alice", "X-Order-ID": "A-1"})


@pytest.mark.parametrize("end", ["returns-500", "forgets", "loses"])
def test_the_cart_comes_back_with_the_order(visitor: FlaskClient, end: str) -> None:
    assert buy(visitor, end).status_code >= 404
    assert visitor.get("/cart").json == BEFORE


def refuse(_: object) -> None:
    raise ValueError


@pytest.mark.parametrize("refusing", ["listener", "database"])
def test_the_cart_comes_back_if_the_commit_is_refused(visitor: FlaskClient, refusing: str) -> None:
    with visitor.application.app_context():
        engine = db.engine
        if refusing == "database":
            with engine.begin() as connection:
                connection.execute(sa.text("CREATE TABLE shelf (id INTEGER PRIMARY KEY)"))
                connection.execute(sa.text(DEFERRED))
            sa.event.listen(engine, "connect", lambda dbapi, _: dbapi.execute(CHECKED))
            engine.dispose()
        else:
            sa.event.listen(engine, "commit", refuse)
    assert buy(visitor, refusing).status_code >= 500
    if refusing == "listener":
        sa.event.remove(engine, "commit", refuse)
    assert visitor.get("/cart").json == BEFORE


def test_what_an_error_handler_says_to_the_visitor_stays(visitor: FlaskClient) -> None:
    assert buy(visitor, "is-handled").status_code == 500
    assert visitor.get("/told").json == ["sorry"]
    assert visitor.get("/cart").json == BEFORE


def test_an_app_without_sessions_has_orders(make_shop: Callable[..., Flask]) -> None:
    app = make_shop(SECRET_KEY=None)
    headers = {"X-User": "alice", "X-Order-ID": "A-1"}
    assert app.test_client().post("/returns_500", headers=headers).status_code == 500
