"""Decides whether the view of an order may run: find its record, lock, find again, claim."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lockkit.leases.lease import value
from lockkit.model.errors import AcquireTimeout, BackendError, LeaseLost, TooManyWaiters
from lockkit.model.log import log
from lockkit.orders import refusals
from lockkit.orders.decisions import NO_LEASE, Decision, Proceed, Replay
from lockkit.orders.record import (
    UNLIMITED,
    VERSION,
    DuplicateKeyError,
    Record,
    RecordState,
    has_our_fingerprint,
    is_unanswered,
    snapshot_of,
    storable,
)
from lockkit.web.refusal import Refusal

if TYPE_CHECKING:
    from lockkit.model.types import Owner
    from lockkit.orders.engine import Orders
    from lockkit.orders.flow import Means
    from lockkit.orders.order import Order
    from lockkit.orders.record import OrderResponse

MOST_DUPLICATES = 3
"""How often in a row a duplicate key may be reported although its record is gone afterwards."""

_TAG = re.compile(r" #([0-9a-f]{12})$")


class Admission:
    """Whether the view of one order may run."""

    def __init__(
        self, orders: Orders, order: Order, means: Means, until: float, *, locks: bool
    ) -> None:
        """``until``: see Proceed. ``locks``: False if the record's unique key decides alone."""
        self.order = order
        self._orders = orders
        self._settings = orders.settings
        self._means = means
        self._until, self._locks = until, locks

    async def admit(self, *, looks: bool, key_decides: bool) -> Decision:
        """``looks``: look for a record before the lock. ``key_decides``: see ``Orders.admit``."""
        if not (looks or self.order.stale):
            try:
                return await self._enter(None, key_decides=key_decides)
            except BackendError:  # a stored answer can be given without a lock
                known = judge(self.order, await self._find(fresh=False))
                if known is None:
                    raise
                return await self._or_recovered(known)
        found = self._as_seen_without_lock(await self._find(fresh=False))
        if (known := self._judge_without_lock(found)) is not None:
            return await self._or_recovered(known)
        return await self._enter(found, key_decides=key_decides)

    def _as_seen_without_lock(self, found: Record | None) -> Record | None:
        """Count a record that is done, but has no response yet, as running: its lock may be held.
        Under the lock it counts as it is: if the lock was free, its process has died."""
        if found is None or self._orders.claims or not (self._locks and is_unanswered(found)):
            return found
        return found._replace(state=RecordState.RUNNING)

    def _judge_without_lock(self, found: Record | None) -> Replay | Refusal | None:
        """A form may have grown old while its first try runs, whose record nobody can see yet."""
        known = judge(self.order, found)
        return None if self._locks and known is refusals.FORM_EXPIRED else known

    async def _enter(self, found: Record | None, *, key_decides: bool) -> Decision:
        """Take the lock, or wait for it; then look again, because what was found before may be
        outdated. It does not look if the lock was free, no try was found running, and the
        record is written before the view, which reveals a duplicate."""
        try:
            lease = await self._acquire(0) if self._locks else NO_LEASE
        except AcquireTimeout as held:  # or all lock sessions of this process are in use
            if _asks_for_something_else(self.order, held.holder):
                return refusals.DIFFERENT
            return await self._wait(held)
        if self.order.stale or left_running(found) or not (key_decides or self._orders.claims):
            return await self._look_again(lease)
        return await self._let_in(self._proceed(lease, found))

    def _proceed(self, lease: Any, found: Record | None) -> Proceed:
        return Proceed(self.order, lease, found is not None, until=self._until)

    async def _wait(self, held: AcquireTimeout) -> Decision:
        try:
            with self._orders.waiting_room.place(self._settings.max_waiters) as placed:
                if not placed:
                    return refusals.too_many_wait(held)
                lease = await self._acquire(self._settings.wait)
        except TooManyWaiters as full:
            return refusals.crowded(full.retry_after, full)
        except AcquireTimeout as late:
            found = self._as_seen_without_lock(await self._find(fresh=True))
            known = self._judge_without_lock(found) or refusals.running(late.retry_after, late)
            return await self._or_recovered(known)
        return await self._look_again(lease)

    async def _look_again(self, lease: Any) -> Decision:
        """Look for the record again, under the lock. Releases the lock unless the view may run."""
        try:
            answer = await self.decide(lease)
        except BaseException:  # also if interrupted: nobody else would release it
            await self._give_back(lease)
            raise
        if isinstance(answer, Proceed):
            return await self._let_in(answer)
        await self._give_back(lease)
        return answer

    async def decide(self, lease: Any, *, is_sure: bool = True) -> Decision:
        """Decide by the newest record; keep the lease. ``is_sure``: nobody else has the lock."""
        found = await self._find(fresh=True)
        seen = found if is_sure else self._as_seen_without_lock(found)
        known = judge(self.order, seen)
        if known is not None:
            return await self._or_recovered(known)
        if seen is not found and left_running(seen):
            return refusals.running(1)
        if left_running(found):
            return await self._orphan(lease)
        return self._proceed(lease, found)

    async def _let_in(self, decision: Proceed) -> Decision:
        """With STORE "redis", claim the order, or decide by the claim of a try that was quicker.

        After an error or an interrupt, the claim may be written, or be on its way. So it is deleted
        before the lease is released, and again afterwards, when a late claim is refused.
        """
        if not self._orders.claims:
            return decision
        lease = decision.lease
        try:
            for _ in range(MOST_DUPLICATES):
                answer = await self._claim(decision)
                if answer is decision or not isinstance(answer, Proceed):
                    break
                decision = answer
            else:
                answer = refusals.running(1)
        except BaseException:  # also if interrupted: the view has not run
            await self._undo(decision)
            raise
        if not isinstance(answer, Proceed):
            await self._give_back(lease)
        return answer

    async def _claim(self, decision: Proceed) -> Decision:
        """The same decision if the claim succeeds; otherwise one by the record that is there."""
        record, fence = self._orders.running(self.order), decision.lease.fencing_token
        try:
            await value(self._means.store.start(record, fence, replaces=decision.orphan))
        except LeaseLost:  # but if the reply to the first request was lost, a claim is written
            await self.forget(decision)
            return refusals.LEASE_LOST
        except DuplicateKeyError:
            return await self.decide(decision.lease)
        return decision

    async def _or_recovered(self, known: Replay | Refusal) -> Replay | Refusal:
        """``known``, unless its response was not stored and RECOVER has it."""
        if not isinstance(known, Refusal) or known.code != refusals.COMPLETED:
            return known
        response = await self._recovered()
        return known if response is None else _replay_of(response)

    async def _orphan(self, lease: Any) -> Decision:
        """An earlier try began and no longer holds its lease: its process died, or its view
        failed without an answer. RECOVER may know how it ended; otherwise ORPHANS decides."""
        if (response := await self._recovered()) is not None:
            return await self._keep_recovered(lease, response)
        if self._settings.retries_orphans:
            return Proceed(self.order, lease, True, True, self._until)
        return refusals.ORPHANED

    async def _keep_recovered(self, lease: Any, response: OrderResponse) -> Replay | Refusal:
        if self._orders.claims:
            try:
                record, store = self._orders.ended(self.order, response), self._means.store
                await value(store.start(record, lease.fencing_token, replaces=True))
            except LeaseLost:
                return refusals.LEASE_LOST
            except DuplicateKeyError:  # the earlier try was slow, and has ended now
                found = await self._find(fresh=True)
                return judge(self.order, found) or refusals.running(1)
        return _replay_of(response, orphan=True)

    async def _recovered(self) -> OrderResponse | None:
        """The response of RECOVER; None if it has none, or one whose status is never stored."""
        hook = self._means.recover
        response = None if hook is None else await value(hook(self.order))
        return response if response is not None and storable(response.status) else None

    async def forget(self, decision: Proceed) -> None:
        """Delete the claim of a try without effect. An orphan stays one: its earlier try may have
        had effects. If the store fails, nothing is raised, and the claim becomes an orphan."""

        async def drop() -> None:
            try:
                store, fence = self._means.store, decision.lease.fencing_token
                await value(store.drop(self.order.key, fence))
            except BackendError as failure:
                log.error("the claim of an order is not deleted, so it is an orphan: %s", failure)

        if not decision.orphan:
            await self._means.carried_on(drop())

    async def _undo(self, decision: Proceed) -> None:
        """Take each step, even if the one before is interrupted again."""
        try:
            try:
                await self.forget(decision)
            finally:
                await self._give_back(decision.lease)
        finally:
            await self.forget(decision)

    async def _give_back(self, lease: Any) -> None:
        if lease is not NO_LEASE:
            await value(self._means.give(lease))

    async def _find(self, *, fresh: bool) -> Record | None:
        """``fresh``: look in the database that takes writes, never in a replica."""
        found: Record | None = await value(self._means.store.find(self.order.key, fresh=fresh))
        return found

    async def _acquire(self, seconds: float) -> Any:
        """Wait at most ``seconds`` for a lease. Raises what ``Lock.acquire`` raises."""
        lock = self._means.locks._mutex(self.order.lock_name, self.order.label)
        lock.timeout = seconds  # the settings have checked it
        lease = await value(lock.acquire())
        lease._disown()  # we give it back ourselves, after the order's transaction
        return lease


