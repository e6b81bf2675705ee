"""Locks that a view takes by hand and does not get: the same answers as of ``lock_view``."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django_project.shop.models import Sale
from rest_framework.decorators import api_view

import lockkit
from lockkit.stores.memory import MemoryStore
from lockkit.testing.plugin import HoldLock
from lockkit_django import alocks, lock_view, locks

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "stock:A1"
BROWSER = {"Accept": "text/html,*/*;q=0.8"}
LOCK_ERRORS = "lockkit_django.middleware.LockErrors"


def by_hand(request: HttpRequest) -> HttpResponse:
    with locks["default"].lock(NAME, timeout=0):
        return HttpResponse("got it")


async def by_hand_async(request: HttpRequest) -> HttpResponse:
    async with alocks["default"].lock(NAME, timeout=0):
        return HttpResponse("got it")


def waits(request: HttpRequest) -> HttpResponse:
    with locks["default"].lock(NAME, timeout=1):
        return HttpResponse("got it")


@lock_view(NAME, timeout=0.1)
def waits_in_vain(request: HttpRequest) -> HttpResponse:
    raise AssertionError


def loses(request: HttpRequest) -> HttpResponse:
    raise lockkit.LeaseLost("lost", name=NAME)


def down(request: HttpRequest) -> HttpResponse:
    raise lockkit.BackendUnavailable("the store cannot be reached", name=NAME)


def in_a_hook(request: HttpRequest) -> HttpResponse:
    Sale.objects.create(sku="A1")
    transaction.on_commit(lambda: locks["default"].lock(NAME, timeout=0).acquire().release())
    return HttpResponse("sold")


@lock_view("sales")
def in_a_hook_of_a_locked_view(request: HttpRequest) -> HttpResponse:
    return in_a_hook(request)


def renders(request: HttpRequest) -> TemplateResponse:
    """Its template asks for the lock, after the COMMIT of ATOMIC_REQUESTS."""
    Sale.objects.create(sku="A1")
    late = {"late": lambda: by_hand(request).content}
    return TemplateResponse(request, engines["django"].from_string("{{ late }}"), late)


def render(request: HttpRequest) -> HttpResponse:
    Sale.objects.create(sku="A1")
    with locks["default"].lock(NAME, timeout=0, until="commit"):
        return HttpResponse("got it")


@lock_view("sales")
def sells(request: HttpRequest) -> HttpResponse:
    Sale.objects.create(sku="A1")
    return HttpResponse("sold")


def sells_first(request: HttpRequest) -> HttpResponse:
    sells(request)
    return render(request)


def sells_before(request: HttpRequest) -> HttpResponse:
    sells(request)
    return by_hand(request)


renders_locked = lock_view("sales")(renders)


def sells_then(change: Callable[[lockkit.Lease], object]) -> HttpResponse:
    """The store goes down after the sale. No block releases the lease: a block would only log."""
    lease = locks["default"].lock(NAME).acquire()
    with transaction.atomic():
        Sale.objects.create(sku="A1")
    try:
        with pytest.MonkeyPatch.context() as patch:
            for step in "extend", "release":
                patch.setattr(MemoryStore, step, goes_down)
            change(lease)
    finally:
        lease.release()
    return HttpResponse("sold")


def goes_down(*_: object) -> NoReturn:
    raise lockkit.BackendUnavailable("the store cannot be reached")


def releases(request: HttpRequest) -> HttpResponse:
    return sells_then(lambda lease: lease.release())


def extends(request: HttpRequest) -> HttpResponse:
    return sells_then(lambda lease: lease.extend(60))


@lock_view(NAME, kind="reentrant")
@lock_view("stock:A2")
async def again_reentrant(request: HttpRequest) -> HttpResponse:
    def enter() -> HttpResponse:
        with locks["default"].lock(NAME, timeout=0, reentrant=True):
            return HttpResponse("got it")

    return await sync_to_async(enter)()


@lock_view("stock:A2")
@lock_view(NAME)
async def again_in_its_thread(request: HttpRequest) -> HttpResponse:
    return await sync_to_async(by_hand)(request)


@lock_view("stock:A0", NAME)
async def again_in_a_task(request: HttpRequest) -> HttpResponse:
    return await asyncio.create_task(by_hand_async(request))


@lock_view(NAME)
def again_in_a_loop(request: HttpRequest) -> HttpResponse:
    return async_to_sync(by_hand_async)(request)


@lock_view(NAME)
def waits_for_itself(request: HttpRequest) -> HttpResponse:
    with locks["default"].lock(NAME, timeout=None, in_atomic="allow"):
        raise AssertionError


@lock_view(NAME)
async def waits_for_itself_async(request: HttpRequest) -> HttpResponse:
    async with alocks["default"].lock(NAME, timeout=None):
        raise AssertionError


def by_hand_api(request: Any) -> Any:
    return by_hand(request)


class Apologise:
    """A project's own answer."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse:
        return HttpResponse(f"sorry: {type(error).__name__}", status=418)


