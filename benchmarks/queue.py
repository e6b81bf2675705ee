"""A long queue: what it costs to be refused there, beside a try."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import suppress

import lockkit
from benchmarks.awake import awake
from lockkit import TooManyWaiters
from lockkit.stores.redis import RedisStore
from lockkit.stores.redis.connections import pipeline

__all__ = ["measure"]

WAITERS = 10_000
TURNS = 60
CALLS = 10


def measure(url: str) -> dict[str, dict[str, float]]:
    """Microseconds where so many wait as may; a try and a refusal take turns."""
    client = lockkit.connect(url, ttl=600, max_queue=WAITERS)
    lease = client.lock("queue").acquire()
    lock = client.lock("queue", timeout=60)
    store = client.store
    assert isinstance(store, RedisStore)
    asked = [
        store._language.acquire(lock._request(client, 60), 1, b"-").packed for _ in range(WAITERS)
    ]
    pipeline(store._connections, asked)  # they count as alive for three seconds
    tried, refused = lock.try_acquire, _refusal(lock)
    times: dict[str, list[float]] = {"tried_us": [], "refused_us": []}
    with awake():
        for _ in range(TURNS):
            times["tried_us"].append(_turn(tried))
            times["refused_us"].append(_turn(refused))
    lease.release()
    client.close()
    return {"lockkit": {key: statistics.median(values) for key, values in times.items()}}


def _refusal(lock: lockkit.Lock) -> Callable[[], object]:
    def refused() -> None:
        with suppress(TooManyWaiters):
            lock.acquire()
            raise AssertionError("there was room in the queue")

    return refused


def _turn(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS * 1e6
