"""Coroutines over a store whose driver blocks: its steps are in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from lockkit.aio import AsyncLockClient
from lockkit.engine.effects import Step
from lockkit.model.settings import settings_from_url
from lockkit.model.types import Busy, Gone, Grant, Release, Renewal, Request
from lockkit.runtime.aio_wires import ThreadWire
from lockkit.runtime.run import run
from lockkit.runtime.wires import Lane, call
from lockkit.stores.memory import MemoryStore

WAITERS = 50


class Slow(MemoryStore):
    """A claim of "crowded" is in its step until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def async_wire(self, *, is_shared: bool = False) -> Any:
        return ThreadWire(lambda: None)

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        return call(lambda: self._acquire(request), route=request.token)

    def _acquire(self, request: Request) -> Grant | Busy | Gone:
        if request.name == "crowded":
            self.go_on.wait()
        return run(super().acquire(request), self.wire())

    def release(self, request: Request) -> Step[Release]:
        give = super().release
        return call(lambda: run(give(request), self.wire()), Lane.ENDING, request.token)

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        extend = super().extend
        return call(lambda: run(extend(requests), self.wire()), Lane.RENEWING)


async def test_slow_claims_hold_up_neither_a_renewal_nor_a_release() -> None:
    settings = settings_from_url("memory://", acquire_timeout=None)
    backend = Slow()
    client = AsyncLockClient(backend, settings)
    lease = await client.lock("stock:42").acquire()
    crowd = [asyncio.create_task(_pass(client)) for _ in range(WAITERS)]
    async with asyncio.timeout(30):
        await lease.extend()
        assert await lease.release()
    backend.go_on.set()
    async with asyncio.timeout(60):
        assert len(set(await asyncio.gather(*crowd))) == WAITERS
    await client.close()


async def _pass(client: AsyncLockClient) -> int:
    async with client.lock("crowded") as lease:
        return lease.fencing_token