VIEWS = [
    by_hand,
    by_hand_async,
    waits,
    waits_in_vain,
    loses,
    down,
    in_a_hook,
    in_a_hook_of_a_locked_view,
    renders,
    render,
    sells_first,
    sells_before,
    releases,
    extends,
    *(ENDLESS := [waits_for_itself, waits_for_itself_async]),
    *(AGAIN := [again_reentrant, again_in_its_thread, again_in_a_task, again_in_a_loop]),
]


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    urls = ModuleType("lock_errors_urls")
    api = api_view(["GET"])(by_hand_api)
    urls.urlpatterns = [  # type: ignore[attr-defined]
        *(path(view.__name__, view) for view in VIEWS),
        path("renders_locked", renders_locked),
        path("api", api),
    ]
    sys.modules[urls.__name__] = urls
    settings = {
        "ROOT_URLCONF": urls.__name__,
        "MIDDLEWARE": [LOCK_ERRORS],
        # Each test has a store of its own: in some of them a lease is not released.
        "LOCKKIT": {"default": {"LOCATION": f"memory://{secrets.token_hex(8)}"}},
    }
    with override_settings(**settings):
        yield
    del sys.modules[urls.__name__]


@pytest.mark.parametrize("view", ["by_hand", "by_hand_async", "waits", "api"])
async def test_a_busy_lock_by_hand_is_423(view: str) -> None:
    async with alocks["default"].lock(NAME):
        response = await AsyncClient().get(f"/{view}")
    assert (response.status_code, response["Retry-After"]) == (423, "1")
    assert response.json()["code"] == "lock-busy"
    assert (await AsyncClient().get(f"/{view}")).status_code == 200


def test_under_wsgi_and_in_a_browser() -> None:
    with locks["default"].lock(NAME, label="POST /secret"):
        response = Client().get("/by_hand", headers=BROWSER)
    page = response.content.decode()
    assert (response.status_code, "secret" in page, "stock" in page) == (423, False, False)


@override_settings(LOCKKIT_VIEWS={"BUSY_STATUS": 409})
def test_the_busy_status_is_that_of_views() -> None:
    with locks["default"].lock(NAME):
        assert Client().get("/by_hand").status_code == 409


def test_a_store_that_is_down_is_503(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "lockkit"):
        response = Client().get("/down")
    assert (response.status_code, response.json()["code"]) == (503, "lock-store-unavailable")
    assert f"GET /down gets 503 lock-store-unavailable for {NAME!r}: the store" in caplog.text


@pytest.mark.parametrize("view", [in_a_hook, in_a_hook_of_a_locked_view])
def test_after_the_commit_nobody_is_told_to_try_again(view: Any, atomic_requests: None) -> None:
    with locks["default"].lock(NAME):
        response = Client(raise_request_exception=False).post(f"/{view.__name__}")
    assert (response.status_code, Sale.objects.count()) == (500, 1)


def post(view: str, *, asgi: bool) -> Any:
    if not asgi:
        return Client(raise_request_exception=False).post(f"/{view}")
    return async_to_sync(AsyncClient(raise_request_exception=False).post)(f"/{view}")


@pytest.mark.parametrize("asgi", [False, True])
@pytest.mark.parametrize("view", [renders, sells_first])
def test_nor_if_a_lock_is_asked_for_after_it(view: Any, asgi: bool, atomic_requests: None) -> None:
    with locks["default"].lock(NAME):
        response = post(view.__name__, asgi=asgi)
    assert (response.status_code, Sale.objects.count()) == (500, 1)
    assert post(view.__name__, asgi=asgi).status_code == 200


@pytest.mark.parametrize("asgi", [False, True])
@pytest.mark.parametrize("view", ["renders", "renders_locked", "sells_before"])
def test_nor_without_a_transaction(view: str, asgi: bool) -> None:
    with locks["default"].lock(NAME):
        response = post(view, asgi=asgi)
    assert (response.status_code, Sale.objects.count()) == (500, 1)
    assert post(view, asgi=asgi).status_code == 200


@pytest.mark.parametrize("view", [releases, extends])
def test_nor_if_the_store_fails_when_a_lease_ends(view: Any) -> None:
    response = post(view.__name__, asgi=False)
    assert (response.status_code, Sale.objects.count()) == (500, 1)


