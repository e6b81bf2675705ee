"""The asyncio API: like ``lockkit``, but its calls are awaited.

It has classes of its own, so that a forgotten ``await`` is a type error. Databases, and blocking
clients that you hand to ``connect``, are called in worker threads. A client belongs to the event
loop in which it acquires its first lock.
"""

from __future__ import annotations

from lockkit.leases.aio_client import AsyncLease, AsyncLock, AsyncLockClient, connect

__all__ = ["AsyncLease", "AsyncLock", "AsyncLockClient", "connect"]
