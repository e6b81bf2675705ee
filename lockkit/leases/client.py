"""The blocking API: a client makes locks, a lock makes leases, a lease says whether it still holds.

``aio_client`` is the same for asyncio; what both need lives in ``flow`` and ``lease``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from lockkit.engine import flow
from lockkit.leases.blocks import begun, enter, leave, leaving, unenter
from lockkit.leases.kinds import Kinds
from lockkit.leases.lease import BaseLease, BaseLock, Terms, hold_of
from lockkit.leases.renewing import RenewingBackend
from lockkit.model.clock import now
from lockkit.model.errors import AcquireTimeout, BackendError, ConfigurationError
from lockkit.model.log import log
from lockkit.model.options import KindOptions
from lockkit.model.types import UNSET, Kind, LockInfo, Unset
from lockkit.model.values import check_fence
from lockkit.runtime import entrants, process
from lockkit.runtime.driver import drive
from lockkit.runtime.hold import Hold
from lockkit.runtime.tokens import new_token
from lockkit.runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from lockkit.leases.multi import MultiLock
    from lockkit.leases.reentry import Entry
    from lockkit.model.settings import AliasSettings
    from lockkit.stores.base import Backend

__all__ = ["Lease", "Lock", "LockClient"]

R = TypeVar("R")


class LockClient(Kinds["Lock"]):
    """Locks in one store: ``lock``, ``semaphore``, ``multi``.

    Thread-safe; cheap to keep, so make one per process and alias.
    After a fork the child goes on with the same client: it opens connections of its own, and owns
    none of its parent's leases.
    """

    def __init__(self, backend: Backend, settings: AliasSettings) -> None:
        super().__init__(settings, backend.capabilities)
        self.backend = backend
        renewing = RenewingBackend(backend, settings)
        self._watchdog = Watchdog(lambda steps: drive(steps, renewing.get(), None), renewing.close)

    def multi(self, *names: str, kind: str = "mutex", **options: Unpack[KindOptions]) -> MultiLock:
        """Several names at once, all or none: ``with client.multi("stock:a", "stock:b"):``

        Arguments as of ``of_kind``; ``timeout`` is for all together. The order and the number of
        times in which the names are given do not matter. Raises ConfigurationError.
        """
        from lockkit.leases.multi import MultiLock, in_order

        return MultiLock([self._of_kind("multi()", kind, n, options) for n in in_order(names)])

    def holders(self, name: str | None = None) -> Iterator[LockInfo]:
        """What is held, abandoned or queued for, streamed from the store, in no order."""
        return self.backend.holders(name)

    def inspect(self, name: str) -> LockInfo | None:
        """What the store knows of one name; None if nothing."""
        return next(iter(self.backend.holders(self._name(name))), None)

    def last_words(self, name: str | None = None) -> Iterator[LockInfo]:
        """How leases ended that were not released: of the last day and at most a thousand names,
        or of one. What has expired less than ten minutes ago is still among the ``holders``."""
        return self.backend.last_words(name if name is None else self._name(name))

    def break_(self, name: str, *, fence: int, by: str = "") -> bool:
        """Release what somebody else holds, if it still is the grant with this fencing token.

        For operators. The holder is not stopped: it hears of it at its next renewal. ``by`` says
        who did it, and why, in its LeaseLost and among the last words; default: this process.
        """
        return self.backend.break_(self._name(name), check_fence(fence), process.operator(by))

    def repair(self, name: str) -> bool:
        """Delete what is kept of a name, for operators, if it cannot be read; False: it can be.
        A holder is not stopped, and others can get the name from now on."""
        return self.backend.repair(self._name(name))

    def close(self) -> None:
        """Close connections. Leases still held expire. It may be used again, and connects then."""
        self._watchdog.stop()
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self, terms: Terms) -> Lock:
        return Lock(self, terms)

    def _run(self, steps: Generator[flow.Step, flow.Reply, R]) -> R:
        return drive(steps, self.backend, self._watchdog)


class Lock(BaseLock):
    """A claim on a name, to be made any number of times, from any thread. Holds nothing itself."""

    __slots__ = ("_client", "_entered")

    def __init__(self, client: LockClient, terms: Terms) -> None:
        super().__init__(terms)
        self._client = client
        self._entered: dict[int, list[Lease]] = {}

    def acquire(
        self,
        timeout: float | None | Unset = UNSET,
        *,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> Lease:
        """Wait for the lock and return the lease. Arguments, if given, instead of the lock's.

        Raises LockHeld (timeout 0), AcquireTimeout or TooManyWaiters when somebody else has it;
        KindMismatch when the name is in use as another kind of lock; BackendUnavailable or
        OutcomeUnknown when the store fails. Then nothing is held, or at most for the TTL.
        """
        is_reentrant = self.claim.kind is Kind.REENTRANT
        client = self._client
        tell = self.on_lost if on_lost is None else on_lost
        if is_reentrant and (again := self._enter_again(tell)):
            return again
        wait = self.timeout if timeout is UNSET else client._timeout(timeout)
        request = self._request(client.settings, wait, process.owner_text(self.label))
        try:
            granted = client._run(flow.acquire(request, wait, new_token))
        except AcquireTimeout as refusal:
            refusal.retry_after = client.retry_after(self.name)
            raise
        except (BackendError, ConfigurationError) as error:
            error.about(self.name)
            raise
        lease = Lease(client, hold_of(granted))
        try:
            lease._tell_when_lost(tell)
            client._watchdog.watch(lease._hold)
            if is_reentrant:
                lease._entry = client._entries.begin(self._key(), lease._hold)
        except BaseException:  # interrupted, or no thread can be started to renew it
            lease.release()
            raise
        return lease

    def _enter_again(self, tell: Callable[[Lease], object] | None) -> Lease | None:
        """One lease more on what its owner holds in this process: most often without a request."""
        client = self._client
        lease = client._entries.enter(self._key(), lambda e: Lease(client, e.hold, e))
        if lease is None or lease._entry is None:
            return None
        try:
            if lease._entry.is_too_short(self.ttl):
                lease.extend(self.ttl)
                lease._entry.extended(self.ttl)
            if lease._tell_when_lost(tell):
                client._watchdog.watch(lease._hold)
        except BaseException:  # interrupted as well: nobody would leave this entry
            lease.release()
            raise
        return lease

    def _is_inside(self) -> bool:
        """Whether it would be entered again."""
        return self.claim.kind is Kind.REENTRANT and self._client._entries.inside(self._key())

    def _kept(self) -> Lease | None:
        """What is held already until a transaction ends, and would be given again."""
        return None

    def _itself(self) -> str:
        return entrants.of_thread()

    def try_acquire(self) -> Lease | None:
        """The lease, or None if somebody else has the lock. Every other failure raises."""
        try:
            return self.acquire(timeout=0)
        except AcquireTimeout:
            return None

    def __enter__(self) -> Lease:
        block = begun(self)
        lease = self.acquire()
        try:
            return enter(self._entered, threading.get_ident(), lease, block)
        except BaseException:  # interrupted: nobody will leave it
            unenter(self._entered, threading.get_ident(), lease)
            lease.release()
            raise

    @leaving
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        leave(self._entered, threading.get_ident())._leave(kind)


class Lease(BaseLease):
    """A held, expiring claim. May be passed to, checked and released by any thread.

    It is renewed in the background until it is released, lost, or held for MAX_HOLD.
    Guarantee: while ``check()`` passes, the store has granted the name to nobody else. Limit: a
    process can be paused right after any check; only a fencing token, compared by the resource
    that is written to, stops such a writer.

    ``on_lost`` is called in a thread of its client's, at the deadline at the latest, also while
    the store hangs, and when the store says that the claim is gone. Limits: not for a lease that
    is released or that nobody has any more, nor after ``close`` of the client, nor after a fork;
    one that takes long keeps others of the same client waiting. Its errors are logged.
    """

    __slots__ = ("_client",)

    def __init__(self, client: LockClient, hold: Hold, entry: Entry | None = None) -> None:
        super().__init__(hold, entry)
        self._client = client

    def extend(self, ttl: float | None = None) -> None:
        """Set what is left to ``ttl`` seconds (default: the lock's), also past max_hold.

        Renewal goes on when the lock's ttl is more than that. Raises LeaseLost.
        """
        self._check_alive()
        seconds = self._hold.request.ttl if ttl is None else self._client._ttl(ttl)
        hold, client = self._hold, self._client
        try:
            client._run(flow.extend(hold, seconds, now()))
        finally:
            client._watchdog.watch(hold)  # it may be due sooner than before

    def downgrade(self) -> None:
        """Make a writer a reader, in one step: others may read, and nobody wrote in between.

        Raises ConfigurationError if it is not a lease of a reader-writer lock, LeaseLost, or a
        BackendError, after which it may be done or not: do it again. A reader stays one.
        """
        self._check_writer()
        self._client._run(flow.downgrade(self._hold))

    def release(self) -> bool:
        """Give it back. False if it was not ours any more, or was released before.

        Raises a BackendError when the store cannot be told; it is told later, or it expires.
        With ``until="commit"`` it is left to the end of the transaction.
        """
        if self._kept_by and any(keeper.is_open() for keeper in self._kept_by):
            return not self.lost
        if not self._finish():
            return False
        client, hold = self._client, self._hold
        if self._entry is not None and self._is_inner():
            return not hold.lost(now())
        if self._foreign:
            return False
        try:
            return client._run(flow.release(hold))
        finally:  # somebody may be waiting for the release, nobody for this
            client._watchdog.unwatch(hold)
            client.note_hold(self.name, now() - hold.granted)

    def __enter__(self) -> Self:
        self._block = begun(self)
        return self

    @leaving
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release. Raises LeaseLost if the lease was lost while the body went through."""
        self._leave(kind)

    def _leave(self, kind: type[BaseException] | None) -> None:
        # A store that cannot be told is not an error of the body, which had the lock to its end.
        if self.released:
            return
        try:
            kept = self.release()
        except BackendError as failure:
            log.warning("release of %r not confirmed: %s", self.name, failure)
            return
        if not kept and kind is None:
            raise self._hold.loss(now())
