"""The asyncio client, its locks and leases: like those in ``client``, but awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from lockkit.engine import holding
from lockkit.engine.effects import Exchange, Made, Step
from lockkit.engine.times import granted
from lockkit.leases.blocks import TaskLease, TaskLock
from lockkit.leases.default_store import connection_settings
from lockkit.leases.kinds import Kinds
from lockkit.leases.lease import BaseLease
from lockkit.leases.lock import BaseLock
from lockkit.model.checks import check_fence, check_timeout
from lockkit.model.clock import now
from lockkit.model.errors import BackendUnavailable, ConfigurationError, LockError
from lockkit.model.names import check_name
from lockkit.model.options import ClientOptions, KindOptions
from lockkit.model.types import UNSET, Grant, Granted, Kind, LockInfo, Release, Request, Unset
from lockkit.runtime import background, entrants, process
from lockkit.runtime.aio_notices import in_context
from lockkit.runtime.aio_run import arun
from lockkit.runtime.aio_watchdog import AsyncWatchdog
from lockkit.runtime.hold import Hold
from lockkit.stores.contract import Sessioned
from lockkit.stores.registry import load_store
from lockkit.stores.wires import tell_doubts

if TYPE_CHECKING:
    from lockkit.leases.client import LockClient
    from lockkit.leases.multi import AsyncMultiLock
    from lockkit.leases.reentry import Entry
    from lockkit.model.settings import AliasSettings
    from lockkit.stores.contract import Direct, Store

R = TypeVar("R")

REENTRANT, RELEASED = Kind.REENTRANT, Release.RELEASED  # once: enum members are slow to look up


def connect(
    url: str | None = None, *, client: object = None, **options: Unpack[ClientOptions]
) -> AsyncLockClient:
    """Like ``lockkit.connect``; ``client`` may also be a client of redis.asyncio."""
    settings = connection_settings(url, client, options)
    return AsyncLockClient(load_store(settings), settings)


class AsyncLockClient(Kinds["AsyncLock", "AsyncLease"]):
    """Makes locks in one store, for the tasks of one event loop: the loop of the first ``acquire``.

    In another loop ``acquire`` raises ConfigurationError, even after the first loop has ended:
    renewal and connections stay with that one. ``lockkit.per_loop.PerLoop`` keeps a client for each
    loop. A forked child can go on with the same client, in a loop of its own.
    """

    _watchdog: AsyncWatchdog
    _awaits = True

    def __init__(self, store: Store, settings: AliasSettings, *, is_shared: bool = False) -> None:
        """``is_shared``: this is beside a blocking client, and leaves open what both use."""
        super().__init__(store, settings)
        self._wire = store.async_wire(is_shared=is_shared)
        self._watchdog = AsyncWatchdog(self._queue, self._wire, partial(load_store, settings))
        tell_doubts(self._wire, self._watchdog.doubt)
        process.in_each_process(self._forget_loop)

    @classmethod
    def beside(cls, blocking: LockClient) -> Self:
        """A client of the same store, with the same settings."""
        return cls(blocking.store.for_asyncio(), blocking.settings, is_shared=True)

    def _forget_loop(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def multi(
        self, *names: str, kind: str = "mutex", **options: Unpack[KindOptions]
    ) -> AsyncMultiLock:
        """Several names at once, all or none. Arguments as in ``LockClient.multi``."""
        from lockkit.leases.multi import AsyncMultiLock

        return AsyncMultiLock(self, self._several(names, kind, options))

    async def perform(self, step: Step[R]) -> R:
        """Carry out one step of ``self.store``: see ``lockkit.stores.contract``."""
        try:
            return await arun(step, self._wire, self._watchdog.withdraw_later)
        except background.NoThread as error:  # the step has cleaned up
            raise BackendUnavailable(str(error)) from error

    async def _acquire(
        self,
        store: Direct,
        request: Request,
        taken: Callable[[Granted], R],
        going_on: Callable[[Made], Step[R]],
    ) -> R:
        """As ``LockClient._acquire``. If cancelled, it leaves nothing behind either."""
        sent, first, outcome = now(), None, None
        try:
            exchange = store.asked(request)
            if exchange is not None:
                outcome = store.answered(request, await self._exchanged(exchange))
            if type(outcome) is Grant and (found := granted(request, outcome, sent, now())):
                return taken(found)
            first = Made(sent, outcome)
            return await self.perform(going_on(first))
        except BaseException as error:  # also if cancelled or interrupted
            if first is not None and first.is_taken:
                raise
            first = Made(sent, store.unanswered(request, error))
            if isinstance(error, GeneratorExit):  # nothing can be awaited any more
                raise
        return await self.perform(going_on(first))

    async def _release(self, store: Direct, hold: Hold, sent: float) -> bool:
        """As ``LockClient._release``."""
        request, outcome = hold.request, None
        try:
            exchange = store.returned(request)
            if exchange is not None:
                outcome = store.taken_back(request, await self._exchanged(exchange))
            if outcome is RELEASED:
                return True
            made = Made(sent, outcome)
        except BaseException as error:  # also if cancelled or interrupted
            made = Made(sent, store.unanswered(request, error))
            if isinstance(error, GeneratorExit):
                raise
        return await self.perform(holding.release(self._queue, hold, made=made))

    async def _exchanged(self, exchange: Exchange) -> Any:
        """The reply. Raises a cancellation that a driver swallowed, as ``arun`` does."""
        task = asyncio.current_task()
        heard = task.cancelling() if task else 0
        reply = await self._wire.exchange(exchange)
        if task and task.cancelling() > heard:
            raise asyncio.CancelledError
        return reply

    async def holders(self, name: str | None = None) -> AsyncIterator[LockInfo]:
        """As ``LockClient.holders``: held and abandoned leases, and names with waiters."""
        page = self._listed.page
        infos, cursor = await self.perform(page(name))
        while True:
            await asyncio.sleep(0)  # else a store in memory would let no other task run
            for info in infos:
                yield info
            if cursor is None:
                return
            infos, cursor = await self.perform(page(name, cursor))

    async def inspect(self, name: str) -> LockInfo | None:
        """As ``LockClient.inspect``: what the store knows about one name; None: nothing."""
        return await anext(self.holders(check_name(name)), None)

    async def last_words(self, name: str | None = None) -> list[LockInfo]:
        """As ``LockClient.last_words``: leases that ended in the last day without a release."""
        return await self.perform(self._listed.last_words(name and check_name(name)))

    async def break_(self, name: str, *, fence: int, by: str = "") -> bool:
        """As ``LockClient.break_``: release somebody else's lease that has this fencing token."""
        who = process.operator(by)
        return await self.perform(self._listed.break_(check_name(name), check_fence(fence), who))

    async def repair(self, name: str, *, by: str = "", shown: LockInfo | None = None) -> bool:
        """As ``LockClient.repair``: delete the record of a name, if it cannot be read."""
        who = process.operator(by, repairs=True)
        return await self.perform(self._listed.repair(check_name(name), who, shown))

    async def close(self) -> None:
        """Close the connections. The client stays usable, and reconnects on demand.

        Leases that are still held are not renewed or released: they expire. In a store whose leases
        end with their connection, they end at once. This waits, 3 s at most, until claims of
        cancelled acquires are given back.
        """
        if isinstance(self.store, Sessioned):
            self._watchdog.give_up()
        try:
            await self._watchdog.stop()
        finally:  # also if it is cancelled
            await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _stay_in_loop(self, *, releases: bool = False) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        process.notice_fork()  # the loop of a parent process does not count
        if releases and (self._loop is None or self._loop.is_closed()):
            return
        if self._loop is not None:
            raise ConfigurationError(
                f"{self!r} belongs to the event loop that it was used in first, which would have "
                "to renew its leases: make a client in each loop (`async with aio.connect(…)`), "
                "or have lockkit.per_loop.PerLoop keep one for each"
            )
        self._loop = loop

    def _class(self) -> Callable[..., AsyncLock]:
        return AsyncLock

    def _lease(self, hold: Hold, entry: Entry | None = None) -> AsyncLease:
        return AsyncLease(self, hold, entry)

    async def _await_left_over(self, error: type[BaseException] | None) -> None:
        """For adapters: wait for the end of work that a block has begun and not awaited."""


