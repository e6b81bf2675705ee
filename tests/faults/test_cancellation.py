"""A task is cancelled at each await, one after the other: nothing stays behind in the store."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lockkit import aio
from lockkit.engine.effects import Exchange

TTL = 600.0
"""Seconds: what is left behind does not go away by itself while a test lasts."""

SOON = 60.0
NAME = "stock:42"
MOST = 40
"""Awaits of one acquire, release or extend: more would be a loop that does not end."""

IMPATIENCE = pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return f"sqlite:///{tmp_path / 'locks.sqlite3'}" if request.param == "sqlite" else "memory://x"


@pytest.fixture
async def locks(url: str) -> AsyncIterator[aio.AsyncLockClient]:
    client = aio.connect(url, ttl=TTL)
    yield client
    await client.close()


class Cancelling:
    """Awaits something and cancels its own task in the given await, and in those that follow."""

    def __init__(self, step: Awaitable[Any], at: int, times: int) -> None:
        self._step = step.__await__()
        self._cancelled_in = range(at, at + times)
        self.awaits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        while True:
            try:
                awaited = next(self._step) if thrown is None else self._step.throw(thrown)
            except StopIteration as end:
                return end.value
            self.awaits += 1
            if self.awaits in self._cancelled_in:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            thrown = None
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001  it is for the one who awaits
                thrown = error


EVERYWHERE = pytest.mark.parametrize("url", ["memory", "sqlite", "redis"], indirect=True)
"""Also where only waiting is awaited."""


async def ended(step: Cancelling) -> asyncio.Task[Any]:
    """The task that has run it."""

    async def run() -> Any:
        return await step

    task = asyncio.create_task(run())
    await asyncio.wait([task], timeout=SOON)
    assert task.done(), f"cancelled in await {step.awaits}, it does not end"
    return task


async def at_each_await(
    step: Callable[[int], Coroutine[Any, Any, Any]], times: int, after: Callable[[Any], Any]
) -> int:
    """Run it again and again, each time cancelled one await later, until it comes to its end
    before that. Returns how often it was cancelled; ``after`` gets what it returned, if it did."""
    for at in range(1, MOST):
        cancelling = Cancelling(step(at), at, times)
        task = await ended(cancelling)
        await after(None if task.cancelled() else task.result())
        if cancelling.awaits < at:
            return at - 1
    raise AssertionError(f"more than {MOST} awaits")


async def nothing_is_left(locks: aio.AsyncLockClient, name: str = NAME) -> None:
    """What could not be told at once is told by the renewal task."""
    async with asyncio.timeout(SOON):
        while await locks.inspect(name) is not None:  # noqa: ASYNC110  it is in the store
            await asyncio.sleep(0.01)


async def waiters(locks: aio.AsyncLockClient, number: int, name: str = NAME) -> None:
    async with asyncio.timeout(SOON):
        while True:
            info = await locks.inspect(name)
            if info is not None and info.waiters == number:
                return
            await asyncio.sleep(0.005)


@IMPATIENCE
async def test_an_acquire_of_a_free_name(locks: aio.AsyncLockClient, times: int) -> None:
    async def after(lease: aio.AsyncLease | None) -> None:
        if lease is not None:
            assert await lease.release()
        await nothing_is_left(locks)

    lock = locks.lock(NAME)
    assert await at_each_await(lambda _: lock.acquire(), times, after) > 0


@EVERYWHERE
@IMPATIENCE
async def test_an_acquire_that_waits(url: str, times: int) -> None:
    """The holder stays: the place in the queue is given up. All at once, each with a client and a
    name of its own: the later awaits come after seconds."""
    other = aio.connect(url, ttl=TTL)

    async def cancelled_in(at: int) -> None:
        name = f"{NAME}:{at}"
        holder = await other.lock(name).acquire()
        async with aio.connect(url, ttl=TTL) as locks:
            if at > 1:
                assert await locks.inspect(name) is not None  # it has a connection
            cancelling = Cancelling(locks.lock(name, timeout=None).acquire(), at, times)
            task = await ended(cancelling)
            assert task.cancelled(), f"cancelled in await {at}"
            await waiters(other, 0, name)
        assert await holder.release()
        await nothing_is_left(other, name)

    await asyncio.gather(*(cancelled_in(at) for at in range(1, 9)))
    await other.close()


@EVERYWHERE
@IMPATIENCE
async def test_an_acquire_that_is_granted_meanwhile(
    locks: aio.AsyncLockClient, url: str, times: int
) -> None:
    """The holder releases at the same time: a grant that races the cancellation is given back."""
    other = aio.connect(url, ttl=TTL)
    released: list[asyncio.Task[bool]] = []

    async def held_and_released() -> aio.AsyncLease:
        holder = await other.lock(NAME).acquire()

        async def release() -> bool:
            await asyncio.sleep(0.002)
            return await holder.release()

        released.append(asyncio.create_task(release()))
        return holder

    for at in range(1, 9):
        await held_and_released()
        cancelling = Cancelling(locks.lock(NAME, timeout=None).acquire(), at, times)
        task = await ended(cancelling)
        assert await released.pop()
        if not task.cancelled():
            assert await task.result().release()
        await nothing_is_left(other)
    await other.close()


@IMPATIENCE
async def test_a_release(locks: aio.AsyncLockClient, times: int) -> None:
    """It is carried out: nobody can be told to try again."""
    leases: list[aio.AsyncLease] = []

    async def after(_: object) -> None:
        await nothing_is_left(locks)
        leases.append(await locks.lock(NAME).acquire())

    leases.append(await locks.lock(NAME).acquire())
    assert await at_each_await(lambda _: leases.pop().release(), times, after) > 0
    await leases.pop().release()


@pytest.mark.parametrize("does", ["acquire", "release"])
async def test_a_cancellation_that_a_driver_swallows(
    locks: aio.AsyncLockClient, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As asyncio.wait_for does on Python 3.11 if its result comes at the same moment."""
    await (await locks.lock(NAME).acquire()).release()  # a server has the scripts then
    wire, lease = locks._wire, await locks.lock(NAME).acquire()
    if does == "acquire":
        await lease.release()
    exchange = wire.exchange

    async def swallowing(effect: Exchange) -> Any:
        monkeypatch.undo()
        reply = await exchange(effect)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return reply

    monkeypatch.setattr(wire, "exchange", swallowing)
    step = locks.lock(NAME).acquire() if does == "acquire" else lease.release()
    task: asyncio.Task[Any] = asyncio.ensure_future(step)
    await asyncio.wait([task], timeout=SOON)
    assert task.cancelled()
    await nothing_is_left(locks)


