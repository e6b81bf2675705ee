"""Like ``wires``, for tasks: calls that block run in threads, all others in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from lockkit.engine.effects import Exchange, Listen, Park, Signal
from lockkit.model.clock import now
from lockkit.model.errors import BackendUnavailable, OutcomeUnknown
from lockkit.runtime import native, process
from lockkit.runtime.wires import THREADS, TURN_SECONDS, Lane


async def park_task(signal: Signal, seconds: float) -> None:
    """Sleep in this task until the signal is set, for ``seconds`` at most."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def end() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake() -> None:
        if asyncio._get_running_loop() is loop:
            end()
        else:
            with suppress(RuntimeError):  # the loop is closed: nobody sleeps there any more
                loop.call_soon_threadsafe(end)

    signal.wake = wake
    if not signal.is_set:
        timer = loop.call_later(max(seconds, 0.0), end)
        try:
            await woken
        finally:
            timer.cancel()


class AsyncLocalWire:
    """For a store in this process, whose calls never block."""

    async def exchange(self, exchange: Exchange) -> Any:
        return exchange.payload.function()

    async def park(self, effect: Park) -> None:
        await park_task(effect.signal, effect.seconds)

    async def listen(self, effect: Listen) -> None:
        """Nothing to do: signals are set within this process."""

    async def close(self) -> None:
        """Nothing is open."""


class ThreadWire(AsyncLocalWire):
    """Makes calls in worker threads, which are started when they are needed.

    A call that could not begin within ``TURN_SECONDS``, because the store does not answer the calls
    before it, is not made: it raises BackendUnavailable as soon as a thread is free. A call that
    has begun runs to its end, even if its task is cancelled. The next call on its route waits for
    that.
    """

    def __init__(self, close: Callable[[], object]) -> None:
        """``close``: closes what the calls have opened."""
        self._close = close
        process.in_each_process(self._forget)

    def _forget(self) -> None:
        """Start without threads: after a fork they are in the parent."""
        self._mutex = native.mutex()
        self._last: dict[Hashable, Future[Any]] = {}  #: by route
        self._lanes: dict[Lane, ThreadPoolExecutor] = {}

    async def exchange(self, exchange: Exchange) -> Any:
        (function, lane), route = exchange
        return await self._called(lane, _in_time(function), route)

    async def _called(self, lane: Lane, function: Callable[[], Any], route: Hashable) -> Any:
        """Make a call in a thread, however long it waits for its turn."""
        while (before := self._last.get(route)) is not None and not before.done():
            ended = asyncio.wrap_future(before)
            ended.add_done_callback(mark_as_retrieved)
            await asyncio.wait([ended])
        turn = Future[None]()
        try:
            self._note(route, turn)  # before the call begins: an interrupt may come just after
            future = self._threads(lane).submit(_make, function, turn)
            self._note(route, future)
        except BaseException as error:
            is_not_made = turn.cancel()  # else it has begun: then the next on its route waits
            if isinstance(error, RuntimeError):
                kind = BackendUnavailable if is_not_made else OutcomeUnknown
                raise kind(f"no thread can be started: {error}") from error
            raise
        return await asyncio.wrap_future(future)

    def _note(self, route: Hashable, future: Future[Any]) -> None:
        """Note the last call on this route, until it is done."""
        if route is not None:
            with self._mutex:
                self._last[route] = future
            future.add_done_callback(lambda _: self._over(route, future))

    def _over(self, route: Hashable, future: Future[Any]) -> None:
        with self._mutex:  # this runs in the thread that made the call
            if self._last.get(route) is future:
                del self._last[route]

    def _threads(self, lane: Lane) -> ThreadPoolExecutor:
        if lane not in self._lanes:
            self._lanes[lane] = ThreadPoolExecutor(
                THREADS[lane], thread_name_prefix="lockkit-offload"
            )
        return self._lanes[lane]

    async def close(self) -> None:
        try:
            await self._called(Lane.ENDING, self._close, None)
        finally:
            lanes, self._lanes = self._lanes, {}
            for threads in lanes.values():
                threads.shutdown(wait=False)


def _in_time(function: Callable[[], Any]) -> Callable[[], Any]:
    """The call, if it begins soon enough."""
    until = now() + TURN_SECONDS

    def begin() -> Any:
        if now() > until:
            raise BackendUnavailable(f"not sent: the store had not answered for {TURN_SECONDS:g} s")
        return function()

    return begin


def _make(function: Callable[[], Any], turn: Future[None]) -> Any:
    """Make the call, unless its turn was cancelled before."""
    if not turn.set_running_or_notify_cancel():
        return None
    try:
        return function()
    finally:
        turn.set_result(None)


def mark_as_retrieved(ended: asyncio.Future[Any]) -> None:
    """Retrieve the error, which others handle who wait for it. Otherwise asyncio logs that nobody
    has retrieved it."""
    if not ended.cancelled():
        ended.exception()
