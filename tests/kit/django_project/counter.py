"""A resource that loses updates when two requests change it at the same time, behind a lock."""

from __future__ import annotations

import asyncio
import os
import threading

from django.http import HttpRequest, HttpResponse
from django.urls import path

from lockkit_django import lock_view

LOCKED = os.environ.get("COUNTER") != "unlocked"
locked = lock_view("counter") if LOCKED else lambda view: view
counted = 0


@locked
def sync_count(request: HttpRequest) -> HttpResponse:
    global counted  # noqa: PLW0603  the resource
    seen = counted
    threading.Event().wait(0.001)
    counted = seen + 1
    return HttpResponse(str(counted))


@locked
async def async_count(request: HttpRequest) -> HttpResponse:
    global counted  # noqa: PLW0603  the resource
    seen = counted
    await asyncio.sleep(0.001)
    counted = seen + 1
    return HttpResponse(str(counted))


urlpatterns = [path("sync", sync_count), path("async", async_count)]
