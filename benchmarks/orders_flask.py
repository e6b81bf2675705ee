"""Orders in Flask-SQLAlchemy: what they cost a view that saves one row, and what a replay saves.

As ``benchmarks.orders``: rows and records are in PostgreSQL, locks in Redis.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from benchmarks.orders import PER_TURN, PLAIN, Send, Turns, measured_in_child, summary, turn_of

if TYPE_CHECKING:
    from flask import Flask

__all__ = ["measure"]

ORDERS: dict[str, dict[str, object] | None] = {
    "lockkit": {"PATHS": ["^/"]},
    "lockkit LOCK=never": {"PATHS": ["^/"], "LOCK": "never"},
    PLAIN: None,
}
TURNS = 25


def measure(url: str) -> dict[str, dict[str, float]]:
    """Requests per second, and what they cost beside the plain view in the same turn."""
    return measured_in_child(_work, url)


def _work(redis_url: str, database_url: str, parent: Connection) -> None:
    url = database_url.replace("postgresql:", "postgresql+psycopg:")
    senders = {peer: _sender(_make(orders, redis_url, url)) for peer, orders in ORDERS.items()}
    firsts: Turns = {peer: [] for peer in senders}
    replays: Turns = {peer: [] for peer in senders if ORDERS[peer]}
    turns = [(turn, peer) for turn in range(TURNS + 1) for peer in senders]
    for turn, peer in turns:
        send, orders = senders[peer], [f"{peer} {turn} {n}" for n in range(PER_TURN)]
        firsts[peer].append(turn_of(send, orders))
        if peer in replays:
            replays[peer].append(turn_of(send, orders))
    parent.send(summary("flask", firsts, replays))


def _make(orders: dict[str, object] | None, redis_url: str, database_url: str) -> Flask:
    from flask import Flask
    from flask_sqlalchemy import SQLAlchemy
    from sqlalchemy import text

    from lockkit_flask import LockKit

    app = Flask(__name__)
    app.config |= {"SQLALCHEMY_DATABASE_URI": database_url, "LOCKKIT_URL": redis_url}
    app.config["SECRET_KEY"] = "x" * 50
    db = SQLAlchemy(app)
    app.add_url_rule("/", view_func=_order, methods=["POST"])
    if orders is not None:
        app.config["LOCKKIT_ORDERS"] = orders
        LockKit(app)
    with app.app_context():
        db.create_all()
        db.session.execute(text("CREATE TABLE IF NOT EXISTS sale (id BIGSERIAL, sku TEXT)"))
        db.session.commit()
    return app


def _order() -> Any:
    """The view: one row."""
    from flask import current_app, jsonify
    from sqlalchemy import text

    session = current_app.extensions["sqlalchemy"].session
    insert = text("INSERT INTO sale (sku) VALUES ('book') RETURNING id")
    number = session.execute(insert).scalar_one()
    session.commit()
    return jsonify(sale=number), 201


def _sender(app: Flask) -> Send:
    client = app.test_client()

    def send(order_id: str) -> None:
        headers = {"Idempotency-Key": order_id, "Authorization": "Token a"}
        response = client.post("/", data=b"{}", content_type="application/json", headers=headers)
        if response.status_code != 201:
            raise RuntimeError(f"{response.status_code}: {response.text}")

    return send
