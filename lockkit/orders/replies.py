"""What a client is told without its view being called, and when.

Statuses are those of PEERS' reference, draft-ietf-httpapi-idempotency-key-header-07; bodies are
problem details (RFC 9457) and name no other client's data.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from lockkit.orders.record import Snapshot, StillRunningError
from lockkit.web.refusal import Refusal as Reject

if TYPE_CHECKING:
    from lockkit.model.errors import BackendError

__all__ = [
    "COMPLETED",
    "ORPHANED",
    "REPLAYED_HEADER",
    "UNKNOWN",
    "Reject",
    "Replay",
    "crowded",
    "different",
    "form_expired",
    "form_of_another",
    "lease_lost",
    "length_required",
    "malformed",
    "missing",
    "nobody",
    "not_allowed",
    "not_claimed",
    "not_replayable",
    "not_saved",
    "orphaned",
    "outcome_unknown",
    "running",
    "store_down",
    "too_big",
    "unreadable",
]

REPLAYED_HEADER = ("Idempotent-Replayed", "true")

COMPLETED = "order-completed"
ORPHANED = "order-orphaned"
UNKNOWN = "order-outcome-unknown"


class Replay(NamedTuple):
    """Give the stored response again, with REPLAYED_HEADER."""

    snapshot: Snapshot
    orphan: bool = False  #: an earlier try left nothing, and RECOVER knew how it ended


def malformed(reason: str) -> Reject:
    return Reject(400, "order-id-malformed", values={"reason": reason})


def missing(sources: str) -> Reject:
    return Reject(400, "order-id-missing", values={"sources": sources})


def nobody() -> Reject:
    return Reject(400, "order-without-owner")


def length_required() -> Reject:
    return Reject(411, "order-length-required")


def too_big(limit: int) -> Reject:
    return Reject(413, "order-too-large", values={"limit": limit})


def different() -> Reject:
    return Reject(422, "order-id-reused")


def form_of_another() -> Reject:
    return Reject(403, "order-form-of-another")


def form_expired() -> Reject:
    return Reject(409, "order-form-expired")


def running(retry_after: int) -> Reject:
    return Reject(409, "order-running", retry_after)


def crowded(retry_after: int) -> Reject:
    return Reject(503, "order-waiting-room-full", retry_after)


def store_down(retry_after: int = 5) -> Reject:
    return Reject(503, "order-store-unavailable", retry_after)


def not_claimed(failure: BackendError) -> Reject:
    """The record of an order could not be written; its view has not run."""
    return running(1) if isinstance(failure, StillRunningError) else store_down()


def outcome_unknown(retry_after: int = 5, *, may_repeat: bool = False) -> Reject:
    """``may_repeat``: the settings let an order run again whose end is not known."""
    return Reject(503, UNKNOWN, retry_after, variant="-may-repeat" if may_repeat else "")


def lease_lost(retry_after: int = 1) -> Reject:
    return Reject(503, "order-lease-lost", retry_after)


def not_saved(retry_after: int = 1) -> Reject:
    """The view answers well, and its transaction has failed."""
    return Reject(503, "order-not-saved", retry_after)


def not_allowed() -> Reject:
    return Reject(403, "order-replay-refused")


def orphaned() -> Reject:
    return Reject(409, ORPHANED)


def not_replayable(location: str | None = None) -> Reject:
    """``location``: left out unless it is relative, http or https. It becomes a link in a page."""
    if location is not None and _is_of_no_web_page(location):
        location = None
    return Reject(409, COMPLETED, location=location)


def unreadable() -> Reject:
    return Reject(503, "order-record-unreadable", 60)


def _is_of_no_web_page(url: str) -> bool:
    """``javascript:``, say. Browsers pass over spaces and control characters in a scheme."""
    scheme = re.match(r"[^/?#:]*:", re.sub(r"[\x00-\x20\x7f]", "", url))
    return scheme is not None and scheme[0].lower() not in ("http:", "https:")
