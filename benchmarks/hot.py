"""Hot names: how many holders a second get them, one after another."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from statistics import median

from benchmarks.peers import make

__all__ = ["served"]

ROUNDS = 3


def served(
    url: str, *, processes: int = 4, names: int = 1, hold: float = 0.0, seconds: float = 2.0
) -> float:
    """Acquisitions a second, of all names together: the median of ROUNDS. Each process always wants
    one of them, and holds it for ``hold`` seconds."""
    return median(_served(url, processes, names, hold, seconds) for _ in range(ROUNDS))


def _served(url: str, processes: int, names: int, hold: float, seconds: float) -> float:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(processes)]
    workers = [
        context.Process(target=_work, args=(url, f"hot:{number % names}", hold, theirs))
        for number, (_, theirs) in enumerate(pipes)
    ]
    for worker in workers:
        worker.start()
    for _, theirs in pipes:
        theirs.close()
    for ours, _ in pipes:
        ours.recv()
    end = time.monotonic() + seconds
    for ours, _ in pipes:
        ours.send((end - seconds / 2, end))
    counts: list[int] = [ours.recv() for ours, _ in pipes]
    for worker in workers:
        worker.join()
    return sum(counts) / (seconds / 2)


def _work(url: str, name: str, hold: float, parent: Connection) -> None:
    """Counts in the second half of the time: by then, every process is in the queue."""
    lock = make("lockkit", url, name)
    lock.acquire()
    lock.release()
    parent.send("ready")
    begin, end = parent.recv()
    count = 0
    while (moment := time.monotonic()) < end:
        lock.acquire()
        time.sleep(hold) if hold else None
        lock.release()
        count += moment >= begin
    parent.send(count)
