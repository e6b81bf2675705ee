"""Tests for asyncio only: many tasks in one thread, and cancellation at any await."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from lockkit import aio
from lockkit.model.errors import AcquireTimeout, LeaseLost
from lockkit.stores.contract import Buried, Listed, Queued
from lockkit.testing.conformance.base import (
    INJECTIONS,
    LONGEST,
    ROOMY,
    SOON,
    TTL,
    at_least_once,
    needs,
)
from lockkit.testing.targets import ServerTarget, Target

WAITERS = 50
SEED = 20_001

Scene = Callable[[aio.AsyncLockClient], Awaitable[None]]


class AsyncTests:
    @needs(Queued, Listed)
    def test_fifty_waiters_and_one_releaser(self, store: Target, name: str) -> None:
        """All in one event loop: waiting must not keep the releaser from its turn."""

        async def wait(client: aio.AsyncLockClient, number: int, order: list[int]) -> None:
            async with client.lock(name):
                order.append(number)
                await asyncio.sleep(0)

        async def scene(order: list[int], client: aio.AsyncLockClient) -> None:
            holder = await client.lock(name).acquire()
            tasks = []
            for number in range(WAITERS):
                tasks.append(asyncio.create_task(wait(client, number, order)))
                await queued(client, name, number + 1)
            assert await holder.release()
            await asyncio.gather(*tasks)
            await nothing_left(client, name)

        def in_order() -> bool:
            order: list[int] = []
            play(store, partial(scene, order))
            return order == list(range(WAITERS))

        at_least_once(in_order)

    def test_tasks_exclude_one_another(self, store: Target, name: str) -> None:
        inside: list[int] = []

        async def enter(client: aio.AsyncLockClient, number: int) -> None:
            async with client.lock(name) as lease:
                inside.append(number)
                await asyncio.sleep(0)
                assert inside == [number]
                lease.check()
                inside.remove(number)

        async def scene(client: aio.AsyncLockClient) -> None:
            async with asyncio.TaskGroup() as tasks:
                for number in range(WAITERS // 2):
                    tasks.create_task(enter(client, number))

        play(store, scene)

    def test_cancelling_at_any_moment_leaves_nothing(self, store: Target, name: str) -> None:
        """With a free and a busy name, from before the first request until after the grant."""
        moments = random.Random(SEED)

        async def scene(client: aio.AsyncLockClient) -> None:
            for turn in range(20 * INJECTIONS):
                holder = await client.lock(name, ttl=30).acquire() if turn % 2 else None
                task = asyncio.create_task(client.lock(name).acquire())
                await asyncio.sleep(moments.choice([0, moments.uniform(0, 0.004)]))
                if holder is not None and turn % 4 == 3:
                    await holder.release()
                task.cancel()
                await drop(task)
                if holder is not None:
                    await holder.release()
                await nothing_left(client, name)

        play(store, scene)

    def test_a_deadline_around_acquire_leaves_nothing(self, store: Target, name: str) -> None:
        async def scene(client: aio.AsyncLockClient) -> None:
            async with client.lock(name, ttl=30):
                for _ in range(2 * INJECTIONS):
                    with pytest.raises(TimeoutError) as caught:
                        async with asyncio.timeout(0.01):
                            await client.lock(name, timeout=None).acquire()
                    assert not isinstance(caught.value, AcquireTimeout)
            await nothing_left(client, name)

        play(store, scene)

    def test_a_cancelled_release_is_carried_out(self, store: Target, name: str) -> None:
        async def scene(client: aio.AsyncLockClient) -> None:
            for _ in range(2 * INJECTIONS):
                lease = await client.lock(name, ttl=30).acquire()
                task = asyncio.create_task(lease.release())
                await asyncio.sleep(0)
                task.cancel()
                await drop(task)
                async with client.lock(name):
                    pass
            await nothing_left(client, name)

        play(store, scene)

    def test_a_cancelled_body_releases(self, store: Target, name: str) -> None:
        async def hold(client: aio.AsyncLockClient, inside: asyncio.Event) -> None:
            async with client.lock(name, ttl=30):
                inside.set()
                await asyncio.Event().wait()

        async def scene(client: aio.AsyncLockClient) -> None:
            inside = asyncio.Event()
            task = asyncio.create_task(hold(client, inside))
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await nothing_left(client, name)

        play(store, scene)

    @needs(Listed)
    def test_leaving_async_with(self, store: Target, name: str) -> None:
        """It releases. It raises LeaseLost for a lost lease, but never hides the body's error."""

        async def scene(client: aio.AsyncLockClient) -> None:
            async with client.lock(name) as lease:
                lease.check()
            assert lease.released
            await nothing_left(client, name)
            for error, raised in ((None, LeaseLost), (KeyError, KeyError)):
                with pytest.raises(raised):
                    await leave_broken(client, name, error)

        play(store, scene)

    @needs(ServerTarget, Buried, Listed)
    def test_a_request_that_arrives_after_its_cancelled_acquire(
        self, store: ServerTarget, name: str
    ) -> None:
        """The network delays the request; its withdraw overtakes it, and leaves a tombstone."""

        async def turn(direct: aio.AsyncLockClient, name: str) -> None:
            with store.proxied() as (url, proxy):
                async with aio.connect(url, **{**store.options_for(url), "ttl": 30.0}) as far:
                    await (await far.lock(f"{name}:warm-up").acquire()).release()
                    fault = proxy.delay_requests()
                    task = asyncio.create_task(far.lock(name).acquire())
                    assert await asyncio.to_thread(fault.arrived.wait, SOON)
                    task.cancel()
                    await asyncio.wait([task], timeout=SOON)
                    fault.release()
                    await drop(task)
                    assert await asyncio.to_thread(fault.happened.wait, SOON)
                    await gone(direct, name)

        async def scene(direct: aio.AsyncLockClient) -> None:
            """All turns at once, because each may have to wait for the timeout of a socket."""
            await asyncio.gather(*(turn(direct, f"{name}:{n}") for n in range(2 * INJECTIONS)))

        play(store, scene)