def _replay_of(response: OrderResponse, *, orphan: bool = False) -> Replay | Refusal:
    """A replay of any size, because the application can make it again."""
    state, snapshot = snapshot_of(response, UNLIMITED)
    if state is RecordState.DONE:
        return Replay(snapshot, orphan=orphan)
    return refusals.not_replayable(snapshot.header("Location"))


def _asks_for_something_else(order: Order, holder: Owner | None) -> bool:
    """Whether the running try has another payload: then waiting for it is pointless."""
    tag = _TAG.search(holder.label) if holder else None
    return tag is not None and tag[1] not in order.tags


def judge(order: Order, record: Record | None) -> Replay | Refusal | None:
    """The answer that a record gives; None if the request is the first, or another try still runs.

    A record that this release cannot read is never overwritten, and its order never runs again,
    even if the record looks expired.
    """
    if record is None:
        return refusals.FORM_EXPIRED if order.stale else None
    if record.version > VERSION or not has_our_fingerprint(record):
        return _unreadable(order)
    if record.left <= 0:
        return refusals.FORM_EXPIRED if order.stale else None
    if not order.same(record.fingerprint):
        return refusals.DIFFERENT
    return _known(order, record)


def left_running(record: Record | None) -> bool:
    """Whether a record for which ``judge`` has no answer says that the order runs.

    Under the lock it is then an orphan: the try that wrote it is gone, or has lost its lease.
    """
    return record is not None and record.state == RecordState.RUNNING and record.left > 0


def _known(order: Order, record: Record) -> Replay | Refusal | None:
    if record.state == RecordState.DONE:
        return Replay(record.snapshot)
    if record.state == RecordState.TOMBSTONE:
        return refusals.not_replayable(record.snapshot.header("Location"))
    if record.state == RecordState.RUNNING:
        return None
    return _unreadable(order)


def _unreadable(order: Order) -> Refusal:
    """Log which record it is, because an operator or a newer release must deal with it."""
    log.error("an order is refused because its record cannot be read: %s", order.lock_name)
    return refusals.UNREADABLE
