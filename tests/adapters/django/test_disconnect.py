"""Async: what is given up in the middle of a view that holds a lock, by its client or by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from asgi_scope import http_scope
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from django_project.shop.models import Sale
from django_project.spy import SpyBackend

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


async def given_up(sku: str) -> HttpResponse:
    """As by a deadline that the view catches."""
    query = asyncio.ensure_future(sync_to_async(sell)(sku))
    assert await asyncio.to_thread(started.wait, 30)
    query.cancel()
    with suppress(asyncio.CancelledError):
        await query
    return HttpResponse("too slow", status=504)


@lock_view("stock:{sku}")
async def decorated_and_in_time(request: HttpRequest, sku: str) -> HttpResponse:
    return await given_up(sku)


async def by_hand_and_in_time(request: HttpRequest, sku: str) -> HttpResponse:
    async with alocks["default"].lock(f"stock:{sku}"):
        return await given_up(sku)


async def several_and_in_time(request: HttpRequest, sku: str) -> HttpResponse:
    async with alocks["default"].multi(f"stock:{sku}"):
        return await given_up(sku)


async def lease_and_in_time(request: HttpRequest, sku: str) -> HttpResponse:
    async with await alocks["default"].lock(f"stock:{sku}").acquire():
        return await given_up(sku)


@locked("stock:{sku}")
async def function_in_time(sku: str) -> HttpResponse:
    return await given_up(sku)


async def function_and_in_time(request: HttpRequest, sku: str) -> HttpResponse:
    return await function_in_time(sku)


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
async def test_so_is_what_a_view_gave_up_itself(kind: str, watched: Watched) -> None:
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
    with locks["default"].lock(f"stock:{sku}", timeout=10):
        pass


async def test_in_a_thread_that_all_tasks_share_a_lock_is_released_at_once() -> None:
    """What another task does there may wait for this very lock."""
    started.clear()
    async with alocks["default"].lock("stock:A1"):
        task = asyncio.create_task(sync_to_async(wait_for_it)("A1"))
        assert await asyncio.to_thread(started.wait, 30)
    await task
