"""An exception of which something above the order makes the answer, where Django sees no exception:
Django Ninja, or a decorator above ``@idempotent``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient, Client, override_settings
from django_project.shop.models import Sale
from orders_django import answering, views

from lockkit_django import locks
from lockkit_django.models import OrderRecord

pytestmark = pytest.mark.django_db(transaction=True)

REPLAYED = "Idempotent-Replayed"
MIDDLEWARE = "lockkit_django.middleware.IdempotentOrderMiddleware"
IN_REDIS = {"PATHS": ["^/orders/"], "STORE": "redis", "NAMESPACE": "shop", "WAIT": 0}
HEADERS = {"Idempotency-Key": "A-1", "Authorization": "Token a"}
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
    client = Client(raise_request_exception=False)
    return _told(client.post(f"/orders/{kind}", headers=HEADERS) for _ in range(2))


async def tries_in_loop(kind: str) -> list[tuple[int, Any]]:
    client = AsyncClient(raise_request_exception=False)
    return _told([await client.post(f"/orders/{kind}", headers=HEADERS) for _ in range(2)])


def _told(answers: Iterable[Any]) -> list[tuple[int, Any]]:
    return [(each.status_code, _code(each) or REPLAYED in each) for each in answers]


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


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("error", ["", "&denied"])
@pytest.mark.parametrize("status", [400, 409, 201, 302])
def test_what_is_rolled_back_without_an_order_is_rolled_back_with_one(
    error: str, status: int
) -> None:
    bare = Client().post(f"/orders/locked?status={status}{error}")
    assert (bare.status_code, Sale.objects.count()) == (status, 0)
    first, second = tries(f"locked?status={status}{error}")
    assert (first, Sale.objects.count()) == ((status, False), 0)
    if status in (302, 409):
        assert second == (status, False)
    else:  # it is recorded; the decorator may be a check
        assert second == (409, "order-completed")


@pytest.mark.usefixtures("atomic_requests")
def test_what_a_decorator_saves_after_the_rollback_stays() -> None:
    """No header of a client may keep its failures from being counted."""
    for headers in ({}, HEADERS):
        Sale.objects.all().delete()
        client = Client()
        answer = client.post("/orders/counted", headers=headers)
        assert (answer.status_code, answer.content) == (403, b"saw 0")
        assert [*Sale.objects.values_list("sku", flat=True)] == ["failure"]
        assert client.session["failures"] == 1
        assert ("cart" in client.session) is not bool(headers)  # restored with the order


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("kind", ["retried", "queued"])
def test_what_is_saved_after_the_rollback_is_saved_once(kind: str) -> None:
    """By the view, which a decorator calls again; or by a decorator in its place."""
    assert tries(kind) == [(201, False), (409, "order-completed")]
    assert Sale.objects.count() == 1


@pytest.mark.usefixtures("atomic_requests")
def test_what_is_saved_between_two_locks_is_rolled_back_by_the_outer_one() -> None:
    for headers in ({}, HEADERS):
        assert Client().post("/orders/nested", headers=headers).status_code == 404
        assert Sale.objects.count() == 0


@pytest.mark.usefixtures("atomic_requests")
def test_so_it_is_after_the_lock_was_busy_at_first() -> None:
    answering.held.append(locks["default"].lock("stock:B").acquire())
    assert tries("insisted") == [(201, False), (409, "order-completed")]
    assert Sale.objects.count() == 1


@pytest.mark.usefixtures("atomic")
def test_between_two_locks_the_outer_one_is_that_of_the_request() -> None:
    """And is refused at once to code that asks for it again."""
    for headers in ({}, HEADERS):
        answer = Client().post("/orders/two-leases", headers=headers)
        assert (answer.status_code, answer.content) == (201, b"outer inner outer")


@pytest.mark.usefixtures("atomic")
def test_without_a_transaction_what_is_caught_below_the_order_is_its_answer() -> None:
    assert tries("own?status=201") == [(201, False), (409, "order-completed")]
    assert Sale.objects.count() == 1


@pytest.mark.usefixtures("atomic")
def test_without_a_transaction_what_is_caught_above_the_order_is_an_exception() -> None:
    """What the view has saved stays, as with a 500."""
    assert tries("own-inside?status=201") == [(503, "order-not-saved")] * 2
    assert kept() == (2, 0)


@pytest.mark.usefixtures("atomic_requests")
def test_beside_a_payment_what_is_rolled_back_below_a_lock_leaves_an_orphan(redis_url: str) -> None:
    with override_settings(LOCKKIT={"default": redis_url}, LOCKKIT_ORDERS=IN_REDIS):
        assert tries("locked?status=409") == [(409, False), (409, "order-orphaned")]
    assert len(views.calls) == 1


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


OVERDUE = ["overdue", "async-overdue"]
ENDS_OF_OVERDUE = [
    (202, [(503, "order-not-saved"), (201, False)], (2, 1)),
    (400, [(400, False), (400, True)], (0, 1)),
    (408, [(408, False), (201, False)], (2, 1)),
    (503, [(503, False), (201, False)], (2, 1)),
]
ENDS_BESIDE_A_PAYMENT = [
    (202, [(503, "order-outcome-unknown"), (409, "order-orphaned")]),
    (400, [(400, False), (400, True)]),
    (408, [(408, False), (409, "order-orphaned")]),
    (503, [(503, False), (409, "order-orphaned")]),
]


@pytest.mark.parametrize("kind", OVERDUE)
@pytest.mark.parametrize(("status", "expected", "stays"), ENDS_OF_OVERDUE)
def test_what_a_deadline_stops_half_way_is_rolled_back(
    kind: str, status: int, expected: list[tuple[int, Any]], stays: tuple[int, int]
) -> None:
    assert tries(f"{kind}?status={status}") == expected
    assert kept() == stays


@pytest.mark.parametrize("kind", OVERDUE)
@pytest.mark.parametrize(("status", "expected", "stays"), ENDS_OF_OVERDUE)
async def test_what_a_deadline_stops_half_way_is_rolled_back_under_asgi(
    kind: str, status: int, expected: list[tuple[int, Any]], stays: tuple[int, int]
) -> None:
    assert await tries_in_loop(f"{kind}?status={status}") == expected
    assert await sync_to_async(kept)() == stays


async def test_what_a_deadline_stops_before_the_view_is_no_success() -> None:
    """While the record is written, in a thread that goes on."""

    def slowly(execute: Any, sql: str, *args: Any) -> Any:
        if sql.startswith("INSERT INTO") and not views.started.is_set():
            views.started.set()
            views.go_on.wait(60)
        return execute(sql, *args)

    wrappers = await sync_to_async(lambda: connections["default"].execute_wrappers)()
    wrappers.append(slowly)
    try:
        found = asyncio.create_task(tries_in_loop("async-overdue?status=202"))
        assert await asyncio.to_thread(views.started.wait, 60)
        answering.miss_deadline()
        for _ in range(20):  # the view is cancelled, and its answer made
            await asyncio.sleep(0)
        views.calls.append("the first, which has missed its deadline")
        views.go_on.set()
        assert await found == [(503, "order-not-saved"), (201, False)]
    finally:
        wrappers.remove(slowly)
    assert await sync_to_async(kept)() == (2, 1)


@pytest.mark.parametrize("kind", OVERDUE)
@pytest.mark.parametrize(("status", "expected"), ENDS_BESIDE_A_PAYMENT)
def test_what_a_deadline_stops_beside_a_payment_leaves_an_orphan(
    kind: str, status: int, expected: list[tuple[int, Any]], redis_url: str
) -> None:
    with override_settings(LOCKKIT={"default": redis_url}, LOCKKIT_ORDERS=IN_REDIS):
        assert tries(f"{kind}?status={status}") == expected
    assert Sale.objects.count() == 1


@pytest.mark.parametrize("kind", OVERDUE)
@pytest.mark.parametrize(("status", "expected"), ENDS_BESIDE_A_PAYMENT)
async def test_what_a_deadline_stops_beside_a_payment_leaves_an_orphan_under_asgi(
    kind: str, status: int, expected: list[tuple[int, Any]], redis_url: str
) -> None:
    with override_settings(LOCKKIT={"default": redis_url}, LOCKKIT_ORDERS=IN_REDIS):
        assert await tries_in_loop(f"{kind}?status={status}") == expected
    assert await Sale.objects.acount() == 1


ENVELOPE = ["orders_django.enveloped.Envelope", MIDDLEWARE]
BEFORE = ["before", "before-handled", "before-overdue"]
AFTER = ["after", "after-handled", "after-overdue"]


@pytest.fixture
def envelope() -> Iterator[None]:
    with override_settings(ROOT_URLCONF="orders_django.enveloped", MIDDLEWARE=ENVELOPE):
        yield


@pytest.mark.usefixtures("envelope")
@pytest.mark.parametrize("status", [200, 302])
@pytest.mark.parametrize("kind", BEFORE)
def test_what_raises_before_its_commit_in_is_not_done(kind: str, status: int) -> None:
    """DRF's handler answers for itself, here as with a transaction around the view."""
    is_told = status == 200 and kind != "before-handled"
    first = (503, "order-not-saved") if is_told else (status, False)
    assert tries(f"{kind}?status={status}") == [first, (201, False)]
    assert tries(f"{kind}?status={status}") == [(201, True)] * 2
    assert kept() == (1, 1)


@pytest.mark.usefixtures("envelope")
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("kind", ["before", "before-handled"])
def test_a_refusal_before_its_commit_in_is_one_whatever_is_made_of_it(
    kind: str, status: int
) -> None:
    assert tries(f"{kind}?denied&status={status}") == [(status, False), (201, False)]
    assert kept() == (1, 1)


@pytest.mark.usefixtures("envelope")
@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("kind", AFTER)
def test_what_raises_after_its_commit_in_is_done_and_has_no_answer(kind: str, status: int) -> None:
    assert tries(f"{kind}?status={status}") == [(status, False), (409, "order-completed")]
    assert (views.calls, kept()) == (["after"], (1, 1))


@pytest.mark.usefixtures("envelope")
def test_a_view_that_a_decorator_has_called_again_has_an_answer() -> None:
    assert tries("again") == [(201, False), (409, "order-completed")]  # it may be a check
    assert OrderRecord.objects.get().state == "done"
    assert Sale.objects.count() == 1
