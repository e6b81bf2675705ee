"""``on_lost`` for asyncio: like ``notices``, but with a timer of the event loop, not a thread.

A callback is called in the loop. If it returns an awaitable, a task of its own awaits that.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Any

from lockkit.model.clock import now
from lockkit.model.log import log_error
from lockkit.runtime import process
from lockkit.runtime.background import LONGEST_SLEEP
from lockkit.runtime.hold import Hold
from lockkit.runtime.notices import BaseNotices, said
from lockkit.runtime.schedule import Deadlines


class AsyncNotices(BaseNotices):
    """Tells holders that their leases are lost, in the event loop in which the client is used."""

    def __init__(self) -> None:
        self._telling: set[asyncio.Future[None]] = set()  # the loop keeps only weak references
        process.in_each_process(self._reset)

    def _reset(self) -> None:
        self._deadlines = Deadlines()
        self._wake: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        self._deadlines.clear()
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None

    def _hurry(self, seconds: float = 0.0) -> None:
        if self._wake is not None:
            self._wake.cancel()
        pause = min(max(seconds, 0.0), LONGEST_SLEEP)
        loop = asyncio.get_running_loop()
        self._wake = loop.call_later(pause, self._look, context=Context())

    def _look(self) -> None:
        try:
            for hold in self._deadlines.lost(now()):
                self._tell(hold)
        finally:  # a callback may call sys.exit, which ends the loop, and the loop may run again
            moment = now()
            pause = self._deadlines.sleep_until(moment) - moment
            if math.isinf(pause):
                self._wake = None
            else:
                self._hurry(pause)

    def _tell(self, hold: Hold) -> None:
        for returned in said(hold, (KeyboardInterrupt, SystemExit)):
            if isinstance(returned, Awaitable):
                task = asyncio.ensure_future(_awaited(returned, hold.name))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)


def in_context(on_lost: Callable[[Any], object]) -> Callable[[Any], object]:
    """The callback, in the context of the code that takes the lock. The timer by which the loss is
    found may be of another task."""
    context = copy_context()

    def tell(lease: object) -> object:
        returned = context.run(on_lost, lease)
        if isinstance(returned, Awaitable):
            return context.run(asyncio.ensure_future, returned)
        return returned

    return tell


async def _awaited(callback: Awaitable[object], name: str) -> None:
    try:
        await callback
    except Exception:  # noqa: BLE001  the user's code has no caller here
        log_error("on_lost of %r failed", name)
