"""An error page may query, as it may without orders: what the view did is rolled back by then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from database_settings import complete, sqlite
from django.core.signals import got_request_exception
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django_project.servers import database_of
from django_project.shop.models import Sale
from orders_django import error_pages

from lockkit_django import locks
from lockkit_django.models import OrderRecord

MIDDLEWARE = "lockkit_django.middleware.IdempotentOrderMiddleware"
STATUS = {"missing": 404, "denied": 403, "api-invalid": 400, "api-throttled": 429}
RECORDED = {400, 404}


@pytest.fixture(params=["sqlite", "postgresql"], autouse=True)
def database(
    request: pytest.FixtureRequest, tmp_path: Path, django_db_blocker: Any, closed_at_last: None
) -> Iterator[None]:
    """The alias ``orders``, with the two tables; it has the records and ATOMIC_REQUESTS."""
    project = override_settings(
        ROOT_URLCONF="orders_django.error_pages",
        MIDDLEWARE=[MIDDLEWARE],
        LOCKKIT_ORDERS={"PATHS": ["^/orders/"], "USING": "orders"},
    )
    with django_db_blocker.unblock(), project:
        if request.param.startswith("postgresql"):
            server = request.getfixturevalue("postgres_server")
            is_atomic = request.param == "postgresql"
            with database_of(server, "orders", OrderRecord, Sale, ATOMIC_REQUESTS=is_atomic):
                yield
            return
        settings = {**sqlite(tmp_path / "orders"), "ATOMIC_REQUESTS": True}
        connections.settings["orders"] = complete(settings)
        try:
            with connections["orders"].schema_editor() as editor:
                editor.create_model(OrderRecord)
                editor.create_model(Sale)
            yield
        finally:
            connections["orders"].close()
            del connections["orders"]
            del connections.settings["orders"]


@pytest.fixture(params=["wsgi", "asgi"])
def post(request: pytest.FixtureRequest) -> Any:
    if request.param == "wsgi":
        return Client(raise_request_exception=False).post
    return async_to_sync(AsyncClient(raise_request_exception=False).post)


def skus() -> list[str]:
    return sorted(Sale.objects.using("orders").values_list("sku", flat=True))


@pytest.mark.parametrize("kind", error_pages.VIEWS)
def test_an_error_page_sees_and_saves_what_it_does_without_orders(kind: str, post: Any) -> None:
    headers = {"Authorization": "Token a"}
    without = post(f"/orders/{kind}", headers=headers)
    first, again = (
        post(f"/orders/{kind}", headers={**headers, "Idempotency-Key": "A-1"}) for _ in range(2)
    )
    status = next(status for name, status in STATUS.items() if kind.startswith(name))
    assert [each.status_code for each in (without, first, again)] == [status] * 3
    assert b"sold: 0" in first.content
    assert first.content == again.content == without.content
    is_recorded = status in RECORDED
    assert ("Idempotent-Replayed" in again) == is_recorded
    assert skus() == ["page"] * (2 if is_recorded else 3)
    assert OrderRecord.objects.using("orders").count() == is_recorded
    assert not list(locks["default"].holders())


@pytest.mark.parametrize("kind", ["api-invalid", "api-invalid-mixed"])
def test_a_success_that_a_middleware_puts_in_place_of_drfs_refusal_is_not_told(
    kind: str, post: Any
) -> None:
    headers = {"Authorization": "Token a", "Idempotency-Key": "A-1"}
    with override_settings(MIDDLEWARE=["orders_django.error_pages.Replaces", MIDDLEWARE]):
        answers = [post(f"/orders/{kind}", headers=headers) for _ in range(2)]
    assert [(each.status_code, each.json()["code"]) for each in answers] == [
        (503, "order-not-saved")
    ] * 2
    assert (skus(), OrderRecord.objects.using("orders").count()) == ([], 0)


class Notes:
    """A middleware that notes exceptions, and Django's signal that tells of them."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)  # type: ignore[no-any-return]

    def process_exception(self, request: HttpRequest, error: Exception) -> None:
        note()


def note(**_: object) -> None:
    error_pages.touch()
    error_pages.sales.create(sku="note")


@pytest.mark.parametrize("database", ["postgresql-autocommit"], indirect=True)
@pytest.mark.parametrize("kind", ["500", "404", "403", "403-async"])
def test_what_is_made_of_an_exception_has_transactions_of_its_own(kind: str, post: Any) -> None:
    """It waits for no row of the order, and what it saves stays; with a refusal, what the view
    has saved stays as well."""
    error_pages.sales.create(sku="shelf")
    middleware = [f"{__name__}.Notes", MIDDLEWARE]
    headers = {"Authorization": "Token a", "Idempotency-Key": "A-1"}
    got_request_exception.connect(note)
    try:
        with override_settings(MIDDLEWARE=middleware):
            answer = post(f"/orders/touching-{kind}", headers=headers)
    finally:
        got_request_exception.disconnect(note)
    assert answer.status_code == int(kind[:3])
    of_view = ["view"] * kind.startswith("403")
    assert skus() == ["note"] * (2 if kind == "500" else 1) + ["page", "shelf", *of_view]
    assert OrderRecord.objects.using("orders").count() == (kind == "404")
    assert not list(locks["default"].holders())


def test_what_a_view_answers_is_rendered_under_its_lock() -> None:
    """Only a middleware that may change the response lets it be rendered later."""
    assert Client().post("/under-lock").content == b"held: shop"
