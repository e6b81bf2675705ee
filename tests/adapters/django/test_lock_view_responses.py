"""Responses that a locked view leaves to be rendered: when, and in which transaction."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from django.db import IntegrityError
from django.http import HttpRequest
from django.template import engines
from django.template.response import TemplateResponse
from django.test import Client, override_settings
from django.urls import path
from django.utils.deprecation import MiddlewareMixin
from django.views import View
from django_project.shop.models import Sale
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import BaseRenderer
from rest_framework.views import APIView

from lockkit_django import lock_view

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


def add(response: Any) -> Any:
    response.context_data["added"] = "added"
    return response


class Adds(MiddlewareMixin):
    def process_template_response(self, request: HttpRequest, response: Any) -> Any:
        return add(response)


VIEWS = {
    "shown": shown,
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
