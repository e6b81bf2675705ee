"""Clients that know of Django's transactions: locks enclose them, never the other way round.

A lock acquired inside an open ``atomic()`` block is released before that block commits, so
somebody else can take it and read what was there before. Such an acquire raises OpenTransaction.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

from lockkit.leases.aio_client import AsyncLease
from lockkit.leases.aio_enclosing import AsyncEnclosingClient, AsyncEnclosingLock
from lockkit.leases.enclosing import EnclosingClient
from lockkit.leases.lease import give_back, give_back_async
from lockkit.leases.multi import AsyncMultiLease
from lockkit.runtime.aio_run import to_its_end
from lockkit_django.leases.transactions import refuse_open_transactions
from lockkit_django.leases.until import of_orders, open_transactions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from lockkit.leases.until import Transaction
    from lockkit.web.view_lock import AnyAsyncLease, AnyLease


ORDER: ContextVar[object] = ContextVar("lockkit_order", default=None)
"""The order that runs in this thread or task, whose connections may be in another thread."""


class DjangoLockClient(EnclosingClient):
    """``LockClient``, whose locks refuse to be acquired inside an open ``atomic()`` block."""

    _refuse = staticmethod(refuse_open_transactions)
    _transactions = staticmethod(open_transactions)

    @staticmethod
    def _orders() -> Sequence[Transaction]:
        return of_orders() if ORDER.get() is not None else ()


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

    @staticmethod
    def _in_order() -> bool:
        return getattr(ORDER.get(), "is_open", False)


async def give_back_from_loop(lease: AnyLease | AnyAsyncLease, *, when_idle: bool = False) -> None:
    """One of a blocking client's in a thread: the loop does not wait. ``when_idle``: a view that
    was cancelled may have left a query behind, which goes on in its thread."""
    try:
        if when_idle:
            await until_thread_is_idle()
    finally:
        if isinstance(lease, (AsyncLease, AsyncMultiLease)):
            await give_back_async(lease)
        else:
            await sync_to_async(give_back, thread_sensitive=False)(lease)


async def until_thread_is_idle() -> None:
    """Wait until the thread with this request's connections has done what it was told.

    A ``sync_to_async`` that is cancelled ends at once, and its function runs on: it may be about
    to COMMIT.
    """
    await sync_to_async(bool, thread_sensitive=True)()
