"""Scale: many leases in one process, many waiters on one name, many names one after another, and
what a look at a lease costs."""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import threading
import time
import tracemalloc
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import redis

import lockkit
from lockkit.engine import holding
from lockkit.model.clock import now

__all__ = ["measure"]

LEASES = 10_000
TTL = 30.0
PASSES = 15
PROCESSES = 4
WAITERS = 500
IDLE_SECONDS = 10.0
SETTLED_SECONDS = 2.0
LOOKS = 200_000
NAMES = 100_000
REMEMBERED = 5_000
"""So many names fill what a process remembers of the names that it has used last."""
NAME = "scale:one"

Figures = dict[str, float]


def measure(url: str, seconds: float) -> dict[str, Figures]:
    """``seconds``: how long the watchdog renews all the leases. Not compared with others."""
    figures = _apart(_names, url)  # first: it counts what is left of names
    figures |= _apart(_leases, url, seconds) | _waiters(url) | _apart(_allocated, url)
    return {"lockkit": figures | _apart(_looks, url)}


def _apart(work: Callable[..., None], *arguments: object) -> Figures:
    """In a process of its own, which is otherwise idle."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(*arguments, theirs))
    worker.start()
    theirs.close()
    try:
        figures: Figures = ours.recv()
    finally:
        worker.join()
    return figures


def _leases(url: str, seconds: float, parent: Connection) -> None:
    client = lockkit.connect(url, ttl=TTL, max_hold=None)
    lock = client.lock
    _use(client, REMEMBERED)
    before = _resident()
    leases = [lock(f"scale:{number}").acquire() for number in range(LEASES)]
    least, end = TTL, now() + seconds
    while now() < end:
        time.sleep(1)
        least = min(least, *(lease.remaining() for lease in leases[::100]))
    passes = [_pass(client, leases) for _ in range(PASSES)]
    figures = {
        "renewal_ms": statistics.median(took for took, _ in passes),
        "renewal_cpu_ms": statistics.median(cpu for _, cpu in passes),
        "least_left_s": least,
        "leases_lost": float(sum(lease.lost for lease in leases)),
        "lease_bytes": (_resident() - before) / LEASES,
    }
    for lease in leases:
        lease.release()
    client.close()
    parent.send(figures)


def _pass(client: lockkit.LockClient, leases: list[lockkit.Lease]) -> tuple[float, float]:
    """Renew all, as the watchdog does when all are due: milliseconds, and those of CPU here."""
    start, cpu = time.perf_counter(), time.process_time()
    client.perform(holding.renew(client.store, [lease._hold for lease in leases]))
    return (time.perf_counter() - start) * 1e3, (time.process_time() - cpu) * 1e3


def _use(client: lockkit.LockClient, most: int) -> None:
    """Take and release so many names."""
    for number in range(most):
        client.lock(f"scale:{number}:name").acquire().release()


def _names(url: str, parent: Connection) -> None:
    """What is left of names that were released: in the process, and in the store."""
    client = lockkit.connect(url, ttl=TTL)
    _use(client, REMEMBERED)
    gc.collect()
    before, start = _resident(), time.perf_counter()
    _use(client, NAMES)
    took = time.perf_counter() - start
    gc.collect()
    grown = _resident() - before
    client.close()
    with redis.Redis.from_url(url) as admin:
        parent.send(
            {
                "names_per_second": NAMES / took,
                "names_kept": float(_fields_of_names(admin)),
                "names_bytes": max(grown, 0) / NAMES,
            }
        )


def _fields_of_names(admin: Any) -> int:
    """How many keys and hash fields the store keeps of names."""
    keys = list(admin.scan_iter(b"*", _type="hash"))
    fields = [field for key in keys for field in admin.hkeys(key) if field[:1] == b"="]
    return len(fields) + sum(b"scale:" in key for key in admin.scan_iter(b"*"))


def _waiters(url: str) -> Figures:
    """All in one queue, behind one holder; then all of them served."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(PROCESSES)]
    workers = [context.Process(target=_wait, args=(url, theirs)) for _, theirs in pipes]
    for worker in workers:
        worker.start()
    client = lockkit.connect(url, max_queue=None)
    admin = redis.Redis.from_url(url)
    holder = client.lock(NAME, ttl=600).acquire()
    for number in range(WAITERS):
        pipes[number % PROCESSES][0].send(number)
        _until_queued(client, number + 1)
    subscriptions = len(admin.client_list(_type="pubsub"))
    before = _requests(admin)
    time.sleep(IDLE_SECONDS)
    requests = _requests(admin) - before
    start = time.perf_counter()
    holder.release()
    for ours, _ in pipes:
        ours.send(None)
    reports: list[tuple[float, dict[int, int]]] = [ours.recv() for ours, _ in pipes]
    served = {number: fence for _, fences in reports for number, fence in fences.items()}
    took = time.perf_counter() - start
    for worker in workers:
        worker.join()
    client.close()
    admin.close()
    order = sorted(served, key=lambda number: served[number])
    return {
        "idle_requests": requests / WAITERS / IDLE_SECONDS,
        "subscriptions": float(subscriptions),
        "waiter_resident": statistics.mean(grown for grown, _ in reports) * PROCESSES / WAITERS,
        "served_per_second": len(served) / took,
        "out_of_order": float(sum(a != b for a, b in zip(order, range(WAITERS), strict=True))),
    }


