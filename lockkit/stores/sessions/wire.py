"""What waits for the replies of sessions, for threads and for tasks.

A payload is a function that makes the work of one request: see ``work``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from lockkit.engine.effects import Exchange, Park
from lockkit.runtime.aio_wires import ThreadWire, park_task
from lockkit.runtime.wires import Call, CallWire, Lane, park
from lockkit.stores.sessions.work import Blocking, Ready, Wanted, Work


class SessionWire(CallWire):
    """Waits in the thread that asks."""

    def exchange(self, exchange: Exchange) -> Any:
        work: Work[Any] = exchange.payload()
        try:
            wanted = next(work)
            while True:
                try:
                    if isinstance(wanted, Ready):
                        reply = wanted.connection.poll(wanted.seconds * 1000)
                    else:
                        reply = _wait(wanted)
                except BaseException as error:  # noqa: BLE001  it ends the work
                    wanted = work.throw(error)
                else:
                    wanted = work.send(reply)
        except StopIteration as end:
            return end.value
        finally:  # interrupted between two lines: the next one has its turn
            work.close()


class AsyncSessionWire(ThreadWire):
    """Waits in a task for sockets; what only blocks is called in worker threads."""

    async def exchange(self, exchange: Exchange) -> Any:
        if isinstance(exchange.payload, Call):
            return await super().exchange(exchange)
        work: Work[Any] = exchange.payload()
        try:
            wanted = next(work)
            while True:
                try:
                    reply = await self._wait(wanted)
                except BaseException as error:  # noqa: BLE001  it ends the work
                    wanted = work.throw(error)
                else:
                    wanted = work.send(reply)
        except StopIteration as end:
            return end.value
        finally:
            work.close()

    async def _wait(self, wanted: Wanted) -> Any:
        if isinstance(wanted, Ready):
            return await _readable_for_task(wanted)
        if isinstance(wanted, Park):
            return await park_task(wanted.signal, wanted.seconds)
        if wanted.lane is Lane.ASKING:
            call = Call(wanted.function, wanted.lane)
            return await super().exchange(Exchange(call, wanted.route))
        return await self._called(wanted.lane, wanted.function, wanted.route)  # it was sent


def _wait(wanted: Park | Blocking) -> Any:
    if isinstance(wanted, Park):
        return park(wanted.signal, wanted.seconds)
    return wanted.function()


async def _readable_for_task(wanted: Ready) -> None:
    loop = asyncio.get_running_loop()
    readable, descriptor = loop.create_future(), wanted.connection.descriptor

    def end() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(descriptor, end)
    timer = loop.call_later(wanted.seconds, end)
    try:
        await readable
    finally:
        timer.cancel()
        loop.remove_reader(descriptor)
