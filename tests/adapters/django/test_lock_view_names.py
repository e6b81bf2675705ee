"""Names from real Django requests, sync and async, plain and DRF."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, Client, RequestFactory, override_settings
from django.urls import path
from django.utils.asyncio import async_unsafe
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.views import View
from django_project.shop.models import Sale
from django_project.views import unwrapped
from rest_framework.decorators import api_view, parser_classes
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from lockkit.model.errors import ConfigurationError, InvalidName
from lockkit_django import lock_view, locks


def named(template: Any) -> Any:
    """A view that answers with the name of its lock."""

    @lock_view(template)
    def view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        return HttpResponse(request.lease.name)

    return view


def of(template: Any, request: HttpRequest, **kwargs: Any) -> tuple[int, str]:
    response = named(template)(request, **kwargs)
    return response.status_code, response.content.decode()


factory = RequestFactory()


@pytest.mark.parametrize(
    ("template", "request_", "kwargs", "name"),
    [
        ("stock:{sku}", factory.post("/"), {"sku": "A:1"}, "stock:A%3A1"),
        ("{kwargs.user}", factory.post("/"), {"user": "ann"}, "ann"),
        ("o:{json.a.b}", factory.post("/", {"a": {"b": 1}}, "application/json"), {}, "o:1"),
        ("o:{json.a}", factory.put("/", b'{"a": "x"}', "application/json"), {}, "o:x"),
        ("o:{form.a}", factory.post("/", {"a": "1"}), {}, "o:1"),
        ("o:{form.a}", factory.post("/", "a=1", "application/x-www-form-urlencoded"), {}, "o:1"),
        ("o:{form.a:int}", factory.post("/", {"a": " 01"}), {}, "o:1"),
        ("o:{a:lower}", factory.post("/"), {"a": "Ann"}, "o:ann"),
        ("o:{query.a}", factory.get("/?a=%0A"), {}, "o:%0A"),
        ("o:{header.X-Shop}", factory.get("/", headers={"X-Shop": "eu"}), {}, "o:eu"),
        (
            lambda request, sku: f"by:{request.method}:{sku}",
            factory.get("/"),
            {"sku": 1},
            "by:GET:1",
        ),
    ],
)
def test_names(template: Any, request_: HttpRequest, kwargs: dict[str, Any], name: str) -> None:
    assert of(template, request_, **kwargs) == (200, name)


@pytest.mark.parametrize(
    ("template", "request_"),
    [
        ("o:{json.a}", factory.post("/", b"{", "application/json")),
        ("o:{json.a}", factory.post("/", {"a": [1]}, "application/json")),
        ("o:{json.a}", factory.post("/", {"a": "1"})),
        ("o:{form.a}", factory.post("/", {"a": ["1", "2"]})),
        ("o:{query.a}", factory.get("/?a=1&a=2")),
        ("o:{header.X-Shop}", factory.get("/")),
        ("o:{query.a}", factory.get("/?a=" + "x" * 300)),
    ],
)
def test_bad_requests(template: str, request_: HttpRequest) -> None:
    status, body = of(template, request_)
    assert (status, json.loads(body)["status"]) == (400, 400)


def test_a_field_that_the_route_does_not_have_is_a_defect() -> None:
    with pytest.raises(InvalidName, match="has no 'sku'"):
        of("stock:{sku}", factory.get("/"))


class Editor(View):
    def post(self, request: HttpRequest, sku: str) -> HttpResponse:
        return self.edit(request, sku) if "edit" in request.path else self.sell(request, sku)

    @method_decorator(lock_view("stock:{sku}"))
    def edit(self, request: HttpRequest, sku: str) -> HttpResponse:
        return HttpResponse()

    @method_decorator(lock_view(lambda _, sku: f"stock:{sku}"))
    def sell(self, request: HttpRequest, sku: str) -> HttpResponse:
        return HttpResponse(request.lease.name)  # type: ignore[attr-defined]


urlpatterns = [path("edit/<sku>", Editor.as_view()), path("sell/<sku>", Editor.as_view())]


@override_settings(ROOT_URLCONF=__name__)
def test_a_value_of_the_route_that_comes_by_position_is_told_with_the_remedy() -> None:
    with pytest.raises(InvalidName, match=r"the URL has 'sku', but .*lambda request, sku: …"):
        Client().post("/edit/A")
    assert Client().post("/sell/A").content == b"stock:A"


def test_the_body_can_be_read_by_the_view_afterwards() -> None:
    @lock_view("o:{json.a}")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.body)

    assert view(factory.post("/", {"a": 1}, "application/json")).content == b'{"a": 1}'


def test_multipart_after_csrf() -> None:
    """Reading request.body would raise RawPostDataException: the form was parsed before."""
    request = factory.post("/", {"a": "1"})
    assert request.POST["a"] == "1"
    assert of("o:{form.a}", request) == (200, "o:1")
    assert of("o:{json.a}", request)[0] == 400


def test_the_user() -> None:
    request = factory.get("/")
    request.user = User(pk=7)
    assert of("cart:{user.pk}", request) == (200, "cart:7")
    request.user = AnonymousUser()
    assert of("cart:{user.pk}", request)[0] == 403


def test_a_project_without_users_is_told() -> None:
    with pytest.raises(ConfigurationError, match="AuthenticationMiddleware"):
        of("cart:{user.pk}", factory.get("/"))


async def test_a_coroutine_gets_its_user_without_a_query_in_the_loop() -> None:
    @lock_view("cart:{user.pk}")
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.lease.name)  # type: ignore[attr-defined]

    async def answer(user: Any) -> HttpResponse:
        @async_unsafe  # as each query is
        def query() -> Any:
            return user

        request: ASGIRequest = AsyncRequestFactory().get("/")
        request.user = SimpleLazyObject(query)
        response: HttpResponse = await view(request)
        return response

    assert (await answer(User(pk=7))).content == b"cart:7"
    assert (await answer(AnonymousUser())).status_code == 403


async def test_a_coroutine_whose_request_has_its_user_for_coroutines_only() -> None:
    @lock_view("cart:{user.pk}")
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.lease.name)  # type: ignore[attr-defined]

    async def auser() -> User:
        return User(pk=7)

    request: ASGIRequest = AsyncRequestFactory().get("/")
    request.auser = auser
    assert (await view(request)).content == b"cart:7"


@pytest.mark.parametrize(
    ("template", "body", "content_type", "status", "data"),
    [
        ("o:{json.a}", b'{"a": 1}', "application/json", 200, {"name": "o:1", "a": 1}),
        ("o:{form.a}", b"a=1", "application/x-www-form-urlencoded", 200, {"name": "o:1", "a": "1"}),
        ("o:{json.a}", b"{", "application/json", 400, None),
        ("o:{user.pk}", b"{}", "application/json", 403, None),
    ],
)
def test_drf(template: str, body: bytes, content_type: str, status: int, data: Any) -> None:
    @api_view(["POST"])
    @parser_classes([JSONParser, FormParser, MultiPartParser])
    @lock_view(template)
    def view(request: Request) -> Response:
        return Response({"name": request.lease.name, "a": request.data["a"]})

    response = view(factory.post("/", body, content_type))
    assert response.status_code == status
    if data:
        assert response.data == data
    else:
        assert set(response.data) == {"detail", "code"} | ({"reason"} if status == 400 else set())


def test_drf_multipart() -> None:
    @api_view(["POST"])
    @lock_view("o:{form.a}")
    def view(request: Request) -> Response:
        return Response([request.lease.name, request.data["a"]])

    assert view(factory.post("/", {"a": "1"})).data == ["o:1", "1"]


@pytest.mark.parametrize("value", [b"%C3%83%C2%A9", b"\xc3\xa9", b"a", b"%C3%A9"])
@pytest.mark.parametrize("beside", [b"", b"&x=\xff", b"&x=%FF"])
def test_a_name_is_what_the_view_reads_or_none_is_made(value: bytes, beside: bytes) -> None:
    """One byte that is not UTF-8, and Django takes all raw bytes for Latin 1."""
    sent = b"a=" + value + beside
    form = factory.post("/", sent, "application/x-www-form-urlencoded")
    query = factory.post("/")
    query.META["QUERY_STRING"] = sent.decode("latin-1")
    for request, template in ((form, "{form.a:str}"), (query, "{query.a:str}")):
        read = (request.POST if request is form else request.GET)["a"]
        status, name = of(template, request)
        assert status == 400 or unquote(name) == read


@pytest.mark.parametrize("thing", [object(), type("V", (), {}), 3])
def test_what_is_no_view_is_refused(thing: Any) -> None:
    with pytest.raises(ConfigurationError):
        lock_view("a")(lambda *a: None)(thing)


def test_a_class_is_refused_with_the_remedy() -> None:
    class View:
        pass

    with pytest.raises(ConfigurationError, match=r"method_decorator\(lock_view"):
        lock_view("a")(View)


def test_a_hidden_coroutine_is_refused_before_it_runs() -> None:
    ran = []

    async def view(request: HttpRequest) -> HttpResponse:
        ran.append(request)
        return HttpResponse()

    with pytest.raises(ConfigurationError, match="hides an async view"):
        lock_view("a")(unwrapped(view))(factory.get("/"))
    assert not ran


def streamed(request: HttpRequest) -> Iterator[str]:
    raise AssertionError
    yield ""


async def streamed_async(request: HttpRequest) -> AsyncIterator[str]:
    raise AssertionError
    yield ""


@pytest.mark.parametrize("view", [streamed, streamed_async, functools.partial(streamed)])
def test_a_generator_is_refused_because_it_would_run_after_the_release(view: Any) -> None:
    """Django Ninja makes a streaming response of it."""
    with pytest.raises(ConfigurationError, match=r"is a generator.*by hand in its body"):
        lock_view("a")(view)


@pytest.mark.parametrize("view", [streamed, streamed_async])
async def test_a_generator_that_a_view_returns_is_refused_before_it_runs(view: Any) -> None:
    async def returning(request: HttpRequest) -> Any:
        return view(request)

    with pytest.raises(ConfigurationError, match="returned a generator"):
        lock_view("a")(unwrapped(view))(factory.get("/"))
    with pytest.raises(ConfigurationError, match="returned a generator"):
        await lock_view("a")(returning)(factory.get("/"))
    assert not list(locks["default"].holders())


@pytest.mark.django_db
def test_the_label_has_no_query_and_no_control_characters() -> None:
    from lockkit_django import locks

    labels = []

    @lock_view("a")
    def view(request: HttpRequest) -> HttpResponse:
        info = locks["default"].inspect("a")
        assert info is not None
        assert info.owner is not None
        labels.append(info.owner.label)
        return HttpResponse()

    view(factory.post("/stock/a%0Ab?card=4111"))
    assert labels == ["POST /stock/a%0Ab"]
    assert Client().post("/function/A?card=4111").status_code == 200
    assert Sale.objects.count() == 1


async def test_the_user_of_an_async_drf_view_is_drfs() -> None:
    """Whom DRF's token stands for, and not the visitor that the session's middleware knows."""

    @lock_view("cart:{user.pk}")
    async def view(request: Request) -> HttpResponse:
        return HttpResponse(request._request.lease.name)  # type: ignore[attr-defined]

    async def nobody() -> AnonymousUser:
        return AnonymousUser()

    http: Any = AsyncRequestFactory().post("/")
    http.auser = nobody
    request = Request(http)
    request.user = User(pk=7)
    http.user = AnonymousUser()
    assert (await view(request)).content == b"cart:7"


@pytest.mark.parametrize("sku", ["\uff11", "1_0", "x"])
@pytest.mark.parametrize("source", ["{sku:int}", "{form.sku:int}"])
def test_a_value_that_is_not_what_the_template_says_runs_no_view(
    source: str, sku: str, caplog: pytest.LogCaptureFixture
) -> None:
    @lock_view(f"stock:{source}")
    def view(request: HttpRequest, sku: str) -> HttpResponse:
        raise AssertionError

    with caplog.at_level(logging.INFO, "lockkit"):
        refused = view(factory.post("/", {"sku": sku}), sku=sku)
    assert refused.status_code == 400
    assert json.loads(refused.content)["code"] == "lock-name-not-found"
    assert f"POST / gets 400 lock-name-not-found: {source.replace(':int', '')} is" in caplog.text


@pytest.mark.parametrize("sku", ["1", "01", " 1", "+1"])
def test_no_spelling_of_a_number_passes_its_lock(sku: str) -> None:
    @lock_view("stock:{form.sku:int}", timeout=0)
    def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError

    with locks["default"].lock("stock:1"):
        assert view(factory.post("/", {"sku": sku})).status_code == 423
