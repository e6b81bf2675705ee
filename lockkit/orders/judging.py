"""The meaning of a record for a request with its key."""

from __future__ import annotations

from lockkit.model.log import log
from lockkit.orders.decisions import Replay
from lockkit.orders.record import VERSION, Record, RecordState
from lockkit.orders.refusals import (
    DIFFERENT,
    FORM_EXPIRED,
    ORPHANED,
    UNREADABLE,
    not_replayable,
)
from lockkit.orders.request import FINGERPRINT_VERSION, Order
from lockkit.web.refusal import Refusal


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
