"""Views that sell, and lose a lease before they answer as if all were well."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views import View
from django_project.shop.models import Sale
from rest_framework.response import Response
from rest_framework.views import APIView

from lockkit.model.errors import LeaseLost
from lockkit_django import alocks, lock_view, locks
from lockkit_django.orders import idempotent


def _lease(request: Any, name: str) -> Any:
    (found,) = (each for each in request.order.leases if each.name.startswith(name))
    return found


def sell(request: Any) -> None:
    Sale.objects.using(request.GET.get("using")).create(sku="sold")


def lose(request: Any, name: str = "stock") -> str:
    sell(request)
    _break(request, name)
    return "sold"


def _break(request: Any, name: str) -> None:
    lease = _lease(request, name)
    assert locks["default"].break_(lease.name, fence=lease.fencing_token)
    with suppress(LeaseLost):
        lease.extend()


@lock_view("stock")
def function(request: HttpRequest) -> HttpResponse:
    return HttpResponse(lose(request))


@lock_view("cart")
@lock_view("stock")
def outer(request: HttpRequest) -> HttpResponse:
    return HttpResponse(lose(request, "cart"))


@idempotent
def order(request: HttpRequest) -> HttpResponse:
    return HttpResponse(lose(request, "order:"))


@idempotent(atomic=False)
@lock_view("stock")
def committed(request: Any) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):
        sell(request)
    _break(request, "stock")
    return HttpResponse("sold")


class Method(View):
    @lock_view("stock")
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(lose(request))


class MethodInside(View):
    post = idempotent(Method.post)


class Api(APIView):
    authentication_classes = ()
    permission_classes = ()

    @lock_view("stock")
    def post(self, request: Any) -> Response:
        return Response(lose(request._request))


@lock_view("stock")
async def coroutine(request: Any) -> HttpResponse:
    lease = _lease(request, "stock")
    if not request.order.is_async:
        return HttpResponse(await sync_to_async(lose)(request))
    await Sale.objects.acreate(sku="sold")
    assert await alocks["default"].break_(lease.name, fence=lease.fencing_token)
    with suppress(LeaseLost):
        await lease.extend()
    return HttpResponse("sold")


KINDS: dict[str, Any] = {
    "function": function,
    "function-inside": idempotent(function),
    "outer": outer,
    "order-inside": order,
    "method": Method.as_view(),
    "method-inside": MethodInside.as_view(),
    "api": Api.as_view(),
}
COROUTINES: dict[str, Any] = {"async": coroutine, "async-inside": idempotent(coroutine)}

urlpatterns = [
    *(path(f"orders/{kind}", view) for kind, view in {**KINDS, **COROUTINES}.items()),
    path("orders/committed", committed),
]
