"""Records of orders beside their locks, for effects outside a database: STORE "redis".

Before the view, a *claim* is written under the order's lease: a record that says running. After the
view, the response is written over it, by the lease's fencing token. A claim whose lock nobody holds
is an *orphan*: the process died or the view failed, so it is not known what took effect.

Guarantee: while the store keeps its data, only the holder of the lease writes a claim, and
a stale holder never writes over a newer try. Limit: the effects and the record are two steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lockkit.engine.effects import Step
from lockkit.leases.lease import result_of
from lockkit.model.errors import BackendError, ConfigurationError, LeaseLost, LockError
from lockkit.model.names import repair_command
from lockkit.model.settings import DEFAULT_ALIAS
from lockkit.model.types import ClaimReply, Finding, LockInfo, LockState, StoredRecord
from lockkit.orders import refusals
from lockkit.orders.failures import as_raised, without_lock
from lockkit.orders.gate import OpenOrder
from lockkit.orders.order import lock_name_of
from lockkit.orders.record import (
    DuplicateKeyError,
    OrderResponse,
    Record,
    RecordState,
    unreadable,
)
from lockkit.orders.stored_form import Stored, dump, is_newer, load
from lockkit.runtime import process
from lockkit.stores.records import OnServer

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.leases.client import LockClient
    from lockkit.web.refusal import Refusal

DAMAGE = (
    "the record of the order cannot be read, so it may have taken effect; its duplicates get 503. "
    "Once you know that it has not: "
)

NOT_RUN = OrderResponse(503, (), b"")
"""Stands for the response of a view that has not run. Its claim is deleted."""

INDEX_DAMAGE = 'it cannot be read, so its orders are refused: DEL "{name}" in redis-cli'


class RedisOrderRecords:
    """Records over the connections of a lock alias. Cheap to make, without I/O. With an asyncio
    client its methods return awaitables. Each method may be called again after an error.

    ``fence``: the fencing token of the order's lease.
    """

    def __init__(self, locks: LockClient | AsyncLockClient) -> None:
        """Raises ConfigurationError if the store of that alias keeps no records."""
        records = locks.store.records()
        if records is None:
            raise ConfigurationError(
                f"LOCKKIT_ORDERS['STORE'] is 'redis', but the lock alias "
                f"{locks.settings.alias!r} keeps no records. That needs redis:// without "
                "protocol=plain, redis+sentinel:// or redis+cluster://: name such an alias in ALIAS"
            )
        self._perform: Any = locks.perform
        self._records = records

    def find(self, key: str, *, fresh: bool) -> Any:
        return self._perform(self._finding(key))

    def start(self, record: Record, fence: int, *, replaces: bool) -> Any:
        """Write a record, in one step with the proof that the lease is held.

        Raises LeaseLost if the lease is not held; then nothing was written. Raises
        DuplicateKeyError if there is another record. With ``replaces``, a record that an older
        lease left running is replaced.
        """
        return self._perform(self._starting(record, fence, replaces=replaces))

    def finish(self, record: Record, fence: int) -> Any:
        """Write the end over the claim with this fence; if that has expired, only while the lease
        is held. Otherwise False."""
        name = lock_name_of(record.key)
        return self._perform(self._records.finish(name, fence, _payload(record), record.left))

    def drop(self, key: str, fence: int) -> Any:
        """Delete the running claim with this fence. False if it is not there."""
        return self._perform(self._records.drop(lock_name_of(key), fence))

    def _finding(self, key: str) -> Step[Record | None]:
        name = lock_name_of(key)
        entry = yield from self._records.read(name)
        if entry is not None and _is_damaged(entry):
            with suppress(BackendError):  # it is only a note for operators
                yield from self._records.mark(name)
        return _record(key, entry)

    def _starting(self, record: Record, fence: int, *, replaces: bool) -> Step[None]:
        name, payload = lock_name_of(record.key), _payload(record)
        running = record.state == RecordState.RUNNING
        claimed = yield from self._records.claim(
            name, fence, payload, record.left, running=running, replaces=replaces
        )
        if claimed is ClaimReply.NOT_HELD:
            raise LeaseLost("the order's lease is not held any more", name=name)
        if claimed is ClaimReply.TAKEN:
            raise DuplicateKeyError


class ClaimedOrder(OpenOrder):
    """STORE "redis": the engine claims the order before the view, and stores the response after it
    under the fence of the claim. No transaction is opened.

    A claim that is not settled outlives the request as an orphan, because nobody knows what the
    view did: it may have charged a card.
    """

    def begin(self) -> None:
        self.begun = True

    @property
    def lost(self) -> Refusal:
        return refusals.outcome_unknown(may_repeat=self.orders.settings.retries_orphans)

    def abandon(self) -> None:
        """Delete the claim if the view was not begun; otherwise leave it, as an orphan."""
        if not (self.begun or self.ended):
            self._settle(NOT_RUN, failed=False)

    def _end(self, response: Any) -> Any:
        has_run = self.begun or self.has_passed_by(response)
        failed = has_run and self._is_accident(response)
        answered = self.visit.answered(response) if has_run else NOT_RUN  # its own lock was busy
        refusal = self._settle(answered, failed=failed)
        if refusal is None or (failed and self._shows_failure(response)):
            return response
        return self.visit.refuse(refusal)

    @abstractmethod
    def _is_accident(self, response: Any) -> bool:
        """Whether the response was made from an exception that was not raised to be answered."""

    @abstractmethod
    def _raised_status(self) -> int | None:
        """The status of an exception that was raised to be answered; None if there was none."""

    def _shows_failure(self, response: Any) -> bool:
        """Whether a 2xx that was made from an exception tells the client of it, in its body."""
        return False

    def _settle(self, answered: OrderResponse | None, *, failed: bool) -> Refusal | None:
        if isinstance(self.error, LockError):
            answered = without_lock(answered)
        if not failed:
            answered = as_raised(answered, self._raised_status())
        flow = self.orders.settle(self.decision, answered, failed=failed)
        return result_of(self.visit.thread.ask(flow, self.visit))


def orphans(locks: LockClient, name: str | None = None) -> Iterator[LockInfo]:
    """Orders that were begun and whose end is not known; none in a store without records.

    Includes orders whose record cannot be read; but if such an order has ended, only after a
    duplicate has met the record. ``name``: only the order with this lock. The age is the claim's.
    """
    for found, entry in _entries(locks, name):
        if _is_damaged(entry):
            is_order = found.startswith("order:")
            damage = DAMAGE + repair_command(found) if is_order else INDEX_DAMAGE.format(name=found)
            yield LockInfo(found, LockState.DAMAGED, left=entry.left, damage=damage)
        elif entry.running:
            yield _info(found, load(entry.payload), entry)


def _entries(locks: LockClient, name: str | None) -> Iterator[tuple[str, StoredRecord]]:
    records, cursor = locks.store.records(), None
    if name is not None and not name.startswith("order:"):
        return
    while records is not None:
        found, cursor = locks.perform(records.orphans(name, cursor))
        yield from found
        if cursor is None:
            return


def repair(locks: LockClient, name: str, *, by: str = "") -> bool:
    """Delete the record of an order if it cannot be read and nobody holds the order's lock. False
    if there is no such record. ``by``: who did it and why."""
    records = locks.store.records()
    if records is None or not name.startswith("order:"):
        return False
    return locks.perform(records.repair(name, _is_damaged, process.operator(by, repairs=True)))


def resolve(locks: LockClient, orphan: LockInfo, *, done: bool, by: str = "") -> bool:
    """Carry out an operator's decision about exactly this orphan. False if it is gone.

    done: the order has taken effect, and duplicates are told so. Otherwise the record is deleted,
    and the order may be tried again.
    """
    records, by = locks.store.records(), process.operator(by) if by else ""
    for name, entry in _entries(locks, orphan.name):
        if records is not None and entry.fence == orphan.fence:
            payload, owner = _decided(entry, done=done)
            resolving = records.resolve(name, entry.fence, payload, entry.left, by=by, owner=owner)
            return locks.perform(resolving)
    return False


def dangers(
    alias: str, aliases: Iterable[str], client: Callable[[str], LockClient]
) -> Iterator[Finding]:
    """Dangers to the records, which are in the store of ``alias``, and to locks on that server.

    ``client`` returns the client of any of the ``aliases``. Does I/O. Raises BackendError and
    ConfigurationError, but passes over other aliases that are wrong or whose store fails.
    """
    locks = client(alias)
    records = locks.store.records()
    if records is None:
        return
    for danger in locks.perform(records.health()):
        yield _of_orders(danger, "record-danger", ". A repeated order may run again")
    others = [each for each in aliases if each != alias]
    server = _server_of(locks)
    if alias == DEFAULT_ALIAS or any(_is_on(server, client, each) for each in others):
        for danger in locks.perform(records.capacity()):
            yield _of_orders(danger, "record-capacity")


def _of_orders(danger: Finding, code: str, consequence: str = "") -> Finding:
    text = f"LOCKKIT_ORDERS['STORE'] is 'redis': {danger.text}{consequence}"
    return Finding(code, text, danger.remedy)


def _server_of(locks: LockClient) -> str | None:
    return locks.perform(locks.store.server()) if isinstance(locks.store, OnServer) else None


def _is_on(server: str | None, client: Callable[[str], LockClient], alias: str) -> bool:
    """Whether an alias has its locks on this server, even under another address."""
    try:
        return server is not None and _server_of(client(alias)) == server
    except (BackendError, ConfigurationError):
        return False


def _decided(entry: StoredRecord, *, done: bool) -> tuple[bytes, str]:
    """The payload to write over an orphan (empty: delete it), and the orphan's owner."""
    stored = load(entry.payload)
    owner = stored.owner.encode() if stored and stored.owner else ""
    if not done:
        return b"", owner
    if stored is None:
        raise ConfigurationError(
            "a newer release wrote the order's record: use that release's command to resolve it"
        )
    return dump(stored.record._replace(state=RecordState.TOMBSTONE), stored.owner), owner


def _record(key: str, entry: StoredRecord | None) -> Record | None:
    """The record of an entry. An entry that the store still has is not expired."""
    if entry is None:
        return None
    stored = _read(entry)
    if stored is None:
        return unreadable(key)
    return stored.record._replace(key=key, left=max(entry.left, 1))


def _read(entry: StoredRecord) -> Stored | None:
    """The record, if it agrees with the store on whether the order is running; otherwise None."""
    stored = load(entry.payload)
    if stored is None or (stored.record.state == RecordState.RUNNING) != entry.running:
        return None
    return stored


def _is_damaged(entry: StoredRecord) -> bool:
    return _read(entry) is None and not is_newer(entry.payload)


def _payload(record: Record) -> bytes:
    running = record.state == RecordState.RUNNING
    return dump(
        record, process.owner(f"{record.request} order {record.order_id}") if running else None
    )


def _info(name: str, stored: Stored | None, entry: StoredRecord) -> LockInfo:
    age = None if stored is None else max(stored.record.left - entry.left, 0.0)
    owner = None if stored is None else stored.owner
    return LockInfo(name, LockState.ORPHAN, owner, entry.fence, age=age, left=entry.left)
