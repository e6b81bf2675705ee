"""What runs the engine's flows: against blocking stores and clients, or awaiting them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from lockkit.model.errors import BackendError
from lockkit.model.log import log
from lockkit.orders.facts import Order, ResponseFacts
from lockkit.orders.steps import Acquire, Claim, Drop, Find, Finish, Flow, Give, Recover, Step
from lockkit.runtime.aio_driver import to_its_end

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.leases.client import LockClient
    from lockkit.orders.record import Record
    from lockkit.web.views import AnyAsyncLease, AnyLease

__all__ = [
    "AsyncClaimStore",
    "AsyncRecordStore",
    "AsyncRecoverHook",
    "ClaimStore",
    "RecordStore",
    "RecoverHook",
    "adrive",
    "agive",
    "drive",
    "give",
]

R = TypeVar("R")

RecoverHook = Callable[[Order], ResponseFacts | None]
AsyncRecoverHook = Callable[[Order], Awaitable[ResponseFacts | None]]


class RecordStore(Protocol):
    """Where records are. Raises BackendError when it is not to be reached."""

    def find(self, key: str, *, fresh: bool) -> Record | None: ...


class ClaimStore(RecordStore, Protocol):
    """Records that are no part of a transaction: claimed before the view, finished after it.

    ``fence``: the fencing token of the order's lease. All steps may be repeated.
    """

    def start(self, record: Record, fence: int, *, replaces: bool) -> None:
        """Write a record, in one step with the proof that the lease is held.

        Raises LeaseLost: it is not held, nothing was written. Raises DuplicateKeyError: there is
        another record; with ``replaces``, only one that is not left running by an older lease.
        """

    def finish(self, record: Record, fence: int) -> bool:
        """Write the end over the claim with this fence. False: the claim is not there any more."""

    def drop(self, key: str, fence: int) -> bool:
        """Forget the running claim with this fence. False: it is not there."""


class AsyncRecordStore(Protocol):
    """The twin of RecordStore."""

    async def find(self, key: str, *, fresh: bool) -> Record | None: ...


class AsyncClaimStore(AsyncRecordStore, Protocol):
    """The twin of ClaimStore."""

    async def start(self, record: Record, fence: int, *, replaces: bool) -> None: ...

    async def finish(self, record: Record, fence: int) -> bool: ...

    async def drop(self, key: str, fence: int) -> bool: ...


def drive(
    flow: Flow[R],
    store: RecordStore | ClaimStore,
    locks: LockClient,
    recover: RecoverHook | None = None,
) -> R:
    """Run a flow to its end with blocking calls.

    ``store``: a ClaimStore if the settings say STORE "redis". ``recover``: asks the application.
    """
    try:
        step = next(flow)
        while True:
            try:
                reply = _perform(step, store, locks, recover)
            except BaseException as error:  # noqa: BLE001  the flow cleans up and re-raises
                step = flow.throw(error)
            else:
                step = flow.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _perform(
    step: Step, store: RecordStore, locks: LockClient, recover: RecoverHook | None
) -> object:
    match step:
        case Find(key, fresh):
            return store.find(key, fresh=fresh)
        case Acquire(order, timeout):
            return locks.lock(order.lock_name, label=order.label).acquire(timeout)
        case Give(lease):
            give(lease)
            return None
        case Recover(order):
            return None if recover is None else recover(order)
        case _:
            return _write(step, cast("ClaimStore", store))


def _write(step: Claim | Finish | Drop, store: ClaimStore) -> bool:
    match step:
        case Claim(record, fence, replaces):
            store.start(record, fence, replaces=replaces)
            return True
        case Finish(record, fence):
            return store.finish(record, fence)
        case Drop(key, fence):
            try:
                return store.drop(key, fence)
            except BackendError as failure:
                _log_drop(failure)
                return False


def give(lease: AnyLease) -> None:
    """Release; a store that cannot be told will let it expire, and that is logged by the lease."""
    try:
        lease.release()
    except BackendError as failure:
        _log_release(lease.name, failure)


async def adrive(
    flow: Flow[R],
    store: AsyncRecordStore | AsyncClaimStore,
    locks: AsyncLockClient,
    recover: AsyncRecoverHook | None = None,
) -> R:
    """Run a flow to its end, awaiting each step. A cancellation is thrown into the flow."""
    try:
        step = next(flow)
        while True:
            try:
                reply = await _aperform(step, store, locks, recover)
            except BaseException as error:  # noqa: BLE001  the flow cleans up and re-raises
                step = flow.throw(error)
            else:
                step = flow.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def _aperform(
    step: Step,
    store: AsyncRecordStore,
    locks: AsyncLockClient,
    recover: AsyncRecoverHook | None,
) -> object:
    match step:
        case Find(key, fresh):
            return await store.find(key, fresh=fresh)
        case Acquire(order, timeout):
            return await locks.lock(order.lock_name, label=order.label).acquire(timeout)
        case Give(lease):
            await agive(lease)
            return None
        case Recover(order):
            return None if recover is None else await recover(order)
        case _:
            return await _awrite(step, cast("AsyncClaimStore", store))


async def _awrite(step: Claim | Finish | Drop, store: AsyncClaimStore) -> bool:
    match step:
        case Claim(record, fence, replaces):
            await store.start(record, fence, replaces=replaces)
            return True
        case Finish(record, fence):
            return await store.finish(record, fence)
        case Drop():
            return await to_its_end(_adrop(step, store))


async def _adrop(step: Drop, store: AsyncClaimStore) -> bool:
    try:
        return await store.drop(*step)
    except BackendError as failure:
        _log_drop(failure)
        return False


async def agive(lease: AnyAsyncLease) -> None:
    """The twin of ``give``."""
    try:
        await lease.release()
    except BackendError as failure:
        _log_release(lease.name, failure)


def _log_release(name: str, failure: BackendError) -> None:
    log.warning("release of %r not confirmed: %s", name, failure)


def _log_drop(failure: BackendError) -> None:
    log.error("the claim of an order is not forgotten, so it is an orphan: %s", failure)
