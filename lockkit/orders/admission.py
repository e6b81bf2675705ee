"""The order of things: find, lock, find again, claim, and what becomes of a response.

``admit``, ``reconsider`` and ``settle`` are generators, as in ``lockkit.engine.flow``: they yield
what to do next and ``drivers`` does it, so the blocking and the asyncio adapters cannot drift
apart.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockkit.model.errors import AcquireTimeout, BackendError, LeaseLost, LockHeld, TooManyWaiters
from lockkit.model.log import log
from lockkit.orders import refusals
from lockkit.orders.judging import judge, left_running
from lockkit.orders.record import (
    UNLIMITED,
    DuplicateKeyError,
    Record,
    RecordState,
    is_unanswered,
    refuses,
    snapshot_of,
    storable,
)
from lockkit.orders.steps import (
    Acquire,
    Decision,
    Discard,
    Drop,
    Find,
    Finish,
    Flow,
    Forget,
    Give,
    Keep,
    Proceed,
    Recover,
    Replay,
    WriteClaim,
)
from lockkit.web.refusal import Refusal
from lockkit.web.waiting_room import WaitingRoom

if TYPE_CHECKING:
    from lockkit.model.types import Owner
    from lockkit.orders.request import Order, OrderResponse
    from lockkit.orders.settings import OrderSettings

MOST_DUPLICATES = 3
"""Times in a row that somebody may be first whose record is then gone."""

_TAG = re.compile(r" #([0-9a-f]{12})$")


class Admission:
    """Whether the views of orders may run, and how orders end. Thread-safe."""

    def __init__(self, settings: OrderSettings) -> None:
        self.settings = settings
        self._waiting_room = WaitingRoom()

    def admit(self, order: Order) -> Flow[Decision]:
        """Whether the view may run for this order, now. With STORE "redis" it is claimed then."""
        until = time.monotonic() + self.settings.wait
        return (yield from _fail_closed(self._admit(order), until))

    def reconsider(self, decision: Proceed) -> Flow[Decision]:
        """After a duplicate key: somebody was first, and one of the two has lost its lease."""
        again = self._look_again(decision.order, decision.lease, is_sure=False)
        return (yield from _fail_closed(again, decision.until))

    def settle(
        self, decision: Proceed, response: OrderResponse | None, *, failed: bool = False
    ) -> Flow[Refusal | None]:
        """STORE "redis", after the view: store its response. Refusal: answer that instead.

        ``response``: None when nobody saw how the view ended (it was cancelled). ``failed``: the
        view raised, and the response was made of that. What is not known is not forgotten: an
        exception of which no response is made that is stored, or no response, leaves an orphan. A
        view that answers with what is not stored (409, 5xx) says by it that the order may be tried
        anew. The lease is still the caller's to give.
        """
        if response is None or (failed and not storable(response.status)):
            return None
        fence = decision.lease.fencing_token
        ending = self.conclude(decision.order, response)
        if not isinstance(ending, Keep):
            yield from _forget(decision)
            return None
        try:
            finished = yield Finish(ending.record, fence)
        except BackendError as failure:
            log.error("the response of an order is not stored: %s", failure)
            finished = False
        if finished:
            return None
        return refusals.outcome_unknown(may_repeat=self.settings.retries_orphans)

    def running(self, order: Order) -> Record:
        """The record to insert before the view is called."""
        ttl = self.settings.ttl_for(guest=order.guest)
        return Record(order.key, order.order_id, order.request, order.fingerprint, ttl)

    def conclude(self, order: Order, response: OrderResponse) -> Keep | Forget | Discard:
        """What becomes of the order, given the response of its view."""
        if refuses(response.status):
            return Forget()
        return Keep(self._ended(order, response)) if storable(response.status) else Discard()

    def _ended(self, order: Order, response: OrderResponse) -> Record:
        largest = self.settings.max_response_for(guest=order.guest)
        state, snapshot = snapshot_of(response, largest)
        return replace(self.running(order), state=state, snapshot=snapshot)

    def _admit(self, order: Order) -> Flow[Decision]:
        found = self._without_the_lock((yield Find(order.key, fresh=False)))
        known = judge(order, found)
        if known is not None:
            return (yield from self._told(order, known))
        return (yield from self._enter(order, found))

    def _without_the_lock(self, found: Record | None) -> Record | None:
        """Between a COMMIT and its response an order is done, and somebody has its lock: wait.

        Where that lock is free the process has died; under the lock the record says what it is.
        """
        if found is None or self.settings.claims or not is_unanswered(found):
            return found
        return replace(found, state=RecordState.RUNNING)

    def _enter(self, order: Order, found: Record | None) -> Flow[Decision]:
        """Take the lock. Had nobody held it, the unique key decides without another look."""
        try:
            lease = yield Acquire(order, 0)
        except LockHeld as held:
            if _asks_for_something_else(order, held.holder):
                return refusals.DIFFERENT
            return (yield from self._wait(order))
        if left_running(found):
            return (yield from self._look_again(order, lease))
        return (yield from self._let_in(Proceed(order, lease, replaces=found is not None)))

    def _wait(self, order: Order) -> Flow[Decision]:
        try:
            with self._waiting_room.place(self.settings.max_waiters) as placed:
                if not placed:
                    return refusals.crowded(1)
                lease = yield Acquire(order, self.settings.wait)
        except TooManyWaiters as full:
            return refusals.crowded(full.retry_after)
        except AcquireTimeout as late:
            found = self._without_the_lock((yield Find(order.key, fresh=True)))
            known = judge(order, found) or refusals.running(late.retry_after)
            return (yield from self._told(order, known))
        return (yield from self._look_again(order, lease))

    def _look_again(self, order: Order, lease: Any, *, is_sure: bool = True) -> Flow[Decision]:
        """Where writes go, under the lock. Gives the lock back unless the view may run."""
        try:
            answer = yield from self._decide(order, lease, is_sure=is_sure)
        except BaseException:  # interrupted as well: nobody else has the lease
            yield Give(lease)
            raise
        if isinstance(answer, Proceed):
            return (yield from self._let_in(answer))
        yield Give(lease)
        return answer

    def _decide(self, order: Order, lease: Any, *, is_sure: bool = True) -> Flow[Decision]:
        """``is_sure``: nobody else has the lock."""
        found = yield Find(order.key, fresh=True)
        seen = found if is_sure else self._without_the_lock(found)
        known = judge(order, seen)
        if known is not None:
            return (yield from self._told(order, known))
        if seen is not found and left_running(seen):
            return refusals.running(1)
        if left_running(found):
            return (yield from self._orphan(order, lease))
        return Proceed(order, lease, replaces=found is not None)

    def _let_in(self, decision: Proceed) -> Flow[Decision]:
        """With a store of claims: write that the order runs, or learn who was first.

        Whoever is in doubt forgets its claim before the lease, and again after it, because a
        claim that was delayed is refused only once the lease is given.
        """
        if not self.settings.claims:
            return decision
        lease = decision.lease
        try:
            for _ in range(MOST_DUPLICATES):
                answer = yield from self._claim(decision)
                if answer is decision or not isinstance(answer, Proceed):
                    break
                decision = answer
            else:
                answer = refusals.running(1)
        except BaseException:  # interrupted as well: the view has not run
            yield from _undo(decision)
            raise
        if not isinstance(answer, Proceed):
            yield Give(lease)
        return answer

    def _claim(self, decision: Proceed) -> Flow[Decision]:
        """The same decision when it is claimed; another one after another look."""
        order, fence = decision.order, decision.lease.fencing_token
        try:
            yield WriteClaim(self.running(order), fence, replaces=decision.orphan)
        except LeaseLost:
            return refusals.LEASE_LOST
        except DuplicateKeyError:
            return (yield from self._decide(order, decision.lease))
        return decision

    def _told(self, order: Order, known: Replay | Refusal) -> Flow[Replay | Refusal]:
        """A response that was not kept may be known to the application."""
        if not isinstance(known, Refusal) or known.code != refusals.COMPLETED:
            return known
        response = yield from self._recovered(order)
        return known if response is None else _replay_of(response)

    def _orphan(self, order: Order, lease: Any) -> Flow[Decision]:
        """An earlier try was begun, and holds no lease any more: its process died, or its view
        failed in a way that says nothing. The application may know, else ORPHANS decides."""
        response = yield from self._recovered(order)
        if response is not None:
            return (yield from self._keep_recovered(order, lease, response))
        if self.settings.retries_orphans:
            return Proceed(order, lease, replaces=True, orphan=True)
        return refusals.ORPHANED

    def _keep_recovered(
        self, order: Order, lease: Any, response: OrderResponse
    ) -> Flow[Replay | Refusal]:
        if self.settings.claims:
            try:
                yield WriteClaim(self._ended(order, response), lease.fencing_token, replaces=True)
            except LeaseLost:
                return refusals.LEASE_LOST
            except DuplicateKeyError:  # the earlier try was slow, not dead, and has ended now
                found = yield Find(order.key, fresh=True)
                return judge(order, found) or refusals.running(1)
        return _replay_of(response, orphan=True)

    def _recovered(self, order: Order) -> Flow[OrderResponse | None]:
        """What RECOVER says; a response that would not be stored says nothing."""
        response: OrderResponse | None = yield Recover(order)
        return response if response is not None and storable(response.status) else None


def _forget(decision: Proceed) -> Flow[None]:
    """This try had no effect. Of an orphan's earlier try that is not known, so it stays one."""
    if not decision.orphan:
        yield Drop(decision.order.key, decision.lease.fencing_token)


def _undo(decision: Proceed) -> Flow[None]:
    """Each step is taken, also by who is interrupted again in the one before."""
    try:
        try:
            yield from _forget(decision)
        finally:
            yield Give(decision.lease)
    finally:
        yield from _forget(decision)


def _replay_of(response: OrderResponse, *, orphan: bool = False) -> Replay | Refusal:
    """Any size: it need not be kept, since the application can make it again."""
    state, snapshot = snapshot_of(response, UNLIMITED)
    if state is RecordState.DONE:
        return Replay(snapshot, orphan=orphan)
    return refusals.not_replayable(snapshot.header("Location"))


def _asks_for_something_else(order: Order, holder: Owner | None) -> bool:
    """Whether the one that is running has another payload: then waiting for it is pointless."""
    tag = _TAG.search(holder.label) if holder else None
    return tag is not None and tag[1] not in order.tags


def _fail_closed(flow: Flow[Decision], until: float) -> Flow[Decision]:
    """A store that fails is told to the operator; the client hears only that."""
    try:
        decision = yield from flow
    except BackendError as failure:
        log.error("an order is refused, a store failed: %s", failure)
        return refusals.STORE_DOWN
    return decision._replace(until=until) if isinstance(decision, Proceed) else decision
