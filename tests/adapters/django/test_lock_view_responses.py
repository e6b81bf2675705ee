"""Responses that a locked view leaves to be rendered: when, and in which transaction."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, connections
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.deprecation import MiddlewareMixin
from django.views import View
from django_project.shop.models import Sale
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import BaseRenderer
from rest_framework.views import APIView

from lockkit_django import alocks, lock_view

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("atomic_requests")]

locked = lock_view("sales")


def page(request: HttpRequest, **context: Any) -> TemplateResponse:
    """It queries when it is rendered."""
    source = engines["django"].from_string("{{ sales.count }} {{ added }}")
    return TemplateResponse(request, source, {"sales": Sale.objects, **context})


def form(request: HttpRequest) -> TemplateResponse:
    """A form that is shown again because the database refuses what was entered."""
    Sale.objects.create(pk=1, sku="A1")
    try:
        Sale.objects.create(pk=1, sku="A2")
    except IntegrityError:
        return page(request)
    raise AssertionError


class Form(View):
    @locked
    def post(self, request: HttpRequest) -> TemplateResponse:
        return form(request)


class Counting(BaseRenderer):
    media_type = "text/plain"

    def render(self, *_: object, **__: object) -> bytes:
        return str(Sale.objects.count()).encode()


class Api(APIView):
    renderer_classes = (Counting,)

    def post(self, request: Any) -> Any:
        Sale.objects.create(sku="A1")
        raise ValidationError("sold out")


@locked
def shown(request: HttpRequest) -> TemplateResponse:
    return page(request)


class Awaited(HttpResponse):
    """Its ``render`` is a coroutine function, which Django awaits."""

    async def render(self) -> HttpResponse:
        found = await Sale.objects.acount()
        held = await alocks["default"].inspect("sales") is not None
        return HttpResponse(f"{found} {held}")


@locked
async def awaited(request: HttpRequest) -> HttpResponse:
    return Awaited()


@locked
def awaited_later(request: HttpRequest) -> HttpResponse:
    return Awaited()


def add(response: Any) -> Any:
    response.context_data["added"] = "added"
    return response


class Adds(MiddlewareMixin):
    def process_template_response(self, request: HttpRequest, response: Any) -> Any:
        return add(response)


VIEWS = {
    "shown": shown,
    "awaited": awaited,
    "awaited-later": awaited_later,
    "above": lambda request: add(shown(request)),
    "below": locked(lambda request: add(page(request))),
    "form": locked(form),
    "method": Form.as_view(),
    "api": locked(Api.as_view()),
}


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    urls = ModuleType("responses_urls")
    vars(urls)["urlpatterns"] = [path(name, view) for name, view in VIEWS.items()]
    sys.modules[urls.__name__] = urls
    with override_settings(ROOT_URLCONF=urls.__name__):
        yield
    del sys.modules[urls.__name__]


@pytest.mark.parametrize(("view", "status"), [("form", 200), ("method", 200), ("api", 400)])
def test_after_a_rollback_a_response_may_query_as_without_the_lock(view: str, status: int) -> None:
    response = Client().post(f"/{view}")
    assert (response.status_code, response.content.strip()) == (status, b"0")
    assert Sale.objects.count() == 0


@pytest.mark.parametrize(("view", "said"), [("above", "0"), ("below", "0 added")])
def test_a_response_is_rendered_before_a_decorator_above_the_lock_changes_it(
    view: str, said: str
) -> None:
    assert Client().get(f"/{view}").content.decode().strip() == said


def test_a_middleware_that_changes_responses_gets_them_before() -> None:
    with override_settings(MIDDLEWARE=[f"{Adds.__module__}.{Adds.__name__}"]):
        assert Client().get("/shown").content == b"0 added"


@pytest.mark.parametrize(("view", "held"), [("awaited", "True"), ("awaited-later", "False")])
def test_a_response_that_is_awaited_to_render(
    view: str, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the event loop: no thread can await it, and there Django does so after the release."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", False)
    location = {"LOCATION": "memory://responses"}
    with override_settings(LOCKKIT={"default": location}):
        response = async_to_sync(AsyncClient().get)(f"/{view}")
    assert response.content.decode() == f"0 {held}"
