"""The same through Django's ASGI handler: async and sync views, and clients that go away."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from asgi_scope import http_scope
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.test import AsyncClient, override_settings
from django_project.shop.models import Sale
from garbage import collected
from orders_django import views

from lockkit_django import alocks
from lockkit_django.models import OrderRecord
from lockkit_django.orders import OpenOrder

pytestmark = pytest.mark.django_db(transaction=True)

CSRF = b"c" * 32
REPLAYED = b"Idempotent-Replayed"


class Exchange:
    """One request through an application; ``leave()`` is the client closing the connection."""

    def __init__(self, kind: str, order_id: bytes = b"A-1") -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self._sent = False
        self._gone = asyncio.Event()
        self.scope = http_scope(
            "POST",
            f"/orders/{kind}",
            (b"idempotency-key", order_id),
            (b"authorization", b"Token a"),
            (b"x-csrftoken", CSRF),
            (b"cookie", b"csrftoken=" + CSRF),
        )

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
        self.body += message.get("body", b"")


@pytest.fixture
async def application() -> AsyncIterator[ASGIHandler]:
    yield ASGIHandler()
    await sync_to_async(connections.close_all)()  # what the test itself has asked by acount()


async def buy(application: ASGIHandler, *args: Any) -> Exchange:
    exchange = Exchange(*args)
    await application(exchange.scope, exchange.receive, exchange.send)
    return exchange


async def nothing_is_held() -> bool:
    return [info async for info in alocks["default"].holders()] == []


KINDS = [
    "function",
    "class",
    "template",
    "template-query",
    "api",
    "api-mixed",
    "api-set",
    "api-set-mixed",
    "api-function",
    "async",
    "async-inside",
    "locked/s1",
    "async-locked/s1",
]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_duplicate_gets_the_same_bytes(kind: str, application: ASGIHandler) -> None:
    first, second = [await buy(application, kind) for _ in range(2)]
    assert (first.status, REPLAYED in first.headers) == (201, False)
    assert (second.status, second.headers.get(REPLAYED), second.body) == (201, b"true", first.body)
    assert len(views.calls) == 1
    assert (await Sale.objects.acount(), await OrderRecord.objects.acount()) == (1, 1)
    assert await nothing_is_held()


async def test_orders_that_one_task_sends_do_not_keep_each_other() -> None:
    """Their leases are released in other tasks, so this one still sees the last of them."""
    client = AsyncClient()
    for number in range(3):
        headers = {"Idempotency-Key": f"kept-{number}", "Authorization": "Token a"}
        answer = await client.post("/orders/async", headers=headers)
        assert answer.status_code == 201
        del answer  # it has its request, and that its order
    collected()
    orders = [each for each in gc.get_objects() if issubclass(type(each), OpenOrder)]
    assert [each.order_id for each in orders if "kept-" in each.order_id] in ([], ["kept-2"])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_duplicate_in_a_process_that_has_not_seen_the_order_is_a_replay(
    kind: str, application: ASGIHandler
) -> None:
    first = await buy(application, kind)
    with override_settings(LOCKKIT_ORDERS={"PATHS": ["^/orders/"]}):
        second = await buy(application, kind)
    assert (second.status, second.headers.get(REPLAYED), second.body) == (201, b"true", first.body)
    assert len(views.calls) == 1
    assert await nothing_is_held()


@pytest.mark.parametrize("kind", ["async-locked/s1", "async-inside"])
def test_async_views_with_locks_and_orders_under_wsgi(kind: str) -> None:
    from django.test import Client

    from lockkit_django import locks

    headers = {"Idempotency-Key": "A-1", "Authorization": "Token a"}
    answers = [Client().post(f"/orders/{kind}", headers=headers) for _ in range(2)]
    assert [REPLAYED.decode() in answer for answer in answers] == [False, True]
    assert len(views.calls) == 1
    assert not list(locks["default"].holders())


@pytest.mark.parametrize("kind", ["broken", "returns-500", "template-broken", "async-broken"])
async def test_a_failure_is_rolled_back(kind: str, application: ASGIHandler) -> None:
    answers = [await buy(application, kind) for _ in range(2)]
    assert [answer.status for answer in answers] == [500, 500]
    assert (len(views.calls), await Sale.objects.acount()) == (2, 0)
    assert (await OrderRecord.objects.acount(), await nothing_is_held()) == (0, True)


@pytest.mark.parametrize("kind", ["waits", "async-waits"])
async def test_simultaneous_requests_run_once(kind: str, application: ASGIHandler) -> None:
    with override_settings(LOCKKIT_ORDERS={"PATHS": ["^/orders/"], "WAIT": 30}):
        first = asyncio.create_task(buy(application, kind))
        assert await asyncio.to_thread(views.started.wait, 30)
        others = [asyncio.create_task(buy(application, kind)) for _ in range(5)]
        await waiters(5)
        views.go_on.set()
        answers = await asyncio.gather(first, *others)
    assert [REPLAYED in answer.headers for answer in answers] == [False] + [True] * 5
    assert {answer.body for answer in answers} == {answers[0].body}
    assert len(views.calls) == 1


async def waiters(count: int) -> None:
    async with asyncio.timeout(30):
        while sum([info.waiters async for info in alocks["default"].holders()]) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", ["waits", "async-waits"])
async def test_a_client_that_goes_away_leaves_no_half_order(
    kind: str, application: ASGIHandler
) -> None:
    exchange = Exchange(kind)
    task = asyncio.create_task(application(exchange.scope, exchange.receive, exchange.send))
    assert await asyncio.to_thread(views.started.wait, 30)
    exchange.leave()
    for _ in range(20):  # the handler hears of it and cancels, while the view still runs
        await asyncio.sleep(0)
    views.go_on.set()
    await asyncio.wait_for(task, 60)
    assert exchange.status == 0
    assert await nothing_is_held()
    assert (await Sale.objects.acount(), await OrderRecord.objects.acount()) == (0, 0)
    views.started.clear()
    again = await buy(application, kind)
    assert (again.status, REPLAYED in again.headers) == (201, False)
    assert await Sale.objects.acount() == len(views.calls) * (1 if kind == "waits" else 2) - (
        1 if kind == "waits" else 2
    )


@pytest.mark.parametrize("kind", ["late-inside", "api-late-mixed"])
async def test_what_a_thread_opens_after_the_client_went_away_is_ended(
    kind: str, application: ASGIHandler
) -> None:
    gone = Exchange(kind)
    task = asyncio.create_task(application(gone.scope, gone.receive, gone.send))
    assert await asyncio.to_thread(views.started.wait, 30)
    gone.leave()
    for _ in range(50):  # the handler hears of it and ends, while a check above the order runs
        await asyncio.sleep(0)
    views.go_on.set()
    await asyncio.wait_for(task, 60)
    assert await nothing_is_held()
    assert (await Sale.objects.acount(), await OrderRecord.objects.acount()) == (0, 0)
    again = await buy(application, kind)
    assert (again.status, REPLAYED in again.headers) == (201, False)
    assert await Sale.objects.acount() == 1


@pytest.mark.usefixtures("closed_at_last")
@pytest.mark.parametrize("kind", ["waits", "async-waits"])
async def test_the_rollback_comes_before_the_release_however_often_it_is_cancelled(
    kind: str, application: ASGIHandler, releases: Any
) -> None:
    exchange = Exchange(kind)
    task = asyncio.create_task(application(exchange.scope, exchange.receive, exchange.send))
    assert await asyncio.to_thread(views.started.wait, 30)
    exchange.leave()
    for _ in range(3):
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
    views.go_on.set()
    try:
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)
    except RuntimeError as error:  # of asgiref, on 3.12: Django's last signal goes to a dead thread
        if str(error) != "CurrentThreadExecutor already quit or is broken":
            raise
    assert releases.seen == [("order", 0, False)]
    assert await nothing_is_held()


async def test_a_client_that_goes_away_while_it_waits_leaves_the_queue(
    application: ASGIHandler,
) -> None:
    with override_settings(LOCKKIT_ORDERS={"PATHS": ["^/orders/"], "WAIT": 30}):
        first = asyncio.create_task(buy(application, "waits"))
        assert await asyncio.to_thread(views.started.wait, 30)
        second = Exchange("waits")
        task = asyncio.create_task(application(second.scope, second.receive, second.send))
        await waiters(1)
        second.leave()
        await asyncio.wait_for(task, 60)
        assert sum([info.waiters async for info in alocks["default"].holders()]) == 0
        views.go_on.set()
        assert (await first).status == 201
    assert await nothing_is_held()


@pytest.mark.usefixtures("application")
@pytest.mark.parametrize("kind", ["async-locked/s1", "async-locked-inside/s1"])
async def test_an_order_without_a_lock_waits_for_that_of_its_view_in_the_loop(kind: str) -> None:
    """These tasks share the thread of their queries, which the holder needs."""
    headers = {"Idempotency-Key": "A-1", "Authorization": "Token a"}
    rules = {"PATHS": ["^/orders/"], "LOCK": "never"}
    with override_settings(
        LOCKKIT={"default": "memory://shared"},  # by the blocking and the asyncio client
        LOCKKIT_ORDERS=rules,
        LOCKKIT_VIEWS={"TIMEOUT": 30},
        MIDDLEWARE=["lockkit_django.middleware.IdempotentOrderMiddleware"],  # none is sync only
    ):
        async with alocks["default"].lock("stock:s1"):
            waiting = asyncio.create_task(AsyncClient().post(f"/orders/{kind}", headers=headers))
            await waiters(1)
            await Sale.objects.acreate(sku="of the holder")
        assert (await waiting).status_code == 201
    assert [sale.sku async for sale in Sale.objects.order_by("pk")] == ["of the holder", "s1"]


async def test_the_lock_store_is_down(application: ASGIHandler) -> None:
    with override_settings(LOCKKIT={"default": "redis://127.0.0.1:1/0"}):
        assert (await buy(application, "async")).status == 503
    assert views.calls == []


async def test_a_view_that_loses_its_lease_is_rolled_back(application: ASGIHandler) -> None:
    assert (await buy(application, "async-loses")).status == 503
    assert (await Sale.objects.acount(), await OrderRecord.objects.acount()) == (0, 0)
