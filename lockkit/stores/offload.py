"""Any sync backend, awaited: each step runs in a worker thread of lockkit's own.

Only steps are offloaded, and a step never waits: waiting is ``asyncio.sleep`` on the loop. Claims,
releases and renewals have threads of their own: where each step of a slow store takes its time,
hundreds of waiters that ask again and again hold up neither who releases nor what is renewed.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from lockkit.model.errors import LockError
from lockkit.model.types import (
    Busy,
    Claimed,
    Entry,
    Gone,
    Grant,
    LockInfo,
    Mode,
    Release,
    Renewal,
    Request,
    is_placed,
)
from lockkit.runtime import process
from lockkit.stores.base import AsyncBackend, AsyncRecords, Backend, Records

__all__ = ["OffloadedBackend"]

T = TypeVar("T")


class _Lane:
    """Threads for some of the steps, started when they are needed."""

    def __init__(self, threads: int) -> None:
        self._size = threads
        self._forget()
        process.after_fork(self._forget)

    def _forget(self) -> None:
        """The threads stayed in the parent."""
        self._threads: ThreadPoolExecutor | None = None

    def begin(self, step: Callable[..., T], *args: object) -> Future[T]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._size, thread_name_prefix="lockkit-offload")
        return self._threads.submit(step, *args)

    async def run(self, step: Callable[..., T], *args: object) -> T:
        return await asyncio.wrap_future(self.begin(step, *args))

    def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)


class _Run(Protocol):
    async def __call__(self, step: Callable[..., T], *args: object) -> T: ...


PAGE = 100


class OffloadedBackend(AsyncBackend):
    """Runs the steps of a sync backend in threads. Cancelling leaves a step running to its end: the
    withdraw that follows waits for it, so that it knows what there is to withdraw."""

    def __init__(self, backend: Backend, *, is_shared: bool = False) -> None:
        """``is_shared``: a blocking client uses it as well, so it is not closed with this one."""
        self.backend = backend
        self._is_shared = is_shared
        self.capabilities = backend.capabilities
        self._asking = _Lane(4)
        self._ending = _Lane(2)
        self._renewing = _Lane(1)
        self._cancelled: dict[str, Future[Grant | Busy | Gone]] = {}  #: claims, by their tokens

    async def acquire(self, request: Request) -> Grant | Busy | Gone:
        step = self._asking.begin(self.backend.acquire, request)
        try:
            return await asyncio.wrap_future(step)
        except asyncio.CancelledError:
            if request.mode is not Mode.POLL and not request.unsure:
                self._cancelled[request.token] = step
            raise

    async def release(self, request: Request) -> Release:
        return await self._ending.run(self.backend.release, request)

    async def withdraw(self, request: Request) -> None:
        """Of a claim that was cancelled in its thread it is known what came of it."""
        step = self._cancelled.pop(request.token, None)
        if step is not None:
            ended = asyncio.wrap_future(step)
            await asyncio.wait([ended])
            if ended.cancelled():
                return  # it never began
            if ended.exception() is None:
                request = request._replace(unsure=False)
                if not is_placed(ended.result()):
                    return
        await self._ending.run(self.backend.withdraw, request)

    async def extend(self, requests: Sequence[Request]) -> list[Renewal]:
        return await self._renewing.run(self.backend.extend, requests)

    async def wait(self, request: Request, seconds: float, busy: Busy) -> Grant | None:
        await asyncio.sleep(self.backend.pause(seconds, busy.ahead, busy.age))
        return None

    async def holders(self, name: str | None = None) -> AsyncIterator[LockInfo]:
        found = self.backend.holders(name)
        more = True
        while more:
            page, error = await self._asking.run(_page, found)
            for info in page:
                yield info
            if error is not None:
                raise error
            more = bool(page)

    async def break_(self, name: str, fence: int, by: str = "") -> bool:
        return await self._asking.run(self.backend.break_, name, fence, by)

    async def last_words(self, name: str) -> list[LockInfo]:
        return await self._renewing.run(lambda: list(self.backend.last_words(name)))

    def records(self) -> AsyncRecords | None:
        records = self.backend.records()
        return None if records is None else _OffloadedRecords(records, self._asking.run)

    async def close(self) -> None:
        if not self._is_shared:
            await self._ending.run(self.backend.close)
        for lane in (self._asking, self._ending, self._renewing):
            lane.close()


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

    async def mark(self, name: str) -> None:
        await self._run(self._records.mark, name)


def _page(found: Iterator[LockInfo]) -> tuple[list[LockInfo], LockError | None]:
    """Some more, and the error that ends them: what was read before it is shown, too."""
    page: list[LockInfo] = []
    try:
        for info in itertools.islice(found, PAGE):
            page.append(info)  # noqa: PERF402  kept if the next one fails
    except LockError as error:
        return page, error
    return page, None
