"""Coroutines over a store whose driver blocks: its steps are in threads."""

from __future__ import annotations

import asyncio
import threading

from lockkit.aio import AsyncLockClient
from lockkit.model.settings import settings_from_url
from lockkit.model.types import Busy, Gone, Grant, Request
from lockkit.stores.memory import MemoryBackend
from lockkit.stores.offload import OffloadedBackend

WAITERS = 50


class Slow(MemoryBackend):
    """Who claims "crowded" is in its step until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def acquire(self, request: Request) -> Grant | Busy | Gone:
        if request.name == "crowded":
            self.go_on.wait()
        return super().acquire(request)


async def test_slow_claims_hold_up_neither_a_renewal_nor_a_release() -> None:
    settings = settings_from_url("memory://", acquire_timeout=None)
    backend = Slow()
    client = AsyncLockClient(OffloadedBackend(backend), settings)
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
