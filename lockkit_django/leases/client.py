"""Clients that know of Django's transactions: locks enclose them, never the other way round.

A lock acquired inside an open ``atomic()`` block is released before that block commits, so
somebody else can take it and read what was there before. Such an acquire raises OpenTransaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

from lockkit.leases.enclosing import AsyncEnclosingClient, AsyncEnclosingLock, EnclosingClient
from lockkit_django.leases.settle import to_its_end, until_thread_is_idle
from lockkit_django.leases.transactions import refuse_open_transactions
from lockkit_django.leases.until import open_transactions

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["AsyncDjangoLockClient", "DjangoLockClient"]


class DjangoLockClient(EnclosingClient):
    """``LockClient``, whose locks refuse to be acquired inside an open ``atomic()`` block."""

    _refuse = staticmethod(refuse_open_transactions)
    _transactions = staticmethod(open_transactions)


class _AsyncDjangoLock(AsyncEnclosingLock):
    __slots__ = ()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is not None:  # a query that was cancelled goes on in its thread
                await to_its_end(until_thread_is_idle())
        finally:
            await super().__aexit__(kind, error, traceback)


class AsyncDjangoLockClient(AsyncEnclosingClient):
    """The async twin of ``DjangoLockClient``."""

    _lock_class = _AsyncDjangoLock

    @staticmethod
    async def _refuse(name: str) -> None:
        """The block would be in the thread that Django runs this coroutine's queries in."""
        await sync_to_async(refuse_open_transactions, thread_sensitive=True)(name)