async def test_a_coroutine_that_is_closed_awaits_nothing_more(locks: aio.AsyncLockClient) -> None:
    lease = await locks.lock("other").acquire()
    for step in (locks.lock(NAME).acquire(), lease.release()):
        step.send(None)
        step.close()
    lease = await locks.lock("another").acquire()
    assert await lease.release()


class Closing:
    """Awaits a coroutine, and closes it in the given await."""

    def __init__(self, step: Coroutine[Any, Any, Any], at: int) -> None:
        self._step, self._at = step, at

    def __await__(self) -> Generator[Any, Any, None]:
        for _ in range(self._at):
            yield self._step.send(None)
        self._step.close()


@pytest.mark.filterwarnings("ignore:.*was never released:ResourceWarning")
async def test_nor_does_one_that_has_a_part_of_its_names(
    locks: aio.AsyncLockClient, url: str
) -> None:
    other = aio.connect(url, ttl=TTL)
    held = await other.lock("z").acquire()
    for at in range(1, 5):
        await asyncio.wait_for(Closing(locks.multi(f"a{at}", "z").acquire(), at), SOON)
    assert await held.release()
    await other.close()
    gc.collect()  # what was never released is complained of here, and not in another test


def test_nor_does_one_that_is_closed_when_no_loop_runs(url: str) -> None:
    """As a pending task is, at the end of a program."""

    async def begun() -> tuple[aio.AsyncLockClient, list[Coroutine[Any, Any, object]]]:
        client = aio.connect(url, ttl=TTL)
        lease = await client.lock("other").acquire()
        steps: list[Coroutine[Any, Any, object]] = [client.lock(NAME).acquire(), lease.release()]
        for step in steps:
            step.send(None)
        return client, steps

    with asyncio.Runner() as runner:
        client, steps = runner.run(begun())
        for step in steps:
            step.close()
        runner.run(client.close())


async def test_a_release_whose_client_is_closed_then(locks: aio.AsyncLockClient, url: str) -> None:
    """Nobody is left who could tell the store later: what was begun is carried out."""
    other = aio.connect(url, ttl=TTL)
    leases: list[aio.AsyncLease] = []

    async def acquire() -> None:
        leases.append(await locks.lock(NAME).acquire())
        await locks.close()  # the release has to connect again

    async def after(_: object) -> None:
        await locks.close()
        await nothing_is_left(other)
        await acquire()

    await acquire()
    assert await at_each_await(lambda _: leases.pop().release(), 1, after) > 0
    await leases.pop().release()
    await other.close()


@IMPATIENCE
async def test_an_extension(locks: aio.AsyncLockClient, times: int) -> None:
    """Done or not, the lease is ours as before, and no longer than the store says."""
    lease = await locks.lock(NAME).acquire()

    async def after(_: object) -> None:
        lease.check()
        info = await locks.inspect(NAME)
        assert info is not None and info.left is not None
        assert lease.remaining() <= info.left

    assert await at_each_await(lambda at: lease.extend(TTL - at), times, after) > 0
    assert await lease.release()
    await nothing_is_left(locks)


@IMPATIENCE
async def test_several_names(locks: aio.AsyncLockClient, times: int) -> None:
    names = ("a", "b", "c")

    async def after(leases: Any) -> None:
        if leases is not None:
            assert await leases.release()
        for name in names:
            await nothing_is_left(locks, name)

    lock = locks.multi(*names)
    assert await at_each_await(lambda _: lock.acquire(), times, after) >= len(names)


@IMPATIENCE
async def test_a_whole_with_block(locks: aio.AsyncLockClient, times: int) -> None:
    async def block() -> None:
        async with locks.lock(NAME) as lease:
            await asyncio.sleep(0)
            lease.check()

    async def after(_: object) -> None:
        await nothing_is_left(locks)

    assert await at_each_await(lambda _: block(), times, after) > 2
