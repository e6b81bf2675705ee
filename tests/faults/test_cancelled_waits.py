"""Waits that are given up leave nothing in the store: not even a mark that they were given up."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockkit
from lockkit import aio
from lockkit.engine.effects import Step
from lockkit.engine.grant import Outcome, State
from lockkit.model.settings import settings_from_url
from lockkit.model.types import Busy, Gone, Grant, Release, Request
from lockkit.runtime.aio_wires import ThreadWire
from lockkit.runtime.run import run
from lockkit.runtime.wires import Lane, call
from lockkit.stores.memory import MemoryStore
from lockkit.stores.sql.store import SQLStore
from lockkit.testing.conformance.base import TRIES, eventually, queued
from lockkit.testing.servers import RedisServer

NAME = "stock:42"
MARKED = "marked each time"
"""Not only when the reply to its request was still under way, as on a machine that stalls."""

Marks = Callable[[], int]


class GivenUp(BaseException):
    pass


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("lock_table_url"))
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    path = tmp_path / "locks.sqlite3"
    return f"sqlite:///{path}" if request.param == "sqlite" else "memory://waits"


@pytest.fixture
def locks(url: str) -> Iterator[lockkit.LockClient]:
    with lockkit.connect(url, ttl=30, max_queue=None) as client:
        yield client


@pytest.fixture
def marks(locks: lockkit.LockClient, request: pytest.FixtureRequest) -> Marks:
    """How many of those who gave up the store remembers."""
    backend: Any = locks.store
    if isinstance(backend, MemoryStore):
        return lambda: len(backend._states[NAME].tombs)
    if isinstance(backend, SQLStore):
        return lambda: len(backend._step(NAME, lambda state, _: _tombs(state)))
    server: RedisServer = request.getfixturevalue("redis_server")

    def in_redis() -> int:
        with server.client() as admin:
            return sum(int(admin.zcard(key)) for key in admin.scan_iter("*:t"))

    return in_redis


def _tombs(state: State) -> Outcome[list[str]]:
    return Outcome(list(state.tombs))


async def _cancelled(client: aio.AsyncLockClient, locks: lockkit.LockClient, crowd: int) -> None:
    """Some wait, and are cancelled while they do."""
    waiting = [asyncio.create_task(client.lock(NAME).acquire(timeout=None)) for _ in range(crowd)]
    await asyncio.to_thread(queued, locks, NAME, crowd)
    await asyncio.sleep(0.05)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert all(task.cancelled() for task in waiting)


async def test_cancelled_waits_leave_nothing(
    locks: lockkit.LockClient, url: str, marks: Marks
) -> None:
    client = aio.connect(url, ttl=30, max_queue=None)
    with locks.lock(NAME).acquire():
        for _ in range(TRIES):
            before = marks()
            await _cancelled(client, locks, 10)
            eventually(lambda: not (info := locks.inspect(NAME)) or not info.waiters)
            if marks() == before:
                break
        else:
            raise AssertionError(MARKED)
    await client.close()


class Slow(MemoryStore):
    """Once it is slow, each claim is in its step until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def async_wire(self, *, is_shared: bool = False) -> Any:
        return ThreadWire(lambda: None)

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        return call(lambda: self._acquire(request), route=request.token)

    def _acquire(self, request: Request) -> Grant | Busy | Gone:
        if self.slow:
            self.begun.set()
            self.go_on.wait()
        return run(super().acquire(request), self.wire())

    def release(self, request: Request) -> Step[Release]:
        give = super().release
        return call(lambda: run(give(request), self.wire()), Lane.ENDING, request.token)


@pytest.mark.parametrize("patience", [None, 0])
async def test_a_step_that_was_cancelled_in_a_thread_leaves_nothing(patience: float | None) -> None:
    """What runs in a thread of ours ends before it is withdrawn; the rest never begins."""
    backend = Slow()
    client = aio.AsyncLockClient(backend, settings_from_url("memory://"))
    holder = await client.lock(NAME).acquire()
    backend.slow = True
    waiting = [asyncio.create_task(client.lock(NAME).acquire(patience)) for _ in range(8)]
    await asyncio.to_thread(backend.begun.wait)
    for task in waiting:
        task.cancel()
    await asyncio.sleep(0)
    backend.go_on.set()
    await asyncio.wait(waiting)
    state = backend._states[NAME]
    assert not state.queue
    assert [h.token for h in state.holders] == [holder.token]
    assert await holder.release()
    await client.close()


@pytest.fixture
def signals() -> Iterator[None]:
    """As of a task queue that has run out of patience."""

    def give_up(*_: object) -> None:
        raise GivenUp

    before = signal.signal(signal.SIGUSR1, give_up)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("signals")
def test_interrupted_waits_leave_nothing(locks: lockkit.LockClient, url: str, marks: Marks) -> None:
    def interrupt() -> None:
        queued(locks, NAME, 1)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR1)

    with lockkit.connect(url, ttl=30) as client, locks.lock(NAME).acquire():
        for _ in range(TRIES):
            left = marks()
            watcher = threading.Thread(target=interrupt)
            watcher.start()
            with pytest.raises(GivenUp):
                client.lock(NAME).acquire(timeout=None)
            watcher.join()
            eventually(lambda: not (info := locks.inspect(NAME)) or not info.waiters)
            if marks() == left:
                return
        raise AssertionError(MARKED)


@pytest.mark.usefixtures("signals")
def test_a_connection_whose_statement_was_interrupted_is_closed(lock_table_url: str) -> None:
    """SQLAlchemy only forgets it, and would leave it to the garbage collector."""
    busy = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND datname = current_database()"
    )
    with lockkit.connect(lock_table_url) as client, psycopg.connect(lock_table_url) as other:
        client.lock(NAME).acquire().release()
        opened: Any = client.store
        driver = opened._steps._connection.driver

        def interrupt() -> None:
            eventually(lambda: other.execute(busy).fetchone() == (1,))
            os.kill(os.getpid(), signal.SIGUSR1)
            eventually(lambda: driver.closed)
            other.rollback()

        other.execute("SELECT * FROM lockkit_lock FOR UPDATE")
        watcher = threading.Thread(target=interrupt)
        watcher.start()
        with pytest.raises(GivenUp):
            client.lock(NAME).acquire(timeout=None)
        watcher.join()
        assert driver.closed
        assert client.lock(NAME).acquire(timeout=5).release()
