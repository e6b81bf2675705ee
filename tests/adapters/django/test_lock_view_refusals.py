"""Busy, too many waiters, store down: the view does not run, and the client is told when to try."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django_project import views
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response

from lockkit.model.errors import AcquireTimeout
from lockkit.testing.plugin import HoldLock
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer
from lockkit_django import lock_view, locks

ALL = [*views.SYNC_VIEWS, *views.ASYNC_VIEWS]
API = {"api-inside", "api-method", "action", "viewset"}
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def shared_memory() -> Any:
    """One store for the clients of threads and of coroutines."""
    location = {"LOCATION": "memory://refusals", "ACQUIRE_TIMEOUT": 0}
    with override_settings(LOCKKIT={"default": location}):
        yield


@pytest.mark.parametrize("kind", ALL)
def test_busy_is_423_and_the_view_does_not_run(kind: str) -> None:
    with locks["default"].lock("stock:A1"):
        response = Client().post(f"/{kind}/A1")
    assert (response.status_code, response["Retry-After"]) == (423, "1")
    assert views.calls == []
    json = "application/json" if kind in API else "application/problem+json"
    assert response["Content-Type"] == json


@pytest.mark.parametrize("kind", ["function", "api-method", "method"])
def test_busy_under_atomic_requests(kind: str, atomic_requests: None) -> None:
    with locks["default"].lock("stock:A1"):
        assert Client().post(f"/{kind}/A1").status_code == 423
    assert views.calls == []
    assert Client().post(f"/{kind}/A1").status_code == 200


@pytest.mark.parametrize("kind", ["function", "coroutine"])
async def test_busy_under_asgi(kind: str) -> None:
    with locks["default"].lock("stock:A1", in_atomic="allow"):
        response = await AsyncClient().post(f"/{kind}/A1")
    assert (response.status_code, response["Retry-After"]) == (423, "1")
    assert views.calls == []


def test_the_page_of_a_browser_shows_nothing_of_the_holder() -> None:
    with locks["default"].lock("stock:A1", label="POST /secret"):
        response = Client().post("/function/A1", headers=BROWSER)
    page = response.content.decode()
    assert response["Content-Type"] == "text/html; charset=utf-8"
    assert "Please try again in a few seconds." in page
    assert not any(word in page for word in ("secret", "stock", "A1"))
    assert response["Cache-Control"] == "no-store"


@pytest.mark.parametrize("names", [("lock-busy", "423"), ("423", "refusal"), ("refusal",)])
def test_a_project_s_own_page(names: tuple[str, ...]) -> None:
    """The first of these that is there."""
    pages = {f"lockkit/{name}.html": name for name in names}
    loaders = [("django.template.loaders.locmem.Loader", pages)]
    backend = "django.template.backends.django.DjangoTemplates"
    templates = [{"BACKEND": backend, "OPTIONS": {"loaders": loaders}}]
    with override_settings(TEMPLATES=templates), locks["default"].lock("stock:A1"):
        response = Client().post("/function/A1", headers=BROWSER)
        assert response.content.decode() == names[0]
    assert "Content-Language" not in response.headers  # only the project knows


@override_settings(TEMPLATES=[])
def test_a_project_without_templates() -> None:
    with locks["default"].lock("stock:A1"):
        response = Client().post("/function/A1", headers=BROWSER)
    assert (response.status_code, response["Content-Type"]) == (423, "text/html; charset=utf-8")


@override_settings(LOCKKIT_VIEWS={"TIMEOUT": 0, "BUSY_STATUS": 409})
def test_another_status_for_busy() -> None:
    with locks["default"].lock("stock:A1"):
        assert Client().post("/function/A1").status_code == 409
        page = Client().post("/function/A1", headers=BROWSER)
    assert (page.status_code, b"Busy" in page.content) == (409, True)


LOCALE = "django.middleware.locale.LocaleMiddleware"


@pytest.mark.parametrize("kind", ["function", *sorted(API)])
@pytest.mark.parametrize(
    ("asked", "language", "said"),
    [("fr", "en", "Someone else"), ("zh-hans", "zh-hans", "其他人正在修改")],
)
@override_settings(MIDDLEWARE=[LOCALE])
def test_the_content_language_is_that_of_the_text(
    kind: str, asked: str, language: str, said: str
) -> None:
    """And not the one that is active, if no catalogue has it."""
    with locks["default"].lock("stock:A1"):
        response = Client().post(f"/{kind}/A1", headers={"Accept-Language": asked})
    assert said in response.json()["detail"]
    assert response["Content-Language"] == language
    free = Client().post(f"/{kind}/A1", headers={"Accept-Language": asked})
    assert (free.status_code, free["Content-Language"]) == (200, asked)


def in_french(error: Exception, context: dict[str, Any]) -> Response:
    return Response("Occupé", status=423, headers={"Content-Language": "fr"})


@override_settings(MIDDLEWARE=[LOCALE], REST_FRAMEWORK={"EXCEPTION_HANDLER": in_french})
def test_a_project_s_own_exception_handler_says_its_language() -> None:
    with locks["default"].lock("stock:A1"):
        response = Client().post("/api-method/A1")
    assert (response.json(), response["Content-Language"]) == ("Occupé", "fr")


def own_answer(request: Any, error: AcquireTimeout) -> HttpResponse:
    return HttpResponse(f"{request.method} {type(error).__name__}", status=202)


def test_on_busy(hold_lock: HoldLock, caplog: pytest.LogCaptureFixture) -> None:
    @lock_view("a", on_busy=own_answer)
    def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError

    with hold_lock("a"), caplog.at_level(logging.INFO, "lockkit"):
        response = view(RequestFactory().post("/"))
    assert (response.status_code, response.content) == (202, b"POST LockHeld")
    (told,) = [each for each in caplog.records if " gets " in each.getMessage()]
    said = "POST / gets 423 lock-busy: 'a' is held by another-host:1 hold_lock"
    assert (told.levelname, told.getMessage()) == ("INFO", said)


def test_on_busy_of_a_view_that_waits_for_itself_is_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @lock_view("a")
    @lock_view("a", on_busy=own_answer)
    def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError

    assert view(RequestFactory().post("/")).status_code == 202
    (told,) = [each for each in caplog.records if " gets " in each.getMessage()]
    assert told.levelname == "WARNING"
    assert "that is this thread or task itself" in told.getMessage()


def test_on_busy_in_drf() -> None:
    @api_view(["POST"])
    @lock_view("a", on_busy=lambda request, error: Response({"busy": error.name}, status=202))
    def view(request: Request) -> Response:
        raise AssertionError

    with locks["default"].lock("a"):
        response = view(RequestFactory().post("/"))
    assert (response.status_code, response.data) == (202, {"busy": "a"})


@pytest.mark.parametrize("coroutine", [True, False])
async def test_on_busy_of_an_async_view(coroutine: bool) -> None:
    async def awaited(request: Any, error: AcquireTimeout) -> HttpResponse:
        return own_answer(request, error)

    @lock_view("a", on_busy=awaited if coroutine else own_answer)
    async def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError

    with locks["default"].lock("a", in_atomic="allow"):
        assert (await view(RequestFactory().post("/"))).status_code == 202


@pytest.mark.parametrize("kind", ["function", "api-method", "coroutine"])
@override_settings(LOCKKIT_VIEWS={"TIMEOUT": None, "MAX_WAITERS": 0})
def test_too_many_waiters_is_503_at_once(kind: str) -> None:
    with locks["default"].lock("stock:A1"):
        response = Client().post(f"/{kind}/A1")
    assert (response.status_code, response["Retry-After"]) == (503, "1")
    assert views.calls == []
    assert Client().post(f"/{kind}/A1").status_code == 200  # what is free is granted


@override_settings(LOCKKIT_VIEWS={"TIMEOUT": 30})
def test_a_request_that_waits_gets_its_turn() -> None:
    """The waiter runs after the holder's release: the store says when it has queued."""
    answers: list[int] = []
    lease = locks["default"].lock("stock:A1").acquire()
    waiter = threading.Thread(target=_post, args=("/function/A1", answers))
    waiter.start()
    while (info := locks["default"].inspect("stock:A1")) is None or not info.waiters:
        threading.Event().wait(0.001)
    assert views.calls == []
    lease.release()
    waiter.join()
    assert (answers, views.calls) == ([200], ["A1"])


