"""An interrupt in each place of what asyncio awaits, one a run: as when a signal's handler raises
in a task. In ``test_cancellation`` the same is cancelled at each await."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress

import django
import interrupted_stores
import pytest
from garbage import no_thread_is_left
from interrupted_places import has_left, nothing_is_held
from interrupted_stores import (
    LONG_TTL,
    MOMENT,
    PATIENT,
    STORES,
    TRIES,
    TTL,
    memory,
    name_of,
    redis,
    sqlite_file,
)
from interrupted_tasks import Run, interrupted_everywhere

import lockkit
from lockkit import Lease, LockClient, aio
from lockkit.stores.contract import Listed

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")
django.setup()

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*was never released:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(params=STORES, ids=name_of)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with request.param(request) as url, no_thread_is_left():
        yield url


def below(url: str) -> str:
    """Where a store is interrupted, as in ``test_interrupts``. The code of some runs in a thread,
    for which the task waits in a wire."""
    if url.startswith(("postgresql:", "mysql:", "django:")):
        return "wire"
    return "" if url.startswith("sqlite:") else interrupted_stores.below(url)


@pytest.fixture
async def locks(url: str) -> AsyncIterator[aio.AsyncLockClient]:
    async with aio.connect(url, ttl=TTL, max_hold=None) as client:
        yield client


@pytest.fixture
def other(url: str) -> Iterator[LockClient]:
    """Another process, as it were."""
    with lockkit.connect(url, ttl=LONG_TTL) as client:
        yield client


async def renews(other: LockClient, locks: aio.AsyncLockClient) -> None:
    """The watchdog does, as the store's list shows."""
    if not isinstance(other.store, Listed):
        return
    for turn in range(TRIES):
        with suppress(lockkit.LeaseLost):  # the machine has stalled
            async with locks.lock(f"renewed{turn}", ttl=2 * TTL) as lease:
                await asyncio.sleep(1.2 * TTL)
                info = other.inspect(lease.name)
            if info is not None and info.renewed is not None and info.renewed < TTL:
                break
    else:
        raise AssertionError("nothing is renewed")


async def test_a_block(url: str, locks: aio.AsyncLockClient, other: LockClient) -> None:
    """With a lock that is kept, as those in modules are. It comes to the same places of a store as
    an acquire and a release."""
    kept = []

    async def step(at: int) -> Run:
        lock = locks.lock(f"b{at}")
        kept.append(lock)

        async def block() -> None:
            async with lock as lease:
                lease.check()

        return block

    runs = await interrupted_everywhere(step, locks, below(url))
    assert runs.places > 5
    await renews(other, locks)
    nothing_is_held(other, runs, "b")


@pytest.mark.parametrize("url", [redis], ids=name_of, indirect=True)
async def test_a_stack(url: str, locks: aio.AsyncLockClient, other: LockClient) -> None:
    kept = []

    async def step(at: int) -> Run:
        lock = locks.lock(f"s{at}")
        kept.append(lock)

        async def block() -> None:
            async with AsyncExitStack() as stack:
                (await stack.enter_async_context(lock)).check()

        return block

    runs = await interrupted_everywhere(step, locks, below(url))
    assert runs.places > 40
    await renews(other, locks)
    nothing_is_held(other, runs, "s")


@pytest.mark.parametrize("url", [memory, sqlite_file, redis], ids=name_of, indirect=True)
async def test_a_release(url: str, locks: aio.AsyncLockClient, other: LockClient) -> None:
    kept: list[aio.AsyncLease] = []

    async def step(at: int) -> Run:
        kept.append(await locks.lock(f"r{at}").acquire())
        return kept[-1].release

    runs = await interrupted_everywhere(step, locks, below(url))
    assert runs.places > 5
    kept[:] = [lease for lease in kept if lease.released]
    await renews(other, locks)
    nothing_is_held(other, runs, "r")


async def test_an_extension(url: str, locks: aio.AsyncLockClient, other: LockClient) -> None:
    kept: list[aio.AsyncLease] = []

    async def give_back() -> None:
        """A session may not have survived the interrupt. Its lease says so."""
        lease = kept.pop()
        assert await lease.release() or (lease.lost and "mode=" in url)

    async def step(at: int) -> Run:
        if kept:
            await give_back()
        kept.append(await locks.lock(f"e{at}", ttl=LONG_TTL).acquire())
        return kept[-1].extend

    runs = await interrupted_everywhere(step, locks, below(url))
    assert runs.places > 5
    await give_back()
    await renews(other, locks)
    nothing_is_held(other, runs, "e")


async def test_a_wait(url: str, locks: aio.AsyncLockClient, other: LockClient) -> None:
    """The holder releases meanwhile."""
    with ThreadPoolExecutor(1) as elsewhere:
        loop = asyncio.get_running_loop()

        async def step(at: int) -> Run:
            holder = other.lock(f"w{at}").acquire()
            loop.call_later(MOMENT, elsewhere.submit, holder.release)
            return locks.lock(f"w{at}", timeout=PATIENT).acquire

        runs = await interrupted_everywhere(step, locks, below(url))
        assert runs.places > 5
        await asyncio.sleep(2 * MOMENT)
    await renews(other, locks)
    nothing_is_held(other, runs, "w")


async def test_a_wait_in_vain(url: str, locks: aio.AsyncLockClient, other: LockClient) -> None:
    """Those who have given up leave the queue, and are not waited for until they count as dead."""
    holders: list[Lease] = []

    async def step(at: int) -> Run:
        if holders:
            has_left(other, holders[-1].name)
            assert holders.pop().release()
        holders.append(other.lock(f"v{at}").acquire())
        lock = locks.lock(f"v{at}", ttl=LONG_TTL)

        async def wait() -> None:
            with pytest.raises(lockkit.AcquireTimeout):
                await lock.acquire(MOMENT)

        return wait

    runs = await interrupted_everywhere(step, locks, below(url))
    assert runs.places > 5
    assert holders.pop().release()
    await renews(other, locks)
    nothing_is_held(other, runs, "v")


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

    runs = await interrupted_everywhere(step, locks)
    assert runs.places > 2
    await used_again()
    await renews(other, locks)
    nothing_is_held(other, runs, "c")
