"""Many leases in one process, and many names: what they take up, and that they leave nothing."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from garbage import collected

import lockkit
from lockkit import aio
from lockkit.engine import holding
from lockkit.model.types import Request
from lockkit.runtime.hold import Hold
from lockkit.stores.redis.layout import BUCKETS
from lockkit.testing.conformance.base import queued
from lockkit.testing.servers import RedisServer

LEASES = 2000
LEASE_BYTES = 700
WAITERS = 99  # and the first, at most as many as may queue
WAITER_BYTES = 8000
NAMES = 2048
"""What is remembered of the names used last is as full after so many more as it was before."""


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    redis_server.flush()
    return redis_server.url


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Counts the bytes that are allocated here and kept."""

    def kept() -> int:
        collected()
        return tracemalloc.get_traced_memory()[0]

    collected()
    tracemalloc.start(1)
    try:
        yield kept
    finally:
        tracemalloc.stop()


OF_CONNECTIONS = [
    tracemalloc.Filter(inclusive=False, filename_pattern=pattern)
    for pattern in ("*/site-packages/redis/*", "*/stores/redis/connections.py")
]
"""Buffers: on a busy machine more of the waiters ask at once."""


def kept_beside_connections() -> int:
    collected()
    kept = tracemalloc.take_snapshot().filter_traces(OF_CONNECTIONS)
    return sum(trace.size for trace in kept.traces)


def renewed(client: lockkit.LockClient, leases: Sequence[lockkit.Lease]) -> None:
    client.perform(holding.renew(client.store, [lease._hold for lease in leases]))


def test_a_lease_takes_little_memory(url: str) -> None:
    with lockkit.connect(url, ttl=600) as client:

        def take() -> list[lockkit.Lease]:
            return [client.lock(f"many:{number:05}").acquire() for number in range(LEASES)]

        def give(leases: list[lockkit.Lease]) -> None:
            assert all(lease.release() for lease in leases)

        give(take())  # from now on, what is remembered of these names is there
        with traced() as kept:
            leases = take()
            assert kept() / LEASES <= LEASE_BYTES
            for _ in range(3):
                renewed(client, leases)
            assert kept() / LEASES <= LEASE_BYTES
        give(leases)


async def test_a_lease_of_a_loop_takes_little_memory(url: str) -> None:
    async with aio.connect(url, ttl=600) as client:

        async def take() -> list[aio.AsyncLease]:
            return [await client.lock(f"many:{number:05}").acquire() for number in range(LEASES)]

        for lease in await take():
            await lease.release()
        with traced() as kept:
            leases = await take()
            assert kept() / LEASES <= LEASE_BYTES
        for lease in leases:
            await lease.release()


def test_a_pass_is_a_few_scripts_for_each_bucket_and_keeps_little(
    url: str, redis_server: RedisServer
) -> None:
    with lockkit.connect(url, ttl=600) as client, redis_server.client() as admin:
        leases = [client.lock(f"many:{number:05}").acquire() for number in range(LEASES)]
        renewed(client, leases)
        admin.config_resetstat()
        with traced():
            renewed(client, leases)
            assert tracemalloc.get_traced_memory()[1] / LEASES < LEASE_BYTES
        stats: Any = admin.info("commandstats")
        calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
        assert calls["evalsha"] == BUCKETS * LEASES // holding.AT_ONCE
        assert calls["hmget"] <= calls["evalsha"]
        assert calls["hset"] <= calls["evalsha"]
        for lease in leases:
            assert lease.release()


def test_more_leases_are_renewed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a pass over very many takes up no more than one over some."""
    asked = []
    with lockkit.connect("memory://", ttl=600, max_queue=None) as client:
        leases = [
            client.lock(f"many:{number}").acquire() for number in range(2 * holding.AT_ONCE + 1)
        ]
        extend = client.store.extend

        def noted(requests: Sequence[Request]) -> Any:
            asked.append(len(requests))
            return extend(requests)

        monkeypatch.setattr(client.store, "extend", noted)
        renewed(client, leases)
        assert asked == [holding.AT_ONCE, holding.AT_ONCE, 1]
        for lease in leases:
            assert lease.release()


def test_a_waiter_takes_little_beyond_its_thread(url: str) -> None:
    """They come one by one: those that come at once would each need a connection."""

    def wait(lock: Any) -> None:
        with lock:
            pass

    with lockkit.connect(url, acquire_timeout=None) as client, traced():
        client.lock("many").acquire().release()
        bare, before = threading.Lock(), kept_beside_connections()
        with bare:
            threads = [started(wait, bare) for _ in range(WAITERS)]
            of_threads = kept_beside_connections() - before
        with client.lock("many"):
            for number in range(1 + WAITERS):
                threads.append(started(wait, client.lock("many")))
                queued(client, "many", number + 1)
                if number == 0:  # it has subscribed, for all
                    before = kept_beside_connections()
            of_waiters = kept_beside_connections() - before
        for thread in threads:
            thread.join()
    assert (of_waiters - of_threads) / WAITERS <= WAITER_BYTES


def started(work: Callable[[Any], None], lock: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=(lock,))
    thread.start()
    return thread


def test_names_that_are_released_leave_nothing_behind(url: str, redis_server: RedisServer) -> None:
    with lockkit.connect(url) as client, redis_server.client() as admin:

        def use(most: int, first: int = 0) -> None:
            for number in range(first, first + most):
                client.lock(f"many:{number:06}").acquire().release()

        use(NAMES)
        with traced() as kept:
            use(NAMES, NAMES)
            before = kept()
            use(NAMES, 2 * NAMES)
            assert kept() - before < 20 * NAMES
        assert _left_in_this_process() == []
        assert _left_in(admin) == []


async def test_names_that_tasks_have_released_leave_nothing_behind(
    url: str, redis_server: RedisServer
) -> None:
    async with aio.connect(url) as client:

        async def use(most: int, first: int = 0) -> None:
            for number in range(first, first + most):
                await (await client.lock(f"many:{number:06}").acquire()).release()

        await use(NAMES)
        with traced() as kept:
            await use(NAMES, NAMES)
            before = kept()
            await use(NAMES, 2 * NAMES)
            assert kept() - before < 20 * NAMES
    assert _left_in_this_process() == []
    with redis_server.client() as admin:
        assert _left_in(admin) == []


def _left_in_this_process() -> list[object]:
    """The type is asked, not ``isinstance``: lazy objects of others would wake up."""
    collected()
    kinds = {Hold, lockkit.Lease, aio.AsyncLease, lockkit.Lock, aio.AsyncLock}
    ours = [one for one in gc.get_objects() if type(one) in kinds]
    return [one for one in ours if getattr(one, "name", "")[:5] == "many:"]


def _left_in(admin: Any) -> list[bytes]:
    """Fields of names, and keys that are not one of a bucket or the one of all."""
    keys = admin.keys("*")
    assert len(keys) <= BUCKETS + 1
    fields = [field for key in keys if admin.type(key) == b"hash" for field in admin.hkeys(key)]
    return [field for field in fields if field not in {b"v", b"f", b"z"}]
