"""An interrupt in each place of what asyncio awaits, one a run: as when a signal's handler raises
in a task. In ``test_cancellation`` the same is cancelled at each await."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from garbage import collected
from interrupted_stores import LONG_TTL, MOMENT, MOST, SOON, STORES, TTL, name_of
from interrupting import Interrupting

import lockkit
from lockkit import LockClient, aio
from lockkit.stores.contract import Pushed

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*was never released:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Run = Callable[[], Awaitable[object]]
Step = Callable[[int], Awaitable[Run]]


@pytest.fixture(params=STORES, ids=name_of)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with request.param(request) as url:
        yield url
        collected()


@pytest.fixture
async def locks(url: str) -> AsyncIterator[aio.AsyncLockClient]:
    async with aio.connect(url, ttl=TTL, max_hold=None) as client:
        yield client


@pytest.fixture
def other(url: str) -> Iterator[LockClient]:
    """Another process, as it were."""
    with lockkit.connect(url, ttl=LONG_TTL) as client:
        yield client


async def interrupted_everywhere(step: Step, locks: aio.AsyncLockClient) -> int:
    """Run it again and again, each time interrupted one place later, until it ends before that."""
    for at in range(1, MOST):
        run = await step(at)
        began = time.monotonic()
        where = await asyncio.create_task(interrupted(at, run))
        del run
        await hands_on(locks)
        took = time.monotonic() - began
        assert took < 2 * SOON, f"{took:.1f} s, interrupted at {where}"
        if not where:
            return at - 1
    raise AssertionError(f"more than {MOST} places")


async def interrupted(at: int, run: Run) -> str:
    with Interrupting(at) as interrupting:
        await run()
    return interrupting.where


async def hands_on(locks: aio.AsyncLockClient) -> None:
    """From this task to another one, by a message, if the store has such."""
    if not isinstance(locks.store, Pushed):
        async with locks.lock("after", timeout=SOON):
            return
    lock = locks.lock("handed", ttl=LONG_TTL, timeout=LONG_TTL)
    async with lock:
        waiting = asyncio.create_task(lock.acquire())
        while not getattr(await locks.inspect("handed"), "waiters", 0):
            assert not waiting.done()
    await (await waiting).release()


async def nothing_is_held(other: LockClient, locks: aio.AsyncLockClient) -> None:
    """One TTL later, but for what is renewed."""
    lease = await locks.lock("renewed", ttl=2 * TTL).acquire()
    await asyncio.sleep(1.2 * TTL)
    infos = {info.name: info for info in other.holders()}
    renewed = infos.pop("renewed")
    assert renewed.renewed is not None and renewed.renewed < TTL
    assert await lease.release()
    assert not [info for info in infos.values() if info.state == "held" or info.waiters_alive]


async def test_a_block(locks: aio.AsyncLockClient, other: LockClient) -> None:
    """With a lock that is kept, as those in modules are."""
    kept = []

    async def step(at: int) -> Run:
        lock = locks.lock(f"b{at}")
        kept.append(lock)

        async def block() -> None:
            async with lock as lease:
                lease.check()

        return block

    assert await interrupted_everywhere(step, locks) > 40
    await nothing_is_held(other, locks)


async def test_a_release(locks: aio.AsyncLockClient, other: LockClient) -> None:
    kept: list[aio.AsyncLease] = []

    async def step(at: int) -> Run:
        kept.append(await locks.lock(f"r{at}").acquire())
        return kept[-1].release

    assert await interrupted_everywhere(step, locks) > 20
    kept[:] = [lease for lease in kept if lease.released]
    await nothing_is_held(other, locks)


async def test_an_extension(locks: aio.AsyncLockClient, other: LockClient) -> None:
    kept: list[aio.AsyncLease] = []

    async def step(at: int) -> Run:
        kept.append(await locks.lock(f"e{at}", ttl=LONG_TTL).acquire())
        return kept[-1].extend

    assert await interrupted_everywhere(step, locks) > 20
    for lease in kept:
        assert await lease.release()
    await nothing_is_held(other, locks)


async def test_a_wait(locks: aio.AsyncLockClient, other: LockClient) -> None:
    """The holder releases meanwhile."""
    with ThreadPoolExecutor(1) as elsewhere:
        loop = asyncio.get_running_loop()

        async def step(at: int) -> Run:
            holder = other.lock(f"w{at}").acquire()
            loop.call_later(MOMENT, elsewhere.submit, holder.release)
            return locks.lock(f"w{at}", timeout=SOON).acquire

        assert await interrupted_everywhere(step, locks) > 40
        await asyncio.sleep(2 * MOMENT)
    await nothing_is_held(other, locks)


async def test_a_wait_in_vain(locks: aio.AsyncLockClient, other: LockClient) -> None:
    """Those who have given up leave the queue, and are not waited for until they count as dead."""
    holders = []

    async def step(at: int) -> Run:
        holders.append(other.lock(f"v{at}").acquire())
        lock = locks.lock(f"v{at}", ttl=LONG_TTL)

        async def wait() -> None:
            with pytest.raises(lockkit.AcquireTimeout):
                await lock.acquire(MOMENT)

        return wait

    assert await interrupted_everywhere(step, locks) > 40
    await asyncio.sleep(TTL)
    assert not [info for info in other.holders() if info.waiters_alive]
    for holder in holders:
        assert holder.release()
    await nothing_is_held(other, locks)
