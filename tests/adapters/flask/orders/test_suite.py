"""The behaviour of orders over HTTP, in Flask: the suite that every adapter runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from flask_project import Order, db
from flask_project.orders_suite import calls, elsewhere, orders
from order_suite import ORDERS, Answer, OpenShop
from order_suite.duplicates import Duplicates, Locks
from order_suite.owners import Owners, Replays
from order_suite.refusals import Carts, Refusals
from order_suite.requests import OrderIds, SameRequests
from order_suite.uncovered import Uncovered

from lockkit.orders.rows import TABLE
from lockkit_flask import locks, new_order_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from flask import Flask
    from flask.testing import FlaskClient


class FlaskShop:
    def __init__(self, app: Flask) -> None:
        self._app = app
        self._clients: dict[str | None, FlaskClient] = {}
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
        return Answer(answer.status_code, answer.headers, answer.data, answer.get_json(silent=True))

    def rows(self, kind: str) -> int:
        with self._app.app_context():
            query = sa.select(sa.func.count()).select_from(Order).where(Order.name == kind)
            return int(db.session.execute(query).scalar_one())

    def runs(self) -> list[str]:
        return list(calls)

    def records(self) -> list[dict[str, Any]]:
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


@pytest.fixture
def open_shop(make_shop: Callable[..., Flask]) -> Iterator[OpenShop]:
    calls.clear()

    def open_(**settings: object) -> FlaskShop:
        return FlaskShop(make_shop(LOCKKIT_ORDERS={**ORDERS, **settings}))

    yield open_  # type: ignore[misc]
    calls.clear()


class TestDuplicates(Duplicates):
    pass


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
