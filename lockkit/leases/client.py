"""The blocking API: a client makes locks, a lock makes leases, a lease says whether it still holds.

``aio_client`` is the same for asyncio. What they do is written once, as steps, in ``lock``,
``lease`` and ``multi``.
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
from lockkit.model.errors import LockError
from lockkit.model.names import check_name
from lockkit.model.options import KindOptions
from lockkit.model.types import UNSET, Grant, Granted, Kind, LockInfo, Release, Request, Unset
from lockkit.runtime import entrants, process
from lockkit.runtime.hold import Hold
from lockkit.runtime.run import run
from lockkit.runtime.watchdog import Watchdog
from lockkit.stores.contract import ProcessLocal, Sessioned
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
else:  # a name that is a text would be compiled, which takes a tenth of the import time
    _Kinds, _ThreadLock, _BaseLock = Kinds, ThreadLock, BaseLock

R = TypeVar("R")

REENTRANT, RELEASED = Kind.REENTRANT, Release.RELEASED  # looked up once: that takes time


class LockClient(_Kinds):
    """Locks in one store: ``lock``, ``semaphore``, ``rwlock``, ``multi``.

    Thread-safe; cheap to keep, so make one per process and alias.
    After a fork the child goes on with the same client: it opens connections of its own, and owns
    none of its parent's leases.
    """

    _watchdog: Watchdog

    def __init__(self, store: Store, settings: AliasSettings) -> None:
        super().__init__(store, settings)
        self._wire = store.wire()
        again, is_local = partial(load_store, settings), isinstance(store, ProcessLocal)
        self._watchdog = Watchdog(self._queue, self._wire, again, is_local=is_local)
        tell_doubts(self._wire, self._watchdog.doubt)

    def multi(self, *names: str, kind: str = "mutex", **options: Unpack[KindOptions]) -> MultiLock:
        """Several names at once, all or none: ``with client.multi("stock:a", "stock:b"):``

        kind: "mutex", "reentrant", "read", "write", or "semaphore" with ``permits``. Others as in
        ``lock``; ``timeout`` is for all together. The order of the names does not matter, and a
        name that is given twice counts once. Raises ConfigurationError.
        """
        from lockkit.leases.multi import MultiLock

        return MultiLock(self, self._several(names, kind, options))

    def perform(self, step: Step[R]) -> R:
        """Carry out one step of ``self.store``: see ``lockkit.stores.contract``."""
        return run(step, self._wire, self._watchdog.withdraw_later)

    def _acquire(
        self,
        store: Direct,
        request: Request,
        taken: Callable[[Granted], R],
        going_on: Callable[[Made], Step[R]],
    ) -> R:
        """Most often one exchange is enough, without the machinery of steps. Else a step goes on
        with its outcome. If interrupted anywhere, it leaves nothing behind.
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
        """As ``_acquire``, for a hold that was not over at ``sent``."""
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
        """All that is held, abandoned or queued for, streamed from the store, in no order."""
        page = self._listed.page
        infos, cursor = self.perform(page(name))
        while True:
            yield from infos
            if cursor is None:
                return
            infos, cursor = self.perform(page(name, cursor))

    def inspect(self, name: str) -> LockInfo | None:
        """What the store knows of one name; None if nothing."""
        return next(self.holders(check_name(name)), None)

    def last_words(self, name: str | None = None) -> Iterator[LockInfo]:
        """How leases ended without a release in the last day: they expired, or an operator broke
        them. Those of one name, or all. ``holders`` still has what expired in the last ten minutes.
        """
        return iter(self.perform(self._listed.last_words(name and check_name(name))))

    def break_(self, name: str, *, fence: int, by: str = "") -> bool:
        """Release what somebody else holds, if it still is the grant with this fencing token.

        For operators. The holder is not stopped: it hears of it at its next renewal. ``by`` says
        who did it, and why, in its LeaseLost and among the last words; default: this process.
        """
        who = process.operator(by)
        return self.perform(self._listed.break_(check_name(name), check_fence(fence), who))

    def repair(self, name: str) -> bool:
        """Delete the record of a name if it cannot be read; False: it can be. For operators.
        A holder is not stopped, and others can get the name from now on."""
        return self.perform(self._listed.repair(check_name(name)))

    def close(self) -> None:
        """Close connections. Leases still held expire; those of sessions end at once. Still usable:
        reconnects on demand."""
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
    """A claim on a name, to be made any number of times, from any thread. Holds nothing itself."""

    __slots__ = ()
    _client: LockClient

    def acquire(self, timeout: float | None | Unset = UNSET) -> Lease:
        """Wait for the lock and return the lease. ``timeout``: instead of the lock's.

        Raises LockHeld (timeout 0), AcquireTimeout or TooManyWaiters when somebody else has it;
        KindMismatch when the name is in use as another kind of lock; BackendUnavailable or
        OutcomeUnknown when the store fails. Then nothing is held, or at most for the TTL.
        """
        client, store = self._client, self._client._direct
        if store is None or self._usage.kind is REENTRANT:
            return client.perform(self._acquiring(timeout))
        self._permitted()
        wait = self.timeout if timeout is UNSET else check_timeout("timeout", timeout)
        request = self._request(client, wait)
        return client._acquire(
            store,
            request,
            self._leased,
            lambda first: self._acquiring(timeout, request, first),
        )

    def _itself(self) -> str:
        return entrants.of_thread()

    def _owner(self) -> str:
        return process.owner_text(self.label)


class Lease(BaseLease, ThreadLease):
    """A held, expiring claim. May be passed to, checked and released by any thread.

    It is renewed in the background until it is released, lost, or held for MAX_HOLD.
    Guarantee: while ``check()`` passes, the store has granted the name to nobody else. Limit: a
    process can be paused right after any check; only a fencing token, compared by the resource
    that is written to, stops such a writer.

    ``on_lost`` is called in a thread of the client, at the deadline at the latest, also while the
    store hangs, and when the store says that the claim is gone. Limits: it is not called if the
    lease is released or nobody has it any more, after the client's ``close``, or in a forked child.
    One that takes long keeps others of the same client waiting. Its errors are logged.
    """

    __slots__ = ()
    _client: LockClient

    def downgrade(self) -> None:
        """Make a writer a reader, in one step: others may read, and nobody wrote in between.

        Raises ConfigurationError if it is not a lease of a reader-writer lock, LeaseLost, or a
        BackendError: then it may be done or not, so do it again. A reader stays a reader.
        """
        self._client.perform(self._downgrading())

    def release(self) -> bool:
        client, hold, sent = self._client, self._hold, now()
        store = client._direct
        if store is None or self._entry or self._kept_by or hold.is_over(sent):
            return super().release()
        if not self._finish() or self._foreign:  # a fork made in C is only noticed there
            return False
        try:
            return client._release(store, hold, sent)
        finally:
            self._given_back()

    def _end(self, error: type[BaseException] | None) -> None:
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
        self._renew_mutex()
        process.after_fork(self._renew_mutex)

    def _renew_mutex(self) -> None:
        """The old one may be held by a thread that stayed in the parent."""
        self._mutex = threading.RLock()

    def __getitem__(self, key: str) -> C:
        """Raises ConfigurationError for a wrong key or setting."""
        client = self._clients.get(key)
        if client is None:
            with self._mutex:
                client = self._clients.get(key) or self._make(key)
                self._clients[key] = client
        return client
