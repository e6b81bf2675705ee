"""Interrupts what asyncio awaits in each of its places, as ``interrupted_places`` does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Awaitable, Callable

from interrupted_places import Runs
from interrupted_stores import ENDINGS, LONG_TTL, MOST, PATIENT, SOON, TRIES
from interrupting import Interrupting, watched

import lockkit
from lockkit import aio
from lockkit.model.clock import now
from lockkit.stores.contract import Pushed

Run = Callable[[], Awaitable[object]]
Step = Callable[[int], Awaitable[Run]]


async def interrupted_everywhere(step: Step, locks: aio.AsyncLockClient, below: str = "") -> Runs:
    """Run it again and again, each time interrupted one place later, until it ends before that."""
    numbers = itertools.count(1)
    with watched():
        for at in range(1, MOST):
            for _ in range(ENDINGS):
                if await soon(at, lambda: step(next(numbers)), locks, below):
                    break
            else:
                return Runs(at - 1, next(numbers) - 1)
    raise AssertionError(f"more than {MOST} places")


async def soon(
    at: int, step: Callable[[], Awaitable[Run]], locks: aio.AsyncLockClient, below: str
) -> str:
    """Try again if the machine stalled. A defect does it each time."""
    for _ in range(TRIES):
        run = await step()
        began = now()
        try:
            where = await asyncio.create_task(interrupted(at, run, below))
            del run
            took = max(now() - began, await hands_on(locks))
        except (lockkit.LeaseLost, lockkit.BackendError) as error:
            where, took = str(error), math.inf
        if took < SOON:
            return where
    raise AssertionError(f"{took:.1f} s, {TRIES} times, interrupted at {where}")


async def interrupted(at: int, run: Run, below: str) -> str:
    with Interrupting(at, below) as interrupting:
        await run()
    return interrupting.where


async def hands_on(locks: aio.AsyncLockClient) -> float:
    """Seconds from this task to another one, by a message if the store sends any."""
    if not isinstance(locks.store, Pushed):
        began = now()
        async with locks.lock("after", ttl=LONG_TTL, timeout=PATIENT):
            return now() - began
    lock = locks.lock("handed", ttl=LONG_TTL, timeout=LONG_TTL)
    async with contextlib.AsyncExitStack() as stack, lock:
        waiting = asyncio.create_task(lock.acquire())
        stack.push_async_callback(given_back, waiting)
        while not getattr(await locks.inspect("handed"), "waiters", 0):
            assert not waiting.done()
        began = now()
    return now() - began


async def given_back(waiting: asyncio.Task[aio.AsyncLease]) -> None:
    await (await waiting).release()
