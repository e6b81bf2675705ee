"""STORE "redis" in Django: orders whose effects are outside a database; RECOVER; signals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import pytest
from django.conf import settings
from django.db import connections
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings
from django.test.utils import CaptureQueriesContext
from django_project.shop.models import Sale
from orders_django import claiming

from lockkit.orders.redis_records import orphans
from lockkit.testing.conformance.base import at_least_once
from lockkit_django import alocks, locks, signals

pytestmark = pytest.mark.django_db(transaction=True)

REPLAYED = "Idempotent-Replayed"
HEADERS = {"Idempotency-Key": "A-1", "Authorization": "Token a"}
KINDS = ["plain", "locked", "inside", "coroutine", "async-plain"]


@pytest.fixture(autouse=True)
def project(redis_url: str) -> Iterator[None]:
    claiming.payments.clear()
    claiming.known.clear()
    claiming.started.clear()
    claiming.go_on.clear()
    with override_settings(ROOT_URLCONF="orders_django.claiming", LOCKKIT={"default": redis_url}):
        with orders():
            yield
        claiming.go_on.set()


def orders(**changes: Any) -> Any:
    return override_settings(
        LOCKKIT_ORDERS={
            "PATHS": ["^/orders/"],
            "STORE": "redis",
            "NAMESPACE": "shop",
            "WAIT": 0.2,
            **changes,
        }
    )


def buy(kind: str, body: str = "{}") -> Any:
    client = Client(raise_request_exception=False)
    return client.post(f"/orders/{kind}", body, content_type="application/json", headers=HEADERS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_duplicate_gets_the_same_bytes_and_pays_nothing(kind: str) -> None:
    first, second = buy(kind), buy(kind)
    assert (first.status_code, REPLAYED in first) == (201, False)
    assert (second.status_code, second.content, second[REPLAYED]) == (201, first.content, "true")
    assert len(claiming.payments) == 1
    assert buy(kind, "[1]").status_code == 422
    assert not list(locks["default"].holders())


def test_a_view_that_passes_its_lock_by_pays_once(caplog: pytest.LogCaptureFixture) -> None:
    with orders(AUTHORIZE_REPLAY="orders_django.hooks.yes"):
        answers = [buy("passes-by") for _ in range(2)]
    assert [REPLAYED in answer for answer in answers] == [False, True]
    assert len(claiming.payments) == 1
    assert "lock_view" in caplog.text


def test_what_a_lock_says_to_whoever_it_keeps_out_is_no_order() -> None:
    with locks["default"].lock("stock:s1"):
        assert buy("busy").content == b"come back"
    assert buy("busy").content.startswith(b"paid")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_duplicate_gets_the_same_bytes_under_asgi(kind: str) -> None:
    client = AsyncClient()
    first, second = [await client.post(f"/orders/{kind}", headers=HEADERS) for _ in range(2)]
    assert (first.status_code, second.content, second[REPLAYED]) == (201, first.content, "true")
    assert len(claiming.payments) == 1


def test_no_transaction_and_no_query() -> None:
    with CaptureQueriesContext(connections["default"]) as queries:
        assert b"False" in buy("plain").content
    assert not queries.captured_queries


def test_atomic_requests_is_committed_before_the_response_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    answers = [buy("inside") for _ in range(2)]
    assert [REPLAYED in answer for answer in answers] == [False, True]
    assert [sale.sku for sale in Sale.objects.all()] == ["True"]


@pytest.mark.parametrize("status", [409, 423, 429, 500, 503])
def test_a_view_that_answers_with_what_is_not_stored_may_be_tried_again(status: int) -> None:
    answers = [buy(f"status/{status}") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status, status]
    fences = [fence for _, fence in claiming.payments]
    assert len(fences) == 2
    assert fences[0] < fences[1]


@override_settings(LOCKKIT_VIEWS={"BUSY_STATUS": 422})
def test_what_is_said_of_a_busy_lock_by_hand_is_not_stored() -> None:
    """Nobody knows what the view did before it asked for the lock."""
    lock_errors = "lockkit_django.middleware.LockErrors"
    middleware = override_settings(MIDDLEWARE=[lock_errors, *settings.MIDDLEWARE])
    with middleware, locks["default"].lock("stock:s1"):
        assert buy("deducts").status_code == 422
    assert buy("deducts").json()["code"] == "order-orphaned"


def test_an_exception_that_drf_answers_is_an_answer_too() -> None:
    assert [buy("api").status_code for _ in range(2)] == [500, 500]
    assert len(claiming.payments) == 2


@pytest.mark.parametrize("kind", ["denies", "denies-late"])
def test_a_refusal_that_the_view_raises_may_come_after_the_payment(kind: str) -> None:
    answers = [buy(kind) for _ in range(2)]
    assert answers[0].status_code == 403
    assert (answers[1].status_code, answers[1].json()["code"]) == (409, "order-orphaned")
    assert len(claiming.payments) == 1


@pytest.mark.parametrize("kind", ["permitted", "permitted-class"])
def test_a_check_of_djangos_refuses_before_the_view(kind: str) -> None:
    assert [buy(kind).status_code for _ in range(2)] == [403, 403]
    assert list(orphans(locks["default"])) == []


@pytest.mark.parametrize("kind", ["permitted", "permitted-class"])
def test_a_check_of_djangos_refuses_before_the_view_whatever_is_made_of_that(kind: str) -> None:
    middleware = ["orders_django.endings.Thanks", *settings.MIDDLEWARE]
    with override_settings(MIDDLEWARE=middleware):
        for status in (201, 302, 404):
            answer = buy(f"{kind}?status={status}")
            assert (answer.status_code, REPLAYED in answer) == (status, False)
    assert list(orphans(locks["default"])) == []
    assert claiming.payments == []


@pytest.mark.parametrize("kind", ["permitted", "permitted-class"])
async def test_a_check_of_djangos_refuses_before_the_view_under_asgi(kind: str) -> None:
    client = AsyncClient()
    answers = [await client.post(f"/orders/{kind}", headers=HEADERS) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [403, 403]


def test_an_exception_leaves_an_orphan_which_is_not_run_again() -> None:
    assert buy("raises").status_code == 500
    again = buy("raises")
    assert (again.status_code, again.json()["code"]) == (409, "order-orphaned")
    assert len(claiming.payments) == 1
    assert not list(locks["default"].holders())


def test_a_process_that_is_told_to_end_leaves_an_orphan() -> None:
    with pytest.raises(SystemExit):
        buy("exits")
    assert buy("exits").json()["code"] == "order-orphaned"
    assert len(claiming.payments) == 1


def test_orphans_are_run_again_if_the_settings_say_so() -> None:
    with orders(ORPHANS="retry"):
        assert buy("raises").status_code == 500
        assert buy("raises").content == b"again: True"
        assert buy("raises")[REPLAYED] == "true"
    fences = [fence for _, fence in claiming.payments]
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("hook", ["recover", "arecover"])
def test_the_application_may_know_what_became_of_an_orphan(hook: str) -> None:
    with orders(RECOVER=f"orders_django.claiming.{hook}"):
        buy("raises")
        assert buy("raises").status_code == 409
        claiming.known["A-1"] = HttpResponse("paid, says the bank", status=201)
        recovered = buy("raises")
        claiming.known.clear()
        again = buy("raises")
    assert (recovered.status_code, recovered.content) == (201, b"paid, says the bank")
    assert (again.content, again[REPLAYED]) == (recovered.content, "true")
    assert len(claiming.payments) == 1


async def test_the_application_is_asked_under_asgi_too() -> None:
    with orders(RECOVER="orders_django.claiming.recover"):
        client = AsyncClient(raise_request_exception=False)
        await client.post("/orders/raises", headers=HEADERS)
        claiming.known["A-1"] = HttpResponse("paid", status=201)
        answer = await client.post("/orders/raises", headers=HEADERS)
    assert (answer.status_code, answer.content) == (201, b"paid")


def test_a_hook_that_answers_nonsense_runs_nothing() -> None:
    with orders(RECOVER="orders_django.claiming.recovers_nonsense"):
        buy("raises")
        assert buy("raises").status_code == 500
    assert len(claiming.payments) == 1
    assert not list(locks["default"].holders())


def test_a_response_that_was_not_kept_may_be_recovered_from_the_database_too() -> None:
    with (
        override_settings(ROOT_URLCONF="orders_django.urls"),
        orders(STORE="database", MAX_RESPONSE=1000, RECOVER="orders_django.claiming.recover"),
    ):
        assert buy("large").status_code == 200
        assert buy("large").json()["code"] == "order-completed"
        claiming.known["A-1"] = HttpResponse("x" * 2000)
        assert buy("large").content == b"x" * 2000
    assert Sale.objects.count() == 1


@pytest.mark.parametrize("way", ["stream", "file"])
def test_what_the_hook_sends_in_parts_is_read_whole(way: str) -> None:
    """Also of an orphan, for which it is stored."""
    with orders(RECOVER="orders_django.claiming.recover"):
        buy("raises")
        claiming.known["A-1"] = (
            StreamingHttpResponse(iter(["rec", "eipt"]), status=201)
            if way == "stream"
            else FileResponse(BytesIO(b"receipt"), status=201, filename="receipt.txt")
        )
        recovered = buy("raises")
        claiming.known.clear()
        again = buy("raises")
    assert (recovered.status_code, recovered.content) == (201, b"receipt")
    assert (again.content, again[REPLAYED]) == (b"receipt", "true")


def test_an_answer_of_the_hook_that_cannot_be_kept_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with orders(RECOVER="orders_django.claiming.recover"):
        buy("raises")
        claiming.known["A-1"] = HttpResponse(b"?", headers={"Content-Encoding": "gzip"})
        answers = [buy("raises") for _ in range(2)]
    assert [each.json()["code"] for each in answers] == ["order-completed"] * 2
    assert "claiming.recover returned" in caplog.text


def test_a_duplicate_waits_for_the_one_that_runs() -> None:
    with orders(WAIT=20), ThreadPoolExecutor(2) as pool:
        first = pool.submit(buy, "waits")
        assert claiming.started.wait(20)
        second = pool.submit(buy, "waits")
        claiming.go_on.set()
        answers = [first.result(30), second.result(30)]
    assert [REPLAYED in answer for answer in answers] == [False, True]
    assert len(claiming.payments) == 1


async def test_a_client_that_goes_away_before_the_view_leaves_no_orphan() -> None:
    """Its order is claimed, and its view waits for a lock of its own."""
    with override_settings(LOCKKIT_VIEWS={"TIMEOUT": 30}):
        async with alocks["default"].lock("stock:s1"):
            going = asyncio.create_task(AsyncClient().post("/orders/async-locked", headers=HEADERS))
            async with asyncio.timeout(30):
                while not await is_awaited("stock:s1"):  # noqa: ASYNC110  the store's to tell
                    await asyncio.sleep(0.005)
            going.cancel()
            with pytest.raises(asyncio.CancelledError):
                await going
        assert list(orphans(locks["default"])) == []
        answer = await AsyncClient().post("/orders/async-locked", headers=HEADERS)
    assert (answer.status_code, len(claiming.payments)) == (201, 1)


async def test_a_response_is_stored_under_the_lock_even_if_the_client_goes_away() -> None:
    kind = "takes-long-to-store"
    gone = asyncio.create_task(AsyncClient().post(f"/orders/{kind}", headers=HEADERS))
    assert await asyncio.to_thread(claiming.started.wait, 30)
    gone.cancel()
    for _ in range(50):  # the handler hears of it and ends, while its thread stores the response
        await asyncio.sleep(0)
    assert [info.name async for info in alocks["default"].holders()]
    claiming.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await gone
    again = await AsyncClient().post(f"/orders/{kind}", headers=HEADERS)
    assert (again.status_code, again.content, again[REPLAYED]) == (201, b"paid 1", "true")
    assert len(claiming.payments) == 1
    assert not [info async for info in alocks["default"].holders()]


async def is_awaited(name: str) -> bool:
    info = await alocks["default"].inspect(name)
    return info is not None and info.waiters > 0


def test_commit_in_has_no_record_to_commit() -> None:
    assert buy("commits").status_code == 500


def test_a_store_that_is_down_runs_nothing() -> None:
    with override_settings(LOCKKIT={"default": "redis://127.0.0.1:1/0"}):
        answer = buy("plain")
    assert (answer.status_code, answer.json()["code"]) == (503, "order-store-unavailable")
    assert claiming.payments == []


def test_nobody_is_told_of_a_done_order_that_it_was_not_processed() -> None:
    assert buy("plain").status_code == 201
    with override_settings(LOCKKIT={"default": "redis://127.0.0.1:1/0"}):
        detail = buy("plain").json()["detail"]
    assert "order was not processed" not in detail
    assert "it may have been processed" in detail


def test_a_response_that_cannot_be_stored_is_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch, redis_server: Any
) -> None:
    paying = claiming.pay

    def pay(request: Any) -> int:
        number = paying(request)
        redis_server.pause()
        return number

    def unknown() -> bool:
        redis_server.flush()
        claiming.payments.clear()
        url = f"{redis_server.url}?socket_timeout=0.5"  # one that stalls may not come to the view
        with override_settings(LOCKKIT={"default": url}):
            try:
                answer = buy("plain")
            finally:
                redis_server.resume()
        assert answer.status_code == 503
        assert not claiming.payments or answer.json()["code"] == "order-outcome-unknown"
        return bool(claiming.payments)

    monkeypatch.setattr(claiming, "pay", pay)
    at_least_once(unknown)


def test_signals_tell_of_replays_conflicts_and_orphans() -> None:
    told = []

    def receiver(signal: Any, sender: Any, request: Any, order_id: str, **_: Any) -> None:
        told.append((names[signal], sender.__name__, request.path, order_id))
        raise RuntimeError("a receiver's own business")

    names = {getattr(signals, f"order_{n}"): n for n in ("replayed", "conflict", "orphaned")}
    for signal in names:
        signal.connect(receiver)
    try:
        for body in ("{}", "{}", "[1]"):
            buy("plain", body)
        claiming.payments.clear()
        for _ in range(2):
            buy("raises")
        with orders(ORPHANS="retry"):
            buy("raises")
    finally:
        for signal in names:
            signal.disconnect(receiver)
    assert told == [
        ("replayed", "plain", "/orders/plain", "A-1"),
        ("conflict", "plain", "/orders/plain", "A-1"),
        ("orphaned", "raises", "/orders/raises", "A-1"),
        ("orphaned", "raises", "/orders/raises", "A-1"),
    ]
