"""Several names at once: all of them, or none.

The locks are taken one after the other in one order for everybody (the names' UTF-8 bytes), so two
callers who name them in opposite orders do not wait for each other for ever. Limit: that holds for
those who take all their names through one ``multi``; a holder of one lock that asks for more can
deadlock, until a timeout or a TTL ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockkit.engine.effects import Step
from lockkit.leases.blocks import TaskLock, ThreadLock
from lockkit.leases.lease import BaseLease
from lockkit.leases.multi_lease import AsyncMultiLease, MultiLease, releasing_all
from lockkit.model.checks import check_timeout
from lockkit.model.clock import now
from lockkit.model.errors import AcquireTimeout, BackendError
from lockkit.model.log import log
from lockkit.model.types import UNSET, Unset

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLock, AsyncLockClient
    from lockkit.leases.client import Lock, LockClient

__all__ = ["AsyncMultiLease", "AsyncMultiLock", "MultiLease", "MultiLock"]

Several = TypeVar("Several", MultiLease, AsyncMultiLease)


class _MultiLock(Generic[Several]):
    """A claim on several names. Holds nothing itself."""

    def __init__(self, client: Any, locks: Sequence[Any]) -> None:
        self._client = client
        self._locks = locks
        self._timeout: float | None = locks[0].timeout
        self._entered: dict[int, list[Several]] = {}

    def _acquiring(
        self, timeout: float | None | Unset, made: Callable[..., Several]
    ) -> Step[Several]:
        wait = self._timeout if timeout is UNSET else check_timeout("timeout", timeout)
        start = now()
        kept = [lock._kept() for lock in self._locks]
        leases: list[BaseLease] = []
        try:
            for lock in self._locks:
                left = None if wait is None else max(start + wait - now(), 0.0)
                lease = yield from lock._acquiring(left)
                leases.append(lease)
            return made(self._client, leases)
        except BaseException as error:  # interrupted as well: all or none
            yield from _giving_back([lease for lease in leases if lease not in kept])
            if isinstance(error, AcquireTimeout):
                error.waited = now() - start
            raise


def _giving_back(leases: Sequence[BaseLease]) -> Step[None]:
    for lease in leases:
        lease._kept_by = ()  # not until the end of a transaction
    try:
        yield from releasing_all(leases)
    except BackendError as failure:
        log.warning("release of %r not confirmed: %s", failure.name, failure)


class MultiLock(ThreadLock[MultiLease], _MultiLock[MultiLease]):
    """A claim on several names, made by ``client.multi``. Holds nothing itself."""

    _client: LockClient
    _locks: Sequence[Lock]

    def acquire(self, timeout: float | None | Unset = UNSET) -> MultiLease:
        """Wait for all within ``timeout`` seconds. Errors as of ``Lock.acquire``, which name the
        one that was not granted; then none is held."""
        return self._client.perform(self._acquiring(timeout, MultiLease))


class AsyncMultiLock(TaskLock[AsyncMultiLease], _MultiLock[AsyncMultiLease]):
    """As ``MultiLock``, awaited."""

    _client: AsyncLockClient
    _locks: Sequence[AsyncLock]

    async def acquire(
        self,
        timeout: float | None | Unset = UNSET,  # noqa: ASYNC109  (it leaves the store's queue)
    ) -> AsyncMultiLease:
        """As ``MultiLock.acquire``; cancelled, it holds none."""
        import asyncio

        self._client._stay_in(asyncio.get_running_loop())
        for lock in self._locks:
            await lock._allow()
        return await self._client.perform(self._acquiring(timeout, AsyncMultiLease))
