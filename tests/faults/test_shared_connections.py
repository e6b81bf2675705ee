"""All tasks of an event loop share one connection, whatever loop and whatever way to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import lockkit
from lockkit import aio
from lockkit.testing.servers import RedisServer

SOON = 60.0
MANY = 40

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(password="secret", tls=True) as server:
        yield server


@pytest.fixture(params=["url", "plain", "unix_url", "tls_url"])
def url(request: pytest.FixtureRequest, server: RedisServer) -> str:
    server.flush()
    if request.param == "plain":
        return f"{server.url}?protocol=plain"
    found: str = getattr(server, request.param)
    return found


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    make = None if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop

    def run(scene: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=make) as runner:
            runner.run(asyncio.wait_for(scene, SOON))

    return run


def test_an_answer_to_a_cancelled_request_reaches_nobody_else(
    server: RedisServer, url: str, run: Run
) -> None:
    """The server answers to none of many, half of them are cancelled, and it answers to all."""

    async def scene() -> None:
        async with aio.connect(url, options={"socket_timeout": SOON}) as client:
            async with client.lock("first"):
                pass
            admin.client_pause(round(SOON * 1000), all=False)
            tasks = [asyncio.create_task(client.lock(f"{n}").acquire()) for n in range(MANY)]
            while client._wire._line.owes < MANY:  # type: ignore[attr-defined]  # noqa: ASYNC110
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.sleep(0)
            admin.client_unpause()
            await asyncio.wait(tasks)
            assert all(task.cancelled() for task in tasks[::2])
            for n, task in list(enumerate(tasks))[1::2]:
                info = await client.inspect(f"{n}")
                assert info is not None and info.fence == task.result().fencing_token
                assert await task.result().release()
            assert [info.name async for info in client.holders()] == []

    with server.client() as admin:
        try:
            run(scene())
        finally:
            admin.client_unpause()


def test_many_tasks_take_turns(server: RedisServer, url: str, run: Run) -> None:
    served: dict[str, list[int]] = {"a": [], "b": []}

    async def work(client: aio.AsyncLockClient, name: str) -> None:
        async with client.lock(name) as lease:
            await asyncio.sleep(0)
            lease.check()
            served[name].append(lease.fencing_token)

    async def scene() -> None:
        async with aio.connect(url, max_queue=None, options={"client_name": "us"}) as client:
            await asyncio.gather(*(work(client, "ab"[n % 2]) for n in range(MANY)))
            with server.client() as admin:
                names = [each["name"] for each in admin.client_list()]
            assert names.count("us") == 2, "one to ask, and one to listen"

    run(scene())
    for fences in served.values():
        assert len(fences) == MANY / 2
        assert fences == sorted(set(fences))
    with lockkit.connect(url) as blocking:
        assert list(blocking.holders()) == []
