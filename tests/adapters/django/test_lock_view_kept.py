"""``lock_view(hold="response")``: who is kept out while a body is sent, and who waits where."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgi_scope import http_scope
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from lockkit.model.clock import now
from lockkit.testing.servers import RedisServer
from lockkit.web.view_lock import waiting_room
from lockkit_django import alocks, lock_view, locks

pytestmark = pytest.mark.django_db(transaction=True)

KINDS: dict[str, dict[str, Any]] = {
    "mutex": {},
    "reentrant": {"kind": "reentrant"},
    "write": {"kind": "write"},
    "semaphore": {"kind": "semaphore", "permits": 1},
}
WAITERS = 4
signals: dict[str, asyncio.Event] = {}


def export(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse([b"a", b"b"])


async def aexport(request: HttpRequest) -> StreamingHttpResponse:
    async def rows() -> AsyncIterator[bytes]:
        yield b"a"

    return StreamingHttpResponse(rows())


async def fails(request: HttpRequest) -> HttpResponse:
    await signals["go on"].wait()
    await asyncio.to_thread(int)  # the threads that everybody uses are free for it
    raise ZeroDivisionError


@lock_view("export", kind="reentrant", hold="response")
def enters_again(request: HttpRequest) -> HttpResponse:
    with locks["default"].lock("export", reentrant=True):
        return HttpResponse()


@lock_view("export", kind="reentrant", hold="response")
@lock_view("export", "sku", kind="reentrant", hold="response")
async def twice(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [
    path(f"{kind}/{view.__name__}", lock_view("export", hold="response", **options)(view))
    for kind, options in KINDS.items()
    for view in (export, aexport)
]
urlpatterns += [
    path("fails", lock_view("export", hold="response", timeout=60)(fails)),
    path("for-ever", lock_view("export", hold="response", timeout=None)(aexport)),
    path("enters-again", enters_again),
    path("twice", twice),
]


@pytest.fixture(autouse=True, params=["memory", "redis"])
def project(request: pytest.FixtureRequest) -> Iterator[None]:
    url = "memory://"
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        server.flush()
        url = server.url
    signals["go on"] = asyncio.Event()  # a loop's own, from the first who waits
    views = {"TIMEOUT": 0, "MAX_WAITERS": WAITERS + 1}
    with override_settings(ROOT_URLCONF=__name__, LOCKKIT={"default": url}, LOCKKIT_VIEWS=views):
        yield


def queue() -> int:
    info = locks["default"].inspect("export")
    return info.waiters if info else 0


async def queued(number: int) -> None:
    deadline = now() + 30
    while await sync_to_async(queue)() != number:
        assert now() < deadline
        await asyncio.sleep(0.002)


class TestExclusion:
    """The thread of a view runs the next request, and so does its task's loop."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("view", ["export", "aexport"])
    async def test_under_asgi(self, kind: str, view: str) -> None:
        for _ in range(2):
            first = await AsyncClient().get(f"/{kind}/{view}")
            for _ in range(2):
                assert (await AsyncClient().get(f"/{kind}/{view}")).status_code == 423
            await sync_to_async(first.close)()
        assert await asyncio.to_thread(locks["default"].inspect, "export") is None

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("view", ["export", "aexport"])
    def test_under_wsgi(self, kind: str, view: str) -> None:
        for _ in range(2):
            first = Client().get(f"/{kind}/{view}")
            assert Client().get(f"/{kind}/{view}").status_code == 423
            first.close()
        assert locks["default"].inspect("export") is None

    @pytest.mark.parametrize("url", ["/enters-again", "/twice"])
    def test_within_the_view_it_may_be_entered_again(self, url: str) -> None:
        assert Client().get(url).status_code == 200
        assert locks["default"].inspect("export") is None


class TestWaiting:
    async def test_more_wait_than_there_are_threads_and_a_view_fails(self) -> None:
        """Its release, and what it does in a thread, wait for none of them."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        client = AsyncClient(raise_request_exception=False)
        visits = [asyncio.create_task(client.get("/fails")) for _ in range(WAITERS + 1)]
        await queued(WAITERS)
        signals["go on"].set()
        async with asyncio.timeout(30):  # nobody has to give up before
            answers = await asyncio.gather(*visits)
        assert {answer.status_code for answer in answers} == {500}

    async def test_who_leaves_the_queue_leaves_nothing(self) -> None:
        async with alocks["default"].lock("export"):
            gone = asyncio.Event()
            task = asyncio.create_task(visit("/for-ever", gone))
            await queued(1)
            with waiting_room.place(1) as is_free:
                assert not is_free
            gone.set()
            await asyncio.wait_for(task, 30)
            assert await sync_to_async(queue)() == 0
            with waiting_room.place(1) as is_free:
                assert is_free

    async def test_who_is_refused_hears_for_how_long_it_was_held_before(self) -> None:
        locks["default"].note_hold("export", 7)
        async with alocks["default"].lock("export"):
            response = await AsyncClient().get("/mutex/aexport")
        assert response["Retry-After"] == "7"

    async def test_what_no_thread_could_renew_is_given_back(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: object) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(locks["default"]._watchdog, "watch", refuse)
            client = AsyncClient(raise_request_exception=False)
            assert (await client.get("/mutex/aexport")).status_code == 500
        assert await sync_to_async(locks["default"].inspect)("export") is None


async def visit(url: str, gone: asyncio.Event) -> None:
    """One GET, whose client may leave."""
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await gone.wait()
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None: ...

    scope = http_scope("GET", url)
    await ASGIHandler()(scope, receive, send)
