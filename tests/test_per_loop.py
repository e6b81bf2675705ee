"""Clients of event loops, which come and go: a WSGI server makes one for each async view."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine

import pytest

from lockkit import aio
from lockkit.aio import AsyncLockClient
from lockkit.errors import ConfigurationError
from lockkit.per_loop import PerLoop


def run_and_close(scene: Coroutine[None, None, None]) -> None:
    """As a server that does not do what asyncio.run does in the end."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(scene)
    loop.close()


@pytest.mark.parametrize("run", [asyncio.run, run_and_close])
def test_a_loop_that_has_ended_is_forgotten_with_its_client(run: Callable[..., None]) -> None:
    clients: PerLoop[AsyncLockClient] = PerLoop(lambda _: aio.connect("memory://per-loop"))
    ended: list[weakref.ref[object]] = []

    async def scene() -> None:
        async with clients["default"].lock("stock:42"):
            assert clients["default"] is clients["default"]
        ended.append(weakref.ref(asyncio.get_running_loop()))
        ended.append(weakref.ref(clients["default"]))

    for _ in range(4):
        run(scene())
    gc.collect()
    assert not [found for found in ended[:-2] if found() is not None]


def test_a_client_is_refused_in_another_loop() -> None:
    """Nobody would renew its leases there; also if its own loop has ended."""
    client = aio.connect("memory://")
    lock = client.lock("stock:42", reentrant=True)

    async def scene() -> None:
        async with lock, lock:
            pass

    async def refused() -> None:
        with pytest.raises(ConfigurationError, match="PerLoop"):
            await lock.acquire()

    asyncio.run(scene())
    asyncio.run(refused())
    assert asyncio.run(client.inspect("stock:42")) is None


async def test_one_that_was_forgotten_by_others_is_closed_by_its_loop() -> None:
    clients: PerLoop[AsyncLockClient] = PerLoop(lambda _: aio.connect("memory://per-loop"))
    first = clients["default"]
    clients.clear()
    assert clients["default"] is not first
    async with clients["default"].lock("stock:42"):
        pass
