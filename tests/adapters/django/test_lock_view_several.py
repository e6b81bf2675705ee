"""``@lock_view`` of several names, and one that is held until the response is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from asgi_scope import http_scope
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import FileResponse, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django_project.shop.models import Sale
from garbage import collected

from lockkit.model.clock import now
from lockkit.testing.conformance.base import at_least_once, eventually
from lockkit_django import lock_view, locks

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = ("stock:{a}", "stock:{b}")
BOTH = {"stock:1", "stock:2"}


@lock_view(*NAMES)
def move(request: HttpRequest, a: str, b: str) -> HttpResponse:
    Sale.objects.create(sku=a)
    lease: Any = request.lease  # type: ignore[attr-defined]
    lease.check()
    if request.GET.get("lose"):
        locks["default"].break_("stock:1", fence=lease["stock:1"].fencing_token)
        lease["stock:1"]._hold.lose()
    return JsonResponse({name: lease[name].fencing_token for name in lease})


@lock_view(*NAMES)
async def amove(request: HttpRequest, a: str, b: str) -> HttpResponse:
    lease: Any = request.lease  # type: ignore[attr-defined]
    lease.check()
    return JsonResponse({name: lease[name].fencing_token for name in lease})


@lock_view("stock:{sku}", hold="response")
def export(request: HttpRequest, sku: str) -> HttpResponse:
    if request.GET.get("fail"):
        raise ZeroDivisionError
    if request.GET.get("file"):
        return FileResponse([b"row"])
    return HttpResponse("row") if request.GET.get("page") else StreamingHttpResponse(rows(request))


@lock_view("stock:{sku}", hold="response")
async def aexport(request: HttpRequest, sku: str) -> HttpResponse:
    if request.GET.get("fail"):
        raise ZeroDivisionError
    if request.GET.get("wait"):
        entered.set()
        await asyncio.Event().wait()
    if request.GET.get("page"):
        return HttpResponse("row")
    return StreamingHttpResponse(arows(request))  # type: ignore[arg-type]


@lock_view("short:{sku}", ttl=0.5, hold="response")
def short(request: HttpRequest, sku: str) -> HttpResponse:
    return StreamingHttpResponse(rows(request))


def rows(request: Any) -> Iterator[bytes]:
    while True:
        request.lease.check()
        yield b"row"


async def arows(request: Any) -> AsyncIterator[bytes]:
    while True:
        request.lease.check()
        yield b"row"
        await asyncio.sleep(0.001)


entered = asyncio.Event()
urlpatterns = [
    path("move/<a>/<b>", move),
    path("amove/<a>/<b>", amove),
    path("export/<sku>", export),
    path("aexport/<sku>", aexport),
    path("short/<sku>", short),
]


@pytest.fixture(autouse=True)
def urls() -> Iterator[None]:
    shared = {"default": "memory://several"}  # by the blocking and the asyncio client
    with override_settings(ROOT_URLCONF=__name__, LOCKKIT=shared, LOCKKIT_VIEWS={"TIMEOUT": 0}):
        yield


def held(name: str) -> bool:
    return locks["default"].inspect(name) is not None


def test_a_name_is_needed() -> None:
    from lockkit import ConfigurationError

    with pytest.raises(ConfigurationError):
        lock_view()
    with pytest.raises(ConfigurationError):
        lock_view("x", hold="request")  # type: ignore[arg-type]


class TestSeveralNames:
    @pytest.mark.parametrize("url", ["/move/2/1", "/amove/1/2"])
    def test_all_are_held_while_it_runs(self, url: str) -> None:
        assert set(Client().post(url).json()) == BOTH
        assert not any(map(held, BOTH))

    @pytest.mark.parametrize("url", ["/move/2/1", "/amove/1/2"])
    @pytest.mark.parametrize("busy", sorted(BOTH))
    def test_one_that_is_busy_leaves_none(self, url: str, busy: str) -> None:
        with locks["default"].lock(busy):
            assert Client().post(url).status_code == 423
            assert not any(map(held, BOTH - {busy}))

    def test_the_same_name_twice_is_locked_once(self) -> None:
        assert set(Client().post("/move/1/1").json()) == {"stock:1"}

    def test_one_that_is_lost_rolls_all_back(self, atomic_requests: None) -> None:
        assert Client().post("/move/1/2?lose=1").status_code == 503
        assert not Sale.objects.exists()
        assert not any(map(held, BOTH))


class TestUntilTheResponseIsClosed:
    def test_a_streaming_body(self) -> None:
        response = Client().get("/export/1")
        body = iter(response.streaming_content)  # type: ignore[attr-defined]
        assert next(body) == b"row"
        assert held("stock:1")
        assert Client().get("/export/1").status_code == 423
        response.close()
        assert not held("stock:1")

    def test_it_is_renewed_meanwhile(self) -> None:
        def renewed() -> bool:
            response = Client().get("/short/1")
            lease: Any = response.wsgi_request.lease  # type: ignore[attr-defined]
            start = now()
            eventually(lambda: lease.lost or now() > start + 1)
            kept = not lease.lost
            response.close()
            assert not held("short:1")
            return kept

        at_least_once(renewed)

    def test_an_async_view_under_wsgi_whose_loop_has_ended(self) -> None:
        Client().get("/aexport/1?page=1")  # the client of tests closes a whole response at once
        assert not held("stock:1")

    @pytest.mark.parametrize("url", ["/export/1?fail=1", "/aexport/1?fail=1"])
    def test_a_view_that_fails(self, url: str) -> None:
        assert Client(raise_request_exception=False).get(url).status_code == 500
        assert not held("stock:1")

    async def test_an_async_body(self) -> None:
        response = await AsyncClient().get("/aexport/1")
        body = aiter(response.streaming_content)  # type: ignore[attr-defined]
        assert await anext(body) == b"row"
        assert held("stock:1")
        await sync_to_async(response.close)()
        assert not held("stock:1")

    def test_an_answer_that_takes_its_place(self) -> None:
        """Nobody closes a response that was thrown away."""
        request = HttpRequest()
        request.method, request.path = "GET", "/"
        response = export(request, sku="1")
        assert held("stock:1")
        del response
        request.lease = None  # type: ignore[attr-defined]
        collected()
        assert not held("stock:1")

    @pytest.mark.parametrize("url", ["/aexport/1", "/aexport/1?wait=1"])
    async def test_a_client_that_goes_away(self, url: str) -> None:
        """In the middle of the body, or of the view."""
        entered.clear()
        visit = Visit(url)
        task = asyncio.create_task(ASGIHandler()(visit.scope, visit.receive, visit.send))
        await asyncio.wait_for((entered if "wait" in url else visit.rows).wait(), 30)
        assert await sync_to_async(held)("stock:1")
        visit.gone.set()
        await asyncio.wait_for(task, 30)
        assert not await sync_to_async(held)("stock:1")


class Visit:
    """One GET, whose client may leave."""

    def __init__(self, url: str) -> None:
        self.gone = asyncio.Event()
        self.rows = asyncio.Event()
        self._sent = False
        self.scope = http_scope("GET", url)

    async def receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        if message.get("body"):
            self.rows.set()
