"""Uncontended: one process acquires and releases, again and again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from benchmarks.awake import awake
from benchmarks.peers import ON_REDIS, make

__all__ = ["measure"]

PAIRS = 40
TURNS = 60


def measure(
    url: str, peers: Sequence[str] = ON_REDIS, pairs: int = PAIRS, turns: int = TURNS
) -> dict[str, dict[str, float]]:
    """Microseconds per acquire and release; the peers take turns every few milliseconds."""
    locks = {peer: make(peer, url, "pair") for peer in peers}
    for lock in locks.values():
        _turn(lock, 5 * pairs)
    times: dict[str, list[float]] = {peer: [] for peer in locks}
    with awake():
        for _ in range(turns):
            for peer, lock in locks.items():
                times[peer].append(_turn(lock, pairs))
    return {peer: {"pair_us": statistics.median(values)} for peer, values in times.items()}


def _turn(lock: object, pairs: int) -> float:
    acquire, release = lock.acquire, lock.release  # type: ignore[attr-defined]
    start = time.perf_counter()
    for _ in range(pairs):
        acquire()
        release()
    return (time.perf_counter() - start) / pairs * 1e6
