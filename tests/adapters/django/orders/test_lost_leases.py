"""A lease that is lost in the view of an order: nothing is committed under it that can be rolled
back, and the client is not told that all is well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.test import AsyncClient, Client, override_settings
from django_project.shop.models import Sale
from orders_django import losing

from lockkit_django import alocks, locks
from lockkit_django.models import OrderRecord

pytestmark = pytest.mark.django_db(transaction=True)

HEADERS = {"Idempotency-Key": "A-1", "Authorization": "Token a"}
UNKNOWN = [(503, "order-outcome-unknown"), (409, "order-orphaned")]
LOCKED = [kind for kind in losing.KINDS if kind != "order-inside"]
IN_REDIS = {"PATHS": ["^/orders/"], "STORE": "redis", "NAMESPACE": "shop"}


@pytest.fixture(autouse=True)
def project(fresh_orders: None, redis_url: str) -> Iterator[None]:
    with override_settings(ROOT_URLCONF="orders_django.losing", LOCKKIT={"default": redis_url}):
        yield


@pytest.fixture
def atomic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


def tries(kind: str) -> list[tuple[int, Any]]:
    client = Client(raise_request_exception=False)
    found = [client.post(f"/orders/{kind}", headers=HEADERS) for _ in range(2)]
    assert not list(locks["default"].holders())
    return [told(each) for each in found]


def told(response: Any) -> tuple[int, Any]:
    """Status and code."""
    is_problem = response["Content-Type"] == "application/problem+json"
    return response.status_code, response.json()["code"] if is_problem else response.content


@pytest.mark.usefixtures("atomic")
@pytest.mark.parametrize("kind", LOCKED)
def test_atomic_requests_rolls_back_and_the_order_is_an_orphan(kind: str) -> None:
    with override_settings(LOCKKIT_ORDERS=IN_REDIS):
        assert tries(kind) == UNKNOWN
    assert Sale.objects.count() == 0


@pytest.mark.parametrize("kind", [*LOCKED, *losing.COROUTINES])
def test_without_a_transaction_the_order_is_an_orphan(kind: str) -> None:
    with override_settings(LOCKKIT_ORDERS=IN_REDIS):
        assert tries(kind) == UNKNOWN
    assert Sale.objects.count() == 1


@pytest.mark.parametrize("kind", [*LOCKED, *losing.COROUTINES])
async def test_without_a_transaction_the_order_is_an_orphan_under_asgi(kind: str) -> None:
    client = AsyncClient(raise_request_exception=False)
    with override_settings(LOCKKIT_ORDERS=IN_REDIS):
        found = [await client.post(f"/orders/{kind}", headers=HEADERS) for _ in range(2)]
        assert not [info async for info in alocks["default"].holders()]
    assert [told(each) for each in found] == UNKNOWN
    assert await Sale.objects.acount() == 1


@pytest.mark.parametrize("kind", losing.COROUTINES)
def test_a_coroutine_is_rolled_back(kind: str) -> None:
    assert tries(kind) == [(503, "order-lease-lost")] * 2
    assert (Sale.objects.count(), OrderRecord.objects.count()) == (0, 0)


def test_what_the_view_has_committed_itself_is_done() -> None:
    assert tries("committed") == [(200, b"sold")] * 2
    assert (Sale.objects.count(), OrderRecord.objects.count()) == (1, 1)