def _allocated(url: str, parent: Connection) -> None:
    """Bytes allocated for a waiter, beyond those for a thread that waits for a threading.Lock."""
    client = lockkit.connect(url, ttl=TTL, acquire_timeout=None, max_queue=None)
    client.lock(NAME).acquire().release()
    bare, waiters = threading.Lock(), WAITERS // PROCESSES
    tracemalloc.start(1)
    with bare:
        thread_bytes = _of_each(bare, waiters)
    with client.lock(NAME):
        waiter_bytes = _of_each(client.lock(NAME), waiters, client)
    client.close()
    parent.send({"waiter_bytes": waiter_bytes - thread_bytes})


def _of_each(
    lock: threading.Lock | lockkit.Lock, most: int, client: lockkit.LockClient | None = None
) -> float:
    """Bytes for each of the threads that wait for a lock; they go on when it is free."""

    def wait() -> None:
        with lock:
            pass

    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    threads = [threading.Thread(target=wait, daemon=True) for _ in range(most)]
    for number, thread in enumerate(threads):  # one by one, else each opens a connection
        thread.start()
        if client is not None:
            _until_queued(client, number + 1)
    time.sleep(SETTLED_SECONDS)
    gc.collect()
    return (tracemalloc.get_traced_memory()[0] - before) / most


def _until_queued(client: lockkit.LockClient, number: int) -> None:
    while True:
        info = client.inspect(NAME)
        if info is not None and info.waiters >= number:
            return
        time.sleep(0.001)


def _requests(admin: redis.Redis) -> int:
    return int(admin.info("stats")["total_reads_processed"])


def _wait(url: str, parent: Connection) -> None:
    """Starts a waiter for each number that comes, and reports when all were served."""
    client = lockkit.connect(url, ttl=TTL, acquire_timeout=None, max_queue=None)
    client.lock(f"scale:{os.getpid()}").acquire().release()
    fences: dict[int, int] = {}

    def wait(number: int) -> None:
        with client.lock(NAME) as lease:
            fences[number] = lease.fencing_token

    before, grown, threads = _resident(), 0, []
    while (number := parent.recv()) is not None:
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        grown = _resident() - before
    for thread in threads:
        thread.join()
    client.close()
    parent.send((grown, fences))


def _looks(url: str, parent: Connection) -> None:
    """Nanoseconds of ``lost`` and ``check()``, the loop around them not counted."""
    client = lockkit.connect(url, ttl=600)
    with client.lock("scale:look") as lease:
        nothing = _each(lambda: None)
        figures = {
            "lost_ns": _each(lambda: lease.lost) - nothing,
            "check_ns": _each(lease.check) - _each(int),
        }
    client.close()
    parent.send(figures)


def _each(look: Callable[[], object]) -> float:
    """Nanoseconds of one call, the least of some rounds."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in range(LOOKS // 5):
            look()
        best = min(best, (time.perf_counter_ns() - start) / (LOOKS // 5))
    return best


def _resident() -> int:
    """Bytes of memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
