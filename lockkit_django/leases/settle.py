"""What a coroutine still has to do when it fails or its client has gone, before a lock is free."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from asgiref.sync import sync_to_async

__all__ = ["to_its_end", "until_thread_is_idle"]


async def to_its_end(steps: Coroutine[Any, Any, None]) -> None:
    """Await what must be done even if the client has gone, however often it is cancelled.

    The thread that has the transaction lives no longer than the request: this may not outlive it.
    """
    task = asyncio.ensure_future(steps)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


async def until_thread_is_idle() -> None:
    """Wait until the thread with this request's connections has done what it was told.

    A ``sync_to_async`` that is cancelled ends at once, and its function runs on: it may be about
    to COMMIT.
    """
    await sync_to_async(_nothing, thread_sensitive=True)()


def _nothing() -> None:
    pass
