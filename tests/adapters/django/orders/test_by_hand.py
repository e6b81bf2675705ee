"""Locks by hand inside an order: refused, or held until the order's COMMIT or ROLLBACK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.test import Client, override_settings
from django_project.shop.models import Sale

from lockkit_django import OpenTransaction, locks

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def project(fresh_orders: None) -> Iterator[None]:
    with override_settings(ROOT_URLCONF="orders_django.holding"):
        yield


@pytest.fixture(params=[False, True], ids=["autocommit", "atomic"], autouse=True)
def atomic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", request.param)


def send(kind: str, *, raises: bool = False, **more: str) -> Any:
    client = Client(raise_request_exception=raises)
    headers = {"Idempotency-Key": "A-1", "Authorization": "Token a", **more}
    return client.post(f"/orders/{kind}", b"{}", content_type="application/json", headers=headers)


def test_it_is_refused() -> None:
    with pytest.raises(OpenTransaction, match="until='commit'"):
        send("refused", raises=True)
    assert Sale.objects.count() == 0


@pytest.mark.parametrize("kind", ["held", "in_commit_in"])
def test_it_is_held_until_the_orders_commit(kind: str, releases: Any) -> None:
    first, again = send(kind), send(kind)
    assert (first.status_code, first.content) == (201, b"sold")
    assert again["Idempotent-Replayed"] == "true"
    assert Sale.objects.count() == 1
    of_stock = [seen for seen in releases.seen if seen[0] == "stock"]
    assert of_stock == [("stock", 1, False)]


def test_it_is_held_until_the_orders_rollback(releases: Any) -> None:
    assert send("broken").status_code == 500
    assert ("stock", 0, False) in releases.seen
    assert not list(locks["default"].holders())


def test_an_order_does_not_commit_when_its_lease_is_lost() -> None:
    refused = send("lost")
    assert (refused.status_code, refused.json()["code"]) == (503, "order-lease-lost")
    assert Sale.objects.count() == 0


ABOVE = ["with", "with-until", "locked", "locked-until"]


@pytest.mark.parametrize("kind", ABOVE)
def test_above_the_order_it_is_held_until_the_orders_commit(kind: str, releases: Any) -> None:
    assert send(kind).content == b"sold"
    of_stock = [seen for seen in releases.seen if seen[0] == "stock"]
    assert of_stock == [("stock", 1, False)]
    assert send(kind)["Idempotent-Replayed"] == "true"
    assert not list(locks["default"].holders())


@pytest.mark.parametrize("kind", ABOVE)
def test_above_the_order_it_is_held_until_the_orders_rollback(kind: str, releases: Any) -> None:
    assert send(kind, **{"X-Fail": "1"}).status_code == 500
    of_stock = [seen for seen in releases.seen if seen[0] == "stock"]
    assert of_stock == [("stock", 0, False)]
    assert not list(locks["default"].holders())


def test_above_the_order_it_is_released_at_once_if_that_is_allowed(releases: Any) -> None:
    assert send("with-allow").content == b"sold"
    assert ("stock", -1, True) in releases.seen


def test_an_order_does_not_commit_when_a_lease_above_it_is_lost() -> None:
    assert send("loses").status_code in (500, 503)
    assert Sale.objects.count() == 0
    assert not list(locks["default"].holders())