def play(store: Target, scene: Scene) -> None:
    """Run a scene in an event loop of its own, with a client of its own."""

    async def run() -> None:
        options: dict[str, Any] = {"ttl": ROOMY, "acquire_timeout": LONGEST, **store.options}
        async with aio.connect(store.url, **options) as client:
            await scene(client)

    asyncio.run(run())


async def drop(task: asyncio.Task[Any]) -> None:
    """Await a cancelled task; a lease that was granted before is given back."""
    try:
        result = await task
    except asyncio.CancelledError:
        return
    if isinstance(result, aio.AsyncLease):
        await result.release()


async def leave_broken(
    client: aio.AsyncLockClient, name: str, error: type[Exception] | None
) -> None:
    async with client.lock(name, ttl=TTL) as lease:
        await client.break_(name, fence=lease.fencing_token)
        await until(lambda: lease.lost)
        if error is not None:
            raise error


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 - nobody sets an event when time has passed
            await asyncio.sleep(TTL / 20)


async def queued(client: aio.AsyncLockClient, name: str, number: int) -> None:
    async with asyncio.timeout(SOON):
        while True:
            info = await client.inspect(name)
            if (info.waiters if info else 0) == number:
                return
            await asyncio.sleep(TTL / 100)


async def gone(client: aio.AsyncLockClient, name: str) -> None:
    async with asyncio.timeout(SOON):
        while await client.inspect(name) is not None:  # noqa: ASYNC110 - the store says it
            await asyncio.sleep(TTL / 100)


async def nothing_left(client: aio.AsyncLockClient, name: str) -> None:
    if isinstance(client.store, Listed):
        info = await client.inspect(name)
        assert info is None, f"left behind: {info}"
    lease = await client.lock(name).try_acquire()
    assert lease is not None
    assert await lease.release()
