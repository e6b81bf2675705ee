"""Listeners of the app's engine: they choose the tenant's schema, or refuse a COMMIT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from flask import Flask, request
from flask_project import db, put

from lockkit.orders.rows import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from werkzeug.test import TestResponse

pytestmark = pytest.mark.parametrize("database", ["postgresql"], indirect=True)

A_1 = {"X-User": "alice", "X-Order-ID": "A-1"}
TENANTS = ("first", "second")
OF_TENANT = "X-Tenant"


@pytest.fixture
def shop(make_shop: Callable[..., Flask]) -> Flask:
    app = make_shop()

    def buy() -> tuple[str, int]:
        put("bought")
        db.session.commit()
        return "bought", 201

    app.add_url_rule("/buy", view_func=buy, methods=["POST"])
    return app


def engine_of(app: Flask) -> sa.Engine:
    with app.app_context():
        return db.engine


def post(app: Flask, **headers: str) -> TestResponse:
    return app.test_client().post("/buy", headers={**A_1, **headers})


def counts(app: Flask, schema: str) -> list[int]:
    with engine_of(app).connect() as connection:
        queries = [f'SELECT count(*) FROM {schema}."{name}"' for name in ("order", TABLE)]
        return [connection.execute(sa.text(query)).scalar_one() for query in queries]


@pytest.fixture
def schemas(shop: Flask) -> Iterator[None]:
    """Each tenant has all tables."""
    with engine_of(shop).begin() as connection:
        for tenant in TENANTS:
            connection.execute(sa.text(f"CREATE SCHEMA {tenant}"))
            connection.execute(sa.text(f"SET LOCAL search_path = {tenant}"))
            db.metadata.create_all(connection)
    yield
    with engine_of(shop).begin() as connection:
        for tenant in TENANTS:
            connection.execute(sa.text(f"DROP SCHEMA {tenant} CASCADE"))


@pytest.mark.usefixtures("schemas")
def test_an_order_and_its_record_are_in_the_schema_that_a_listener_chooses(shop: Flask) -> None:
    def choose(connection: Any) -> None:
        tenant = request.headers[OF_TENANT] if request else "public"
        connection.exec_driver_sql(f"SET search_path = {tenant}")

    sa.event.listen(engine_of(shop), "begin", choose)
    for again in (False, True):
        for tenant in TENANTS:
            answer = post(shop, **{OF_TENANT: tenant})
            found = (answer.status_code, "Idempotent-Replayed" in answer.headers)
            assert (tenant, *found) == (tenant, 201, again)
    assert [counts(shop, tenant) for tenant in TENANTS] == [[1, 1]] * 2


def test_a_listener_that_refuses_the_commit_has_nothing_saved(shop: Flask) -> None:
    shop.config["PROPAGATE_EXCEPTIONS"] = False

    def refuse(_: Any) -> None:
        if request:
            raise PermissionError("the books are closed")

    sa.event.listen(engine_of(shop), "commit", refuse)
    assert post(shop).status_code == 500
    assert counts(shop, "public") == [0, 0]
    sa.event.remove(engine_of(shop), "commit", refuse)
    answer = post(shop)
    assert (answer.status_code, "Idempotent-Replayed" in answer.headers) == (201, False)
