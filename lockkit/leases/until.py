"""``until="commit"``: a lease that is released at the end of a transaction, and not earlier.

For locks deep in code that is called inside a transaction. The adapter knows its transactions, and
when they end; this is the part that all adapters share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from lockkit.engine.effects import Step
from lockkit.engine.holding import Silent
from lockkit.leases.blocks import giving_up
from lockkit.leases.client import Lease, Lock
from lockkit.leases.lease import give_back
from lockkit.leases.lock import REENTERED
from lockkit.model.checks import one_of
from lockkit.model.errors import ConfigurationError, OpenTransaction
from lockkit.model.types import UNSET, Unset

if TYPE_CHECKING:
    from lockkit.leases.enclosing import EnclosingClient

InAtomic: TypeAlias = Literal["refuse", "allow"]
Until: TypeAlias = Literal["commit"]

WAYS_OUT = "until='commit'; in_atomic='allow' is for a lock that protects nothing in a database"
"""The end of an error text about a lock that is asked for inside a transaction."""

WRITES = """SELECT pg_current_xact_id_if_assigned() IS NOT NULL OR EXISTS (
SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'
AND mode NOT IN ('AccessShareLock', 'SIReadLock')
AND (mode NOT IN ('RowShareLock', 'RowExclusiveLock')
OR relation IN (SELECT oid FROM pg_class WHERE relkind IN ('f', 'S'))))"""
"""Whether a transaction of PostgreSQL has changed or locked anything. It is numbered then, unless
it has only locked a table, written to a foreign one, or drawn a number from a sequence. A statement
that has found no row changes nothing, although it locks its table for that."""


class InAtomicOptions(TypedDict, total=False):
    """``in_atomic="allow"``: for a lock that protects nothing in the database."""

    in_atomic: InAtomic


class TransactionOptions(InAtomicOptions, total=False):
    """``until="commit"``: held until the transaction that is open has ended."""

    until: Until | None


check_in_atomic = partial(one_of("refuse", "allow"), "in_atomic")


def check_until(value: object) -> None:
    if value not in (None, "commit"):
        raise ConfigurationError(f"until is {value!r}; it must be 'commit', or left out")


def only_blocking(until: object) -> None:
    """Raise ConfigurationError if an asyncio lock has ``until``: no loop awaits a COMMIT."""
    check_until(until)
    if until is not None:
        raise ConfigurationError(
            "until='commit' is for the blocking client: take the lock with locks[…] in the "
            "blocking function that has the transaction, in Django the one that sync_to_async runs"
        )


def refuse_level(level: str, name: str) -> None:
    """Raise OpenTransaction if this isolation level reads a snapshot from before the grant."""
    if level.upper().replace("-", " ") in {"REPEATABLE READ", "SERIALIZABLE", "SNAPSHOT"}:
        raise OpenTransaction(
            f"the lock {name!r} was asked for inside a transaction that is {level}, after its "
            f"first statement: such a transaction does not see later changes of others. Acquire "
            f"the lock before the transaction, or as its first step if the database can tell that "
            f"it is the first, or use READ COMMITTED",
            name=name,
        )


BEGIN_TO_WRITE = "PRAGMA incremental_vacuum(1)"
"""Takes SQLite's write lock, waiting for it, unless the transaction has read something old. It
reads nothing first, as other statements would, and frees a page at most."""


class Transaction(ABC):
    """An open transaction, and the leases that are released at its end."""

    ended = False  #: once true, leases that are not released are not renewed any more

    def __init__(self) -> None:
        self._leases: list[Lease] = []

    @abstractmethod
    def is_open(self) -> bool:
        """Whether its COMMIT or ROLLBACK is still to come."""

    @abstractmethod
    def refuse_snapshot(self, name: str) -> None:
        """Raise OpenTransaction if this transaction would not see the last holder's COMMIT."""

    def keep(self, lease: Lease) -> None:
        """From now on, a ``release`` of the lease leaves it to the transaction's end."""
        lease._kept_by = (*lease._kept_by, self)
        self._leases.append(lease)

    def kept(self, lock: CommitLock) -> Lease | None:
        """The lease that it already keeps, if that serves the lock: code may ask for it twice."""
        return next((lease for lease in self._leases if lock._is_served_by(lease)), None)

    def has_leases(self) -> bool:
        """Whether a lease is left to be released at its end."""
        return any(not lease.released for lease in self._leases)

    def check(self) -> None:
        """The last check before COMMIT. Raises LeaseLost."""
        for lease in self._leases:
            if not lease.released:
                lease.check()

    def give_back(self) -> None:
        """Release the leases, after the end. Errors are only logged: the transaction has ended."""
        self.ended = True
        silent: Silent = set()
        while self._leases:
            lease = self._leases.pop()
            give_back(lease, partial(lease._client.perform, lease._releasing(silent)))


class CommitLock(Lock):
    """Its leases are kept by the transactions that are open when it is acquired.

    With none open, it is a lock like any other.
    """

    __slots__ = ()
    _client: EnclosingClient

    def acquire(self, timeout: float | None | Unset = UNSET) -> Lease:
        return self._client.perform(self._acquiring(timeout))

    def _acquiring(self, timeout: float | None | Unset) -> Step[Lease]:
        """Acquire; or return a lease again that a transaction keeps, if it serves this lock.

        Raises OpenTransaction if a transaction has a snapshot that is older than the grant.
        """
        kept = self._kept()
        if kept is None and not self._is_inside():
            for transaction in self._client._transactions():
                transaction.refuse_snapshot(self.name)
        # Once more: ``refuse_snapshot`` may have ended one that had only read.
        transactions = self._client._transactions()
        lease = kept
        if lease is None:
            lease = yield from super()._acquiring(timeout)
        try:
            for transaction in transactions:
                if transaction not in lease._kept_by:
                    transaction.keep(lease)
        except BaseException:  # also if interrupted: release it now
            if kept is None:
                lease._disown()
                yield from giving_up(lease)
            raise
        return lease

    def _kept(self) -> Lease | None:
        found = (transaction.kept(self) for transaction in self._client._transactions())
        return next((lease for lease in found if lease is not None), None)

    def _is_served_by(self, lease: Lease) -> bool:
        """Whether it holds this name as the same kind, for the same owner, and as strongly."""
        held = lease._hold.request
        if lease.lost or lease._client is not self._client or held.name != self.name:
            return False
        if held.kind is not self._usage.kind or held.shared > self._usage.shared:
            return False
        return held.kind not in REENTERED or held.entrant == self._entrant()
