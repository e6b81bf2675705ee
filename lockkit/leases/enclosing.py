"""Clients of adapters, by alias: their locks enclose transactions, never the other way round.

A lock that is acquired inside a transaction is released before the transaction commits, so somebody
else can take it and read what was there before. Such an acquire raises OpenTransaction, unless the
lock has ``in_atomic="allow"`` or ``until="commit"``. If an order (an idempotent request, see
``lockkit.orders``) begins under a lock, such as that of a decorator above it, the lock is held
until the order's COMMIT.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar, Unpack

from lockkit.leases.client import Clients, Lease, Lock, LockClient
from lockkit.leases.kinds import RWLock
from lockkit.leases.lock import AnyLease, BaseLock
from lockkit.leases.reentry import takers
from lockkit.leases.until import (
    CommitLock,
    InAtomic,
    InAtomicOptions,
    Transaction,
    TransactionOptions,
    Until,
    check_in_atomic,
    check_until,
)
from lockkit.model.checks import unknown_key
from lockkit.model.options import MutexOptions
from lockkit.runtime import entrants
from lockkit.stores.registry import load_store

if TYPE_CHECKING:
    from lockkit.engine.effects import Step
    from lockkit.engine.holding import Silent
    from lockkit.leases.lease import BaseLease
    from lockkit.leases.multi import MultiLock
    from lockkit.leases.reentry import Entry
    from lockkit.model.settings import AliasSettings
    from lockkit.model.types import Granted
    from lockkit.runtime.hold import Hold

C = TypeVar("C", bound="EnclosingClient")


class AsyncOptions(MutexOptions, InAtomicOptions, total=False):
    """For type checkers: the options of all kinds. Each kind checks its own at run time."""


class Options(AsyncOptions, TransactionOptions, total=False):
    """The same, for the blocking client."""


class EnclosingClient(LockClient):
    """A ``LockClient`` whose locks cannot be acquired inside a transaction of this thread."""

    _own_options = TransactionOptions.__optional_keys__

    if TYPE_CHECKING:

        def lock(self, name: str, **options: Unpack[Options]) -> Lock: ...
        def semaphore(self, name: str, permits: int, **options: Unpack[Options]) -> Lock: ...
        def rwlock(self, name: str, **options: Unpack[Options]) -> RWLock[Lock]: ...
        def multi(
            self,
            *names: str,
            kind: str = "mutex",
            permits: int | None = None,
            **options: Unpack[Options],
        ) -> MultiLock: ...

    @staticmethod
    @abstractmethod
    def _refuse(name: str) -> None:
        """Raise OpenTransaction for a lock of this name, if a transaction is open."""

    @staticmethod
    @abstractmethod
    def _transactions() -> Sequence[Transaction]:
        """The open transactions whose ends release a lock with ``until="commit"``."""

    @staticmethod
    @abstractmethod
    def _orders() -> Sequence[Transaction]:
        """The transactions of orders that are open here. Called at each release."""

    def _lease(self, hold: Hold, entry: Entry | None = None) -> Lease:
        return EnclosingLease(self, hold, entry)

    def _class(
        self, in_atomic: InAtomic = "refuse", until: Until | None = None
    ) -> Callable[..., Lock]:
        if in_atomic != "refuse":
            check_in_atomic(in_atomic)
        if until is not None:
            check_until(until)
            return CommitLock
        return _EnclosingLock if in_atomic == "refuse" else _FreeLock


class EnclosingLease(Lease):
    """If it is released while an order is open, the end of the order releases it, unless this
    thread has another lease on the same claim."""

    __slots__ = (
        "_fails",  #: set if an error leaves its block: that rolls an order back
        "_is_free",  #: set if no order keeps it after ``release``
    )
    _client: EnclosingClient

    def release(self) -> bool:
        if not hasattr(self, "_is_free") and self._client._orders():  # seldom
            self._hand_on()
        return super().release()

    def _releasing(self, silent: Silent | None = None) -> Step[bool]:
        self._hand_on()
        return super()._releasing(silent)

    def _ends_by(self, error: type[BaseException] | None) -> None:
        if error is not None:
            self._fails = True

    def _hand_on(self) -> None:
        if self.released or hasattr(self, "_is_free"):
            return
        if entrants.of_caller() in takers_of_others(self):
            return
        for order in self._client._orders():
            if order not in self._kept_by:
                order.keep(self)

    def _disown(self) -> None:
        super()._disown()
        self._is_free = True


def takers_of_others(lease: BaseLease) -> set[str]:
    """The threads and tasks with other leases on the same claim that an order may keep."""
    return takers(each for each in lease._hold.leases() if each is not lease)


class FreeLock(BaseLock[AnyLease]):
    """A lock with ``in_atomic="allow"``: no order keeps its leases."""

    __slots__ = ()

    def _leased(self, granted: Granted) -> AnyLease:
        lease = super()._leased(granted)
        lease._disown()
        return lease

    def _again(self, entry: Entry) -> AnyLease:
        lease = super()._again(entry)
        lease._disown()
        return lease


class _FreeLock(FreeLock[Lease], Lock):
    __slots__ = ()


class _EnclosingLock(Lock):
    __slots__ = ()
    _client: EnclosingClient

    def _permitted(self) -> None:
        """Raises OpenTransaction inside a transaction, unless this thread already holds the lock
        and enters it again."""
        if not self._is_inside():
            self._client._refuse(self.name)


class ClientsByAlias(Clients[C]):
    """``clients["default"]``: one client per alias, for all threads and tasks of this process.

    A forked child goes on with the same clients, which make connections of their own. Raises
    ConfigurationError for an alias that is not in LOCKKIT, or a wrong setting.
    """

    def __init__(self, read: Callable[[], Mapping[str, AliasSettings]], kind: type[C]) -> None:
        """``read`` returns the settings. It is called when they are first needed, so this raises
        nothing."""
        super().__init__(self._of_alias)
        self._read = read
        self._kind = kind
        self._settings: Mapping[str, AliasSettings] | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"the locks of all aliases have no attribute {name!r}: choose an alias, as in "
                f"locks['default'].{name}"
            )

    def close(self) -> None:
        """Close the clients' connections. Still usable; reconnects on demand."""
        for client in list(self._clients.values()):
            client.close()

    def reset(self) -> None:
        """Close and forget all clients, and the settings."""
        with self._mutex:
            clients, self._clients = self._clients, {}
            self._settings = None
        for client in clients.values():
            client.close()

    def _of_alias(self, alias: str) -> C:
        aliases = self._known()
        if alias not in aliases:
            raise unknown_key("LOCKKIT", alias, aliases)
        return self._kind(load_store(aliases[alias]), aliases[alias])

    def _known(self) -> Mapping[str, AliasSettings]:
        if self._settings is None:
            self._settings = self._read()
        return self._settings
