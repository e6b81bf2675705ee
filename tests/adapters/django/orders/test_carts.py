"""The session of an order that is rolled back: a cart must not be gone when there is no order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.sessions.backends import file
from django.db import connections
from django.test import AsyncClient, Client, override_settings
from django_project.shop.models import Sale

pytestmark = pytest.mark.django_db(transaction=True)

BEFORE = {"cart": {"A1": [1]}, "shown": True}
AFTER = {"shown": True, "thanks": True}
ENGINES = ["db", "cached_db", "cache", "file", "signed_cookies"]
HEADERS = {"Authorization": "Token a", "Idempotency-Key": "A-1"}
UNDONE = ["answers", "raises", "loses", "closes", "coroutine", "in_commit_in"]


@pytest.fixture(params=ENGINES, autouse=True)
def engine(
    request: pytest.FixtureRequest,
    fresh_orders: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    backend = f"django.contrib.sessions.backends.{request.param}"
    # Not SESSION_FILE_PATH: Django would keep the directory of the first test.
    monkeypatch.setattr(file.SessionStore, "_storage_path", str(tmp_path), raising=False)
    with override_settings(
        ROOT_URLCONF="orders_django.carts",
        SESSION_ENGINE=backend,
        SESSION_SERIALIZER="django.contrib.sessions.serializers.JSONSerializer",
    ):
        yield request.param


@pytest.fixture
def visitor() -> Client:
    client = Client(raise_request_exception=False)
    assert client.post("/cart").json() == BEFORE
    return client


def order(visitor: Client, end: str) -> Any:
    return visitor.post(f"/orders/{end}", headers=HEADERS)


def session(visitor: Client) -> dict[str, Any]:
    found: dict[str, Any] = visitor.get("/cart").json()
    return found


@pytest.mark.parametrize("end", UNDONE)
def test_the_cart_comes_back_with_the_order(visitor: Client, end: str) -> None:
    assert order(visitor, end).status_code in (404, 503)
    assert (session(visitor), Sale.objects.count()) == (BEFORE, 0)


@pytest.mark.parametrize("end", ["answers", "coroutine"])
async def test_so_it_does_under_asgi(end: str) -> None:
    visitor = AsyncClient(raise_request_exception=False)
    assert (await visitor.post("/cart")).json() == BEFORE
    assert (await visitor.post(f"/orders/{end}", headers=HEADERS)).status_code in (404, 503)
    assert (await visitor.get("/cart")).json() == BEFORE
    assert await Sale.objects.acount() == 0


@pytest.mark.parametrize("end", ["succeeds", "refused"])
def test_what_is_saved_is_saved_with_its_session(visitor: Client, end: str) -> None:
    assert order(visitor, end).status_code in (201, 403)
    assert (session(visitor), Sale.objects.count()) == (AFTER, 1)


def test_a_refusal_keeps_its_session_where_atomic_requests_rolls_back(
    visitor: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without lockkit: guesses may be counted there."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    assert order(visitor, "denies").status_code == 403
    assert (session(visitor), Sale.objects.count()) == (AFTER, 0)


@pytest.mark.parametrize("end", ["saves", "logs_in", "logs_out"])
def test_what_the_view_saves_itself_stays_outside_of_the_orders_database(
    visitor: Client, end: str, engine: str
) -> None:
    assert order(visitor, end).status_code == 503
    is_there = engine == "cached_db" and end != "saves"  # the row of the former key came back
    if is_there or engine in ("db", "signed_cookies"):
        assert session(visitor) == BEFORE
    else:
        assert "cart" not in session(visitor)
    assert Sale.objects.count() == 0


def test_a_visitor_without_a_session_has_none_after_a_rollback() -> None:
    visitor = Client(raise_request_exception=False)
    assert order(visitor, "coroutine").status_code == 404
    assert session(visitor) == {}
