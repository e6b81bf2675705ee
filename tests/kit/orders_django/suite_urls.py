"""The views of the order suite, in Django: those of every test, and a check that it revokes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from lockkit_django.orders import idempotent
from orders_django.urls import urlpatterns as of_every_test
from orders_django.views import loses_its_lease, sell

View = Callable[[HttpRequest], HttpResponse]


def permission_required(view: View) -> View:
    """As a project has it."""

    @functools.wraps(view)
    def checked(request: HttpRequest) -> HttpResponse:
        if "X-Revoked" in request.headers:
            raise PermissionDenied
        return view(request)

    return checked


def sold(kind: str) -> HttpResponse:
    return HttpResponse(f"sold {sell(kind)}", status=201, headers={"Location": "/here"})


@permission_required
@idempotent
def checked_above(request: HttpRequest) -> HttpResponse:
    return sold("checked-above")


@permission_required
def checked(request: HttpRequest) -> HttpResponse:
    return sold("checked")


@idempotent
@permission_required
def checked_below(request: HttpRequest) -> HttpResponse:
    return sold("checked-below")


def denies(request: HttpRequest) -> HttpResponse:
    sell("denies")
    raise PermissionDenied


@idempotent
def denies_inside(request: HttpRequest) -> HttpResponse:
    sell("denies-inside")
    raise PermissionDenied


def once(request: HttpRequest) -> HttpResponse:
    answer = sold("once")
    if "X-Allowed" not in request.headers:
        raise PermissionDenied
    return answer


def loses(request: HttpRequest) -> HttpResponse:
    answer = loses_its_lease(request)
    if "X-Denied" in request.headers:
        raise PermissionDenied
    return answer


def cart(request: HttpRequest) -> JsonResponse:
    if request.method == "POST":
        request.session.update({"cart": {"A1": [1]}, "shown": True})
    shown = request.session.items()
    return JsonResponse({name: value for name, value in shown if not name.startswith("_")})


def order_cart(request: HttpRequest, end: str) -> HttpResponse:
    sell("cart")
    request.session.pop("cart")["A1"].append(2)
    request.session["thanks"] = True
    match end:
        case "raises-404":
            raise Http404
        case "denies":
            raise PermissionDenied
        case "fails":
            raise RuntimeError
    return HttpResponse(status=503 if end == "returns-503" else 201)


def parsing(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.POST.get("quantity", ""))


def reading(request: HttpRequest) -> HttpResponse:
    return HttpResponse(json.loads(request.body)["quantity"])


def failing(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError(request.POST)


placed = idempotent(order_id="form:order_id")(parsing)


def calling(request: HttpRequest) -> HttpResponse:
    return placed(request)


urlpatterns = [
    path("orders/denies", denies),
    path("orders/denies-inside", denies_inside),
    path("orders/once", once),
    path("orders/loses", loses),
    path("orders/cart/<str:end>", order_cart),
    path("cart", cart),
    path("uncovered/parsing", parsing),
    path("uncovered/reading", reading),
    path("uncovered/failing", failing),
    path("uncovered/exempt", idempotent.exempt(functools.partial(parsing))),
    path("uncovered/inside", placed),
    path("uncovered/calling", calling),
    path("orders/checked-above", checked_above),
    path("orders/checked", checked),
    path("orders/checked-below", checked_below),
    *of_every_test,
]
