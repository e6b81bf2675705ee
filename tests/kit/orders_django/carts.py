"""A shop whose cart is in the session: an order empties it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.contrib.auth import login, logout
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from lockkit.model.errors import LeaseLost
from lockkit_django import locks
from lockkit_django.orders import idempotent
from orders_django.views import sell


def cart(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        request.session["cart"] = {"A1": [1]}
        request.session["shown"] = True
    return JsonResponse(dict(request.session.items()))


def refused(request: Any) -> HttpResponse:
    return HttpResponse(status=403)


def answers(request: Any) -> HttpResponse:
    return HttpResponse(status=503)


def denies(request: Any) -> HttpResponse:
    raise PermissionDenied


def raises(request: Any) -> HttpResponse:
    raise Http404


def saves(request: Any) -> HttpResponse:
    request.session.save()
    return answers(request)


def logs_in(request: Any) -> HttpResponse:
    login(request, User.objects.get_or_create(username="alice")[0], "x")
    return answers(request)


def logs_out(request: Any) -> HttpResponse:
    logout(request)
    return answers(request)


def loses(request: Any) -> HttpResponse:
    lease = request.order.leases[-1]
    assert locks["default"].break_(lease.name, fence=request.order.fencing_token)
    with suppress(LeaseLost):
        lease.extend()
    return HttpResponse(status=201)


def closes(request: Any) -> HttpResponse:
    connection.close()
    return HttpResponse(status=201)


def succeeds(request: Any) -> HttpResponse:
    return HttpResponse(status=201)


ENDS = [refused, answers, raises, saves, logs_in, logs_out, loses, closes, succeeds]


def order(end: Callable[[Any], HttpResponse]) -> Any:
    def view(request: Any) -> HttpResponse:
        sell(end.__name__)
        request.session["cart"]["A1"].append(2)
        request.session.pop("cart")
        request.session["thanks"] = True
        return end(request)

    return view


async def coroutine(request: Any) -> HttpResponse:
    await request.session.aset("thanks", True)
    await request.session.apop("cart", None)
    raise Http404


@idempotent(atomic=False)
def in_commit_in(request: Any) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):
        return order(raises)(request)  # type: ignore[no-any-return]


urlpatterns = [
    path("cart", cart),
    *(path(f"orders/{end.__name__}", order(end)) for end in ENDS),
    path("orders/coroutine", coroutine),
    path("orders/in_commit_in", in_commit_in),
    path("orders/denies", idempotent(order(denies))),
]
