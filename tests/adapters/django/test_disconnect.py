"""ASGI: a client that goes away in the middle of a view that holds a lock."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest
from asgi_scope import http_scope
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from django_project.shop.models import Sale
from django_project.spy import SpyBackend

from lockkit_django import alocks, lock_view

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


VIEWS = {"decorated": decorated, "sync": sync, "by-hand": by_hand}
urlpatterns = [path(f"{kind}/<str:sku>", view) for kind, view in VIEWS.items()]


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


@pytest.mark.parametrize("kind", VIEWS)
async def test_what_it_left_behind_is_committed_before_the_release(
    kind: str, committed: Any
) -> None:
    """A cancelled ``sync_to_async`` ends at once, and its function runs on."""
    started.clear()
    go_on.clear()
    released = threading.Event()
    events: list[tuple[str, int]] = []

    def note(event: str, name: str) -> None:
        events.append((event, committed.sales("A1")))
        if event == "release":
            released.set()

    SpyBackend.observers.append(note)
    with override_settings(ROOT_URLCONF=__name__):
        visit = Visit(f"/{kind}/A1")
        task = asyncio.create_task(ASGIHandler()(visit.scope, visit.receive, visit.send))
        assert await asyncio.to_thread(started.wait, 30)
        visit.leave()
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert events == [("grant", 0)]
        go_on.set()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)
        assert await asyncio.to_thread(released.wait, 30)  # a sync view ends in its own thread
    assert events == [("grant", 0), ("release", 1)]
