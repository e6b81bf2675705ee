"""Orders that raise what is turned into an answer above them: by Django Ninja, by a decorator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django_project.shop.models import Sale
from ninja import NinjaAPI
from ninja.errors import HttpError

from lockkit.model.errors import LockHeld
from lockkit_django import lock_view, locks
from lockkit_django.orders import idempotent
from orders_django.views import Broken, calls, sell

api = NinjaAPI(urls_namespace="answering")


@api.exception_handler(Broken)
def answer(request: HttpRequest, error: Any) -> HttpResponse:
    status = int(request.GET.get("status", "201"))
    return HttpResponse("answered", status=status, headers={"Location": "/basket"})


@api.post("/missing")
@idempotent
def missing(request: HttpRequest) -> Any:
    sell("missing")
    raise Http404


@api.post("/error/{status}")
@idempotent
def error(request: HttpRequest, status: int) -> Any:
    sell("error")
    raise HttpError(status, "no")


@api.post("/broken")
@idempotent
def broken(request: HttpRequest) -> Any:
    sell("broken")
    raise Broken


def error_of(request: HttpRequest) -> Exception:
    return PermissionDenied() if "denied" in request.GET else Broken()


def _answers(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def answered(request: HttpRequest) -> Any:
        try:
            return view(request)
        except (Broken, PermissionDenied) as error:
            return answer(request, error)

    return answered


@_answers
@idempotent
def decorated(request: HttpRequest) -> HttpResponse:
    sell("decorated")
    raise Broken


@_answers
@lock_view("stock:A1")
def locked(request: HttpRequest) -> HttpResponse:
    sell("locked")
    raise error_of(request)


@idempotent(atomic=False)
@_answers
@lock_view("stock:A1")
def own(request: HttpRequest) -> HttpResponse:
    sell("own")
    raise Broken


def _counts(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def counted(request: HttpRequest) -> Any:
        try:
            return view(request)
        except Broken:
            seen = Sale.objects.count()
            sell("failure")
            request.session["failures"] = 1
            return HttpResponse(f"saw {seen}", status=403)

    return counted


@_counts
@lock_view("stock:A1")
def counted(request: HttpRequest) -> HttpResponse:
    sell("counted")
    request.session["cart"] = "empty"
    raise Broken


def _retries(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def retried(request: HttpRequest) -> Any:
        try:
            return view(request)
        except Broken:
            return view(request)

    return retried


@_retries
@lock_view("stock:A1")
def retried(request: HttpRequest) -> HttpResponse:
    number = sell("retried")
    if len(calls) % 2:
        raise Broken
    return HttpResponse(f"sold {number}", status=201)


def _queues_in_vain(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def queued(request: HttpRequest) -> Any:
        try:
            return view(request)
        except Broken:
            sell("queue")
            raise Http404 from None

    return queued


@lock_view("stock:B")
@_queues_in_vain
@lock_view("stock:A1")
def nested(request: HttpRequest) -> HttpResponse:
    sell("sold")
    raise Broken


def _tells_its_lease(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def told(request: Any) -> HttpResponse:
        before, inside = request.lease.name, view(request).content.decode()
        return HttpResponse(f"{before} {inside} {request.lease.name}", status=201)

    return told


@lock_view("outer")
@_tells_its_lease
@lock_view("inner")
def two_leases(request: Any) -> HttpResponse:
    """Asks for the outer lock again."""
    with suppress(LockHeld), locks["default"].lock("outer", timeout=1, in_atomic="allow"):
        raise AssertionError
    return HttpResponse(request.lease.name)


held: list[Any] = []
"""Leases of somebody else."""


def _insists(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def insisted(request: HttpRequest) -> Any:
        try:
            if view(request).status_code == 423:
                held.pop().release()
                view(request)
        except Broken:
            return HttpResponse(f"in the queue {sell('queue')}", status=201)

    return insisted


@_insists
@lock_view("stock:B", timeout=0)
def insisted(request: HttpRequest) -> HttpResponse:
    sell("sold")
    raise Broken


@_answers
@idempotent(atomic=False)
def own_inside(request: HttpRequest) -> HttpResponse:
    sell("own")
    raise Broken


def _queues(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def queued(request: HttpRequest) -> Any:
        try:
            return view(request)
        except Broken:
            return HttpResponse(f"in the queue {sell('queue')}", status=201)

    return queued


@_queues
@lock_view("stock:A1")
def queued(request: HttpRequest) -> HttpResponse:
    sell("sold")
    raise Broken


class Overdue(BaseException):
    """A BaseException, as ``gevent.Timeout`` is one."""


def _overdue_answered(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def answered(request: HttpRequest) -> Any:
        try:
            return view(request)
        except Overdue:
            return answer(request, None)

    return answered


@_overdue_answered
@idempotent
def overdue(request: HttpRequest) -> HttpResponse:
    """The first time it is stopped half-way."""
    sell("half")
    if len(calls) == 1:
        raise Overdue
    return HttpResponse(f"sold {sell('rest')}", status=201)


deadlines: list[asyncio.Timeout] = []


def miss_deadline() -> None:
    deadlines[-1].reschedule(asyncio.get_running_loop().time())


def _with_deadline(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    async def within(request: HttpRequest) -> Any:
        try:
            async with asyncio.timeout(None) as deadline:
                deadlines.append(deadline)
                return await view(request)
        except TimeoutError:
            return answer(request, None)

    return within


@_with_deadline
@idempotent
async def async_overdue(request: HttpRequest) -> HttpResponse:
    await sync_to_async(sell)("half")
    if len(calls) == 1:
        miss_deadline()
        await asyncio.Event().wait()
    return HttpResponse(f"sold {await sync_to_async(sell)('rest')}", status=201)


urlpatterns = [
    path("orders/ninja/", api.urls),
    path("orders/decorated", decorated),
    path("orders/locked", locked),
    path("orders/own", own),
    path("orders/counted", counted),
    path("orders/retried", retried),
    path("orders/queued", queued),
    path("orders/insisted", insisted),
    path("orders/nested", nested),
    path("orders/two-leases", two_leases),
    path("orders/own-inside", own_inside),
    path("orders/overdue", overdue),
    path("orders/async-overdue", async_overdue),
]
