"""asyncio: one task that acquires and releases, and a thousand tasks that want a hundred names."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import uvloop

from benchmarks.awake import awake
from benchmarks.figures import Results

__all__ = ["measure"]

TTL = 30
PATIENCE = 60
TASKS, NAMES = 1000, 100
HOLD = 0.001
SECONDS = 2.0
ROUNDS = 5
PAIRS = 40
TURNS = 60


class Client(Protocol):
    """Its locks are asynchronous context managers."""

    def lock(self, name: str) -> Any: ...

    async def close(self) -> None: ...


class Lockkit:
    def __init__(self, url: str) -> None:
        from lockkit import aio

        self._client = aio.connect(url, ttl=TTL, acquire_timeout=PATIENCE, max_queue=None)
        self.lock, self.close = self._client.lock, self._client.close


class RedisPy:
    """redis-py's own. With a hundred connections, its default, tasks get MaxConnectionsError."""

    def __init__(self, url: str, connections: int = TASKS) -> None:
        import redis.asyncio

        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url, protocol=2, max_connections=connections, timeout=PATIENCE
        )
        self._use(redis.asyncio.Redis.from_pool(pool))

    def _use(self, client: Any) -> None:
        self._client, self.close = client, client.aclose

    def lock(self, name: str) -> Any:
        return self._client.lock(f"redis-py:{name}", timeout=TTL, blocking_timeout=PATIENCE)


PEERS: dict[str, Callable[[str], Client]] = {
    "lockkit": Lockkit,
    "redis-py": RedisPy,
    "redis-py, 20 connections": partial(RedisPy, connections=20),
}


def measure(url: str) -> Results:
    """The pair in µs, of time and of CPU; what the tasks acquire in a second, their CPU for
    each, and what they lost."""
    results: Results = {}
    for loop, factory in (("asyncio", None), ("uvloop", uvloop.new_event_loop)):
        for peer, figures in _measured(url, factory).items():
            found = {f"{loop}_{key}": figure for key, figure in figures.items()}
            results.setdefault(peer, {}).update(found)
    return results


def _measured(url: str, factory: Callable[[], asyncio.AbstractEventLoop] | None) -> Results:
    with asyncio.Runner(loop_factory=factory) as runner:
        figures = runner.run(_pairs(url))
    found: dict[str, list[dict[str, float]]] = {peer: [] for peer in PEERS}
    for _ in range(ROUNDS):
        for peer, make in PEERS.items():
            with asyncio.Runner(loop_factory=factory) as runner:
                found[peer].append(runner.run(_contended(make(url))))
    for peer, rounds in found.items():
        medians = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        figures.setdefault(peer, {}).update(medians)
    return figures


class OneTask(RedisPy):
    """redis-py's own, with its default pool, which is quicker."""

    def __init__(self, url: str) -> None:
        import redis.asyncio

        self._use(redis.asyncio.Redis.from_url(url, protocol=2))


async def _pairs(url: str) -> Results:
    """The peers take turns every few milliseconds."""
    clients: dict[str, Client] = {"lockkit": Lockkit(url), "redis-py": OneTask(url)}
    locks = {peer: client.lock("pair") for peer, client in clients.items()}
    turns: dict[str, list[tuple[float, float]]] = {peer: [] for peer in locks}
    for lock in locks.values():
        await _turn(lock, 5 * PAIRS)
    with awake():
        for _ in range(TURNS):
            for peer, lock in locks.items():
                turns[peer].append(await _turn(lock, PAIRS))
    for client in clients.values():
        await client.close()
    return {
        peer: {
            "pair_us": statistics.median(wall for wall, _ in each),
            "pair_cpu_us": statistics.median(cpu for _, cpu in each),
        }
        for peer, each in turns.items()
    }


async def _turn(lock: Any, pairs: int) -> tuple[float, float]:
    start, used = time.perf_counter(), time.process_time()
    for _ in range(pairs):
        async with lock:
            pass
    took = time.perf_counter() - start, time.process_time() - used
    return took[0] / pairs * 1e6, took[1] / pairs * 1e6


async def _contended(client: Client) -> dict[str, float]:
    served = lost = 0

    async def work(number: int) -> None:
        nonlocal served, lost
        lock = client.lock(f"tasks:{number % NAMES}")
        while time.perf_counter() < end:
            try:
                async with lock:
                    await asyncio.sleep(HOLD)
                    served += 1
            except Exception as error:  # noqa: BLE001  each library has its own
                lost += 1
                print(f"{type(error).__name__}: {error}")

    async with client.lock("warm"):
        pass
    start, used = time.perf_counter(), time.process_time()
    end = start + SECONDS
    await asyncio.gather(*(work(number) for number in range(TASKS)))
    seconds, used = time.perf_counter() - start, time.process_time() - used
    await client.close()
    return {
        "per_second": served / seconds,
        "task_cpu_us": used / served * 1e6,
        "lost": float(lost),
    }