class AsyncLock(TaskLock["AsyncLease"], BaseLock["AsyncLease"]):
    """Describes a claim on a name. Holds nothing, so any task may acquire it, repeatedly."""

    __slots__ = ()
    _client: AsyncLockClient

    async def acquire(
        self,
        timeout: float | None | Unset = UNSET,  # noqa: ASYNC109  as Lock.acquire
    ) -> AsyncLease:
        """Wait for the lock and return the lease. ``timeout``: seconds, instead of the lock's.

        Raises as ``Lock.acquire`` does, and ConfigurationError in another event loop than the
        client's. If it is cancelled, it leaves neither a lease nor a place in the queue.
        """
        client, store = self._client, self._client._direct
        client._stay_in_loop()
        await self._allow()
        if store is None or self._usage.kind is REENTRANT:
            return await client.perform(self._acquiring(timeout))
        self._permitted()
        wait = self.timeout if timeout is UNSET else check_timeout("timeout", timeout)
        request = self._request(client, wait)
        going_on = partial(self._asking, request, wait)
        return await client._acquire(store, request, self._leased, going_on)

    async def _allow(self) -> None:
        """The awaited form of ``_permitted``, for adapters."""

    def _itself(self) -> str:
        return entrants.of_task(asyncio.current_task())

    def _owner(self) -> str:
        task = asyncio.current_task()
        return process.owner_text(self.label, None if task is None else task.get_name())


class AsyncLease(BaseLease, TaskLease):
    """A held, expiring claim; guarantee and limit as in ``Lease``.

    A task of the event loop renews it: code that blocks the loop for longer than two thirds of
    the TTL loses the lease. ``on_lost`` is called in the event loop, and may be a coroutine
    function; limits as in ``Lease``.
    """

    __slots__ = ()
    _client: AsyncLockClient

    def _tell_when_lost(self, on_lost: Callable[[Any], object] | None) -> None:
        super()._tell_when_lost(on_lost and in_context(on_lost))

    async def downgrade(self) -> None:
        """As ``Lease.downgrade``."""
        self._client._stay_in_loop()
        await self._client.perform(self._downgrading())

    async def release(self) -> bool:
        client, store, hold, sent = self._client, self._client._direct, self._hold, now()
        client._stay_in_loop(releases=True)
        if store is None or self._entry or self._kept_by or hold.is_over(sent):
            return await super().release()
        if not self._finish() or self._foreign:  # as in ``Lease.release``
            return False
        try:
            return await client._release(store, hold, sent)
        finally:
            self._given_back()

    async def _end(self, error: type[BaseException] | None) -> None:
        self._ends_by(error)
        if self.released:
            return
        was_lost = self._overdue
        try:
            kept: bool | LockError = await self.release()
        except holding.UNTOLD as failure:
            kept = failure
        self._left(kept, error, was_lost)
