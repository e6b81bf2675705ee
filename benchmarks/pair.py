"""Uncontended: one process acquires and releases, again and again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from benchmarks.awake import awake
from benchmarks.peers import ON_REDIS, make

__all__ = ["measure"]

FIGURES = ("pair_us", "pair_cpu_us")
PAIRS = 40
TURNS = 60


def measure(
    url: str, peers: Sequence[str] = ON_REDIS, pairs: int = PAIRS, turns: int = TURNS
) -> dict[str, dict[str, float]]:
    """Microseconds for an acquire and its release; the peers take turns every few milliseconds."""
    locks = {peer: make(peer, url, "pair") for peer in peers}
    for lock in locks.values():
        _turn(lock, 5 * pairs)
    found: dict[str, list[tuple[float, float]]] = {peer: [] for peer in locks}
    with awake():
        for _ in range(turns):
            for peer, lock in locks.items():
                found[peer].append(_turn(lock, pairs))
    return {
        peer: dict(zip(FIGURES, map(statistics.median, zip(*times, strict=True)), strict=True))
        for peer, times in found.items()
    }


def _turn(lock: object, pairs: int) -> tuple[float, float]:
    """By the clock, and of the process's CPU."""
    acquire, release = lock.acquire, lock.release  # type: ignore[attr-defined]
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(pairs):
        acquire()
        release()
    start, cpu = time.perf_counter() - start, time.process_time() - cpu
    return start / pairs * 1e6, cpu / pairs * 1e6
