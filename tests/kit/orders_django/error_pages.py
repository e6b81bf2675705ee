"""Views in the database ``orders`` that sell and then refuse, and error pages that query."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.http import Http404, HttpRequest, HttpResponse
from django.template import engines
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.urls import path
from django_project.shop.models import Sale
from rest_framework.exceptions import Throttled, ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.views import APIView

from lockkit_django import lock_view, locks
from lockkit_django.orders import IdempotentMixin, idempotent

sales = Sale.objects.using("orders")


def page(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Counts its visitors, too, and changes the row that ``touching`` has changed."""
    touch()
    sales.create(sku="page")
    template = engines["django"].from_string("sold: {{ sales.count }}")
    body = template.render({"sales": sales.filter(sku="view")}, request)
    return HttpResponse(body, status=404 if isinstance(exception, Http404) else 403)


def touch() -> None:
    """It waits no longer than a second for a transaction that has changed the row."""
    connection = connections["orders"]
    if connection.vendor == "postgresql":
        connection.cursor().execute("SET lock_timeout = '1s'")
    sales.filter(sku="shelf").update(sku="shelf")


def crashed(request: HttpRequest) -> HttpResponse:
    sales.create(sku="page")
    return HttpResponse(status=500)


handler403 = handler404 = page
handler500 = crashed


def touching(error: type[Exception]) -> Any:
    def view(request: HttpRequest) -> HttpResponse:
        touch()
        sales.create(sku="view")
        raise error

    return view


async def touching_async(request: HttpRequest) -> HttpResponse:
    await sync_to_async(touch)()
    await sales.acreate(sku="view")
    raise PermissionDenied


class Renderer(JSONRenderer):
    def render(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        sales.create(sku="page")
        sold = sales.filter(sku="view").count()
        return super().render([data, f"sold: {sold}"], *args, **kwargs)


def missing(request: HttpRequest) -> HttpResponse:
    sales.create(sku="view")
    raise Http404


def denied(request: HttpRequest) -> HttpResponse:
    sales.create(sku="view")
    raise PermissionDenied


class Api(APIView):
    authentication_classes = ()
    permission_classes = ()
    renderer_classes = (Renderer,)
    error: type[Exception] = ValidationError

    def post(self, request: Any) -> Any:
        sales.create(sku="view")
        raise self.error


class Replaces:
    """A middleware that makes a success of whatever is to be rendered."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)  # type: ignore[no-any-return]

    def process_template_response(self, request: HttpRequest, response: Any) -> HttpResponse:
        return SimpleTemplateResponse(engines["django"].from_string("all is well"))


@lock_view("shop")
def under_lock(request: HttpRequest) -> HttpResponse:
    template = engines["django"].from_string(
        "held: {% for each in holders %}{{ each.name }}{% endfor %}"
    )
    return TemplateResponse(request, template, {"holders": locks["default"].holders})


class ApiMixed(IdempotentMixin, Api):
    pass


VIEWS: dict[str, Any] = {
    "missing": missing,
    "missing-inside": idempotent(missing),
    "denied": denied,
    "denied-inside": idempotent(denied),
    "missing-locked": lock_view("shop")(missing),
    "denied-locked-inside": idempotent(lock_view("shop")(denied)),
    "api-invalid": Api.as_view(),
    "api-invalid-mixed": ApiMixed.as_view(),
    "api-throttled": Api.as_view(error=Throttled),
    "api-throttled-mixed": ApiMixed.as_view(error=Throttled),
}
urlpatterns = [
    *(path(f"orders/{kind}", view) for kind, view in VIEWS.items()),
    path("under-lock", under_lock),
    path("orders/touching-500", touching(KeyError)),
    path("orders/touching-404", touching(Http404)),
    path("orders/touching-403", touching(PermissionDenied)),
    path("orders/touching-403-async", touching_async),
]
