"""A server that does not answer any more, when several leases are to be given back.

The caller waits for it once, and not once for each name. The watchdog does the rest.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import lockkit
from lockkit import aio
from lockkit.leases.client import LockClient
from lockkit.leases.until import Transaction
from lockkit.model.clock import now
from lockkit.testing.conformance.base import eventually
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

NAMES = [f"stock:{number:02}" for number in range(60)]
SOCKET_TIMEOUT = 0.6
SOON = len(NAMES) * SOCKET_TIMEOUT / 2
"""Seconds: more than a few time-outs, and less than one for each name."""


class Scene:
    """A Redis that is reached through the proxy. ``when``: falls silent at such a request."""

    def __init__(self, server: RedisServer) -> None:
        self.when = b""
        self.then: Callable[[], object] = lambda: None
        self.proxy = FaultProxy("127.0.0.1", server.port, on_request=self.see)
        self.near = lockkit.connect(server.url, ttl=60)
        self.options: dict[str, Any] = {"ttl": 60, "options": {"socket_timeout": SOCKET_TIMEOUT}}

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.proxy.port}/0"

    def see(self, request: bytes) -> None:
        if self.when and self.when in request:
            self.when = b""
            self.proxy.half_open()
            self.then()

    def is_free(self) -> None:
        self.proxy.half_open(False)
        eventually(lambda: not [*self.near.holders()])


@pytest.fixture
def scene(redis_server: RedisServer) -> Iterator[Scene]:
    redis_server.flush()
    found = Scene(redis_server)
    with found.proxy, found.near:
        yield found


@pytest.fixture
def far(scene: Scene) -> Iterator[LockClient]:
    with ExitStack() as stack:
        client = lockkit.connect(scene.url, **scene.options)
        stack.callback(client.close)
        yield client


def test_leaving_a_block_waits_for_it_once(
    scene: Scene, far: LockClient, caplog: pytest.LogCaptureFixture
) -> None:
    with far.multi(*NAMES):
        scene.proxy.half_open()
        started = now()
    assert now() - started < SOON
    assert caplog.text.count("not confirmed") == 1
    scene.is_free()


def test_so_does_an_acquire_whose_last_name_fails(scene: Scene, far: LockClient) -> None:
    scene.when = NAMES[-1].encode()
    started = now()
    with pytest.raises(lockkit.BackendError):
        far.multi(*NAMES).acquire()
    assert now() - started < SOON
    scene.is_free()


def test_so_does_an_interrupted_release(scene: Scene, far: LockClient) -> None:
    leases = far.multi(*NAMES).acquire()
    scene.when = NAMES[-1].encode()
    scene.then = lambda: os.kill(os.getpid(), signal.SIGINT)
    started = now()
    with pytest.raises(KeyboardInterrupt):
        leases.release()
    assert now() - started < SOON
    scene.is_free()


def test_so_does_the_end_of_a_transaction(scene: Scene, far: LockClient) -> None:
    kept = Kept()
    for name in NAMES:
        kept.keep(far.lock(name).acquire())
    scene.proxy.half_open()
    started = now()
    kept.give_back()
    assert now() - started < SOON
    scene.is_free()


class Kept(Transaction):
    def is_open(self) -> bool:
        return not self.ended

    def refuse_snapshot(self, name: str) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_so_does_asyncio(scene: Scene, is_cancelled: bool) -> None:
    client = aio.connect(scene.url, **scene.options)
    leases = await client.multi(*NAMES).acquire()
    loop, releasing = asyncio.get_running_loop(), asyncio.ensure_future(leases.release())
    scene.when = NAMES[-1].encode()
    if is_cancelled:
        scene.then = lambda: loop.call_soon_threadsafe(releasing.cancel)
    started = now()
    with pytest.raises(asyncio.CancelledError if is_cancelled else lockkit.BackendError):
        await releasing
    assert now() - started < SOON
    await asyncio.to_thread(scene.is_free)
    await client.close()
