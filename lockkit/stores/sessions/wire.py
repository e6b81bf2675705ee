"""The wires of sessions, for threads and for tasks.

A payload is a function that returns the step of one request; or what such a step yields: a
``Ready`` or a ``Call``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from lockkit.engine.effects import Exchange, Signal
from lockkit.model.clock import now
from lockkit.runtime.aio_run import arun
from lockkit.runtime.aio_wires import ThreadWire, park_task
from lockkit.runtime.run import run
from lockkit.runtime.wires import Call, CallWire, Lane
from lockkit.stores.sessions.work import Ready


class SessionWire(CallWire):
    """Waits in the thread that asks."""

    def exchange(self, exchange: Exchange) -> Any:
        payload = exchange.payload
        if isinstance(payload, Ready):
            return payload.connection.poll(max(payload.until - now(), 0.0) * 1000)
        if isinstance(payload, Call):
            return payload.function()
        return run(payload(), self)


class AsyncSessionWire(ThreadWire):
    """Waits for sockets in a task; calls functions that block in worker threads."""

    async def exchange(self, exchange: Exchange) -> Any:
        payload = exchange.payload
        if isinstance(payload, Ready):
            return await _readable_for_task(payload)
        if not isinstance(payload, Call):
            return await arun(payload(), self)
        if payload.lane is Lane.ASKING:
            return await super().exchange(exchange)
        # Sent already, so it waits for its turn however long: only Lane.ASKING gives up.
        return await self._called(payload.lane, payload.function, exchange.route)


async def _readable_for_task(wanted: Ready) -> None:
    loop, descriptor, readable = asyncio.get_running_loop(), wanted.connection.descriptor, Signal()
    loop.add_reader(descriptor, readable.set)
    try:
        await park_task(readable, wanted.until - now())
    finally:
        loop.remove_reader(descriptor)
