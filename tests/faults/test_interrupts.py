"""An interrupt in each place of an acquire, a wait, an extension, a release and a close, one a run:
of lockkit over Redis, and of the other stores themselves.

Afterwards it has come to the caller, nobody hangs, the client works in every thread and hands on
its locks by message as before, and what was left behind is gone after one TTL.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import django
import pytest
from garbage import no_thread_is_left
from interrupted_places import OpenBlock, Works, has_left, interrupted_everywhere, nothing_is_held
from interrupted_stores import (
    LONG_TTL,
    MOMENT,
    ONE,
    PATIENT,
    STORES,
    TTL,
    below,
    memory,
    name_of,
    postgresql,
    redis,
    redis_sentinel,
    redlock,
    sqlite_file,
)

import lockkit
from lockkit import Lease, LockClient
from lockkit.stores.contract import Listed
from lockkit.testing.conformance.base import at_least_once

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")
django.setup()

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*was never released:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


on_one = pytest.mark.parametrize("url", [ONE], ids=name_of, indirect=True)
"""What is interrupted is not the store's, or a block comes to the same of it."""

on_four = pytest.mark.parametrize(
    "url", [memory, sqlite_file, postgresql, redis], ids=name_of, indirect=True
)
"""One of each way to wait."""


@pytest.fixture(params=STORES, ids=name_of)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with request.param(request) as url:
        yield url


@pytest.fixture(autouse=True)
def nothing_is_left_to_the_garbage_collector() -> Iterator[None]:
    """A connection that an interrupt takes from whoever has opened it, is closed by that."""
    with no_thread_is_left():
        yield


@pytest.fixture
def locks(url: str) -> Iterator[LockClient]:
    with lockkit.connect(url, ttl=TTL, max_hold=None) as client:
        yield client


@pytest.fixture
def other(url: str) -> Iterator[LockClient]:
    """Another process, as it were."""
    with lockkit.connect(url, ttl=LONG_TTL) as client:
        yield client


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """Another thread: what this one has locked and forgotten does not stop it itself."""
    with ThreadPoolExecutor(2) as threads:
        yield threads


def renews(other: LockClient, locks: LockClient) -> None:
    """The watchdog does, as the store's list shows."""
    if not isinstance(other.store, Listed):
        return
    numbers = itertools.count()

    def is_renewed() -> bool:
        try:
            with locks.lock(f"renewed{next(numbers)}", ttl=2 * TTL) as lease:
                time.sleep(1.2 * TTL)
                info = other.inspect(lease.name)
        except lockkit.LeaseLost:  # the machine has stalled
            return False
        return info is not None and info.renewed is not None and info.renewed < TTL

    at_least_once(is_renewed)


@pytest.fixture
def works(locks: LockClient, elsewhere: ThreadPoolExecutor) -> Works:
    return Works(locks, elsewhere)


@on_one
def test_an_acquire(url: str, locks: LockClient, other: LockClient, works: Works) -> None:
    def step(at: int) -> Callable[[], object]:
        return locks.lock(f"a{at}").acquire

    runs = interrupted_everywhere(step, works, below(url))
    assert runs.places > 20
    renews(other, locks)
    nothing_is_held(other, runs, "a")


@on_one
def test_a_release(url: str, locks: LockClient, other: LockClient, works: Works) -> None:
    kept: list[Lease] = []

    def step(at: int) -> Callable[[], object]:
        kept.append(locks.lock(f"r{at}").acquire())
        return kept[-1].release

    runs = interrupted_everywhere(step, works, below(url))
    assert runs.places > 20
    kept[:] = [lease for lease in kept if lease.released]
    renews(other, locks)
    nothing_is_held(other, runs, "r")


