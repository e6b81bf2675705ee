"""Async: what is given up in the middle of a view that holds a lock, by its client or by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest
from asgi_scope import http_scope
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path
from django_project.shop.models import Sale
from django_project.spy import SpyBackend

import lockkit
from lockkit_django import alocks, lock_view, locked, locks

pytestmark = pytest.mark.django_db(transaction=True)

started = threading.Event()
go_on = threading.Event()


def sell(sku: str) -> None:
    with transaction.atomic():
        Sale.objects.create(sku=sku)
        started.set()
        go_on.wait(60)


@lock_view("stock:{sku}")
async def decorated(request: HttpRequest, sku: str) -> HttpResponse:
    await sync_to_async(sell)(sku)
    return HttpResponse("sold")


@lock_view("stock:{sku}")
def sync(request: HttpRequest, sku: str) -> HttpResponse:
    sell(sku)
    return HttpResponse("sold")


async def by_hand(request: HttpRequest, sku: str) -> HttpResponse:
    async with alocks["default"].lock(f"stock:{sku}"):
        await sync_to_async(sell)(sku)
    return HttpResponse("sold")


async def given_up(sku: str) -> None:
    """As by a deadline."""
    query = asyncio.ensure_future(sync_to_async(sell)(sku))
    assert await asyncio.to_thread(started.wait, 30)
    query.cancel()
    with suppress(asyncio.CancelledError):
        await query
    raise TimeoutError


def too_slow() -> HttpResponse:
    return HttpResponse("too slow", status=504)


@lock_view("stock:{sku}")
async def decorated_and_in_time(request: HttpRequest, sku: str) -> HttpResponse:
    """It catches its deadline under its lock."""
    with suppress(TimeoutError):
        await given_up(sku)
    return too_slow()


async def by_hand_and_in_time(request: HttpRequest, sku: str) -> HttpResponse:
    with suppress(TimeoutError):
        async with alocks["default"].lock(f"stock:{sku}"):
            await given_up(sku)
    return too_slow()


async def several_and_in_time(request: HttpRequest, sku: str) -> HttpResponse:
    with suppress(TimeoutError):
        async with alocks["default"].multi(f"stock:{sku}"):
            await given_up(sku)
    return too_slow()


async def lease_and_in_time(request: HttpRequest, sku: str) -> HttpResponse:
    with suppress(TimeoutError):
        async with await alocks["default"].lock(f"stock:{sku}").acquire():
            await given_up(sku)
    return too_slow()


@locked("stock:{sku}")
async def function_in_time(sku: str) -> None:
    await given_up(sku)


async def function_and_in_time(request: HttpRequest, sku: str) -> HttpResponse:
    with suppress(TimeoutError):
        await function_in_time(sku)
    return too_slow()


VIEWS = {"decorated": decorated, "sync": sync, "by-hand": by_hand}
IN_TIME = {
    "decorated-in-time": decorated_and_in_time,
    "by-hand-in-time": by_hand_and_in_time,
    "several-in-time": several_and_in_time,
    "lease-in-time": lease_and_in_time,
    "function-in-time": function_and_in_time,
}
urlpatterns = [path(f"{kind}/<str:sku>", view) for kind, view in {**VIEWS, **IN_TIME}.items()]


class Visit:
    """One POST, whose client may leave."""

    def __init__(self, url: str) -> None:
        self._gone = asyncio.Event()
        self._sent = False
        self.scope = http_scope("POST", url)

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None: ...


class Watched:
    """What is granted and released while a request is on its way, and how much is sold by then."""

    def __init__(self, committed: Any) -> None:
        started.clear()
        go_on.clear()
        self._committed = committed
        self._released = threading.Event()
        self.events: list[tuple[str, int]] = []
        SpyBackend.observers.append(self._note)

    def _note(self, event: str, name: str) -> None:
        self.events.append((event, self._committed.sales("A1")))
        if event == "release":
            self._released.set()

    async def see_it_keep_its_lock(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0.001)
        events = [*self.events]
        go_on.set()
        assert events == [("grant", 0)]

    async def see_the_release(self) -> None:
        assert await asyncio.to_thread(self._released.wait, 30)
        assert self.events == [("grant", 0), ("release", 1)]


@pytest.fixture
def watched(committed: Any) -> Iterator[Watched]:
    with override_settings(ROOT_URLCONF=__name__):
        yield Watched(committed)


@pytest.mark.parametrize("kind", VIEWS)
async def test_what_it_left_behind_is_committed_before_the_release(
    kind: str, watched: Watched
) -> None:
    """A cancelled ``sync_to_async`` ends at once, and its function runs on."""
    visit = Visit(f"/{kind}/A1")
    task = asyncio.create_task(ASGIHandler()(visit.scope, visit.receive, visit.send))
    assert await asyncio.to_thread(started.wait, 30)
    visit.leave()
    await watched.see_it_keep_its_lock()
    with suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    await watched.see_the_release()  # a sync view ends in its own thread


@pytest.mark.parametrize("kind", IN_TIME)
async def test_so_is_what_a_view_or_its_block_gave_up(kind: str, watched: Watched) -> None:
    visit = Visit(f"/{kind}/A1")
    task = asyncio.create_task(ASGIHandler()(visit.scope, visit.receive, visit.send))
    assert await asyncio.to_thread(started.wait, 30)
    await watched.see_it_keep_its_lock()
    await asyncio.wait_for(task, 60)
    await watched.see_the_release()


def post(url: str) -> int:
    try:
        return Client().post(url).status_code
    finally:
        connections.close_all()


@pytest.mark.parametrize("kind", IN_TIME)
async def test_so_it_is_under_wsgi(kind: str, watched: Watched) -> None:
    task = asyncio.create_task(asyncio.to_thread(post, f"/{kind}/A1"))
    assert await asyncio.to_thread(started.wait, 30)
    await watched.see_it_keep_its_lock()
    assert await asyncio.wait_for(task, 60) == 504
    await watched.see_the_release()


def wait_for_it(sku: str) -> None:
    started.set()
    with locks["default"].lock(f"stock:{sku}", timeout=20):
        pass


async def hold_while_another_task_waits() -> None:
    started.clear()
    async with alocks["default"].lock("stock:A1"):
        task = asyncio.create_task(sync_to_async(wait_for_it)("A1"))
        assert await asyncio.to_thread(started.wait, 30)
    await task


async def in_the_thread_of_a_request() -> None:
    async with ThreadSensitiveContext():
        await hold_while_another_task_waits()


async def in_the_thread_of_a_command() -> None:
    await asyncio.to_thread(async_to_sync(hold_while_another_task_waits))


@pytest.mark.parametrize(
    "run",
    [hold_while_another_task_waits, in_the_thread_of_a_request, in_the_thread_of_a_command],
)
async def test_a_block_that_ends_is_not_waited_for_by_what_waits_for_its_lock(
    run: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    await run()


def work_until(done: threading.Event) -> None:
    started.set()
    assert done.wait(60)


async def test_a_thread_that_all_tasks_share_is_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A lock is asked for, and released, while another task's query runs there."""
    started.clear()
    done = threading.Event()
    task = asyncio.create_task(sync_to_async(work_until)(done))
    assert await asyncio.to_thread(started.wait, 30)
    try:
        async with asyncio.timeout(20):
            lease = await alocks["default"].lock("stock:A1", timeout=0).acquire()
            await lease.release()
    finally:
        done.set()
        await task
    (line,) = caplog.messages  # what could not be looked for is said
    assert "nobody looked for an open transaction before 'stock:A1'" in line


