"""``until="commit"``: a lease that the end of a transaction gives back, and nothing earlier.

For locks deep in code that is called inside a transaction. The adapter knows what a transaction is,
and when it has ended; this is the part that all adapters share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from lockkit.engine.effects import Made, Step
from lockkit.leases.client import Lease, Lock
from lockkit.leases.lease import give_back
from lockkit.leases.lock import REENTERED
from lockkit.model.checks import one_of
from lockkit.model.errors import ConfigurationError, OpenTransaction
from lockkit.model.types import UNSET, Request, Unset

if TYPE_CHECKING:
    from lockkit.leases.enclosing import EnclosingClient

InAtomic: TypeAlias = Literal["refuse", "allow"]
Until: TypeAlias = Literal["commit"]

NUMBERED = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL"
"""PostgreSQL numbers a transaction at its first change, or at the first row that it locks."""


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
    """Raise ConfigurationError for a lock of asyncio: no loop waits for a transaction's end."""
    check_until(until)
    if until is not None:
        raise ConfigurationError(
            "until='commit' is for the blocking client: take the lock with locks[…] in the "
            "function that has the transaction, which sync_to_async runs"
        )


def refuse_level(level: str, name: str) -> None:
    """Raise OpenTransaction under an isolation level whose snapshot is older than the grant."""
    if level.upper().replace("-", " ") in {"REPEATABLE READ", "SERIALIZABLE"}:
        raise OpenTransaction(
            f"the lock {name!r} was asked for inside a transaction that is {level}, after its "
            f"first statement: it goes on reading what was there before. Acquire the lock before "
            f"the transaction, or as its first step where the database can tell that, or use READ "
            f"COMMITTED",
            name=name,
        )


class Transaction(ABC):
    """An open transaction, and the leases that its end gives back."""

    ended = False  #: once true, leases that are not released are not renewed any more

    def __init__(self) -> None:
        self._leases: list[Lease] = []

    @abstractmethod
    def is_open(self) -> bool:
        """Whether its COMMIT or ROLLBACK is still to come."""

    @abstractmethod
    def refuse_snapshot(self, name: str) -> None:
        """Raise OpenTransaction if it would not see what the last holder has committed."""

    def keep(self, lease: Lease) -> None:
        """From now on, a ``release`` of the lease leaves it to the transaction's end."""
        lease._kept_by = (*lease._kept_by, self)
        self._leases.append(lease)

    def kept(self, lock: CommitLock) -> Lease | None:
        """The lease that it already has, if that serves the lock: a service may be called twice."""
        return next((lease for lease in self._leases if lock._is_served_by(lease)), None)

    def has_leases(self) -> bool:
        """Whether one is left that its end is to give back."""
        return any(not lease.released for lease in self._leases)

    def check(self) -> None:
        """The last check before COMMIT. Raises LeaseLost."""
        for lease in self._leases:
            if not lease.released:
                lease.check()

    def give_back(self) -> None:
        """Called after the end. Errors are logged: the transaction stands as it is."""
        self.ended = True
        while self._leases:
            give_back(self._leases.pop())


class CommitLock(Lock):
    """Its leases are kept by the transactions that are open when it is acquired.

    With none open, it is a lock like any other.
    """

    __slots__ = ()
    _client: EnclosingClient

    def acquire(self, timeout: float | None | Unset = UNSET) -> Lease:
        return self._client.perform(self._acquiring(timeout))

    def _acquiring(
        self,
        timeout: float | None | Unset,
        request: Request | None = None,
        first: Made | None = None,
    ) -> Step[Lease]:
        """The same lease again if the transaction keeps one at least as strong.

        Raises OpenTransaction if the transaction has a snapshot that is older than the grant.
        """
        kept = self._kept()
        if kept is None and not self._is_inside():
            for transaction in self._client._transactions():
                transaction.refuse_snapshot(self.name)
        # One that had only read may just have been ended.
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
                yield from lease._releasing()
            raise
        return lease

    def _kept(self) -> Lease | None:
        found = (transaction.kept(self) for transaction in self._client._transactions())
        return next((lease for lease in found if lease is not None), None)

    def _is_served_by(self, lease: Lease) -> bool:
        """Whether it holds this name as this kind, for the same owner, and alone if this must."""
        held = lease._hold.request
        if lease.lost or lease._client is not self._client or held.name != self.name:
            return False
        if held.kind is not self._usage.kind or held.shared > self._usage.shared:
            return False
        return held.kind not in REENTERED or held.entrant == self._entrant()
