"""The asyncio API behind blocking calls, so that one test covers both APIs.

``connect("sync", …)`` and ``connect("async", …)`` return clients that you use alike. The second
drives ``lockkit.aio`` itself, on an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar, cast

from lockkit import aio
from lockkit.leases.client import Lease, Lock, LockClient
from lockkit.leases.kinds import RWLock
from lockkit.leases.multi import AsyncMultiLease, AsyncMultiLock, MultiLock
from lockkit.model.settings import AliasSettings, settings_from_url
from lockkit.stores.registry import load_store

if TYPE_CHECKING:
    from lockkit.stores.contract import Store

AnyClient: TypeAlias = LockClient
AnyLease: TypeAlias = Lease
AnyLock: TypeAlias = Lock
AnyMultiLock: TypeAlias = MultiLock
"""The blocking classes, or what has their methods and calls those of asyncio."""

LEASES = (aio.AsyncLease, AsyncMultiLease)
LOCKS = (aio.AsyncLock, AsyncMultiLock, RWLock)

Api = Literal["sync", "async"]
R = TypeVar("R")


def connect(api: Api, url: str, **options: Any) -> AnyClient:
    """A client of the store at ``url`` through one of the two APIs."""
    settings = settings_from_url(url, **options)
    return client_of(api, load_store(settings), settings)


def client_of(api: Api, store: Store, settings: AliasSettings) -> AnyClient:
    """A client like that of ``connect``, of a store that is loaded already."""
    kind = LockClient if api == "sync" else BlockingClient
    return cast("AnyClient", kind(store, settings))


def used_as(client: AnyClient, name: str, use: str) -> AnyLock:
    """A lock by its use: ``lock``, ``reentrant``, ``unfair``, ``semaphore:3``, ``read``, …"""
    kind, _, permits = use.partition(":")
    if kind == "semaphore":
        return client.semaphore(name, int(permits))
    if kind in ("lock", "reentrant", "unfair"):
        return client.lock(name, reentrant=kind == "reentrant", fair=kind != "unfair")
    rwlock = client.rwlock(name)
    return rwlock.read() if kind == "read" else rwlock.write()


class _Loop:
    """An event loop in a thread. A thread that calls ``run`` waits for the result."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, step: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(step, self.loop).result()

    def stop(self) -> None:
        self.run(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class _Blocking:
    """An object of the asyncio API. Its coroutines are run to their end, in its loop, and the locks
    and leases that it returns are wrapped likewise. Locks cannot begin a ``with`` statement."""

    def __init__(self, wrapped: Any, loop: _Loop) -> None:
        self._wrapped = wrapped
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        return partial(self._call, found) if callable(found) else found

    def __getitem__(self, name: str) -> Any:
        return self._result(self._wrapped[name])

    def _call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self._result(method(*args, **options))

    def _result(self, found: Any) -> Any:
        if inspect.iscoroutine(found):
            found = self._loop.run(found)
        elif inspect.isasyncgen(found):
            found = iter(self._loop.run(_all(found)))
        if isinstance(found, LEASES):
            return _BlockingLease(found, self._loop)
        return _Blocking(found, self._loop) if isinstance(found, LOCKS) else found


class _BlockingLease(_Blocking):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.run(self._wrapped.__aexit__(*error))


class BlockingClient(_Blocking):
    """``AsyncLockClient`` for threads. You can use it again after close(), like the original;
    stop() ends its loop as well."""

    def __init__(self, store: Store, settings: AliasSettings) -> None:
        loop = _Loop()
        super().__init__(loop.run(_client(store, settings)), loop)

    def stop(self) -> None:
        try:
            self._loop.run(self._wrapped.close())
        finally:
            self._loop.stop()


async def _client(store: Store, settings: AliasSettings) -> aio.AsyncLockClient:
    return aio.AsyncLockClient(store, settings)


async def _all(found: AsyncIterator[R]) -> list[R]:
    return [each async for each in found]