def _post(path: str, answers: list[int]) -> None:
    answers.append(Client().post(path).status_code)
    connections.close_all()


@pytest.mark.parametrize("kind", [*API, "function", "dispatch", "coroutine"])
def test_a_store_that_is_down_is_503_and_the_view_does_not_run(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = "redis://:canary@127.0.0.1:1/0"  # nobody listens there
    with override_settings(LOCKKIT={"default": url}):
        response = Client().post(f"/{kind}/A1")
    assert (response.status_code, response["Retry-After"]) == (503, "5")
    assert views.calls == []
    assert "gets 503 lock-store-unavailable" in caplog.text
    assert "canary" not in caplog.text + response.content.decode()


@pytest.mark.parametrize("kind", ["function", "api-method", "coroutine"])
@pytest.mark.parametrize("fault", [FaultProxy.stop, FaultProxy.half_open], ids=["down", "silent"])
def test_a_store_that_fails_while_a_request_waits(
    kind: str,
    fault: Callable[[FaultProxy], None],
    redis_server: RedisServer,
    proxy: Callable[[RedisServer], FaultProxy],
) -> None:
    """503 as soon as the waiter's next request meets the fault, which is a second away at most."""
    redis_server.flush()
    answers: list[int] = []
    way = proxy(redis_server)
    store = {
        "LOCATION": f"redis://127.0.0.1:{way.port}/0",
        "OPTIONS": {"socket_timeout": 0.2},
        "TTL": 1,
    }
    aliases = {"default": store, "direct": redis_server.url}
    with override_settings(LOCKKIT=aliases, LOCKKIT_VIEWS={"TIMEOUT": 30}):
        lease = locks["direct"].lock("stock:A1").acquire()
        waiter = threading.Thread(target=_post, args=(f"/{kind}/A1", answers))
        waiter.start()
        while (info := locks["direct"].inspect("stock:A1")) is None or not info.waiters:
            if not waiter.is_alive():
                break  # a machine that stalled was a fault as well
            threading.Event().wait(0.001)
        fault(way)
        waiter.join()
        lease.release()
    assert (answers, views.calls) == ([503], [])


def test_a_view_that_locks_its_own_name_again_is_told() -> None:
    said: list[str] = []

    @lock_view("stock:{sku}")
    def deduct(request: HttpRequest, sku: str) -> HttpResponse:
        with pytest.raises(AcquireTimeout) as refused:
            locks["default"].lock(f"stock:{sku}", timeout=0).acquire()
        said.append(str(refused.value))
        return HttpResponse()

    assert deduct(RequestFactory().post("/stock/42"), sku="42").status_code == 200
    assert "POST /stock/42: that is this thread or task itself" in said[0]
