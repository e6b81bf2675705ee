"""``with connect(…)`` closes the client; a closed one that is used again opens again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

import lockkit
from lockkit import aio
from lockkit.runtime import process
from lockkit.runtime.schedule import RETRY
from lockkit.testing.blocking import Api, BlockingClient, connect
from lockkit.testing.conformance.base import eventually
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

NAME = "closing-test"


@pytest.fixture
def connections(redis_url: str) -> Iterator[Callable[[], int]]:
    """How many connections of ours the server has."""
    server = redis.Redis.from_url(redis_url)

    def count() -> int:
        return sum(each["name"].startswith(NAME) for each in server.client_list())

    yield count
    server.close()


def test_a_client_closes_at_the_end_of_its_block(
    redis_url: str, connections: Callable[[], int]
) -> None:
    with lockkit.connect(redis_url, options={"client_name": NAME}) as locks, locks.lock("a"):
        assert connections()
    eventually(lambda: connections() == 0)
    with locks.lock("a") as lease:  # opens again
        lease.check()
    locks.close()
    eventually(lambda: connections() == 0)


async def test_so_does_an_asynchronous_one(redis_url: str, connections: Callable[[], int]) -> None:
    async with aio.connect(redis_url, options={"client_name": NAME}) as locks, locks.lock("a"):
        assert connections()
    eventually(lambda: connections() == 0)
    async with locks.lock("a") as lease:
        lease.check()
    await locks.close()


@pytest.mark.parametrize("api", ["sync", "async"])
def test_what_is_entered_again_after_the_close_is_renewed_again(api: Api, redis_url: str) -> None:
    locks = connect(api, redis_url, ttl=6.0)
    lock = locks.lock("a", reentrant=True, owner="nightly")
    with lock.acquire() as outer:
        locks.close()
        with lock.acquire() as inner:
            eventually(lambda: inner.remaining() < 5)
            eventually(lambda: inner.remaining() > 5, seconds=9)
            assert inner.fencing_token == outer.fencing_token
    locks.stop() if isinstance(locks, BlockingClient) else locks.close()


@pytest.mark.parametrize("store", ["redis", "sqlite"])
async def test_cancelled_acquires_do_nothing_after_the_close(
    redis_url: str, tmp_path: Path, store: str, connections: Callable[[], int]
) -> None:
    """What they take back in the background, having been cancelled twice, would connect again."""
    url = redis_url if store == "redis" else f"sqlite:///{tmp_path / 'locks.sqlite3'}"
    options = {"client_name": NAME} if store == "redis" else {}

    async def cancelled_after(turns: int) -> None:
        locks = aio.connect(url, ttl=600, options=options)
        acquiring = asyncio.create_task(locks.lock(f"a:{turns}").acquire())
        for _ in range(turns):
            await asyncio.sleep(0)
        acquiring.cancel()
        await asyncio.sleep(0)
        acquiring.cancel()
        await asyncio.wait([acquiring])
        if not acquiring.cancelled():
            await acquiring.result().release()
        await locks.close()

    for turns in range(1, 16):
        await cancelled_after(turns)
        assert asyncio.all_tasks() == {asyncio.current_task()}
    await asyncio.sleep(2 * RETRY)
    assert connections() == 0
    async with aio.connect(url, ttl=600) as others:
        assert [info async for info in others.holders()] == []


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    redis_server.flush()
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        yield proxy


async def taking_back(locks: aio.AsyncLockClient) -> None:
    """Cancel an acquire twice, so that it is taken back in the background."""
    acquiring = asyncio.create_task(locks.lock("b").acquire())
    await asyncio.sleep(0)
    for _ in range(2):
        acquiring.cancel()
        await asyncio.sleep(0)


async def test_a_close_that_is_cancelled_closes_nevertheless(
    proxy: FaultProxy, redis_url: str
) -> None:
    """While it waits for what a cancelled acquire takes back, which ends with it. No lease is
    renewed afterwards."""
    locks = aio.connect(f"redis://127.0.0.1:{proxy.port}", ttl=1.0)
    lease = await locks.lock("a").acquire()
    proxy.half_open()
    await taking_back(locks)
    closing = asyncio.create_task(locks.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    proxy.half_open(False)
    async with aio.connect(redis_url) as others:
        assert await (await others.lock("a").acquire(timeout=10)).release()
    assert lease.lost
    assert not await lease.release()
    await locks.close()


async def test_a_close_that_is_cancelled_as_it_waits_for_a_reply_closes_nevertheless(
    proxy: FaultProxy, connections: Callable[[], int]
) -> None:
    options = {"client_name": NAME, "socket_timeout": 60}
    locks = aio.connect(f"redis://127.0.0.1:{proxy.port}", options=options)
    lease = await locks.lock("a").acquire()
    proxy.half_open()
    extending = asyncio.create_task(lease.extend())
    await asyncio.sleep(0)
    extending.cancel()
    await asyncio.wait([extending])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(locks.close(), 0.1)
    async with asyncio.timeout(20):
        while connections():  # noqa: ASYNC110  the server counts them
            await asyncio.sleep(0.01)
    proxy.half_open(False)
    await lease.release()
    await locks.close()


async def test_a_close_does_not_wait_for_a_dead_server(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as its time-out says, that is, once for each acquire that was cancelled."""
    monkeypatch.setattr(process, "EXIT_SECONDS", 0.1)
    options = {"socket_timeout": 60}
    locks = aio.connect(f"redis://127.0.0.1:{proxy.port}", options=options)
    await (await locks.lock("a").acquire()).release()
    proxy.half_open()
    await taking_back(locks)
    await asyncio.wait_for(locks.close(), 20)


