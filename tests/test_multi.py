"""Several names at once: all or none, in one order for everybody, within one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lockkit
from lockkit import aio
from lockkit.client import LockClient
from lockkit.errors import AcquireTimeout, ConfigurationError, InvalidName, LeaseLost, LockHeld
from lockkit.testing.conformance.base import queued
from lockkit.testing.servers import RedisServer

NAMES = ("stock:b", "stock:a", "stock:é", "stock:a")
ORDER = ("stock:a", "stock:b", "stock:é")


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/locks.sqlite3"
    server: RedisServer = request.getfixturevalue("redis_server")
    server.flush()
    return server.url


@pytest.fixture
def locks(url: str) -> Iterator[LockClient]:
    client = lockkit.connect(url, ttl=60, acquire_timeout=30)
    yield client
    client.close()


def held(locks: LockClient) -> list[str]:
    return sorted(info.name for info in locks.holders())


def test_all_are_held_and_all_are_given_back(locks: LockClient) -> None:
    with locks.multi(*NAMES, label="both") as leases:
        assert leases.names == ORDER == tuple(held(locks))
        leases.check()
        assert not leases.lost and 0 < leases.remaining() <= 60
        assert leases["stock:a"].fencing_token < leases["stock:é"].fencing_token
        leases.extend(30)
        assert leases.remaining() <= 30
    assert leases.lost
    assert held(locks) == []
    assert leases.release() is False


def test_one_that_is_held_leaves_none(locks: LockClient) -> None:
    with locks.lock("stock:b").acquire():
        assert locks.multi(*NAMES).try_acquire() is None
        with pytest.raises(LockHeld) as refused:
            locks.multi(*NAMES, timeout=0).acquire()
        assert refused.value.name == "stock:b"
        with pytest.raises(AcquireTimeout) as late:
            locks.multi(*NAMES).acquire(0.05)
        assert late.value.waited >= 0.05
        assert len(str(late.value).partition(" s;")[0].rpartition(" ")[2]) <= len("0.049")
        assert held(locks) == ["stock:b"]
    leases = locks.multi(*NAMES).try_acquire()
    assert leases is not None and leases.release()


def test_opposite_orders_do_not_deadlock(locks: LockClient) -> None:
    def work(names: tuple[str, ...]) -> int:
        for _ in range(20):
            with locks.multi(*names):
                pass
        return 20

    with ThreadPoolExecutor(4) as threads:
        turns = threads.map(work, [("a", "b"), ("b", "a")] * 2)
        assert sum(turns) == 80
    assert held(locks) == []


def test_one_that_is_lost_is_all_lost(locks: LockClient) -> None:
    leases = locks.multi("a", "b").acquire()
    assert locks.break_("a", fence=leases["a"].fencing_token)
    for use in (leases.extend, leases.check):
        with pytest.raises(LeaseLost, match="'a'"):
            use()
    assert leases.lost
    with pytest.raises(LeaseLost, match="'a'"):
        leases.__exit__(None, None, None)
    assert held(locks) == []


def test_an_error_of_the_body_passes(locks: LockClient) -> None:
    with pytest.raises(ValueError, match="body"), locks.multi("a", "b"):
        raise ValueError("body")
    assert held(locks) == []


async def test_the_twin(url: str, locks: LockClient) -> None:
    client = aio.connect(url, ttl=60)
    async with client.multi(*NAMES) as leases:
        assert leases.names == ORDER
        leases.check()
        await leases.extend(30)
        assert await client.multi("stock:é", "c").try_acquire() is None
        assert await asyncio.to_thread(held, locks) == [*ORDER]
    assert await asyncio.to_thread(held, locks) == []
    await client.close()


async def test_cancelled_it_holds_none(url: str, locks: LockClient) -> None:
    client = aio.connect(url, ttl=60)
    async with client.lock("b"):
        waiting = asyncio.create_task(client.multi("a", "b", timeout=None).acquire())
        await asyncio.to_thread(queued, locks, "b", 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await asyncio.to_thread(held, locks) == ["b"]
    await client.close()


def test_what_names_nothing(locks: LockClient) -> None:
    for names in ((), (7,), (None,), (["a", "b"],)):
        with pytest.raises(ConfigurationError):
            locks.multi(*names)  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        locks.multi("a", "")
    with pytest.raises(ConfigurationError):
        locks.multi("a", "b", ttl=-1)
    with pytest.raises(ConfigurationError):
        locks.multi("a", "b").acquire(-1)
    assert held(locks) == []
