"""The answers to requests whose order is refused.

Statuses are those of draft-ietf-httpapi-idempotency-key-header-07. Bodies are problem details
(RFC 9457) without another client's data. An adapter uses some of them itself, for what only it can
notice: a lost lease, a store that fails in the middle, a replay that is not allowed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lockkit.orders.record import StillRunningError
from lockkit.web.refusal import Refusal

if TYPE_CHECKING:
    from lockkit.model.errors import AcquireTimeout, BackendError

COMPLETED = "order-completed"

_NO_OWNER = (
    "it has no user, no session that the server keeps (one in a cookie does not count) and no "
    "Authorization header; for guests, let {% order_id %} or order_id_field() make a form's ID"
)
_CHANGES = (
    "its Authorization header may be another at the next try, as a JSON web token is, and the "
    "server does not know its user"
)
NOBODY = Refusal(400, "order-without-owner", reason=_NO_OWNER)
CHANGING = NOBODY._replace(reason=_CHANGES)
NOT_ALLOWED = Refusal(403, "order-replay-refused")
FORM_OF_ANOTHER = Refusal(403, "order-form-of-another")
FORM_EXPIRED = Refusal(409, "order-form-expired")
ORPHANED = Refusal(409, "order-orphaned")
LENGTH_REQUIRED = Refusal(411, "order-length-required", reason="it has no Content-Length")
DIFFERENT = Refusal(422, "order-id-reused")
LEASE_LOST = Refusal(503, "order-lease-lost", 1)
NOT_SAVED = Refusal(503, "order-not-saved", 1)  #: the transaction of the order was rolled back
STORE_DOWN = Refusal(503, "order-store-unavailable", 5)
UNREADABLE = Refusal(503, "order-record-unreadable", 60)


def malformed(reason: str) -> Refusal:
    return Refusal(400, "order-id-malformed", reason=reason)


def missing(sources: str) -> Refusal:
    return Refusal(400, "order-id-missing", reason=f"it is read from {sources}")


def too_big(limit: int) -> Refusal:
    return Refusal(413, "order-too-large", values={"limit": limit})


def running(retry_after: int, seen: object = "") -> Refusal:
    return Refusal(409, "order-running", retry_after, seen=str(seen))


def crowded(retry_after: int, seen: object = "") -> Refusal:
    return Refusal(503, "order-waiting-room-full", retry_after, seen=str(seen))


def too_many_wait(held: AcquireTimeout) -> Refusal:
    return crowded(1, f"MAX_WAITERS requests of this process wait already, and {held}")


def not_claimed(failure: BackendError) -> Refusal:
    """The record of an order could not be written; its view has not run."""
    return running(1) if isinstance(failure, StillRunningError) else STORE_DOWN


def outcome_unknown(*, may_repeat: bool = False) -> Refusal:
    """``may_repeat``: the settings allow an order whose end is not known to run again."""
    variant = "-may-repeat" if may_repeat else ""
    return Refusal(503, "order-outcome-unknown", 5, variant=variant)


def not_replayable(location: str | None = None) -> Refusal:
    """``location``: becomes a link in a page. Left out unless it is relative, http or https."""
    if location is not None and _has_another_scheme(location):
        location = None
    return Refusal(409, COMPLETED, location=location)


def _has_another_scheme(url: str) -> bool:
    """Whether it has a scheme other than http and https, such as ``javascript:``. Browsers ignore
    blanks and control characters in a scheme."""
    scheme = re.match(r"[^/?#:]*:", re.sub(r"[\x00-\x20\x7f]", "", url))
    return scheme is not None and scheme[0].lower() not in ("http:", "https:")
