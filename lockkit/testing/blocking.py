"""The asyncio API behind blocking calls, so that one test covers both APIs.

``connect("sync", …)`` and ``connect("async", …)`` return clients that you use alike. The second
drives ``lockkit.aio`` itself, on an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

import lockkit
from lockkit import aio
from lockkit.leases.kinds import RWLock
from lockkit.leases.multi import AsyncMultiLease, AsyncMultiLock
from lockkit.model.settings import AliasSettings, settings_from_url
from lockkit.model.types import UNSET, LeaseState, LockInfo, Unset
from lockkit.stores.registry import load_store
from lockkit.testing.protocols import AnyClient, AnyLease, AnyLock, AnyRWLock

if TYPE_CHECKING:
    from lockkit.engine.effects import Step
    from lockkit.stores.contract import Store

__all__ = [
    "AnyClient",
    "AnyLease",
    "AnyLock",
    "AnyRWLock",
    "Api",
    "BlockingClient",
    "client_of",
    "connect",
    "used_as",
]

Api = Literal["sync", "async"]
R = TypeVar("R")
L = TypeVar("L", aio.AsyncLease, AsyncMultiLease)


def connect(api: Api, url: str, **options: Any) -> AnyClient:
    """A client of the store at ``url`` through one of the two APIs."""
    settings = settings_from_url(url, **options)
    return client_of(api, load_store(settings), settings)


def client_of(api: Api, store: Store, settings: AliasSettings) -> AnyClient:
    """A client like that of ``connect``, of a store that is loaded already."""
    if api == "sync":
        client: AnyClient = lockkit.LockClient(store, settings)
        return client
    return BlockingClient(store, settings)


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


class BlockingClient:
    """``AsyncLockClient`` for threads. You can use it again after close(), like the original;
    stop() ends its loop as well."""

    def __init__(self, store: Store, settings: AliasSettings) -> None:
        self._loop = _Loop()
        self._client = self._loop.run(_client(store, settings))
        self.store = store

    def lock(self, name: str, **options: Any) -> _Lock:
        return _Lock(self._client.lock(name, **options), self._loop)

    def semaphore(self, name: str, permits: int, **options: Any) -> _Lock:
        return _Lock(self._client.semaphore(name, permits, **options), self._loop)

    def rwlock(self, name: str, **options: Any) -> RWLock[_Lock]:
        lock = self._client.rwlock(name, **options)
        return RWLock(_Lock(lock.read(), self._loop), _Lock(lock.write(), self._loop))

    def multi(self, *names: str, **options: Any) -> _MultiLock:
        return _MultiLock(self._client.multi(*names, **options), self._loop)

    def perform(self, step: Step[R]) -> R:
        return self._loop.run(self._client.perform(step))

    def holders(self, name: str | None = None) -> Iterator[LockInfo]:
        async def collect() -> list[LockInfo]:
            return [info async for info in self._client.holders(name)]

        return iter(self._loop.run(collect()))

    def inspect(self, name: str) -> LockInfo | None:
        return self._loop.run(self._client.inspect(name))

    def break_(self, name: str, *, fence: int, by: str = "") -> bool:
        return self._loop.run(self._client.break_(name, fence=fence, by=by))

    def close(self) -> None:
        self._loop.run(self._client.close())

    def stop(self) -> None:
        self.close()
        self._loop.stop()


async def _client(store: Store, settings: AliasSettings) -> aio.AsyncLockClient:
    return aio.AsyncLockClient(store, settings)


class _Lock:
    def __init__(self, lock: aio.AsyncLock, loop: _Loop) -> None:
        self._lock = lock
        self._loop = loop

    def acquire(self, timeout: float | None | Unset = UNSET) -> _Lease:
        return _Lease(self._loop.run(self._lock.acquire(timeout)), self._loop)

    def try_acquire(self) -> _Lease | None:
        lease = self._loop.run(self._lock.try_acquire())
        return None if lease is None else _Lease(lease, self._loop)


class _MultiLock:
    def __init__(self, lock: AsyncMultiLock, loop: _Loop) -> None:
        self._lock = lock
        self._loop = loop

    def acquire(self, timeout: float | None | Unset = UNSET) -> _MultiLease:
        return _MultiLease(self._loop.run(self._lock.acquire(timeout)), self._loop)

    def try_acquire(self) -> _MultiLease | None:
        leases = self._loop.run(self._lock.try_acquire())
        return None if leases is None else _MultiLease(leases, self._loop)


class _Held(Generic[L]):
    def __init__(self, lease: L, loop: _Loop) -> None:
        self._lease: L = lease
        self._loop = loop

    @property
    def lost(self) -> bool:
        return self._lease.lost

    @property
    def state(self) -> LeaseState:
        return self._lease.state

    def remaining(self) -> float:
        return self._lease.remaining()

    def check(self) -> None:
        self._lease.check()

    def extend(self, ttl: float | None = None) -> None:
        self._loop.run(self._lease.extend(ttl))

    def release(self) -> bool:
        return self._loop.run(self._lease.release())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.run(self._lease.__aexit__(kind, error, traceback))


class _Lease(_Held[aio.AsyncLease]):
    @property
    def name(self) -> str:
        return self._lease.name

    @property
    def token(self) -> str:
        return self._lease.token

    @property
    def fencing_token(self) -> int:
        return self._lease.fencing_token

    @property
    def shared(self) -> bool:
        return self._lease.shared

    @property
    def released(self) -> bool:
        return self._lease.released

    @released.setter
    def released(self, value: bool) -> None:
        self._lease.released = value

    def downgrade(self) -> None:
        self._loop.run(self._lease.downgrade())


class _MultiLease(_Held[AsyncMultiLease]):
    def __getitem__(self, name: str) -> _Lease:
        return _Lease(self._lease[name], self._loop)

    @property
    def names(self) -> tuple[str, ...]:
        return self._lease.names

    @property
    def released(self) -> bool:
        return self._lease.released
