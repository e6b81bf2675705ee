"""An event loop that is busy: what was handed to one of its tasks is not lost for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import lockkit
from lockkit import LockClient, aio
from lockkit.engine.times import alive_for
from lockkit.model.errors import LeaseLost
from lockkit.model.types import Kind, LockState
from lockkit.testing.servers import RedisServer

TTL = 3.0
ALIVE = alive_for(TTL)
PATIENCE = 0.4
TRIES = 3
NAME = "stock:42"
SOON = 30.0


@pytest.fixture
def url(request: pytest.FixtureRequest, redis_url: str) -> str:
    return redis_url + getattr(request, "param", "")


@pytest.fixture
async def locks(url: str) -> AsyncIterator[aio.AsyncLockClient]:
    client = aio.connect(url, ttl=TTL)
    yield client
    await client.close()


@pytest.fixture
def other(url: str) -> Iterator[LockClient]:
    with lockkit.connect(url) as client:
        yield client


def left(other: LockClient) -> float:
    info = other.inspect(NAME)
    return info.left or 0.0 if info is not None and info.state is LockState.HELD else 0.0


def block_until(other: LockClient, seconds: float) -> None:
    """The loop stands still until no more than this is left of the lease."""
    while left(other) > seconds:
        time.sleep(0.005)


Handed = Callable[..., Awaitable[aio.AsyncLease]]


@pytest.fixture(params=["mutex", "reentrant"])
def handed(request: pytest.FixtureRequest, locks: aio.AsyncLockClient, other: LockClient) -> Handed:
    """A lease that was granted by a message, and is not extended yet. A waiter that a machine that
    stalls has silenced for too long asks for it instead."""
    kind: Any = {} if request.param == "mutex" else {"reentrant": True}

    async def lease(**options: Any) -> aio.AsyncLease:
        for _ in range(TRIES):
            holder = other.lock(NAME, **kind).acquire()
            waiting = asyncio.create_task(locks.lock(NAME, **kind, **options).acquire())
            await queued(other)
            assert holder.release()
            found = await waiting
            if not found._hold.whole:
                return found
            await found.release()
        raise AssertionError(f"granted by a message in none of {TRIES} tries")

    return lease


def stand_still(seconds: float) -> None:
    time.sleep(seconds)


async def queued(other: LockClient) -> None:
    async with asyncio.timeout(SOON):
        while (info := other.inspect(NAME)) is None or not info.waiters:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_it_is_released(handed: Handed, other: LockClient) -> None:
    lease = await handed()
    block_until(other, 0)
    assert await lease.release()
    assert not await lease.release()
    assert other.inspect(NAME) is None


async def test_a_block_of_several_names_ends_without_an_error(
    locks: aio.AsyncLockClient, other: LockClient
) -> None:
    """As one of a single name does: nobody has taken them."""

    async def blocked() -> bool:
        async with await waiting:
            is_handed = any(not lease._hold.whole for lease in waiting.result()._leases.values())
            block_until(other, 0)
            return is_handed

    for _ in range(TRIES):
        holder = other.lock(NAME).acquire()
        waiting = asyncio.create_task(locks.multi(NAME, "stock:43").acquire())
        await queued(other)
        assert holder.release()
        if await blocked():
            return
    raise AssertionError(f"granted by a message in none of {TRIES} tries")


async def test_another_task_asks_for_it_first(
    handed: Handed, locks: aio.AsyncLockClient, other: LockClient
) -> None:
    """Its process is not dead, but as busy as the task that asks."""
    lease = await handed()
    block_until(other, 0)
    reentrant = lease._hold.request.kind is Kind.REENTRANT
    waiting = asyncio.create_task(locks.lock(NAME, reentrant=reentrant).acquire())
    await queued(other)
    assert left(other) > ALIVE
    assert await lease.release()
    assert await (await waiting).release()


async def test_its_block_is_left(handed: Handed, other: LockClient) -> None:
    async with await handed():
        block_until(other, 0)


async def test_it_is_extended(handed: Handed, other: LockClient) -> None:
    lease = await handed()
    block_until(other, 0)
    await lease.extend()
    lease.check()
    assert left(other) > ALIVE
    assert await lease.release()


async def test_it_is_renewed(handed: Handed, other: LockClient) -> None:
    told: list[aio.AsyncLease] = []
    lease = await handed(on_lost=told.append)
    block_until(other, 0)
    async with asyncio.timeout(SOON):
        while not lease._hold.whole:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.001)
    lease.check()
    assert await lease.release()
    assert not told


async def test_somebody_has_taken_it(handed: Handed, other: LockClient) -> None:
    told = asyncio.Event()
    lease = await handed(on_lost=lambda _: told.set())
    block_until(other, 0)
    with other.lock(NAME, reentrant=lease._hold.request.kind is Kind.REENTRANT).acquire(timeout=0):
        async with asyncio.timeout(SOON):
            await told.wait()
        assert lease.lost
        assert not await lease.release()


async def test_its_holder_was_told_that_it_is_lost(handed: Handed, other: LockClient) -> None:
    """Then that is final."""
    lease = await handed()
    block_until(other, 0)
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        await lease.extend()
    assert not await lease.release()


async def test_what_was_not_listened_to_is_no_silence(redis_server: RedisServer) -> None:
    """The loop stands still for longer than the server may take, and then it has that time: which
    a machine that stalls takes from it."""
    for _ in range(TRIES):
        with suppress(lockkit.BackendError):
            await not_listened_to(redis_server)
            return
    raise AssertionError(f"a silence in each of {TRIES} tries")


async def not_listened_to(redis_server: RedisServer) -> None:
    options = {"socket_timeout": PATIENCE}
    with redis_server.client() as admin:
        async with aio.connect(redis_server.url, options=options) as locks:
            async with locks.lock("first"):
                pass
            admin.client_pause(round(SOON * 1000), all=False)
            asking = asyncio.create_task(locks.lock(NAME).acquire())
            await asyncio.sleep(0)
            stand_still(2 * PATIENCE)
            await asyncio.sleep(PATIENCE / 4)
            admin.client_unpause()
            assert await (await asking).release()


@pytest.mark.parametrize("url", ["", "?protocol=plain"], indirect=True)
@pytest.mark.parametrize("seconds", [ALIVE / 4, 0.0])
async def test_it_hears_late_of_its_grant(
    locks: aio.AsyncLockClient, other: LockClient, seconds: float
) -> None:
    """Little is left, or nothing: it has the whole lease all the same."""
    holder = other.lock(NAME).acquire()
    waiting = asyncio.create_task(locks.lock(NAME).acquire())
    await queued(other)
    assert holder.release()
    block_until(other, seconds)
    lease = await waiting
    assert lease.remaining() > ALIVE
    assert await lease.release()
