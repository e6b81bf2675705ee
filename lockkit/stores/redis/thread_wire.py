"""The blocking wire for tasks, in worker threads: for the connections of a blocking client."""

from __future__ import annotations

from typing import Any

from lockkit.engine.effects import Exchange, Listen, Park, Signal
from lockkit.runtime.aio_wires import ThreadWire
from lockkit.runtime.background import LONGEST_SLEEP, Background
from lockkit.runtime.wires import Call
from lockkit.stores.redis.wire import RedisWire


class ThreadRedisWire(ThreadWire):
    """A blocking wire for tasks: worker threads make its exchanges, and one reads the messages."""

    def __init__(self, wire: RedisWire) -> None:
        super().__init__(wire.close)
        self._wire = wire
        self._reader = _Reader(wire)

    async def exchange(self, exchange: Exchange) -> Any:
        if isinstance(exchange.payload, Call):
            return await super().exchange(exchange)
        return await super().exchange(Exchange(Call(lambda: self._wire.exchange(exchange))))

    async def listen(self, effect: Listen) -> None:
        await self.exchange(Exchange(Call(lambda: self._wire.listen(effect))))

    async def park(self, effect: Park) -> None:
        self._reader.go()
        await super().park(effect)

    async def close(self) -> None:
        self._reader.stop()
        await super().close()


class _Reader(Background):
    """Waits as a thread does, in the place of the tasks, as long as any of them does."""

    thread_name = "lockkit-mail"

    def __init__(self, wire: RedisWire) -> None:
        super().__init__()
        self._blocking = wire

    def go(self) -> None:
        self._hurry()

    def stop(self) -> None:
        self._end()

    def work(self) -> float:
        if not self._blocking.is_awaited:
            return LONGEST_SLEEP
        self._blocking.park(Park(Signal(), 1.0))
        return 0.0
