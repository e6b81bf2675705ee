"""What a caller refers to goes when it returns, not when the garbage collector finds it: neither an
error that a call has raised nor one that it has dealt with keeps the frames of its callers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import lockkit
from lockkit import aio
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

Prepare = Callable[[RedisServer, FaultProxy], object]

Left = tuple[type[lockkit.LockError] | None, object]
"""What was raised, and what is left of the caller's."""

BEFORE: dict[str, tuple[Prepare, type[lockkit.LockError] | None]] = {
    "granted": (lambda server, proxy: None, None),
    "the server has forgotten its scripts": (lambda server, proxy: forget(server), None),
    "a reply is lost": (lambda server, proxy: proxy.drop_replies(), None),
    "many replies are lost": (lambda server, proxy: proxy.drop_replies(20), lockkit.OutcomeUnknown),
}
"""What is done first, and which error the call raises then."""

HELD = {0: lockkit.LockHeld, 0.05: lockkit.AcquireTimeout}
"""By the timeout."""


def forget(server: RedisServer) -> None:
    with server.client() as admin:
        admin.script_flush()


class Something:
    """To which only the caller refers."""


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def proxy(redis_server: RedisServer, redis_url: str) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def far(proxy: FaultProxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}"


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return "memory://references" if request.param == "memory" else f"sqlite:///{tmp_path}/locks"


@pytest.fixture
async def alocks(far: str) -> AsyncIterator[aio.AsyncLockClient]:
    async with aio.connect(far) as locks:
        yield locks


def left_by(call: Callable[[], object]) -> Left:
    found: list[weakref.ref[Something]] = []

    def caller() -> type[lockkit.LockError] | None:
        mine = Something()
        found.append(weakref.ref(mine))
        try:
            call()
        except lockkit.LockError as error:
            return type(error)
        return None

    return caller(), found[0]()


async def left_by_a_task(call: Callable[[], Awaitable[object]]) -> Left:
    found: list[weakref.ref[Something]] = []

    async def caller() -> type[lockkit.LockError] | None:
        mine = Something()
        found.append(weakref.ref(mine))
        try:
            await call()
        except lockkit.LockError as error:
            return type(error)
        return None

    return await caller(), found[0]()


@pytest.mark.parametrize("before", BEFORE)
def test_a_pair(redis_server: RedisServer, proxy: FaultProxy, far: str, before: str) -> None:
    with lockkit.connect(far) as locks:
        locks.lock("first").acquire().release()
        prepare, error = BEFORE[before]
        prepare(redis_server, proxy)
        assert left_by(lambda: locks.lock("stock:42").acquire().release()) == (error, None)


@pytest.mark.parametrize("before", BEFORE)
def test_an_extension(redis_server: RedisServer, proxy: FaultProxy, far: str, before: str) -> None:
    with lockkit.connect(far) as locks:
        lease = locks.lock("stock:42").acquire()
        prepare, error = BEFORE[before]
        prepare(redis_server, proxy)
        assert left_by(lease.extend) == (error, None)
        with suppress(lockkit.LockError):
            lease.release()


@pytest.mark.parametrize("timeout", HELD)
def test_whoever_finds_it_held(url: str, timeout: float) -> None:
    with lockkit.connect(url) as locks, lockkit.connect(url) as other, other.lock("stock:42"):
        found = left_by(lambda: locks.lock("stock:42").acquire(timeout))
        assert found == (HELD[timeout], None)


@pytest.mark.parametrize("before", BEFORE)
async def test_a_pair_in_a_task(
    redis_server: RedisServer, proxy: FaultProxy, alocks: aio.AsyncLockClient, before: str
) -> None:
    async def pair() -> None:
        await (await alocks.lock("stock:42").acquire()).release()

    await pair()
    prepare, error = BEFORE[before]
    prepare(redis_server, proxy)
    assert await left_by_a_task(pair) == (error, None)


@pytest.mark.parametrize("wait", HELD)
async def test_a_task_that_finds_it_held(url: str, wait: float) -> None:
    async with aio.connect(url) as locks, aio.connect(url) as other, other.lock("stock:42"):
        found = await left_by_a_task(lambda: locks.lock("stock:42").acquire(wait))
        assert found == (HELD[wait], None)
