"""An interrupt in each place of what asyncio awaits, one a run: as when a signal's handler raises
in a task. In ``test_cancellation`` the same is cancelled at each await."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from garbage import collected
from interrupted_places import has_left
from interrupted_stores import (
    LONG_TTL,
    MOMENT,
    MOST,
    PATIENT,
    SOON,
    STORES,
    TRIES,
    TTL,
    memory,
    name_of,
    redis,
    sqlite_file,
)
from interrupting import Interrupting, watched

import lockkit
from lockkit import Lease, LockClient, aio
from lockkit.model.clock import now
from lockkit.stores.contract import Pushed
from lockkit.testing.conformance.base import eventually

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*was never released:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

on_different_ones = pytest.mark.parametrize(
    "url", [memory, sqlite_file, redis], ids=name_of, indirect=True
)

Run = Callable[[], Awaitable[object]]
Step = Callable[[int], Awaitable[Run]]


@pytest.fixture(params=STORES, ids=name_of)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with request.param(request) as url:
        yield url
        collected()


def below(url: str) -> str:
    """Where a store is interrupted, as in ``test_interrupts``. SQLite's code runs in a thread: the
    task, which waits for that, is interrupted in what it calls there, and PostgreSQL's is the same.
    """
    return "" if url.startswith(("redis:", "sqlite:")) else "/stores/"


@pytest.fixture
async def locks(url: str) -> AsyncIterator[aio.AsyncLockClient]:
    async with aio.connect(url, ttl=TTL, max_hold=None) as client:
        yield client


@pytest.fixture
def other(url: str) -> Iterator[LockClient]:
    """Another process, as it were."""
    with lockkit.connect(url, ttl=LONG_TTL) as client:
        yield client


async def interrupted_everywhere(step: Step, locks: aio.AsyncLockClient, below: str) -> int:
    """Run it again and again, each time interrupted one place later, until it ends before that."""
    numbers = itertools.count(1)
    with watched():
        for at in range(1, MOST):
            for _ in range(TRIES):  # the next if the machine has stalled; a defect does it again
                run = await step(next(numbers))
                began = now()
                try:
                    where = await asyncio.create_task(interrupted(at, run, below))
                    del run
                    await hands_on(locks)
                    took = now() - began
                except (lockkit.LeaseLost, lockkit.BackendError) as error:
                    where, took = str(error), math.inf
                if took < 2 * SOON:
                    break
            else:
                raise AssertionError(f"{took:.1f} s, {TRIES} times, interrupted at {where}")
            if not where:
                return at - 1
    raise AssertionError(f"more than {MOST} places")


async def interrupted(at: int, run: Run, below: str) -> str:
    with Interrupting(at, below) as interrupting:
        await run()
    return interrupting.where


async def hands_on(locks: aio.AsyncLockClient) -> None:
    """From this task to another one, by a message, if the store has such."""
    if not isinstance(locks.store, Pushed):
        async with locks.lock("after", ttl=LONG_TTL, timeout=PATIENT):
            return
    lock = locks.lock("handed", ttl=LONG_TTL, timeout=LONG_TTL)
    async with lock:
        waiting = asyncio.create_task(lock.acquire())
        while not getattr(await locks.inspect("handed"), "waiters", 0):
            assert not waiting.done()
    await (await waiting).release()


async def nothing_is_held(other: LockClient, locks: aio.AsyncLockClient) -> None:
    """One TTL later, but for what is renewed."""
    for turn in range(TRIES):
        with suppress(lockkit.LeaseLost):  # the machine has stalled
            async with locks.lock(f"renewed{turn}", ttl=2 * TTL) as lease:
                await asyncio.sleep(1.2 * TTL)
                info = other.inspect(lease.name)
            if info is not None and info.renewed is not None and info.renewed < TTL:
                break
    else:
        raise AssertionError("nothing is renewed")
    eventually(lambda: not [i for i in other.holders() if i.state == "held" or i.waiters_alive])


async def test_a_block(url: str, locks: aio.AsyncLockClient, other: LockClient) -> None:
    """With a lock that is kept, as those in modules are."""
    kept = []

    async def step(at: int) -> Run:
        lock = locks.lock(f"b{at}")
        kept.append(lock)

        async def block() -> None:
            async with lock as lease:
                lease.check()

        return block

    assert await interrupted_everywhere(step, locks, below(url)) > 20
    await nothing_is_held(other, locks)


@on_different_ones
async def test_a_release(url: str, locks: aio.AsyncLockClient, other: LockClient) -> None:
    kept: list[aio.AsyncLease] = []

    async def step(at: int) -> Run:
        kept.append(await locks.lock(f"r{at}").acquire())
        return kept[-1].release

    assert await interrupted_everywhere(step, locks, below(url)) > 20
    kept[:] = [lease for lease in kept if lease.released]
    await nothing_is_held(other, locks)


@on_different_ones
async def test_an_extension(url: str, locks: aio.AsyncLockClient, other: LockClient) -> None:
    kept: list[aio.AsyncLease] = []

    async def step(at: int) -> Run:
        kept.append(await locks.lock(f"e{at}", ttl=LONG_TTL).acquire())
        return kept[-1].extend

    assert await interrupted_everywhere(step, locks, below(url)) > 20
    for lease in kept:
        assert await lease.release()
    await nothing_is_held(other, locks)


async def test_a_wait(url: str, locks: aio.AsyncLockClient, other: LockClient) -> None:
    """The holder releases meanwhile."""
    with ThreadPoolExecutor(1) as elsewhere:
        loop = asyncio.get_running_loop()

        async def step(at: int) -> Run:
            holder = other.lock(f"w{at}").acquire()
            loop.call_later(MOMENT, elsewhere.submit, holder.release)
            return locks.lock(f"w{at}", timeout=PATIENT).acquire

        assert await interrupted_everywhere(step, locks, below(url)) > 10
        await asyncio.sleep(2 * MOMENT)
    await nothing_is_held(other, locks)


async def test_a_wait_in_vain(url: str, locks: aio.AsyncLockClient, other: LockClient) -> None:
    """Those who have given up leave the queue, and are not waited for until they count as dead."""
    holders: list[Lease] = []

    async def step(at: int) -> Run:
        if holders:
            has_left(other, holders[-1].name)
        holders.append(other.lock(f"v{at}").acquire())
        lock = locks.lock(f"v{at}", ttl=LONG_TTL)

        async def wait() -> None:
            with pytest.raises(lockkit.AcquireTimeout):
                await lock.acquire(MOMENT)

        return wait

    assert await interrupted_everywhere(step, locks, below(url)) > 20
    for holder in holders:
        assert holder.release()
    await nothing_is_held(other, locks)


@pytest.mark.parametrize("url", [sqlite_file, redis], ids=name_of, indirect=True)
async def test_a_close(url: str, locks: aio.AsyncLockClient, other: LockClient) -> None:
    """What it held is not released, and expires; what is used again works."""
    kept: list[tuple[aio.AsyncLockClient, aio.AsyncLease]] = []

    async def used_again() -> None:
        client, _ = kept.pop()
        async with client.lock("again", ttl=LONG_TTL, timeout=PATIENT):
            pass
        await client.close()

    async def step(at: int) -> Run:
        if kept:
            await used_again()
        client = aio.connect(url, ttl=TTL, max_hold=None)
        kept.append((client, await client.lock(f"c{at}").acquire()))
        return client.close

    assert await interrupted_everywhere(step, locks, below(url)) > 2
    await used_again()
    await nothing_is_held(other, locks)