@pytest.mark.parametrize("asgi", [False, True])
def test_before_it_they_are(asgi: bool, atomic_requests: None) -> None:
    with locks["default"].lock(NAME):
        response = post(render.__name__, asgi=asgi)
    assert (response.status_code, Sale.objects.count()) == (423, 0)


@pytest.mark.parametrize("method", ["get", "head"])
def test_a_page_whose_template_asks_for_a_lock_may_be_asked_for_again(method: str) -> None:
    with locks["default"].lock(NAME):
        assert getattr(Client(), method)("/renders").status_code == 423


def test_a_lost_lease_stays_an_error() -> None:
    """The view's work may have been done."""
    assert Client(raise_request_exception=False).get("/loses").status_code == 500


@pytest.mark.parametrize("view", ["by_hand", "by_hand_async"])
async def test_the_project_s_own_handler_goes_first(view: str) -> None:
    own = f"{__name__}.{Apologise.__name__}"
    sys.modules.setdefault(__name__, sys.modules[Apologise.__module__])
    with override_settings(MIDDLEWARE=[LOCK_ERRORS, own]):
        async with alocks["default"].lock(NAME):
            response = await AsyncClient().get(f"/{view}")
    assert (response.status_code, response.content) == (418, b"sorry: LockHeld")


def test_who_was_refused_what_is_logged(
    hold_lock: HoldLock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "lockkit"), hold_lock(NAME):
        Client().get("/by_hand?card=4111")
    (told,) = [r for r in caplog.records if r.name == "lockkit"]
    assert told.levelname == "INFO"
    refused = f"GET /by_hand gets 423 lock-busy: {NAME!r} is held by another-host:1 hold_lock"
    assert told.getMessage() == refused


def test_a_view_that_waits_for_itself_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    """That is a defect of the view: the log says so without being set up."""
    with locks["default"].lock(NAME, label="POST /first"):
        Client().get("/by_hand?card=4111")
    (told,) = [r for r in caplog.records if r.name == "lockkit"]
    assert told.levelname == "WARNING"
    assert f"{NAME!r} is held by " in told.getMessage()
    assert "POST /first: that is this thread or task itself" in told.getMessage()


@pytest.mark.parametrize("view", [view.__name__ for view in ENDLESS])
async def test_a_view_does_not_wait_for_itself(view: str) -> None:
    """A lock deep in its code wants the name of its own."""
    response = await AsyncClient().get(f"/{view}")
    assert (response.status_code, response.json()["code"]) == (423, "lock-busy")


@pytest.mark.parametrize("view", [view.__name__ for view in AGAIN])
async def test_a_view_that_locks_its_own_name_elsewhere_is_warned(
    view: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In another thread or task than that of its ``lock_view``."""
    response = await AsyncClient().get(f"/{view}")
    assert response.status_code == 423
    (told,) = [r for r in caplog.records if r.name == "lockkit"]
    assert told.levelname == "WARNING"
    assert f"{NAME!r} is held by " in told.getMessage()
    assert f"GET /{view}: that is the lock_view around the code that asks" in told.getMessage()


def test_a_wait_is_logged_for_whoever_looks_closely(caplog: pytest.LogCaptureFixture) -> None:
    held = locks["default"].lock(NAME, label="POST /first")
    with caplog.at_level(logging.DEBUG, "lockkit"), held:
        Client().get("/waits_in_vain?card=4111")
    (told,) = [r.getMessage() for r in caplog.records if "waits for" in r.getMessage()]
    waiter, holder = told.split(f" waits for {NAME!r}, held by ")
    assert waiter.endswith(" GET /waits_in_vain")
    assert holder.endswith(" POST /first")


@pytest.mark.parametrize(
    ("language", "accept", "said"),
    [
        ("zh-hans", "*/*", "其他人正在修改"),
        ("zh-hans", "text/html", "其他人正在修改"),
        ("fr", "*/*", "Someone else"),
    ],
)
def test_the_text_and_content_language_are_those_of_the_visitor(
    language: str, accept: str, said: str
) -> None:
    middleware = ["django.middleware.locale.LocaleMiddleware", LOCK_ERRORS]
    headers = {"Accept": accept, "Accept-Language": language}
    with override_settings(MIDDLEWARE=middleware), locks["default"].lock(NAME):
        response = Client().get("/by_hand", headers=headers)
    body = response.content if "html" in accept else response.json()["detail"].encode()
    assert said in body.decode()
    expected = "zh-hans" if language.startswith("zh") else "en"
    assert response["Content-Language"] == expected
