"""The asyncio API: the twin of ``lockkit``, awaited.

Two sets of classes, so that a forgotten ``await`` is a type error. Native on Redis; elsewhere the
steps run in worker threads. One client belongs to one event loop, that of its first lock.
"""

from __future__ import annotations

from lockkit.leases.aio_client import AsyncLease, AsyncLock, AsyncLockClient, connect

__all__ = ["AsyncLease", "AsyncLock", "AsyncLockClient", "connect"]
