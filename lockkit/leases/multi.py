"""Several names at once: all of them, or none.

The locks are taken one after the other in one order for everybody (the names' UTF-8 bytes), so two
callers who name them in opposite orders do not wait for each other for ever. Limit: that holds for
those who take all their names through one ``multi``; who holds a lock and then asks for more can
deadlock, until a timeout or a TTL ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from lockkit.leases.blocks import begun, enter, leave, leaving, unenter
from lockkit.leases.budget import Budget
from lockkit.leases.multi_lease import AsyncMultiLease, MultiLease, arelease_all, release_all
from lockkit.model.errors import AcquireTimeout, BackendError, ConfigurationError
from lockkit.model.log import log
from lockkit.model.types import UNSET, Unset
from lockkit.model.values import check_timeout

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLease, AsyncLock
    from lockkit.leases.client import Lease, Lock

__all__ = ["AsyncMultiLease", "AsyncMultiLock", "MultiLease", "MultiLock", "in_order"]


def in_order(names: Sequence[str]) -> list[str]:
    """Each name once, in the order in which everybody takes them. Raises ConfigurationError."""
    if not names:
        raise ConfigurationError("a multi-lock needs at least one name")
    for name in names:
        if not isinstance(name, str):
            raise ConfigurationError(f"{name!r} is not a lock name: multi('a', 'b')")
    return sorted(set(names), key=lambda name: name.encode("utf-8", "surrogatepass"))


class MultiLock:
    """A claim on several names, made by ``client.multi``. Holds nothing itself."""

    def __init__(self, locks: Sequence[Lock]) -> None:
        self._locks = locks
        self._timeout = locks[0].timeout
        self._entered: dict[int, list[MultiLease]] = {}

    def acquire(self, timeout: float | None | Unset = UNSET) -> MultiLease:
        """Wait for all within ``timeout`` seconds. Errors as of ``Lock.acquire``, which name the
        one that was not granted; then none is held."""
        budget = Budget(self._timeout if timeout is UNSET else check_timeout("timeout", timeout))
        kept = [lock._kept() for lock in self._locks]
        leases: list[Lease] = []
        try:
            for lock in self._locks:
                leases.append(lock.acquire(budget.left()))  # noqa: PERF401  kept if the next fails
            return MultiLease(leases)
        except BaseException as error:  # interrupted as well: all or none
            _give_back([lease for lease in leases if lease not in kept])
            if isinstance(error, AcquireTimeout):
                error.waited = budget.waited
            raise

    def try_acquire(self) -> MultiLease | None:
        """All of them at once, or None if somebody has one. Every other failure raises."""
        try:
            return self.acquire(timeout=0)
        except AcquireTimeout:
            return None

    def __enter__(self) -> MultiLease:
        block = begun(self)
        leases = self.acquire()
        try:
            return enter(self._entered, threading.get_ident(), leases, block)
        except BaseException:  # interrupted: nobody will leave them
            unenter(self._entered, threading.get_ident(), leases)
            leases.release()
            raise

    @leaving
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        leave(self._entered, threading.get_ident()).__exit__(kind, error, traceback)


def _give_back(leases: Sequence[Lease]) -> None:
    for lease in leases:
        lease._kept_by = ()  # not until the end of a transaction
    try:
        release_all(leases)
    except BackendError as failure:
        log.warning("release of %r not confirmed: %s", failure.name, failure)


class AsyncMultiLock:
    """The twin of ``MultiLock``."""

    def __init__(self, locks: Sequence[AsyncLock]) -> None:
        self._locks = locks
        self._timeout = locks[0].timeout
        self._entered: dict[int, list[AsyncMultiLease]] = {}

    async def acquire(
        self,
        timeout: float | None | Unset = UNSET,  # noqa: ASYNC109  (it leaves the store's queue)
    ) -> AsyncMultiLease:
        """The twin of ``MultiLock.acquire``; cancelled, it holds none."""
        budget = Budget(self._timeout if timeout is UNSET else check_timeout("timeout", timeout))
        leases: list[AsyncLease] = []
        try:
            for lock in self._locks:
                leases.append(await lock.acquire(budget.left()))  # noqa: PERF401  as above
            return AsyncMultiLease(leases)
        except BaseException as error:  # cancelled as well: all or none
            await _agive_back(leases)
            if isinstance(error, AcquireTimeout):
                error.waited = budget.waited
            raise

    async def try_acquire(self) -> AsyncMultiLease | None:
        """The twin of ``MultiLock.try_acquire``."""
        try:
            return await self.acquire(timeout=0)
        except AcquireTimeout:
            return None

    async def __aenter__(self) -> AsyncMultiLease:
        block = begun(self)
        leases = await self.acquire()
        try:
            return enter(self._entered, _task(), leases, block)
        except BaseException:  # interrupted: nobody will leave them
            unenter(self._entered, _task(), leases)
            await leases.release()
            raise

    @leaving
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await leave(self._entered, _task()).__aexit__(kind, error, traceback)


async def _agive_back(leases: Sequence[AsyncLease]) -> None:
    try:
        await arelease_all(leases)
    except BackendError as failure:
        log.warning("release of %r not confirmed: %s", failure.name, failure)


def _task() -> int:
    """A key for the current task. asyncio is there if there is one."""
    import asyncio

    return id(asyncio.current_task())
