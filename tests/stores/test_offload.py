"""Coroutines over a store whose driver blocks: its steps are in threads."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from garbage import collected

from lockkit import aio, connect
from lockkit.aio import AsyncLockClient
from lockkit.engine.effects import Step
from lockkit.model.errors import BackendUnavailable
from lockkit.model.settings import settings_from_url
from lockkit.model.types import Busy, Gone, Grant, Release, Renewal, Request
from lockkit.runtime import aio_wires
from lockkit.runtime.aio_run import arun
from lockkit.runtime.aio_wires import ThreadWire
from lockkit.runtime.run import run
from lockkit.runtime.wires import THREADS, TURN_SECONDS, Lane, call
from lockkit.stores.memory import MemoryStore

WAITERS = 50


class Slow(MemoryStore):
    """A claim of "crowded" is in its step until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def async_wire(self, *, is_shared: bool = False) -> Any:
        return ThreadWire(lambda: None)

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        return call(lambda: self._acquire(request), route=request.token)

    def _acquire(self, request: Request) -> Grant | Busy | Gone:
        if request.name == "crowded":
            self.go_on.wait()
        return run(super().acquire(request), self.wire())

    def release(self, request: Request) -> Step[Release]:
        give = super().release
        return call(lambda: run(give(request), self.wire()), Lane.ENDING, request.token)

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        extend = super().extend
        return call(lambda: run(extend(requests), self.wire()), Lane.RENEWING)


async def test_without_another_thread_there_is_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def is_refused(place: str) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(place, refuse)
            with pytest.raises(BackendUnavailable, match="no thread can be started"):
                await client.lock("stock:42").acquire()

    async with aio.connect(f"sqlite:///{tmp_path / 'locks.sqlite3'}") as client:
        await is_refused("threading.Thread.start")  # of a call
        async with client.lock("stock:42"):
            await is_refused("_thread.start_new_thread")  # of those who wait
        assert await client.inspect("stock:42") is None


def test_a_search_of_a_whole_table_holds_up_no_renewal(tmp_path: Path) -> None:
    with connect(f"sqlite:///{tmp_path / 'locks.sqlite3'}") as client:
        of_one, of_all = client.store.last_words("stock:42"), client.store.last_words()
        assert next(of_one).payload[1] is Lane.RENEWING  # a lease that is lost asks why
        assert next(of_all).payload[1] is Lane.ASKING


async def test_slow_claims_hold_up_neither_a_renewal_nor_a_release() -> None:
    settings = settings_from_url("memory://", acquire_timeout=None)
    backend = Slow()
    client = AsyncLockClient(backend, settings)
    lease = await client.lock("stock:42").acquire()
    crowd = [asyncio.create_task(_pass(client)) for _ in range(WAITERS)]
    async with asyncio.timeout(30):
        await lease.extend()
        assert await lease.release()
    backend.go_on.set()
    async with asyncio.timeout(60):
        assert len(set(await asyncio.gather(*crowd))) == WAITERS
    await client.close()


async def _pass(client: AsyncLockClient) -> int:
    async with client.lock("crowded") as lease:
        return lease.fencing_token


class Failing(Slow):
    """A claim of "crowded" fails when it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()

    def _acquire(self, request: Request) -> Grant | Busy | Gone:
        self.begun.put(request.token)
        self.go_on.wait()
        raise BackendUnavailable("the server has gone")


async def test_nobody_is_told_of_the_failure_of_a_call_that_was_cancelled() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    backend = Failing()
    client = AsyncLockClient(backend, settings_from_url("memory://"))
    task = asyncio.create_task(client.lock("crowded").acquire())
    await asyncio.to_thread(backend.begun.get)
    task.cancel()
    await asyncio.sleep(0)  # it waits for the end of its call, to take back what that may get
    backend.go_on.set()
    with suppress(asyncio.CancelledError):
        await task
    await client.close()
    collected()
    assert not told


async def test_calls_of_one_route_are_never_made_at_once() -> None:
    """Several wait for the end of the first."""
    wire, go_on = ThreadWire(lambda: None), threading.Event()
    inside: list[None] = []

    def work() -> int:
        inside.append(None)
        go_on.wait()
        threading.Event().wait(0.05)  # in which another one would come
        return len([inside.pop(), *inside])

    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(arun(call(work, route="a"), wire)) for _ in range(4)]
        while not inside:  # noqa: ASYNC110
            await asyncio.sleep(0)
        go_on.set()
    assert [each.result() for each in calls] == [1, 1, 1, 1]
    await wire.close()


async def test_calls_that_no_thread_has_begun_in_time_are_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that is silent has each call wait for its time-out: all tasks hear of it, soon."""
    moments = [0.0]
    monkeypatch.setattr(aio_wires, "now", lambda: moments[-1])
    backend = Failing()
    client = AsyncLockClient(backend, settings_from_url("memory://"))
    crowd = [asyncio.create_task(client.lock("crowded").acquire()) for _ in range(WAITERS)]
    for _ in range(THREADS[Lane.ASKING]):
        await asyncio.to_thread(backend.begun.get)
    moments.append(TURN_SECONDS + 1)
    backend.go_on.set()
    failures = await asyncio.gather(*crowd, return_exceptions=True)
    assert {type(failure) for failure in failures} == {BackendUnavailable}
    assert backend.begun.empty()
    await client.close()
