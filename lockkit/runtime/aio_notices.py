"""``on_lost`` for asyncio: the twin of ``notices``, by a timer of the event loop.

A callback is called in the loop; what a coroutine function returns becomes a task of its own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence

from lockkit.model.clock import now
from lockkit.model.log import log
from lockkit.runtime import process
from lockkit.runtime.background import LONGEST_SLEEP
from lockkit.runtime.hold import Hold
from lockkit.runtime.notices import said
from lockkit.runtime.schedule import Deadlines


class AsyncNotices:
    """Tells the holders of one client, in the event loop in which it is used."""

    def __init__(self) -> None:
        self._telling: set[asyncio.Future[None]] = set()  # the loop keeps only weak references
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._deadlines = Deadlines()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, hold: Hold) -> None:
        """Tell its holder when it is lost; at once, if it is."""
        if self._deadlines.add(hold) or self._timer is None:
            self._look_in(0.0)

    def unwatch(self, hold: Hold) -> None:
        self._deadlines.discard(hold)

    def look_at(self, holds: Sequence[Hold]) -> None:
        """The store has been asked about these: tell whose are gone."""
        for hold in holds:
            if hold.dead and hold.on_lost:
                self.watch(hold)

    def stop(self) -> None:
        """Tell nobody any more. Notices that have begun go on."""
        self._deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        pause = min(max(seconds, 0.0), LONGEST_SLEEP)
        self._timer = asyncio.get_running_loop().call_later(pause, self._look)

    def _look(self) -> None:
        for hold in self._deadlines.take_lost(now()):
            for returned in said(hold):
                if isinstance(returned, Awaitable):
                    task = asyncio.ensure_future(_awaited(returned, hold.name))
                    self._telling.add(task)
                    task.add_done_callback(self._telling.discard)
        moment = now()
        pause = self._deadlines.sleep_until(moment) - moment
        if math.isinf(pause):
            self._timer = None
        else:
            self._look_in(pause)


async def _awaited(callback: Awaitable[object], name: str) -> None:
    try:
        await callback
    except Exception:  # noqa: BLE001  of the user's, who has no caller here
        log.exception("on_lost of %r failed", name)
