"""Views whose effects are outside any database: payments, which are a list here."""

from __future__ import annotations

import asyncio
import threading
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import permission_required
from django.contrib.auth.mixins import PermissionRequiredMixin
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django.views import View
from django_project.shop.models import Sale
from rest_framework.exceptions import APIException
from rest_framework.response import Response
from rest_framework.views import APIView

from lockkit_django import lock_view, locks
from lockkit_django.orders import idempotent
from orders_django.views import Broken

payments: list[tuple[str, int]] = []
known: dict[str, Any] = {}
started = threading.Event()
go_on = threading.Event()


def pay(request: HttpRequest) -> int:
    payments.append((request.order.order_id, request.order.fencing_token))  # type: ignore[attr-defined]
    return len(payments)


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"paid {pay(request)} {connection.in_atomic_block}", status=201)


def returns(request: HttpRequest, status: int) -> HttpResponse:
    return HttpResponse(f"{pay(request)}", status=status)


def raises(request: HttpRequest) -> HttpResponse:
    pay(request)
    if len(payments) > 1:
        return HttpResponse(f"again: {request.order.orphan}")  # type: ignore[attr-defined]
    raise Broken


def exits(request: HttpRequest) -> HttpResponse:
    pay(request)
    raise SystemExit


def deducts(request: HttpRequest) -> HttpResponse:
    pay(request)
    with locks["default"].lock("stock:s1", timeout=0):
        return HttpResponse("paid", status=201)


def not_found(request: HttpRequest) -> HttpResponse:
    pay(request)
    raise Http404


def denies(request: HttpRequest) -> HttpResponse:
    pay(request)
    raise PermissionDenied


@permission_required("shop.add_sale", raise_exception=True)
def permitted(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"paid {pay(request)}", status=201)


def denies_late(request: HttpRequest) -> HttpResponse:
    """A check of Django's, but in the middle."""
    pay(request)
    return permitted(request)


class PermittedClass(PermissionRequiredMixin, View):
    permission_required = "shop.add_sale"
    raise_exception = True

    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"paid {pay(request)}", status=201)


def waits(request: HttpRequest) -> HttpResponse:
    number = pay(request)
    started.set()
    go_on.wait(60)
    return HttpResponse(f"paid {number}", status=201)


class _TakesLong(HttpResponse):
    """To be stored it must be read, and that takes until the test lets it go on."""

    @property
    def content(self) -> bytes:
        started.set()
        go_on.wait(60)
        return super().content

    @content.setter
    def content(self, value: object) -> None:
        HttpResponse.content.fset(self, value)  # type: ignore[attr-defined]


def takes_long_to_store(request: HttpRequest) -> HttpResponse:
    return _TakesLong(f"paid {pay(request)}", status=201)


def outlasts(request: Any) -> HttpResponse:
    """Runs until its lease is renewed, or has ended."""
    pay(request)
    lease = request.order.leases[-1]
    left = lease.remaining()
    while not lease.lost and lease.remaining() <= left:
        left = lease.remaining()
        threading.Event().wait(0.005)
    return HttpResponse("lost" if lease.lost else "renewed", status=201)


async def async_outlasts(request: Any) -> HttpResponse:
    pay(request)
    lease = request.order.leases[-1]
    left = lease.remaining()
    while not lease.lost and lease.remaining() <= left:
        left = lease.remaining()
        await asyncio.sleep(0.005)
    return HttpResponse("lost" if lease.lost else "renewed", status=201)


@lock_view("stock:s1")
def locked(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"paid {pay(request)}", status=201)


@wraps(locked)
def passes_by(request: HttpRequest) -> HttpResponse:
    """It has the marks of the lock, but does not take it."""
    return HttpResponse(f"paid {pay(request)}", status=201)


@lock_view("stock:s1", timeout=0, on_busy=lambda request, error: HttpResponse("come back"))
def busy(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"paid {pay(request)}", status=201)


@lock_view("stock:s1")
async def async_locked(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"paid {pay(request)}", status=201)


@idempotent
def inside(request: HttpRequest) -> HttpResponse:
    """Saves something as well, in the transaction of ATOMIC_REQUESTS."""
    Sale.objects.create(sku=str(connection.in_atomic_block))
    return HttpResponse(f"paid {pay(request)}", status=201)


@idempotent
async def coroutine(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"paid {pay(request)}", status=201)


async def async_plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"paid {pay(request)}", status=201)


@idempotent(atomic=False)
def commits(request: HttpRequest) -> HttpResponse:
    with request.order.commit_in(None):  # type: ignore[attr-defined]
        return HttpResponse("impossible")


class Api(APIView):
    authentication_classes = ()

    def post(self, request: Any) -> Response:
        pay(request)
        raise APIException("the payment service is not there")


def recover(request: HttpRequest, order_id: str) -> HttpResponse | None:
    return known.get(order_id)


async def arecover(request: HttpRequest, order_id: str) -> HttpResponse | None:
    return known.get(order_id)


def recovers_nonsense(request: HttpRequest, order_id: str) -> Any:
    return "paid"


VIEWS: dict[str, Any] = {
    "plain": plain,
    "raises": raises,
    "exits": exits,
    "deducts": deducts,
    "not-found": not_found,
    "denies": denies,
    "denies-late": denies_late,
    "permitted": permitted,
    "permitted-class": PermittedClass.as_view(),
    "waits": waits,
    "takes-long-to-store": takes_long_to_store,
    "outlasts": outlasts,
    "async-outlasts": async_outlasts,
    "locked": locked,
    "passes-by": passes_by,
    "busy": busy,
    "async-locked": async_locked,
    "inside": inside,
    "coroutine": coroutine,
    "async-plain": async_plain,
    "commits": commits,
    "api": Api.as_view(),
}
urlpatterns = [
    *(path(f"orders/{kind}", view) for kind, view in VIEWS.items()),
    path("orders/status/<int:status>", returns),
]
