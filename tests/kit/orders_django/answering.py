"""Orders that raise below what makes an answer of it: Django Ninja, and a decorator."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from ninja import NinjaAPI
from ninja.errors import HttpError

from lockkit_django.orders import idempotent
from orders_django.views import Broken, sell

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


def _answers(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def answered(request: HttpRequest) -> Any:
        try:
            return view(request)
        except Broken as error:
            return answer(request, error)

    return answered


@_answers
@idempotent
def decorated(request: HttpRequest) -> HttpResponse:
    sell("decorated")
    raise Broken


urlpatterns = [path("orders/ninja/", api.urls), path("orders/decorated", decorated)]
