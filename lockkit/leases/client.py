"""The blocking API: a client makes locks, a lock makes leases, a lease says whether it still holds.

``aio_client`` is the same for asyncio. The work of both is written once, as steps (see
``engine.effects``), in ``lock``, ``lease`` and ``multi``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypeVar, Unpack

from lockkit.engine import holding
from lockkit.engine.effects import Made, Step
from lockkit.engine.times import granted
from lockkit.leases.blocks import ThreadLease, ThreadLock
from lockkit.leases.kinds import Kinds
from lockkit.leases.lease import BaseLease
from lockkit.leases.lock import BaseLock
from lockkit.model.checks import check_fence, check_timeout
from lockkit.model.clock import now
from lockkit.model.errors import BackendUnavailable, LockError
from lockkit.model.names import check_name
from lockkit.model.options import KindOptions
from lockkit.model.types import UNSET, Grant, Granted, Kind, LockInfo, Release, Request, Unset
from lockkit.runtime import background, entrants, process
from lockkit.runtime.hold import Hold
from lockkit.runtime.run import run
from lockkit.runtime.watchdog import Watchdog
from lockkit.stores.contract import Sessioned
from lockkit.stores.registry import load_store
from lockkit.stores.wires import tell_doubts

if TYPE_CHECKING:
    from lockkit.leases.multi import MultiLock
    from lockkit.leases.reentry import Entry
    from lockkit.model.settings import AliasSettings
    from lockkit.stores.contract import Direct, Store

    _Kinds = Kinds["Lock", "Lease"]
    _ThreadLock = ThreadLock["Lease"]
    _BaseLock = BaseLock["Lease"]
else:  # typing would compile names in quotes: a tenth of the import time
    _Kinds, _ThreadLock, _BaseLock = Kinds, ThreadLock, BaseLock

R = TypeVar("R")

REENTRANT, RELEASED = Kind.REENTRANT, Release.RELEASED  # once: enum members are slow to look up


class LockClient(_Kinds):
    """Makes locks in one store: ``lock``, ``semaphore``, ``rwlock``, ``multi``.

    Thread-safe and cheap to keep, so make one per process and alias. A forked child can go on with
    the same client: it opens connections of its own, and owns none of its parent's leases.
    """

    _watchdog: Watchdog

    def __init__(self, store: Store, settings: AliasSettings) -> None:
        super().__init__(store, settings)
        self._wire = store.wire()
        again, is_local = partial(load_store, settings), store.is_within_process()
        self._watchdog = Watchdog(self._queue, self._wire, again, is_local=is_local)
        tell_doubts(self._wire, self._watchdog.doubt)

    def multi(self, *names: str, kind: str = "mutex", **options: Unpack[KindOptions]) -> MultiLock:
        """Several names at once, all or none: ``with client.multi("stock:a", "stock:b"):``

        kind: "mutex", "reentrant", "read", "write", or "semaphore" with ``permits``. The other
        options are those of ``lock``; ``timeout`` is for all names together. The order of the names
        does not matter, and a name that is given twice counts once. Raises ConfigurationError.
        """
        from lockkit.leases.multi import MultiLock

        return MultiLock(self, self._several(names, kind, options))

    def perform(self, step: Step[R]) -> R:
        """Carry out one step of ``self.store``: see ``lockkit.stores.contract``."""
        try:
            return run(step, self._wire, self._watchdog.withdraw_later)
        except background.NoThread as error:  # the step has cleaned up
            raise BackendUnavailable(str(error)) from error

    def _acquire(
        self,
        store: Direct,
        request: Request,
        taken: Callable[[Granted], R],
        going_on: Callable[[Made], Step[R]],
    ) -> R:
        """Steps are slow, and most often one exchange is enough: ``taken`` makes the result of its
        grant. Otherwise the step that ``going_on`` returns continues from the exchange's outcome.
        If this is interrupted anywhere, it leaves nothing behind.
        """
        sent, first, outcome = now(), None, None
        try:
            exchange = store.asked(request)
            if exchange is not None:
                outcome = store.answered(request, self._wire.exchange(exchange))
            if type(outcome) is Grant and (found := granted(request, outcome, sent, now())):
                return taken(found)
            first = Made(sent, outcome)
            return self.perform(going_on(first))
        except BaseException as error:  # also if interrupted
            if first is not None and first.is_taken:
                raise
            first = Made(sent, store.unanswered(request, error))
        return self.perform(going_on(first))

    def _release(self, store: Direct, hold: Hold, sent: float) -> bool:
        """One exchange or a step, as in ``_acquire``. At ``sent``, the hold was not over."""
        request, outcome = hold.request, None
        try:
            exchange = store.returned(request)
            if exchange is not None:
                outcome = store.taken_back(request, self._wire.exchange(exchange))
            if outcome is RELEASED:
                return True
            made = Made(sent, outcome)
        except BaseException as error:  # noqa: BLE001  also if interrupted
            made = Made(sent, store.unanswered(request, error))
        return self.perform(holding.release(self._queue, hold, made=made))

    def holders(self, name: str | None = None) -> Iterator[LockInfo]:
        """Yield a LockInfo for each lease that is held or abandoned (expired, and not taken since),
        and for each name that only has waiters, or only those of ``name``. In no order.

        Raises UnsupportedCapability if the store cannot list its leases, or a BackendError."""
        return (info for infos in self._pages(name) for info in infos)

    def _pages(self, name: str | None) -> Iterator[list[LockInfo]]:
        infos, cursor = self.perform(self._listed.page(name))
        yield infos
        while cursor is not None:
            infos, cursor = self.perform(self._listed.page(name, cursor))
            yield infos

    def inspect(self, name: str) -> LockInfo | None:
        """The LockInfo of one name (of several leases, one of them). None: nothing is known."""
        return next(self.holders(check_name(name)), None)

    def last_words(self, name: str | None = None) -> Iterator[LockInfo]:
        """Leases that ended in the last day without a release by their holders: they expired, or an
        operator released them. Of one name, or of all. Limits: a store keeps them for at most a
        thousand names, mostly only the latest of a name; some keep none. For ten minutes after it
        expired, a lease whose name nobody has taken is listed by ``holders``, and not here.
        """
        return iter(self.perform(self._listed.last_words(name and check_name(name))))

    def break_(self, name: str, *, fence: int, by: str = "") -> bool:
        """Release somebody else's lease, and return whether it still had this fencing token.

        For operators. This does not stop the holder, which hears of it at its next renewal. ``by``:
        who did it and why, for the holder's LeaseLost and the last words; default: this process.
        """
        who = process.operator(by)
        return self.perform(self._listed.break_(check_name(name), check_fence(fence), who))

    def repair(self, name: str, *, by: str = "", shown: LockInfo | None = None) -> bool:
        """Delete the record of a name, if it cannot be read; a plain key without a TTL gets the
        client's ttl. Returns whether it did. ``shown``: only what this info of ``holders`` shows.

        For operators. This does not stop a holder, and others can get the name from now on. ``by``:
        who did it and why, for the last words; default: this process."""
        who = process.operator(by, repairs=True)
        return self.perform(self._listed.repair(check_name(name), who, shown))

    def close(self) -> None:
        """Close the connections. The client stays usable, and reconnects on demand.

        Leases that are still held are not renewed or released: they expire. In a store whose leases
        end with their connection, they end at once.
        """
        if isinstance(self.store, Sessioned):
            self._watchdog.give_up()
        self._watchdog.stop()
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _class(self) -> Callable[..., Lock]:
        return Lock

    def _lease(self, hold: Hold, entry: Entry | None = None) -> Lease:
        return Lease(self, hold, entry)


class Lock(_ThreadLock, _BaseLock):
    """Describes a claim on a name. Holds nothing, so any thread may acquire it, repeatedly."""

    __slots__ = ()
    _client: LockClient

    def acquire(self, timeout: float | None | Unset = UNSET) -> Lease:
        """Wait for the lock and return the lease. ``timeout``: seconds, instead of the lock's.

        Raises LockHeld (timeout 0), AcquireTimeout or TooManyWaiters when somebody else has it;
        KindMismatch when the name is in use as another kind of lock; BackendUnavailable or
        OutcomeUnknown when the store fails. After an error this call holds nothing. After a failure
        of the store, the name may stay taken for up to the TTL.
        """
        client, store = self._client, self._client._direct
        if store is None or self._usage.kind is REENTRANT:
            return client.perform(self._acquiring(timeout))
        self._permitted()
        wait = self.timeout if timeout is UNSET else check_timeout("timeout", timeout)
        request = self._request(client, wait)
        going_on = partial(self._asking, request, wait)
        return client._acquire(store, request, self._leased, going_on)

    def _itself(self) -> str:
        return entrants.of_caller()

    def _owner(self) -> str:
        return process.owner_text(self.label)


class Lease(BaseLease, ThreadLease):
    """A held, expiring claim. Any thread may check, extend and release it.

    It is renewed in the background until it is released, lost, or held for MAX_HOLD seconds.
    Guarantee: while ``check()`` passes, the store has granted the name to nobody else. Limits: it
    knows of an operator's release only after the next renewal. A process may also be paused right
    after a check: only a fencing token that the resource compares stops such a writer.

    ``on_lost`` is called in a thread of the client: at the deadline, even while the store hangs, or
    earlier if the store says that the claim is gone. Limits: it is not called if the lease is
    released or nothing refers to it any more, after the client's ``close``, or in a forked child.
    A slow callback delays those of other leases of the client. Its errors are logged.
    """

    __slots__ = ()
    _client: LockClient

    def downgrade(self) -> None:
        """Turn a write lease into a read lease, in one step: nobody can write in between.

        Raises ConfigurationError if this is not a lease of a reader-writer lock, or LeaseLost.
        After a BackendError it may be a read lease or not: call this again. A read lease stays one.
        """
        self._client.perform(self._downgrading())

    def release(self) -> bool:
        client, hold, sent = self._client, self._hold, now()
        store = client._direct
        if store is None or self._entry or self._kept_by or hold.is_over(sent):
            return super().release()
        if not self._finish() or self._foreign:  # this notices a fork made in C
            return False
        try:
            return client._release(store, hold, sent)
        finally:
            self._given_back()

    def _end(self, error: type[BaseException] | None) -> None:
        self._ends_by(error)
        if self.released:
            return
        was_lost = self._overdue
        try:
            kept: bool | LockError = self.release()
        except holding.UNTOLD as failure:
            kept = failure
        self._left(kept, error, was_lost)


C = TypeVar("C", bound=LockClient)


class Clients(Generic[C]):
    """``clients[key]``: one client per key, for all threads and tasks of this process.

    A forked child goes on with the same clients, which make connections of their own.
    """

    def __init__(self, make: Callable[[str], C]) -> None:
        self._make = make
        self._clients: dict[str, C] = {}
        process.in_each_process(self._renew_mutex)

    def _renew_mutex(self) -> None:
        """In a forked child: a thread that exists only in the parent may hold the old one."""
        self._mutex = threading.RLock()

    def __getitem__(self, key: str) -> C:
        """Raises ConfigurationError for a wrong key or setting."""
        client = self._clients.get(key)
        if client is None:
            with self._mutex:
                client = self._clients.get(key) or self._make(key)
                client = self._clients.setdefault(key, client)  # a signal handler may be first
        return client
