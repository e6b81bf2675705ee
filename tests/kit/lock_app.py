"""An ASGI application without a framework: requests that hold, wait and release."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from lockkit import aio

Message = MutableMapping[str, Any]

NAME = "uvicorn:stock"
held: list[aio.AsyncLease] = []
served: list[str] = []
locks = aio.connect(os.environ.get("LOCK_APP_URL", "memory://"), ttl=30)


async def app(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    if scope["type"] == "http":
        body = await ROUTES[scope["path"]](scope["query_string"].decode())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body.encode()})


async def hold(_: str) -> str:
    held.append(await locks.lock(NAME).acquire())
    served.clear()
    return "held"


async def wait(number: str) -> str:
    async with locks.lock(NAME, timeout=120) as lease:
        served.append(number)
        lease.check()
    return number


async def waiters(_: str) -> str:
    info = await locks.inspect(NAME)
    return str(info.waiters if info else 0)


async def release(_: str) -> str:
    return str(await held.pop().release())


async def order(_: str) -> str:
    return ",".join(served)


ROUTES = {f"/{route.__name__}": route for route in (hold, wait, waiters, release, order)}