def test_an_extension(url: str, locks: LockClient, other: LockClient, works: Works) -> None:
    kept: list[Lease] = []

    def give_back() -> None:
        """A session may not have survived the interrupt. Its lease says so."""
        lease = kept.pop()
        assert lease.release() or (lease.lost and "mode=" in url)

    def step(at: int) -> Callable[[], object]:
        if kept:
            give_back()
        kept.append(locks.lock(f"e{at}", ttl=LONG_TTL).acquire())
        return kept[-1].extend

    runs = interrupted_everywhere(step, works, below(url))
    assert runs.places > 20
    give_back()
    renews(other, locks)
    nothing_is_held(other, runs, "e")


def test_a_block(url: str, locks: LockClient, other: LockClient, works: Works) -> None:
    """With a lock that is kept, as those in modules are."""
    kept = []

    def step(at: int) -> Callable[[], object]:
        lock = locks.lock(f"b{at}")
        kept.append(lock)

        def block() -> None:
            with lock as lease:
                lease.check()

        return block

    runs = interrupted_everywhere(step, works, below(url))
    assert runs.places > 40
    renews(other, locks)
    nothing_is_held(other, runs, "b")


@on_one
def test_a_stack(url: str, locks: LockClient, other: LockClient, works: Works) -> None:
    kept = []

    def step(at: int) -> Callable[[], object]:
        lock = locks.lock(f"s{at}")
        kept.append(lock)

        def block() -> None:
            with ExitStack() as stack:
                stack.enter_context(lock).check()

        return block

    runs = interrupted_everywhere(step, works, below(url))
    assert runs.places > 40
    renews(other, locks)
    nothing_is_held(other, runs, "s")


def test_a_block_that_the_garbage_collector_ends(
    url: str, locks: LockClient, other: LockClient, works: Works
) -> None:
    block = OpenBlock(locks)
    runs = interrupted_everywhere(block.step, works, below(url), block.end)
    assert runs.places > 20
    block.end()
    renews(other, locks)
    nothing_is_held(other, runs, "g", "o")


@on_one
def test_an_entrance_into_what_one_holds(
    locks: LockClient, other: LockClient, works: Works
) -> None:
    outer: list[Lease] = []

    def step(at: int) -> Callable[[], object]:
        lock = locks.lock(f"n{at}", ttl=LONG_TTL, reentrant=True)
        outer.append(lock.acquire())

        def again() -> None:
            with lock:
                pass

        return again

    runs = interrupted_everywhere(step, works)
    assert runs.places > 40
    for lease in outer:
        assert lease.release()
    renews(other, locks)
    nothing_is_held(other, runs, "n")


def test_a_close(
    locks: LockClient, other: LockClient, url: str, elsewhere: ThreadPoolExecutor
) -> None:
    """What it held is not released, and expires; what is used again works."""
    kept = []

    def step(at: int) -> Callable[[], object]:
        client = lockkit.connect(url, ttl=TTL, max_hold=None)
        kept.append((client, client.lock(f"c{at}").acquire()))
        return client.close

    def works(where: str) -> None:
        client = kept.pop()[0]
        Works(client, elsewhere)(where)
        client.close()

    runs = interrupted_everywhere(step, works)
    assert runs.places > 2
    renews(other, locks)
    nothing_is_held(other, runs, "c")


@pytest.mark.parametrize(
    ("url", "part"),
    [
        (ONE, "/runtime/native.py"),
        (redis_sentinel, "/redis/sentinel.py"),
        (redlock, "/redlock/line.py"),
    ],
    ids=map(name_of, (ONE, redis_sentinel, redlock)),
    indirect=["url"],
)
def test_a_first_acquire(
    url: str, part: str, other: LockClient, elsewhere: ThreadPoolExecutor
) -> None:
    """It starts a thread, the watchdog's or those that connect to the nodes of Redlock; or it asks
    the Sentinels for the master."""
    kept: list[LockClient] = []

    def step(at: int) -> Callable[[], object]:
        kept.append(lockkit.connect(url, ttl=TTL, max_hold=None))
        return kept[-1].lock(f"f{at}").acquire

    def works(where: str) -> None:
        client = kept.pop()
        Works(client, elsewhere)(where)
        client.close()

    runs = interrupted_everywhere(step, works, part)
    assert runs.places > 2
    nothing_is_held(other, runs, "f")


