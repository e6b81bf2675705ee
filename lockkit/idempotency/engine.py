"""The order of things: find, lock, find again, and what becomes of a response.

``admit`` and ``reconsider`` are generators, as in ``lockkit.flow``: they yield what to do next and
``drivers`` does it, so the blocking and the asyncio adapters cannot drift apart.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from lockkit.errors import AcquireTimeout, BackendError, LockHeld, TooManyWaiters
from lockkit.idempotency import replies
from lockkit.idempotency.facts import (
    Order,
    RequestFacts,
    ResponseFacts,
    fingerprint_of,
    key_of,
    too_large,
)
from lockkit.idempotency.orderid import IdSource, MalformedOrderIdError, find_order_id
from lockkit.idempotency.record import Record, snapshot_of, storable
from lockkit.idempotency.replies import Reject, Replay, judge
from lockkit.log import log

if TYPE_CHECKING:
    from lockkit.idempotency.settings import OrderSettings
    from lockkit.types import Owner

__all__ = [
    "Acquire",
    "Decision",
    "Discard",
    "Find",
    "Flow",
    "Give",
    "Keep",
    "Orders",
    "Proceed",
    "Step",
]

R = TypeVar("R")
_TAG = re.compile(r" #([0-9a-f]{12})$")


class Proceed(NamedTuple):
    """Run the view. The caller now owns the lease, and releases it after COMMIT or ROLLBACK."""

    order: Order
    lease: Any  #: a Lease or AsyncLease, as the client that was driven with
    replaces: bool = False  #: an expired record with this key is in the way


class Keep(NamedTuple):
    """Commit the effects together with this record."""

    record: Record


class Discard(NamedTuple):
    """Roll back: the order did not take effect, and another try runs anew."""


Decision = Proceed | Replay | Reject


class Find(NamedTuple):
    """Look a record up; ``fresh``: where writes go, never a replica. Reply: Record or None."""

    key: str
    fresh: bool


class Acquire(NamedTuple):
    """Lock an order, waiting so many seconds. Reply: a lease; errors as of ``Lock.acquire``."""

    order: Order
    timeout: float


class Give(NamedTuple):
    """Release a lease that will not be used. A store that cannot be told is no error."""

    lease: Any


Step = Find | Acquire | Give
Flow = Generator[Step, Any, R]


class Orders:
    """The rules for one application; thread-safe, and shared by all its requests."""

    def __init__(self, settings: OrderSettings) -> None:
        self.settings = settings
        self._waiting = 0
        self._mutex = threading.Lock()

    def identify(
        self,
        facts: RequestFacts,
        *,
        sources: tuple[IdSource, ...] | None = None,
        required: bool | None = None,
    ) -> Order | Reject | None:
        """The order that a request is; None: it is none; Reject: it means to be one.

        ``sources`` and ``required`` override the settings, for one view. Whether the request is
        covered by PATHS and METHODS is the caller's question (``settings.covers``).
        """
        chain = sources or self.settings.order_id
        try:
            order_id = self._order_id(facts, chain)
        except MalformedOrderIdError as error:
            return replies.malformed(str(error))
        if isinstance(order_id, Reject):
            return order_id
        if order_id is None:
            if self.settings.required if required is None else required:
                return replies.missing(" or ".join(map(str, chain)))
            return None
        return self._order(facts, order_id)

    def admit(self, order: Order) -> Flow[Decision]:
        """Whether the view may run for this order, now."""
        try:
            found = yield Find(order.key, fresh=False)
            known = judge(order, found, time.time())
            if known is not None:
                return known
            return (yield from self._enter(order, replaces=found is not None))
        except BackendError as failure:
            return _store_down(failure)

    def reconsider(self, decision: Proceed) -> Flow[Decision]:
        """After a duplicate key: somebody else was first, who held no lease or had lost it."""
        try:
            return (yield from self._look_again(decision))
        except BackendError as failure:
            return _store_down(failure)

    def running(self, order: Order) -> Record:
        """The record to insert before the view is called."""
        now = time.time()
        expires = now + self.settings.ttl
        return Record(order.key, order.order_id, order.request, order.fingerprint, now, expires)

    def conclude(self, order: Order, response: ResponseFacts) -> Keep | Discard:
        """What becomes of the order, given the response of its view."""
        if not storable(response.status):
            return Discard()
        state, snapshot = snapshot_of(response, self.settings.max_response)
        return Keep(replace(self.running(order), state=state, snapshot=snapshot))

    def _order_id(self, facts: RequestFacts, chain: tuple[IdSource, ...]) -> str | Reject | None:
        """A body is read only if its size is allowed, and only if no earlier source has an ID."""
        for source in chain:
            if source.kind in ("json", "form") and self._too_large(facts):
                return replies.too_big(self.settings.max_request)
            found = find_order_id(facts, (source,))
            if found is not None:
                return found
        return None

    def _order(self, facts: RequestFacts, order_id: str) -> Order | Reject:
        if self._too_large(facts):
            return replies.too_big(self.settings.max_request)
        key = key_of(facts, facts.read_identity(), order_id)
        if key is None:
            return replies.nobody()
        request = _printable(f"{facts.method} {facts.path}")
        return Order(order_id, key, fingerprint_of(facts), request)

    def _too_large(self, facts: RequestFacts) -> bool:
        return too_large(facts, self.settings.max_request)

    def _enter(self, order: Order, *, replaces: bool) -> Flow[Decision]:
        """Take the lock. Had nobody held it, the unique key decides without another look."""
        try:
            lease = yield Acquire(order, 0)
        except LockHeld as held:
            if _asks_for_something_else(order, held.holder):
                return replies.different()
            return (yield from self._wait(order))
        return Proceed(order, lease, replaces)

    def _wait(self, order: Order) -> Flow[Decision]:
        if not self._take_a_seat():
            return replies.crowded(1)
        try:
            lease = yield Acquire(order, self.settings.wait)
        except TooManyWaiters as full:
            return replies.crowded(full.retry_after)
        except AcquireTimeout as late:
            found = yield Find(order.key, fresh=True)
            return judge(order, found, time.time()) or replies.running(late.retry_after)
        finally:
            self._leave_seat()
        return (yield from self._look_again(Proceed(order, lease)))

    def _look_again(self, decision: Proceed) -> Flow[Decision]:
        """Under the lock, where writes go. Gives the lock back unless the view may run."""
        order, lease, _ = decision
        try:
            found = yield Find(order.key, fresh=True)
            known = judge(order, found, time.time())
        except BaseException:
            yield Give(lease)
            raise
        if known is None:
            return Proceed(order, lease, replaces=found is not None)
        yield Give(lease)
        return known

    def _take_a_seat(self) -> bool:
        with self._mutex:
            free = self._waiting < self.settings.max_waiters
            self._waiting += free
            return free

    def _leave_seat(self) -> None:
        with self._mutex:
            self._waiting -= 1


def _printable(text: str) -> str:
    """For people, and for databases that refuse NUL."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _asks_for_something_else(order: Order, holder: Owner | None) -> bool:
    """Whether the one that is running has another payload: then waiting for it is pointless."""
    tag = _TAG.search(holder.label) if holder else None
    return tag is not None and tag[1] != order.tag


def _store_down(failure: BackendError) -> Reject:
    """Fail closed, and tell the operator why; the client hears only that."""
    log.error("an order is refused, a store failed: %s", failure)
    return replies.store_down()
