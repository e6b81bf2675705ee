"""Locks by hand inside an order: refused, or held until the order's COMMIT or ROLLBACK."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.db import connections
from django.test import AsyncClient, Client, override_settings
from django_project.shop.models import Sale

from lockkit_django import OpenTransaction, locks

pytestmark = pytest.mark.django_db(transaction=True)

LOCK_ERRORS = "lockkit_django.middleware.LockErrors"


@pytest.fixture(autouse=True)
def project(fresh_orders: None) -> Iterator[None]:
    with override_settings(ROOT_URLCONF="orders_django.holding"):
        yield


@pytest.fixture(params=[False, True], ids=["autocommit", "atomic"], autouse=True)
def atomic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", request.param)


SENT: dict[str, Any] = {
    "data": b"{}",
    "content_type": "application/json",
    "headers": {"Idempotency-Key": "A-1", "Authorization": "Token a"},
}


def send(kind: str, *, raises: bool = False, **more: str) -> Any:
    client = Client(raise_request_exception=raises)
    headers = {"Idempotency-Key": "A-1", "Authorization": "Token a", **more}
    return client.post(f"/orders/{kind}", b"{}", content_type="application/json", headers=headers)


def test_it_is_refused() -> None:
    with pytest.raises(OpenTransaction, match=r"the transaction of an order.*until='commit'"):
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


@override_settings(LOCKKIT_VIEWS={"BUSY_STATUS": 422})
@pytest.mark.parametrize("kind", ["held", "in_commit_in"])
def test_what_is_said_of_a_busy_one_is_never_repeated(kind: str) -> None:
    """Not even if its status is one that orders store."""
    with override_settings(MIDDLEWARE=[LOCK_ERRORS, *settings.MIDDLEWARE]):
        with locks["default"].lock("stock:42"):
            assert [send(kind).status_code for _ in range(2)] == [422, 422]
        assert send(kind).content == b"sold"
    assert Sale.objects.count() == 1


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


async def send_async(kind: str) -> Any:
    return await AsyncClient().post(f"/orders/{kind}", **SENT)


SERVERS: dict[str, Callable[[str], Any]] = {
    "wsgi": lambda kind: Client().post(f"/orders/{kind}", **SENT),
    "asgi": async_to_sync(send_async),
}


@pytest.mark.parametrize("atomic", [False], indirect=True)
@pytest.mark.parametrize("server", SERVERS)
def test_one_of_asyncio_above_the_order_is_refused(server: str) -> None:
    """Its event loop may end before the order does."""
    with pytest.raises(OpenTransaction, match=r"'stock:42' was released .*@lock_view"):
        SERVERS[server]("async-locked")
    assert Sale.objects.count() == 0
    assert not list(locks["default"].holders())


@pytest.mark.parametrize("atomic", [False], indirect=True)
@pytest.mark.parametrize("server", SERVERS)
def test_one_of_asyncio_above_the_order_may_be_allowed(server: str) -> None:
    assert SERVERS[server]("async-allow").content == b"sold"
    assert Sale.objects.count() == 1


@pytest.mark.parametrize("atomic", [False], indirect=True)
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    "kind", ["in_coroutine", "held_by_coroutine", "above_coroutine", "several_above"]
)
def test_a_blocking_one_in_a_coroutine_is_refused(kind: str, server: str) -> None:
    """The order's transaction is in another thread, and commits after the release."""
    with pytest.raises(OpenTransaction, match=r"'stock:42' of a blocking client.*@lock_view"):
        SERVERS[server](kind)
    assert Sale.objects.count() == 0
    assert not list(locks["default"].holders())


@pytest.mark.parametrize("atomic", [False], indirect=True)
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("kind", ["above_coroutine", "several_above"])
def test_an_error_above_the_order_in_a_coroutine_stays_what_it_is(
    kind: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SENT, "headers", {**SENT["headers"], "X-Fail": "1"})
    with pytest.raises(ZeroDivisionError):
        SERVERS[server](kind)
    assert Sale.objects.count() == 0
    assert not list(locks["default"].holders())


def test_above_the_order_it_is_released_at_once_if_that_is_allowed(releases: Any) -> None:
    assert send("with-allow").content == b"sold"
    assert ("stock", -1, True) in releases.seen


def test_an_order_does_not_commit_when_a_lease_above_it_is_lost() -> None:
    assert send("loses").status_code in (500, 503)
    assert Sale.objects.count() == 0
    assert not list(locks["default"].holders())
