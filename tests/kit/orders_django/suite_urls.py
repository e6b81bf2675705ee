"""The views of the order suite, in Django: those of every test, and a check that it revokes."""

from __future__ import annotations

import functools
from collections.abc import Callable

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import path

from lockkit_django.orders import idempotent
from orders_django.urls import urlpatterns as of_every_test
from orders_django.views import sell

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


urlpatterns = [
    path("orders/checked-above", checked_above),
    path("orders/checked", checked),
    path("orders/checked-below", checked_below),
    *of_every_test,
]
