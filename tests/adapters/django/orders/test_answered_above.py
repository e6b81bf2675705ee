"""An exception of which something above the order makes the answer, where Django sees no exception:
Django Ninja, or a decorator above ``@idempotent``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.test import Client, override_settings
from django_project.shop.models import Sale
from orders_django import views

from lockkit_django.models import OrderRecord

pytestmark = pytest.mark.django_db(transaction=True)

REPLAYED = "Idempotent-Replayed"
IN_REDIS = {"PATHS": ["^/orders/"], "STORE": "redis", "NAMESPACE": "shop", "WAIT": 0}
BROKEN = ["ninja/broken", "decorated"]


@pytest.fixture(autouse=True)
def project(fresh_orders: None) -> Iterator[None]:
    with override_settings(ROOT_URLCONF="orders_django.answering"):
        yield


@pytest.fixture(params=["autocommit", "atomic"])
def atomic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    is_on = request.param == "atomic"
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", is_on)


def tries(kind: str) -> list[tuple[int, Any]]:
    """Status, and code or whether it is a replay."""
    headers = {"Idempotency-Key": "A-1", "Authorization": "Token a"}
    client = Client(raise_request_exception=False)
    found = [client.post(f"/orders/{kind}", headers=headers) for _ in range(2)]
    return [(each.status_code, _code(each) or REPLAYED in each) for each in found]


def _code(response: Any) -> Any:
    if response.get("Content-Type") != "application/problem+json":
        return None
    return response.json()["code"]


def kept() -> tuple[int, int]:
    return Sale.objects.count(), OrderRecord.objects.count()


@pytest.mark.usefixtures("atomic")
@pytest.mark.parametrize(
    ("kind", "status"),
    [("ninja/missing", 404), ("ninja/error/404", 404), *((f"{k}?status=400", 400) for k in BROKEN)],
)
def test_another_4xx_is_recorded_and_nothing_else(kind: str, status: int) -> None:
    assert tries(kind) == [(status, False), (status, True)]
    assert (len(views.calls), kept()) == (1, (0, 1))


@pytest.mark.usefixtures("atomic")
@pytest.mark.parametrize("kind", BROKEN)
def test_a_success_is_not_told_and_a_redirect_not_recorded(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert tries(kind) == [(503, "order-not-saved")] * 2
    assert "makes 201 of it" in caplog.text
    assert tries(f"{kind}?status=302") == [(302, False)] * 2
    assert kept() == (0, 0)


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("status", [409, 503])
def test_beside_a_payment_it_leaves_an_orphan(kind: str, status: int, redis_url: str) -> None:
    with override_settings(LOCKKIT={"default": redis_url}, LOCKKIT_ORDERS=IN_REDIS):
        assert tries(f"{kind}?status={status}") == [(status, False), (409, "order-orphaned")]
    assert len(views.calls) == 1


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ninja/missing", [(404, False), (404, True)]),
        ("ninja/error/503", [(503, False)] * 2),
        ("decorated?status=400", [(400, False), (400, True)]),
    ],
)
def test_beside_a_payment_an_answer_is_one(
    kind: str, expected: list[tuple[int, Any]], redis_url: str
) -> None:
    with override_settings(LOCKKIT={"default": redis_url}, LOCKKIT_ORDERS=IN_REDIS):
        assert tries(kind) == expected
