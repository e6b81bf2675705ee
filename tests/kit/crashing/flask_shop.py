"""The shop in Flask. ``wsgi`` and ``asgi``, for real servers."""

from __future__ import annotations

import os

import sqlalchemy as sa
from asgiref.wsgi import WsgiToAsgi
from flask import Flask, jsonify, request
from flask.typing import ResponseReturnValue
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from crashing import locks, points
from crashing.configuration import CREATE, configuration
from crashing.points import at
from lockkit_flask import LockKit, current_lease, lock_view
from lockkit_flask.orders.table import Sql


class Base(DeclarativeBase):
    pass


db = SQLAlchemy(model_class=Base)


class Stock(db.Model):  # type: ignore[name-defined, misc]
    sku: Mapped[str] = mapped_column(sa.String(50), primary_key=True)
    units: Mapped[int]
    fence: Mapped[int] = mapped_column(sa.BigInteger, default=0)


class Sale(db.Model):  # type: ignore[name-defined, misc]
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(sa.String(255))
    sku: Mapped[str] = mapped_column(sa.String(50))


@lock_view("stock:{json.sku}")
def order() -> ResponseReturnValue:
    """As Django's ``sell``; and it commits twice, as such views do."""
    sku = request.get_json()["sku"]
    lease = current_lease()
    mine = sa.update(Stock).where(Stock.sku == sku, Stock.fence < lease.fencing_token)
    if not db.session.execute(mine.values(fence=lease.fencing_token)).rowcount:
        return "late", 503
    shelf = db.session.get(Stock, sku, populate_existing=True)
    if not shelf.units:
        db.session.commit()
        return "sold out", 410
    sale = Sale(order_id=request.headers["Idempotency-Key"], sku=sku)
    db.session.add(sale)
    db.session.commit()
    at("view")
    shelf.units -= 1
    db.session.commit()
    headers = {"Location": f"/sales/{sale.id}", "ETag": f'"{sale.id}"', "Content-Language": "en"}
    return jsonify(sale=sale.id, sku=sku), 201, headers


def create_app() -> Flask:
    wanted = configuration()
    timeout = {"timeout": 30} if wanted.database.startswith("sqlite") else {}
    app = Flask("crashing")
    app.config.update(
        SQLALCHEMY_DATABASE_URI=wanted.database.replace("postgresql:", "postgresql+psycopg:"),
        SQLALCHEMY_ENGINE_OPTIONS={"pool_pre_ping": True, "connect_args": timeout},
        LOCKKIT={"default": locks.settings(wanted.locks, wanted.ttl)},
        LOCKKIT_VIEWS={"TIMEOUT": wanted.wait, "MAX_WAITERS": 64},
        LOCKKIT_ORDERS={
            "PATHS": [r"^/orders/"],
            "WAIT": wanted.wait,
            "MAX_WAITERS": 64,
            **wanted.orders,
        },
    )
    db.init_app(app)
    LockKit(app)
    app.add_url_rule("/orders/", view_func=order, methods=["POST"])
    with app.app_context():
        if os.environ.pop(CREATE, None):
            db.create_all()
        db.engine.dispose()  # this process forks
    return app


Sql.run = points.stopping(Sql.run)  # type: ignore[method-assign]
app = create_app()
wsgi = points.wsgi(app)
asgi = points.asgi(WsgiToAsgi(wsgi))
