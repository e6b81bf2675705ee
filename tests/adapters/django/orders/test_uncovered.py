"""A form with an order ID that is sent to a view that is not an order: the log says so."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from io import BytesIO
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path
from rest_framework.decorators import api_view, parser_classes, renderer_classes
from rest_framework.parsers import BaseParser
from rest_framework.renderers import StaticHTMLRenderer
from rest_framework.response import Response
from rest_framework.views import APIView

from lockkit_django.forms import new_order_id
from lockkit_django.middleware import IdempotentOrderMiddleware

pytestmark = pytest.mark.django_db(transaction=True)


def parsing(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.POST.get("quantity", ""))


def blind(request: HttpRequest) -> HttpResponse:
    return HttpResponse("no body was read")


async def in_loop(request: HttpRequest) -> HttpResponse:
    return parsing(request)


class OwnParser(BaseParser):
    """Reads the stream, so that no body is kept."""

    media_type = "application/vnd.own"

    def parse(self, stream: Any, *args: Any) -> Any:
        return json.load(stream)


class DeepParser(OwnParser):
    """Makes what Python cannot show."""

    media_type = "application/vnd.deep"

    def parse(self, stream: Any, *args: Any) -> Any:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        return {**super().parse(stream), "deep": deep}


@api_view(["POST", "PUT"])
@renderer_classes([StaticHTMLRenderer])
@parser_classes([*APIView.parser_classes, OwnParser, DeepParser])
def of_drf(request: Any) -> Response:
    return Response(request.data["quantity"])


VIEWS: dict[str, Callable[..., Any]] = {
    "parsing": parsing,
    "blind": blind,
    "in_loop": in_loop,
    "drf": of_drf,
}


@pytest.fixture(autouse=True)
def shop(fresh_orders: None) -> Iterator[None]:
    urls = ModuleType("uncovered_urls")
    vars(urls)["urlpatterns"] = [path(f"{name}/", view) for name, view in VIEWS.items()]
    orders = {"ORDER_ID": ["form:order_id"], "PATHS": ["^/orders/"]}
    with override_settings(ROOT_URLCONF=urls, LOCKKIT_ORDERS=orders):
        yield


@pytest.fixture
def value() -> str:
    request = RequestFactory().get("/")
    request.user = AnonymousUser()
    request.session = {}  # type: ignore[assignment]
    return new_order_id(request)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    return [each.getMessage() for each in errors if each.name == "lockkit"]


@pytest.mark.parametrize("view", ["drf"])
@pytest.mark.parametrize("field", ["order_id", "another"])
@pytest.mark.parametrize("urlencoded", [True, False])
def test_a_form_that_the_view_has_parsed(
    view: str, field: str, urlencoded: bool, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = {field: value, "quantity": "1"}
    if urlencoded:
        body = "&".join(f"{name}={text}" for name, text in sent.items())
        answer = Client().post(f"/{view}/", body, "application/x-www-form-urlencoded")
    else:
        answer = Client().post(f"/{view}/", sent)
    assert answer.content == b"1"
    (message,) = told(caplog)
    assert message.startswith(f"POST /{view}/ has run with the order ID of a form")
    assert value not in message


@pytest.mark.parametrize("content_type", ["application/json", OwnParser.media_type])
def test_what_drf_has_parsed(
    content_type: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps({"order_id": value, "quantity": "1"})
    assert Client().post("/drf/", body, content_type).content == b"1"
    assert len(told(caplog)) == 1


def test_what_is_nested_too_deeply_is_no_error(value: str) -> None:
    body = json.dumps({"order_id": value, "quantity": "1"})
    assert Client().post("/drf/", body, DeepParser.media_type).content == b"1"


async def test_a_coroutine(value: str, caplog: pytest.LogCaptureFixture) -> None:
    sent = {"order_id": value, "quantity": "1"}
    assert (await AsyncClient().post("/in_loop/", sent)).content == b"1"
    assert len(told(caplog)) == 1


def test_a_body_full_of_them_costs_little(value: str, caplog: pytest.LogCaptureFixture) -> None:
    forged = [f"lk1.{'a' * 30}.u.{number:043}" for number in range(30)]
    Client().post("/parsing/", {"order_id": [*forged, value], "quantity": "1"})
    assert told(caplog) == []


class Watched(BytesIO):
    """A client's body, which counts how often it is asked for."""

    asked = 0

    def read(self, *size: int | None) -> bytes:
        self.asked += 1
        return super().read(*size)

    readline = read  # type: ignore[assignment]


def test_no_body_is_read_for_it(value: str, caplog: pytest.LogCaptureFixture) -> None:
    body = Watched(f"order_id={value}".encode())
    request = RequestFactory().post("/blind/", content_type="application/x-www-form-urlencoded")
    request.environ.update({"wsgi.input": body, "CONTENT_LENGTH": str(len(body.getvalue()))})
    request = type(request)(request.environ)

    def answer(request: HttpRequest) -> HttpResponse:
        middleware.process_view(request, blind, (), {})
        return blind(request)

    middleware = IdempotentOrderMiddleware(answer)
    assert middleware(request).content == b"no body was read"  # type: ignore[union-attr]
    assert body.asked == 0
    assert told(caplog) == []
