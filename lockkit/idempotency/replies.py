"""What a client is told without its view being called, and when.

Statuses are those of PEERS' reference, draft-ietf-httpapi-idempotency-key-header-07; bodies are
problem details (RFC 9457) and name no other client's data.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from lockkit.idempotency.record import Snapshot, StillRunningError

if TYPE_CHECKING:
    from lockkit.errors import BackendError

__all__ = [
    "COMPLETED",
    "ORPHANED",
    "PROBLEM_TYPE",
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
PROBLEM_TYPE = "application/problem+json"


COMPLETED = "order-completed"
ORPHANED = "order-orphaned"
UNKNOWN = "order-outcome-unknown"


class Replay(NamedTuple):
    """Give the stored response again, with REPLAYED_HEADER."""

    snapshot: Snapshot
    orphan: bool = False  #: an earlier try left nothing, and RECOVER knew how it ended


class Reject(NamedTuple):
    """Refuse. ``code`` is for programs and stable; ``detail`` is for people."""

    status: int
    code: str
    title: str
    detail: str
    retry_after: int | None = None  #: whole seconds
    location: str | None = None  #: of what the order made

    def headers(self) -> tuple[tuple[str, str], ...]:
        pairs = [("Content-Type", PROBLEM_TYPE), ("Cache-Control", "no-store"), ("Vary", "Accept")]
        if self.retry_after is not None:
            pairs.append(("Retry-After", str(self.retry_after)))
        if self.location is not None:
            pairs.append(("Location", self.location))
        return tuple(pairs)

    def problem(self) -> bytes:
        """The body: RFC 9457, and ``code``; the same members as a busy lock's refusal."""
        members = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        return json.dumps(members).encode()


def malformed(detail: str) -> Reject:
    return Reject(400, "order-id-malformed", "Malformed order ID", _sentence(detail))


def missing(sources: str) -> Reject:
    return Reject(
        400,
        "order-id-missing",
        "Order ID missing",
        f"This request needs an order ID ({sources}), so that it can be repeated safely.",
    )


def nobody() -> Reject:
    return Reject(
        400,
        "order-without-owner",
        "Nobody to own the order ID",
        "An order ID belongs to a user, an Authorization header or a session; "
        "this request has none of them.",
    )


def length_required() -> Reject:
    return Reject(
        411,
        "order-length-required",
        "Length required",
        "A request with an order ID must say how long it is, with Content-Length.",
    )


def too_big(limit: int) -> Reject:
    return Reject(
        413,
        "order-too-large",
        "Request too large",
        f"A request with an order ID may have at most {limit} bytes.",
    )


def different() -> Reject:
    return Reject(
        422,
        "order-id-reused",
        "Order ID used for another request",
        "This order ID came with another request before. Use a new one for a new order.",
    )


def form_of_another() -> Reject:
    return Reject(
        403,
        "order-form-of-another",
        "Form of somebody else",
        "This form was made for another visitor, or before you logged out. Load the page again.",
    )


def form_expired() -> Reject:
    return Reject(
        409,
        "order-form-expired",
        "Form too old",
        "This form is so old that it is not known whether it was sent before. Load the page again.",
    )


def running(retry_after: int) -> Reject:
    return Reject(
        409,
        "order-running",
        "Order is being processed",
        "A request with this order ID is still running. Repeat it later.",
        retry_after,
    )


def crowded(retry_after: int) -> Reject:
    return Reject(
        503,
        "order-waiting-room-full",
        "Too many requests wait",
        "Too many requests wait for orders that are being processed.",
        retry_after,
    )


def store_down(retry_after: int = 5) -> Reject:
    return Reject(
        503,
        "order-store-unavailable",
        "Orders cannot be accepted now",
        "The order was not processed, because it could not be protected against being "
        "processed twice. Repeat it with the same order ID.",
        retry_after,
    )


def not_claimed(failure: BackendError) -> Reject:
    """The record of an order could not be written; its view has not run."""
    return running(1) if isinstance(failure, StillRunningError) else store_down()


def outcome_unknown(retry_after: int = 5, *, may_repeat: bool = False) -> Reject:
    """``may_repeat``: the settings let an order run again whose end is not known."""
    promise = (
        "Repeat it with the same order ID."
        if may_repeat
        else "Repeat it with the same order ID: it will not be processed twice."
    )
    return Reject(
        503,
        UNKNOWN,
        "Outcome unknown",
        f"The order may or may not have been saved. {promise}",
        retry_after,
    )


def lease_lost(retry_after: int = 1) -> Reject:
    return Reject(
        503,
        "order-lease-lost",
        "Order not saved",
        "Processing took too long and nothing was saved. Repeat it with the same order ID.",
        retry_after,
    )


def not_saved(retry_after: int = 1) -> Reject:
    """The view answers well, and its transaction has failed."""
    return Reject(
        503,
        "order-not-saved",
        "Order not saved",
        "The order could not be saved. Repeat it with the same order ID.",
        retry_after,
    )


def not_allowed() -> Reject:
    return Reject(
        403,
        "order-replay-refused",
        "Not allowed",
        "You may not see the response to this order any more.",
    )


def orphaned() -> Reject:
    return Reject(
        409,
        ORPHANED,
        "Order was interrupted",
        "This order was begun and its end is not known. It is not run again by itself; "
        "the service's operators can tell.",
    )


def not_replayable(location: str | None = None) -> Reject:
    """``location``: left out unless it is relative, http or https. It becomes a link in a page."""
    return Reject(
        409,
        COMPLETED,
        "Order completed, response not kept",
        "This order was processed before; its response cannot be repeated.",
        location=None if location is None or _is_of_no_web_page(location) else location,
    )


def unreadable() -> Reject:
    return Reject(
        503,
        "order-record-unreadable",
        "Orders cannot be accepted now",
        "This order is known to a newer release of the service. Repeat it later.",
        60,
    )


def _is_of_no_web_page(url: str) -> bool:
    """``javascript:``, say. Browsers pass over spaces and control characters in a scheme."""
    scheme = re.match(r"[^/?#:]*:", re.sub(r"[\x00-\x20\x7f]", "", url))
    return scheme is not None and scheme[0].lower() not in ("http:", "https:")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