class TestWaits:
    """Together they take as long as the others: a class can go to another worker."""

    @on_four
    def test_a_wait_with_one_in_the_handler_of_a_signal(
        self, url: str, locks: LockClient, other: LockClient, works: Works
    ) -> None:
        holder = other.lock("held").acquire()
        threads: list[threading.Timer] = []

        def step(at: int) -> Callable[[], object]:
            first = other.lock(f"h{at}").acquire()
            threads.append(threading.Timer(MOMENT, first.release))
            threads[-1].start()
            return lambda: locks.lock(f"h{at}", timeout=PATIENT).acquire().release()

        def handle() -> None:
            with suppress(lockkit.AcquireTimeout, lockkit.BackendUnavailable):
                locks.lock("held").acquire(MOMENT).release()

        runs = interrupted_everywhere(step, works.hands_on, below(url), handle)
        assert runs.places > 40
        for thread in threads:
            thread.join()
        assert holder.release()
        renews(other, locks)
        nothing_is_held(other, runs, "h")

    def test_a_wait(self, url: str, locks: LockClient, other: LockClient, works: Works) -> None:
        """The holder releases meanwhile."""
        threads: list[threading.Timer] = []

        def step(at: int) -> Callable[[], object]:
            holder = other.lock(f"w{at}").acquire()
            threads.append(threading.Timer(MOMENT, holder.release))
            threads[-1].start()
            return locks.lock(f"w{at}", timeout=PATIENT).acquire

        runs = interrupted_everywhere(step, works.hands_on, below(url))
        assert runs.places > 40
        for thread in threads:
            thread.join()
        renews(other, locks)
        nothing_is_held(other, runs, "w")

    @on_one
    def test_a_wait_that_subscribes(
        self, url: str, locks: LockClient, other: LockClient, elsewhere: ThreadPoolExecutor
    ) -> None:
        """The first one of a client, which can wait again afterwards."""
        clients: list[LockClient] = []
        interrupted: list[str] = []
        holder = other.lock("held").acquire()

        def step(at: int) -> Callable[[], object]:
            client = lockkit.connect(url, ttl=TTL, max_hold=None)
            client.lock(f"s{at}").acquire().release()  # connects
            clients.append(client)

            def wait() -> None:
                with pytest.raises(lockkit.AcquireTimeout):
                    client.lock("held").acquire(50 * MOMENT)  # also while the machine stalls

            return wait

        def works(where: str) -> None:
            interrupted.append(where)
            for client in clients:
                Works(client, elsewhere).hands_on(where)
                client.close()
            clients.clear()

        runs = interrupted_everywhere(step, works, "/redis/wire.py")
        assert runs.places > 20
        assert any("RedisWire._subscribe" in where for where in interrupted)
        assert holder.release()
        renews(other, locks)
        nothing_is_held(other, runs, "s")

    def test_a_wait_in_vain(
        self, url: str, locks: LockClient, other: LockClient, works: Works
    ) -> None:
        """Those who have given up leave the queue, and are not waited for until they count as
        dead."""
        holders: list[Lease] = []

        def step(at: int) -> Callable[[], object]:
            if holders:
                has_left(other, holders[-1].name)
                assert holders.pop().release()
            holders.append(other.lock(f"v{at}").acquire())
            lock = locks.lock(f"v{at}", ttl=LONG_TTL)

            def wait() -> None:
                with pytest.raises(lockkit.AcquireTimeout):
                    lock.acquire(MOMENT)

            return wait

        runs = interrupted_everywhere(step, works.hands_on, below(url))
        assert runs.places > 40
        assert holders.pop().release()
        renews(other, locks)
        nothing_is_held(other, runs, "v")
