"""The blocking wire for tasks, in worker threads: for the connections of a blocking client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockkit.engine.effects import Exchange, Listen, Park, Signal
from lockkit.runtime.aio_wires import ThreadWire
from lockkit.runtime.background import LONGEST_SLEEP, Background
from lockkit.runtime.wires import Call, Lane
from lockkit.stores.redis.wire import RedisWire


class ThreadRedisWire(ThreadWire):
    """A blocking wire for tasks: worker threads make its exchanges, and one reads the messages."""

    def __init__(self, wire: RedisWire) -> None:
        super().__init__(wire.close)
        self._wire = wire
        self._reader = _Reader(wire)

    async def exchange(self, exchange: Exchange) -> Any:
        return await self._in_thread(lambda: self._wire.exchange(exchange))

    async def listen(self, _: Listen) -> None:
        """In a lane that no exchange uses: it takes as long as the server does not answer."""
        before = self._wire._failure
        await self._in_thread(lambda: self._wire.subscribe(before), Lane.RENEWING)

    async def park(self, effect: Park) -> None:
        self._reader._hurry()
        await super().park(effect)

    async def close(self) -> None:
        self._reader._end()
        await super().close()

    async def _in_thread(self, function: Callable[[], Any], lane: Lane = Lane.ASKING) -> Any:
        return await super().exchange(Exchange(Call(function, lane)))


class _Reader(Background):
    """A thread that waits in place of the tasks, as long as any of them waits: so the blocking wire
    reads their messages."""

    thread_name = "lockkit-mail"

    def __init__(self, wire: RedisWire) -> None:
        super().__init__()
        self._blocking = wire

    def work(self) -> float:
        if not self._blocking._inbox.is_awaited:
            return LONGEST_SLEEP
        self._blocking.park(Park(Signal(), 1.0))
        return 0.0
