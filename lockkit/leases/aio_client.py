"""The asyncio client, its locks and leases: the twins of those in ``client``, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from lockkit.engine import flow
from lockkit.leases.aio_exit import AtExit
from lockkit.leases.blocks import begun, enter, leave, leaving, unenter
from lockkit.leases.default_store import chosen_url
from lockkit.leases.kinds import Kinds
from lockkit.leases.lease import BaseLease, BaseLock, Terms, hold_of
from lockkit.model.clock import now
from lockkit.model.errors import AcquireTimeout, BackendError, ConfigurationError
from lockkit.model.log import log
from lockkit.model.options import ClientOptions, KindOptions
from lockkit.model.settings import settings_from_url
from lockkit.model.types import UNSET, Kind, LockInfo, Unset
from lockkit.model.values import check_fence
from lockkit.runtime import entrants, process
from lockkit.runtime.aio_driver import drive
from lockkit.runtime.aio_watchdog import AsyncWatchdog
from lockkit.runtime.hold import Hold
from lockkit.runtime.tokens import new_token
from lockkit.stores.registry import load_async_backend

if TYPE_CHECKING:
    from lockkit.leases.multi import AsyncMultiLock
    from lockkit.leases.reentry import Entry
    from lockkit.model.settings import AliasSettings
    from lockkit.stores.base import AsyncBackend

__all__ = ["AsyncLease", "AsyncLock", "AsyncLockClient", "connect"]

R = TypeVar("R")


def connect(url: str | None = None, **options: Unpack[ClientOptions]) -> AsyncLockClient:
    """The twin of ``lockkit.connect``. Nothing is connected before the first lock."""
    settings = settings_from_url(chosen_url() if url is None else url, **options)
    return AsyncLockClient(load_async_backend(settings), settings)


class AsyncLockClient(Kinds["AsyncLock"]):
    """Locks in one store, for the tasks of one event loop: that in which it is locked first.

    In another one ``acquire`` raises ConfigurationError, also when the first has ended: what renews
    the leases, and the connections, stay with it. ``lockkit.per_loop.PerLoop`` keeps one for each.
    After a fork the child goes on with the same client, in a loop of its own.
    """

    def __init__(self, backend: AsyncBackend, settings: AliasSettings) -> None:
        super().__init__(settings, backend.capabilities)
        self.backend = backend
        self._watchdog = AsyncWatchdog(lambda steps: drive(steps, backend, None))
        self._at_exit = AtExit(settings, self._watchdog)
        self._forget_loop()
        process.after_fork(self._forget_loop)

    def _forget_loop(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def multi(
        self, *names: str, kind: str = "mutex", **options: Unpack[KindOptions]
    ) -> AsyncMultiLock:
        """Several names at once, all or none. Arguments as in ``LockClient.multi``."""
        from lockkit.leases.multi import AsyncMultiLock, in_order

        return AsyncMultiLock([self._of_kind("multi()", kind, n, options) for n in in_order(names)])

    def holders(self, name: str | None = None) -> AsyncIterator[LockInfo]:
        """What is held, abandoned or queued for, streamed from the store, in no order."""
        return self.backend.holders(name)

    async def inspect(self, name: str) -> LockInfo | None:
        """What the store knows of one name; None if nothing."""
        return await anext(self.backend.holders(self._name(name)), None)

    async def last_words(self, name: str) -> list[LockInfo]:
        """How leases on it ended that were not released, in the last day."""
        return await self.backend.last_words(self._name(name))

    async def break_(self, name: str, *, fence: int, by: str = "") -> bool:
        """Release what somebody else holds, if it still is the grant with this fencing token."""
        return await self.backend.break_(self._name(name), check_fence(fence), process.operator(by))

    async def close(self) -> None:
        """Close connections. Leases still held are not released: they expire.

        Not an end: what is used again connects again.
        """
        await self._watchdog.stop()
        await self.backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _stay_in(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None:
            raise ConfigurationError(
                f"{self!r} belongs to the event loop that it was used in first, which would have "
                "to renew its leases: make a client in each loop (`async with aio.connect(…)`), "
                "or have lockkit.per_loop.PerLoop keep one for each"
            )
        self._loop = loop

    def _make(self, terms: Terms) -> AsyncLock:
        return AsyncLock(self, terms)

    async def _run(self, steps: Generator[flow.Step, flow.Reply, R]) -> R:
        return await drive(steps, self.backend, self._watchdog)


class AsyncLock(BaseLock):
    """A claim on a name, to be made any number of times, by any task. Holds nothing itself."""

    __slots__ = ("_client", "_entered")

    def __init__(self, client: AsyncLockClient, terms: Terms) -> None:
        super().__init__(terms)
        self._client = client
        self._entered: dict[int, list[AsyncLease]] = {}

    async def acquire(
        self,
        timeout: float | None | Unset = UNSET,  # noqa: ASYNC109  as Lock.acquire
        *,
        on_lost: Callable[[AsyncLease], object] | None = None,
    ) -> AsyncLease:
        """Wait for the lock and return the lease. Raises as ``Lock.acquire`` does, and a
        ConfigurationError in another event loop than the client's. Cancelling it leaves neither a
        lease nor a place in the queue.
        """
        is_reentrant = self.claim.kind is Kind.REENTRANT
        client = self._client
        if client._loop is not (loop := asyncio.get_running_loop()):
            client._stay_in(loop)
        tell = self.on_lost if on_lost is None else on_lost
        if is_reentrant and (again := await self._enter_again(tell)):
            return again
        wait = self.timeout if timeout is UNSET else client._timeout(timeout)
        request = self._request(client.settings, wait, process.owner_text(self.label, _task_name()))
        try:
            granted = await client._run(flow.acquire(request, wait, new_token))
        except AcquireTimeout as refusal:
            refusal.retry_after = client.retry_after(self.name)
            raise
        except (BackendError, ConfigurationError) as error:
            error.about(self.name)
            raise
        lease = AsyncLease(client, hold_of(granted))
        try:
            lease._tell_when_lost(tell)
            client._watchdog.watch(lease._hold)
            if is_reentrant:
                lease._entry = client._entries.begin(self._key(), lease._hold)
        except BaseException:  # interrupted
            await lease.release()
            raise
        return lease

    async def _enter_again(self, tell: Callable[[AsyncLease], object] | None) -> AsyncLease | None:
        """One lease more on what its owner holds in this process: most often without a request."""
        client = self._client
        lease = client._entries.enter(self._key(), lambda e: AsyncLease(client, e.hold, e))
        if lease is None or lease._entry is None:
            return None
        try:
            if lease._entry.is_too_short(self.ttl):
                await lease.extend(self.ttl)
                lease._entry.extended(self.ttl)
            if lease._tell_when_lost(tell):
                client._watchdog.watch(lease._hold)
        except BaseException:  # cancelled as well: nobody would leave this entry
            await lease.release()
            raise
        return lease

    def _is_inside(self) -> bool:
        """Whether it would be entered again."""
        return self.claim.kind is Kind.REENTRANT and self._client._entries.inside(self._key())

    def _itself(self) -> str:
        return entrants.of_task(asyncio.current_task())

    async def try_acquire(self) -> AsyncLease | None:
        """The lease, or None if somebody else has the lock. Every other failure raises."""
        try:
            return await self.acquire(timeout=0)
        except AcquireTimeout:
            return None

    async def __aenter__(self) -> AsyncLease:
        block = begun(self)
        lease = await self.acquire()
        try:
            return enter(self._entered, id(asyncio.current_task()), lease, block)
        except BaseException:  # interrupted: nobody will leave it
            unenter(self._entered, id(asyncio.current_task()), lease)
            await lease.release()
            raise

    @leaving
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await leave(self._entered, id(asyncio.current_task())).__aexit__(kind, error, traceback)


class AsyncLease(BaseLease):
    """A held, expiring claim; guarantee and limit as of ``Lease``.

    Renewed by a task of the event loop: code that blocks the loop for longer than two thirds of
    the TTL loses the lease. ``on_lost`` is called in the event loop, and may be a coroutine
    function; limits as of ``Lease``.
    """

    __slots__ = ("_client",)

    def __init__(self, client: AsyncLockClient, hold: Hold, entry: Entry | None = None) -> None:
        super().__init__(hold, entry)
        self._client = client

    async def extend(self, ttl: float | None = None) -> None:
        """Set what is left to ``ttl`` seconds (default: the lock's), also past max_hold.

        Renewal goes on when the lock's ttl is more than that. Raises LeaseLost.
        """
        self.check()
        seconds = self._hold.request.ttl if ttl is None else self._client._ttl(ttl)
        hold, client = self._hold, self._client
        try:
            await client._run(flow.extend(hold, seconds, now()))
        finally:
            client._watchdog.watch(hold)  # it may be due sooner than before

    async def downgrade(self) -> None:
        """The twin of ``Lease.downgrade``."""
        self._check_writer()
        await self._client._run(flow.downgrade(self._hold))

    async def release(self) -> bool:
        """Give it back. False if it was not ours any more, or was released before."""
        if not self._finish():
            return False
        if self._entry is not None and self._is_inner():
            return not self._hold.lost(now())
        client, hold = self._client, self._hold
        client._watchdog.unwatch(hold)
        if self._foreign:
            return False
        client.note_hold(self.name, now() - hold.granted)
        return await client._run(flow.release(hold))

    def _hand_over(self) -> None:
        """Somebody else renews and releases the claim from now on."""
        self._finish()
        self._client._watchdog.unwatch(self._hold)
        if self._entry is not None:
            self._entry.end()

    async def __aenter__(self) -> Self:
        self._block = begun(self)
        return self

    @leaving
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release. Raises LeaseLost if the lease was lost while the body went through."""
        if self.released:
            return
        try:
            kept = await self.release()
        except BackendError as failure:
            log.warning("release of %r not confirmed: %s", self.name, failure)
            return
        if not kept and kind is None:
            raise self._hold.loss(now())


def _task_name() -> str | None:
    task = asyncio.current_task()
    return None if task is None else task.get_name()
