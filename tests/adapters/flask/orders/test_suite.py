"""The behaviour of orders over HTTP, in Flask: the suite that every adapter runs."""

from __future__ import annotations

import re
from contextlib import contextmanager
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from flask import request, session
from flask_babel import Babel
from flask_project import Order, db
from flask_project.orders_suite import calls, elsewhere, forms, orders
from order_suite import ORDERS, Answer, OpenShop
from order_suite.claims import Claims
from order_suite.duplicates import Duplicates, Locks
from order_suite.forms import Forms
from order_suite.owners import Owners, Replays
from order_suite.refusals import Carts, Refusals
from order_suite.requests import OrderIds, SameRequests
from order_suite.uncovered import Uncovered

from lockkit.orders.rows import TABLE
from lockkit_flask import locks, new_order_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from flask import Flask
    from flask.testing import FlaskClient
    from werkzeug.test import TestResponse


FIELD = re.compile(r'<input type="hidden" name="order_id" value="([^"]*)">')


def answer_of(response: TestResponse) -> Answer:
    sent = response.get_json(silent=True)
    return Answer(response.status_code, response.headers, response.data, sent)


def asked_language() -> str:
    return request.headers.get("Accept-Language", "en").replace("-", "_")


class FlaskShop:
    def __init__(self, app: Flask) -> None:
        self._app = app
        self._clients: dict[str | None, FlaskClient] = {}
        Babel(app, locale_selector=asked_language)
        app.register_blueprint(orders)
        app.register_blueprint(elsewhere)

    def send(
        self,
        kind: str,
        key: str | None = "A-1",
        *,
        user: str | None = "alice",
        method: str = "POST",
        body: bytes = b"",
        content_type: str = "",
        query: str = "",
        headers: Any = None,
        below: str = "/orders/",
    ) -> Answer:
        own = {} if user is None else {"X-User": user}
        own |= {} if key is None else {"Idempotency-Key": key}
        client = self._clients.setdefault(user, self._app.test_client())
        answer = client.open(
            f"{below}{kind}",
            method=method,
            data=body,
            content_type=content_type or None,
            query_string=query,
            headers={**own, **(headers or {})},
        )
        return answer_of(answer)

    def rows(self, kind: str) -> int:
        with self._app.app_context():
            query = sa.select(sa.func.count()).select_from(Order).where(Order.name == kind)
            return int(db.session.execute(query).scalar_one())

    def runs(self) -> list[str]:
        return list(calls)

    def records(self) -> list[dict[str, Any]]:
        if TABLE not in db.metadata.tables:
            return []  # no application of this process has records in its database
        with self._app.app_context():
            found = db.session.execute(sa.select(db.metadata.tables[TABLE])).mappings()
            return [dict(row) for row in found]

    def change_records(self, **columns: object) -> None:
        with self._app.app_context():
            db.session.execute(sa.update(db.metadata.tables[TABLE]).values(**columns))
            db.session.commit()

    def is_anything_held(self) -> bool:
        with self._app.app_context():
            return bool(list(locks["default"].holders()))

    def new_order_id(self) -> str:
        with self._app.test_request_context("/", headers={"X-User": "alice"}):
            return new_order_id()

    def hold(self, name: str) -> AbstractContextManager[object]:
        with self._app.app_context():
            return locks["default"].lock(name)


def in_file(folder: Path) -> str:
    return f"sqlite:///{folder / 'shop.sqlite3'}"


@pytest.fixture
def database(tmp_path: Path) -> str:
    return in_file(tmp_path)


@pytest.fixture
def open_shop(make_shop: Callable[..., Flask]) -> Iterator[OpenShop]:
    calls.clear()

    def open_(**settings: object) -> FlaskShop:
        return FlaskShop(make_shop(LOCKKIT_ORDERS={**ORDERS, **settings}))

    yield open_  # type: ignore[misc]
    calls.clear()


@pytest.fixture
def open_in_redis(make_shop: Callable[..., Flask], redis_url: str) -> Iterator[OpenShop]:
    calls.clear()

    def open_(**settings: object) -> FlaskShop:
        return FlaskShop(make_shop(LOCKKIT_URL=redis_url, LOCKKIT_ORDERS={**ORDERS, **settings}))

    yield open_  # type: ignore[misc]
    calls.clear()


class FlaskVisitor:
    def __init__(self, client: FlaskClient) -> None:
        self._client = client

    def forms(self) -> list[str]:
        return [unescape(value) for value in FIELD.findall(self._client.get("/page").text)]

    def buy(self, value: str, quantity: str = "1", *, accept: str = "*/*") -> Answer:
        form = {"order_id": value, "quantity": quantity}
        return answer_of(self._client.post("/orders/", data=form, headers={"Accept": accept}))

    def log_in(self, name: str) -> None:
        self._client.get(f"/log_in/{name}")

    def log_out(self) -> None:
        self._client.get("/log_out")


class FlaskFormShop:
    def __init__(self, app: Flask) -> None:
        self._app = app
        app.register_blueprint(forms)

    def visitor(self) -> FlaskVisitor:
        return FlaskVisitor(self._app.test_client())

    def sold(self) -> list[str]:
        with self._app.app_context():
            return [order.name for order in db.session.query(Order)]

    @contextmanager
    def with_key(self, key: str, *, fallback: bool) -> Iterator[None]:
        before = self._app.secret_key
        self._app.config["SECRET_KEY_FALLBACKS"] = [before] if fallback else []
        self._app.secret_key = key
        yield
        self._app.secret_key = before


@pytest.fixture
def form_shop(make_shop: Callable[..., Flask]) -> FlaskFormShop:
    orders = {"ORDER_ID": ["form:order_id"], "PATHS": ["^/orders/"], "REQUIRED": True}
    return FlaskFormShop(make_shop(LOCKKIT_ORDERS=orders, LOCKKIT_USER=lambda: session.get("user")))


class TestDuplicates(Duplicates):
    """On each kind of database: what the records say differs in nothing else."""

    @pytest.fixture(params=["sqlite", "postgresql"])
    def database(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        if request.param == "sqlite":
            return in_file(tmp_path)
        return str(request.getfixturevalue("postgres_database"))


class TestLocks(Locks):
    pass


class TestOrderIds(OrderIds):
    pass


class TestSameRequests(SameRequests):
    pass


class TestOwners(Owners):
    pass


class TestReplays(Replays):
    pass


class TestRefusals(Refusals):
    pass


class TestCarts(Carts):
    pass


class TestUncovered(Uncovered):
    pass


class TestForms(Forms):
    pass


class TestClaims(Claims):
    pass
