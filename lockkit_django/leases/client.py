"""``locks`` and ``alocks``: a client for each alias of the settings. ``@locked`` uses them.

They know of Django's transactions: locks enclose them, never the other way round. A lock acquired
inside an open ``atomic()`` block is released before that block commits, so somebody else can take
it and read what was there before. Such an acquire raises OpenTransaction.

Django's own handlers keep one connection per thread and task. A lock client is made to be shared,
so ``locks`` keeps one per process and alias, and ``alocks`` one per event loop and alias.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from asgiref.sync import AsyncToSync, SyncToAsync, sync_to_async
from django.core.signals import setting_changed

from lockkit.leases.aio_client import AsyncLease
from lockkit.leases.aio_enclosing import AsyncClientsByAlias, AsyncEnclosingClient
from lockkit.leases.decorated import LockedOptions
from lockkit.leases.decorator import locked_with
from lockkit.leases.enclosing import ClientsByAlias, EnclosingClient
from lockkit.leases.lease import give_back, give_back_async
from lockkit.leases.multi import AsyncMultiLease
from lockkit.model.log import log
from lockkit.runtime.aio_run import to_its_end
from lockkit_django.conf import lock_settings
from lockkit_django.leases.transactions import ORDER, refuse_open_transactions
from lockkit_django.leases.until import of_orders, open_transactions

if TYPE_CHECKING:
    from lockkit.web.view_lock import AnyAsyncLease, AnyLease

PATIENCE = 5.0
"""Seconds that a lock is held after the end of an async view, or after an error in a block, while
a query that was given up may still run. Not longer: a task that the view left behind may wait in
that thread for this lock."""

LOOK_SECONDS = 0.2
"""Seconds that an async lock waits for a thread that all tasks share, to see whether a transaction
is open there. They come on top of the timeout of the lock."""

RESETTING = ("LOCKKIT", "DATABASES", "CACHES")
"""If ``override_settings`` changes one of these settings, the clients are made anew."""


class DjangoLockClient(EnclosingClient):
    """``LockClient``, whose locks refuse to be acquired inside an open ``atomic()`` block."""

    _refuse = staticmethod(refuse_open_transactions)
    _transactions = staticmethod(open_transactions)
    _orders = staticmethod(of_orders)


class AsyncDjangoLockClient(AsyncEnclosingClient):
    """The async twin of ``DjangoLockClient``."""

    @staticmethod
    async def _refuse(name: str) -> None:
        """Look in the thread in which Django runs this coroutine's queries. If all tasks share it,
        it may work for another one: then LOOK_SECONDS at most."""
        look = sync_to_async(refuse_open_transactions, thread_sensitive=True)(name)
        if has_own_thread():
            await look
        else:
            try:
                await asyncio.wait_for(look, LOOK_SECONDS)
            except TimeoutError:
                log.warning(
                    "nobody looked for an open transaction before %r is acquired: the thread that "
                    "all tasks share works for another one",
                    name,
                )

    @staticmethod
    def _in_order() -> bool:
        return getattr(ORDER.get(), "is_open", False)

    async def _await_left_over(self, error: type[BaseException] | None) -> None:
        """After an error, wait for what still runs in the thread; not for ever if all tasks share
        it, where another one may be waiting for this very lock. So it does not wait after a normal
        end either."""
        if error is not None:
            patience = None if has_own_thread() else PATIENCE
            await to_its_end(until_thread_is_idle("a lock", patience))


locks = ClientsByAlias(lock_settings, DjangoLockClient)
alocks = AsyncClientsByAlias(locks, AsyncDjangoLockClient)
locked = locked_with(locks.__getitem__, alocks.__getitem__, LockedOptions.__optional_keys__)


def reset(*, setting: str = "LOCKKIT", **_: Any) -> None:
    """Close and forget all clients. ``override_settings`` calls it."""
    if setting in RESETTING:
        locks.reset()
        alocks.clear()


setting_changed.connect(reset, dispatch_uid="lockkit_django.leases.client")


async def give_back_from_loop(
    lease: AnyLease | AnyAsyncLease, *, when_idle: bool = False, patience: float | None = None
) -> None:
    """Release a lease from an event loop. That of a blocking client is released in a thread, so the
    loop does not wait. ``when_idle``: first wait for a query that the view may have left in its
    thread, at most ``patience`` seconds (None: for ever)."""
    try:
        if when_idle:
            await until_thread_is_idle(repr(lease.name), patience)
    finally:
        if isinstance(lease, (AsyncLease, AsyncMultiLease)):
            await give_back_async(lease)
        else:
            await sync_to_async(give_back, thread_sensitive=False)(lease)


async def until_thread_is_idle(shown: str = "", patience: float | None = None) -> None:
    """Wait until the thread with this request's connections has finished its work; for at most
    ``patience`` seconds (None: for ever), and then warn that ``shown`` is released.

    A ``sync_to_async`` that is cancelled ends at once, but its function runs on: it may be about
    to COMMIT. The view may catch the cancellation, such as that of ``asyncio.timeout``.
    """
    try:
        await asyncio.wait_for(sync_to_async(bool, thread_sensitive=True)(), patience)
    except TimeoutError:
        log.warning(
            "%s is released while the thread of its queries works: its view or block ended %g s "
            "ago, and what it left behind may wait for this lock, or commit without it",
            shown,
            patience,
        )


def has_own_thread() -> bool:
    """Whether the thread with this task's connections works for one request, or for one call of
    ``async_to_sync``. All other tasks of a process share one, which may be busy for long."""
    if SyncToAsync.thread_sensitive_context.get(None) is not None:
        return True
    return getattr(AsyncToSync.executors, "current", None) is not None