def test_a_close_waits_for_nothing_in_a_loop_that_has_ended(tmp_path: Path) -> None:
    locks = aio.connect(f"sqlite:///{tmp_path / 'locks.sqlite3'}")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(taking_back(locks))
    loop.close()
    asyncio.run(asyncio.wait_for(locks.close(), 10))


def test_an_error_in_the_block_passes_through() -> None:
    with pytest.raises(ZeroDivisionError), lockkit.connect("memory://"):
        raise ZeroDivisionError


def test_a_released_lease_says_so() -> None:
    with lockkit.connect("memory://") as locks:
        lease = locks.lock("a").acquire()
        lease.release()
        with pytest.raises(lockkit.LeaseLost, match="was released"):
            lease.check()
        assert not lease.release()


@pytest.mark.parametrize("several", [True, False])
async def test_a_released_lease_begins_no_block(several: bool) -> None:
    """Its body would run without the lock."""
    with lockkit.connect("memory://") as locks:
        lease = (locks.multi("a", "b") if several else locks.lock("a")).acquire()
        with lease:
            pass
        with pytest.raises(lockkit.LeaseLost, match="released"), lease:
            raise ZeroDivisionError
    async with aio.connect("memory://") as alocks:
        alease = await (alocks.multi("a", "b") if several else alocks.lock("a")).acquire()
        async with alease:
            pass
        with pytest.raises(lockkit.LeaseLost, match="released"):
            async with alease:
                raise ZeroDivisionError


def test_a_close_waits_for_no_renewal_in_a_loop_that_has_ended(tmp_path: Path) -> None:
    locks = aio.connect(f"sqlite:///{tmp_path / 'locks.sqlite3'}")
    loop = asyncio.new_event_loop()

    async def scene() -> aio.AsyncLease:
        lease = await locks.lock("a").acquire()
        lease._hold.due = 0.0
        locks._watchdog._begin()
        return lease

    lease = loop.run_until_complete(scene())
    loop.close()
    asyncio.run(asyncio.wait_for(locks.close(), 10))
    lease._finish()  # nobody can release it any more
