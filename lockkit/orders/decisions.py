"""The decisions of the engine, and the meaning of a record for a request with its key."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from lockkit.model.log import log
from lockkit.orders.record import VERSION, Record, RecordState, Snapshot
from lockkit.orders.refusals import (
    DIFFERENT,
    FORM_EXPIRED,
    ORPHANED,
    UNREADABLE,
    not_replayable,
)
from lockkit.orders.request import FINGERPRINT_VERSION, Order
from lockkit.web.refusal import Refusal

REPLAYED_HEADER = ("Idempotent-Replayed", "true")


class Proceed(NamedTuple):
    """Run the view. The caller now owns the lease, and releases it when all is over."""

    order: Order
    lease: Any  #: a Lease or AsyncLease, of the client that the flow ran with
    replaces: bool = False  #: an expired record with this key is in the way, or an orphan
    orphan: bool = False  #: an earlier try was begun, and its end is not known: ORPHANS "retry"
    until: float = 0.0  #: by the monotonic clock, when a duplicate has waited for WAIT seconds

    @property
    def patience(self) -> float:
        """Seconds that the claim may still wait for a try that has the order's record."""
        return max(self.until - time.monotonic(), 0.0)


class Replay(NamedTuple):
    """Give the stored response again, with REPLAYED_HEADER."""

    snapshot: Snapshot
    orphan: bool = False  #: an earlier try left nothing, and RECOVER knew how it ended


Decision = Proceed | Replay | Refusal


class Keep(NamedTuple):
    """Commit the effects together with this record."""

    record: Record


class Discard(NamedTuple):
    """Roll back: the order did not take effect, and another try runs anew."""


class Forget(NamedTuple):
    """Commit what the view would have saved without an order, and delete the record in the same
    COMMIT: a guess that was counted stays counted, and another try runs the view again."""


def judge(order: Order, record: Record | None) -> Replay | Refusal | None:
    """The answer that a record gives; None if the request is the first, or another try still runs.

    A record that this release cannot read is never overwritten, and its order never runs again,
    even if the record looks expired.
    """
    if record is None:
        return FORM_EXPIRED if order.stale else None
    if record.version > VERSION or not _has_our_fingerprint(record):
        return _unreadable(order)
    if record.left <= 0:
        return FORM_EXPIRED if order.stale else None
    if not order.same(record.fingerprint):
        return DIFFERENT
    return _known(order, record)


def left_running(record: Record | None) -> bool:
    """Whether a record for which ``judge`` has no answer says that the order runs.

    Under the lock it is then an orphan: the try that wrote it is gone, or has lost its lease.
    """
    return record is not None and record.state == RecordState.RUNNING and record.left > 0


def met_orphan(decision: object) -> bool:
    """Whether a decision was about an orphan, under any policy; for the signal."""
    if isinstance(decision, Refusal):
        return decision.code == ORPHANED.code
    return bool(getattr(decision, "orphan", False))


def news_of(decision: Decision) -> Iterator[str]:
    """The names of the signals that this decision is worth."""
    if met_orphan(decision):
        yield "order_orphaned"
    if isinstance(decision, Replay):
        yield "order_replayed"
    if isinstance(decision, Refusal) and decision.code == DIFFERENT.code:
        yield "order_conflict"


def is_damaged(record: Record) -> bool:
    """Whether no release can have written the record so. A newer release's is not damaged."""
    if record.version > VERSION:
        return False
    return not _has_our_fingerprint(record) or record.state not in set(RecordState)


def _has_our_fingerprint(record: Record) -> bool:
    return record.fingerprint.startswith(f"{FINGERPRINT_VERSION}:")


def _known(order: Order, record: Record) -> Replay | Refusal | None:
    if record.state == RecordState.DONE:
        return Replay(record.snapshot)
    if record.state == RecordState.TOMBSTONE:
        return not_replayable(record.snapshot.header("Location"))
    if record.state == RecordState.RUNNING:
        return None
    return _unreadable(order)


def _unreadable(order: Order) -> Refusal:
    """Log which record it is, because no duplicate of its order will ever be answered."""
    log.error("an order is refused, its record cannot be read: %s", order.lock_name)
    return UNREADABLE