async def test_a_transaction_in_the_thread_that_all_tasks_share_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lockkit_django.leases.client.LOOK_SECONDS", 60.0)  # it may be slow
    block = transaction.atomic()
    await sync_to_async(block.__enter__)()
    try:
        with pytest.raises(lockkit.OpenTransaction):
            await alocks["default"].lock("stock:A1").acquire()
    finally:
        await sync_to_async(block.__exit__)(None, None, None)
    await (await alocks["default"].lock("stock:A1").acquire()).release()


@lock_view("stock:{sku}")
async def fails_as_a_task_waits(request: HttpRequest, sku: str) -> HttpResponse:
    waiting.add(asyncio.create_task(sync_to_async(wait_for_it)(sku)))
    assert await asyncio.to_thread(started.wait, 30)
    raise Http404


async def fail_while_another_task_waits() -> None:
    started.clear()
    async with alocks["default"].lock("stock:A1"):
        waiting.add(asyncio.create_task(sync_to_async(wait_for_it)("A1")))
        assert await asyncio.to_thread(started.wait, 30)
        raise Http404


async def fail_in_a_view() -> None:
    started.clear()
    await fails_as_a_task_waits(RequestFactory().post("/"), sku="A1")


@pytest.mark.parametrize("fail", [fail_while_another_task_waits, fail_in_a_view])
async def test_an_error_does_not_wait_for_ever_for_what_waits_for_its_lock(
    fail: Callable[[], Coroutine[Any, Any, None]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("lockkit_django.leases.client.PATIENCE", 0.2)
    monkeypatch.setattr("lockkit_django.web.lock_view.PATIENCE", 0.2)
    with pytest.raises(Http404):
        await asyncio.wait_for(fail(), 15)
    await waiting.pop()
    assert ["is released while" in line for line in caplog.messages].count(True) == 1


waiting: set[asyncio.Task[None]] = set()


@lock_view("stock:{sku}")
async def leaves_a_task_behind(request: HttpRequest, sku: str) -> HttpResponse:
    waiting.add(asyncio.create_task(sync_to_async(wait_for_it)(sku)))
    assert await asyncio.to_thread(started.wait, 30)
    return HttpResponse("accepted", status=202)


async def test_a_view_that_ends_waits_for_such_a_task_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lockkit_django.web.lock_view.PATIENCE", 0.2)
    started.clear()
    async with ThreadSensitiveContext():
        request = RequestFactory().post("/")
        answer = await asyncio.wait_for(leaves_a_task_behind(request, sku="A1"), 15)
        await waiting.pop()
    assert answer.status_code == 202
    (line,) = caplog.messages
    assert line.startswith("'stock:A1' is released while")
