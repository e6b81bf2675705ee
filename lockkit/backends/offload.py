"""Any sync backend, awaited: each step runs in a worker thread of lockkit's own.

Only steps are offloaded, and a step never waits: waiting is ``asyncio.sleep`` on the loop. So the
releaser always finds a free thread, which it would not on a thread-sensitive executor.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from lockkit import process
from lockkit.backends.base import AsyncBackend, AsyncRecords, Backend, Records
from lockkit.types import (
    Busy,
    Claimed,
    Entry,
    Gone,
    Grant,
    LockInfo,
    Release,
    Renewal,
    Request,
)

__all__ = ["OffloadedBackend"]

T = TypeVar("T")
THREADS = 4


class _Run(Protocol):
    async def __call__(self, step: Callable[..., T], *args: object) -> T: ...


PAGE = 100


class OffloadedBackend(AsyncBackend):
    """Runs the steps of a sync backend in threads. Cancelling leaves a step running to its end:
    the tombstone of the withdraw that follows makes a late grant impossible."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.capabilities = backend.capabilities
        self._threads: ThreadPoolExecutor | None = None
        process.after_fork(self._forget)

    def _forget(self) -> None:
        """The threads stayed in the parent."""
        self._threads = None

    async def _run(self, step: Callable[..., T], *args: object) -> T:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lockkit-offload")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(step, *args))

    async def acquire(self, request: Request) -> Grant | Busy | Gone:
        return await self._run(self.backend.acquire, request)

    async def release(self, request: Request) -> Release:
        return await self._run(self.backend.release, request)

    async def withdraw(self, request: Request) -> None:
        await self._run(self.backend.withdraw, request)

    async def extend(self, requests: Sequence[Request]) -> list[Renewal]:
        return await self._run(self.backend.extend, requests)

    async def wait(self, request: Request, seconds: float, busy: Busy) -> Grant | None:
        await asyncio.sleep(self.backend.pause(seconds, busy.ahead, busy.age))
        return None

    async def holders(self, name: str | None = None) -> AsyncIterator[LockInfo]:
        found = self.backend.holders(name)
        while page := await self._run(_page, found):
            for info in page:
                yield info

    async def break_(self, name: str, fence: int) -> bool:
        return await self._run(self.backend.break_, name, fence)

    def records(self) -> AsyncRecords | None:
        records = self.backend.records()
        return None if records is None else _OffloadedRecords(records, self._run)

    async def close(self) -> None:
        await self._run(self.backend.close)
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)


class _OffloadedRecords:
    """A store's records, each step in a thread."""

    def __init__(self, records: Records, run: _Run) -> None:
        self._records = records
        self._run = run

    async def read(self, name: str) -> Entry | None:
        return await self._run(self._records.read, name)

    async def claim(
        self, name: str, fence: int, payload: bytes, ttl: float, *, running: bool, replaces: bool
    ) -> Claimed:
        claim = functools.partial(self._records.claim, running=running, replaces=replaces)
        return await self._run(claim, name, fence, payload, ttl)

    async def finish(self, name: str, fence: int, payload: bytes, ttl: float) -> bool:
        return await self._run(self._records.finish, name, fence, payload, ttl)

    async def drop(self, name: str, fence: int) -> bool:
        return await self._run(self._records.drop, name, fence)


def _page(found: Iterator[LockInfo]) -> list[LockInfo]:
    return list(itertools.islice(found, PAGE))
