"""Views that commit themselves and raise, before or after that, below code that makes an answer of
each exception: a middleware, DRF's handler, a decorator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView

from lockkit_django import lock_view
from lockkit_django.orders import IdempotentMixin, idempotent
from orders_django import views
from orders_django.committing import commit, text
from orders_django.views import Broken, sell


def enveloped(request: Any) -> HttpResponse:
    status = int(request.GET.get("status", "200"))
    return HttpResponse("code: 1", status=status, headers={"Location": "/sorry"})


class Envelope:
    """A middleware."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse:
        return enveloped(request)


def _fails_at_first(request: Any) -> None:
    """As a payment service that does not answer, or a check that refuses."""
    views.calls.append("pays")
    if len(views.calls) == 1:
        raise PermissionDenied if "denied" in request.GET else Broken


def _buys(request: Any) -> Any:
    _fails_at_first(request)
    return commit(request, "late", text)


before = idempotent(atomic=False)(_buys)


@idempotent(atomic=False)
def after(request: HttpRequest) -> HttpResponse:
    commit(request, "after")
    raise Broken


class Handled(IdempotentMixin, APIView):
    order_options: ClassVar[dict[str, Any]] = {"atomic": False}

    def get_exception_handler(self) -> Any:
        return lambda _, context: Response(
            "code: 1", int(context["request"].GET.get("status", "200"))
        )

    def post(self, request: Any) -> Any:
        return _buys(request)


class HandledAfter(Handled):
    def post(self, request: Any) -> Any:
        commit(request, "after")
        raise Broken


def _tries_again(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def tried(request: HttpRequest) -> Any:
        try:
            return view(request)
        except Broken:
            return view(request)

    return tried


@idempotent(atomic=False)
@_tries_again
@lock_view("stock:A1", kind="read")  # so the order has two of these leases
def again(request: HttpRequest) -> HttpResponse:
    """Its first block is rolled back."""
    with request.order.commit_in(transaction.atomic(durable=True)):  # type: ignore[attr-defined]
        number = sell("again")
        if len(views.calls) == 1:
            raise Broken
    return text(number)


def _with_deadline(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    async def within(request: HttpRequest) -> Any:
        try:
            async with asyncio.timeout(None) as deadline:
                request.deadline = deadline  # type: ignore[attr-defined]
                return await view(request)
        except TimeoutError:
            return enveloped(request)

    return within


async def _miss_deadline(request: Any) -> None:
    request.deadline.reschedule(asyncio.get_running_loop().time())
    await asyncio.Event().wait()


@_with_deadline
@idempotent(atomic=False)
async def overdue(request: HttpRequest) -> HttpResponse:
    views.calls.append("pays")
    if len(views.calls) == 1:
        await _miss_deadline(request)
    return await sync_to_async(commit)(request, "late", text)  # type: ignore[no-any-return]


@_with_deadline
@idempotent(atomic=False)
async def overdue_after(request: HttpRequest) -> HttpResponse:
    await sync_to_async(commit)(request, "after")
    await _miss_deadline(request)
    return HttpResponse("impossible")


urlpatterns = [
    path("orders/before", before),
    path("orders/before-handled", Handled.as_view()),
    path("orders/before-overdue", overdue),
    path("orders/after", after),
    path("orders/after-handled", HandledAfter.as_view()),
    path("orders/after-overdue", overdue_after),
    path("orders/again", again),
]
