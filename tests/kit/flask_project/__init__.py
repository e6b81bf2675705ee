"""A shop in Flask-SQLAlchemy whose views commit in every way that views do. Tests only."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from flask import Flask, Request, abort, current_app, jsonify, redirect, request
from flask.views import MethodView
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from lockkit_flask import LockKit, lock_view

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue


class Base(DeclarativeBase):
    pass


db = SQLAlchemy(model_class=Base)


@sa.event.listens_for(sa.Engine, "connect")
def wait_for_no_disk(connection: Any, _: object) -> None:
    """Nobody pulls the plug of this machine."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF").close()


class Order(db.Model):  # type: ignore[name-defined, misc]
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(50))


class User(db.Model):  # type: ignore[name-defined, misc]
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(50))
    seen: Mapped[int] = mapped_column(default=0)


class Refused(Exception):
    """An error of the app with a handler of its own."""


def create_app(**config: Any) -> Flask:
    app = Flask(__name__)
    app.config.update(
        {
            "SECRET_KEY": "s",
            "SQLALCHEMY_DATABASE_URI": os.environ.get("SHOP_DATABASE"),
            "LOCKKIT_ORDERS": {"ORDER_ID": ["header:X-Order-ID"], "PATHS": ["^/"], "WAIT": 50},
            "LOCKKIT_USER": lambda: request.headers.get("X-User"),
            "CALLS": 0,
            **config,
        }
    )
    app.after_request(commit_late)  # Flask runs it after what is registered later
    db.init_app(app)
    LockKit(app)
    app.before_request(count)
    app.register_error_handler(Refused, lambda error: error.args)
    for view in VIEWS:
        app.add_url_rule(f"/{view.__name__}", view_func=view, methods=["POST"])
    app.add_url_rule("/class_view", view_func=ClassView.as_view("class_view"))
    return app


def count() -> None:
    current_app.config["CALLS"] += 1


def commit_late(response: Any) -> Any:
    """An app may commit when the view is done, and change every response."""
    if response.headers.get("X-Late"):
        db.session.commit()
    response.headers["X-Passed"] = "after_request"
    return response


def put(name: str) -> Order:
    order = Order(name=name)
    db.session.add(order)
    return order


def one() -> ResponseReturnValue:
    order = put("one")
    db.session.commit()
    headers = {"Location": f"/orders/{order.id}", "Set-Cookie": "secret=1", "X-Other": "1"}
    return jsonify(id=order.id, name=order.name), 201, headers


def two() -> ResponseReturnValue:
    first = put("two")
    db.session.commit()
    first.name = "two"
    put("two")
    db.session.commit()
    return str(first.id)


def undone() -> ResponseReturnValue:
    put("undone")
    db.session.commit()
    put("undone")
    db.session.flush()
    db.session.rollback()
    return "one of two"


def nested() -> ResponseReturnValue:
    with db.session.begin_nested():
        put("nested")
    db.session.commit()
    return "ok"


def other_session() -> ResponseReturnValue:
    put("other_session")
    db.session.commit()
    db.session.remove()
    put("other_session")
    db.session.commit()
    return "ok"


def forgotten() -> ResponseReturnValue:
    put("forgotten")
    db.session.flush()
    return "not committed"


def late() -> ResponseReturnValue:
    put("late")
    return "ok", {"X-Late": "1"}


def refused() -> ResponseReturnValue:
    put("refused")
    db.session.flush()
    return "no such product", 404


def fails() -> ResponseReturnValue:
    put("fails")
    db.session.commit()
    raise RuntimeError


def returns_500() -> ResponseReturnValue:
    put("returns_500")
    db.session.commit()
    return "broken", 500


def aborts() -> ResponseReturnValue:
    put("aborts")
    db.session.commit()
    abort(int(request.args.get("status", "410")))


def redirects() -> ResponseReturnValue:
    put("redirects")
    db.session.commit()
    abort(redirect("/thanks"))


def raises_own() -> ResponseReturnValue:
    if request.args.get("commit"):
        put("raises_own")
        db.session.commit()
    raise Refused("handled", int(request.args["status"]))


def streams() -> ResponseReturnValue:
    put("streams")
    db.session.commit()
    return iter(["a", "b"]), {"Location": "/here"}


async def coroutine() -> ResponseReturnValue:
    put("coroutine")
    db.session.commit()
    return "ok"


def slow() -> ResponseReturnValue:
    put("slow")
    db.session.commit()
    threading.Event().wait(0.3)
    return f"by {os.getpid()}"


def dies() -> ResponseReturnValue:
    put("dies")
    db.session.commit()
    if request.headers.get("X-Die"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@lock_view("stock:42", timeout=0)
def locked() -> ResponseReturnValue:
    put("locked")
    db.session.commit()
    return "ok"


class ClassView(MethodView):
    @lock_view("stock:42", timeout=0)
    def post(self) -> ResponseReturnValue:
        put("class_view")
        db.session.commit()
        return "ok"


def seen() -> ResponseReturnValue:
    """As Flask-Login and then a view: the user is read before the order's transaction."""
    user = db.session.get(User, 1)
    return user.name


def recover(request: Request, order_id: str) -> ResponseReturnValue | None:
    """A hook: what became of an order whose answer was not kept."""
    if request.headers.get("X-Forgotten"):
        return None
    count = db.session.execute(sa.select(sa.func.count()).select_from(Order)).scalar_one()
    return {"recovered": order_id, "orders": count}, 201


VIEWS = (
    one, two, undone, nested, other_session, forgotten, late, refused, fails, returns_500, aborts,
    redirects, raises_own, streams, coroutine, slow, dies, locked, seen,
)  # fmt: skip


def die(database: str) -> None:
    """Order in a process that is killed meanwhile; here, because a spawned one can import this."""
    shop = create_app(SQLALCHEMY_DATABASE_URI=database, LOCKKIT_URL="memory://")
    headers = {"X-Order-ID": "1", "X-User": "alice", "X-Die": "1"}
    shop.test_client().post("/dies", headers=headers)
