"""What runs the engine's flows: against blocking stores and clients, or awaiting them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from lockkit.errors import BackendError
from lockkit.idempotency.engine import Acquire, Find, Flow, Give, Step
from lockkit.log import log

if TYPE_CHECKING:
    from lockkit.aio import AsyncLease, AsyncLockClient
    from lockkit.client import Lease, LockClient
    from lockkit.idempotency.record import Record

__all__ = ["AsyncRecordStore", "RecordStore", "adrive", "agive", "drive", "give"]

R = TypeVar("R")


class RecordStore(Protocol):
    """Where records are. Raises BackendError when it is not to be reached."""

    def find(self, key: str, *, fresh: bool) -> Record | None: ...


class AsyncRecordStore(Protocol):
    """The twin of RecordStore."""

    async def find(self, key: str, *, fresh: bool) -> Record | None: ...


def drive(flow: Flow[R], store: RecordStore, locks: LockClient) -> R:
    """Run a flow to its end with blocking calls."""
    try:
        step = next(flow)
        while True:
            try:
                reply = _perform(step, store, locks)
            except BaseException as error:  # noqa: BLE001  the flow cleans up and re-raises
                step = flow.throw(error)
            else:
                step = flow.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _perform(step: Step, store: RecordStore, locks: LockClient) -> Record | Lease | None:
    match step:
        case Find(key, fresh):
            return store.find(key, fresh=fresh)
        case Acquire(order, timeout):
            return locks.lock(order.lock_name, label=order.label).acquire(timeout)
        case Give(lease):
            give(lease)
            return None


def give(lease: Lease) -> None:
    """Release; a store that cannot be told will let it expire, and that is logged by the lease."""
    try:
        lease.release()
    except BackendError as failure:
        _log_release(lease.name, failure)


async def adrive(flow: Flow[R], store: AsyncRecordStore, locks: AsyncLockClient) -> R:
    """Run a flow to its end, awaiting each step. A cancellation is thrown into the flow."""
    try:
        step = next(flow)
        while True:
            try:
                reply = await _aperform(step, store, locks)
            except BaseException as error:  # noqa: BLE001  the flow cleans up and re-raises
                step = flow.throw(error)
            else:
                step = flow.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def _aperform(
    step: Step, store: AsyncRecordStore, locks: AsyncLockClient
) -> Record | AsyncLease | None:
    match step:
        case Find(key, fresh):
            return await store.find(key, fresh=fresh)
        case Acquire(order, timeout):
            return await locks.lock(order.lock_name, label=order.label).acquire(timeout)
        case Give(lease):
            await agive(lease)
            return None


async def agive(lease: AsyncLease) -> None:
    """The twin of ``give``."""
    try:
        await lease.release()
    except BackendError as failure:
        _log_release(lease.name, failure)


def _log_release(name: str, failure: BackendError) -> None:
    log.warning("release of %r not confirmed: %s", name, failure)
