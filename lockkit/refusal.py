"""What a client is told whose request did not get to its view: RFC 9110, RFC 9457, no secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

from lockkit.errors import AcquireTimeout, BackendError, LeaseLost, LockError, TooManyWaiters
from lockkit.facts import AnonymousUser, FieldError

__all__ = ["Refusal", "prefers_html", "refusal_of"]

STORE_RETRY_AFTER = 5
"""Seconds after which a client may try again when the store is down."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that did not get to its view. Shows no name, owner or token."""

    status: int
    code: str  #: for programs, and stable
    title: str
    detail: str
    retry_after: int | None = None  #: whole seconds

    def headers(self) -> dict[str, str]:
        """Never cached: it is about this moment. The body depends on Accept."""
        headers = {"Cache-Control": "no-store", "Vary": "Accept"}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        return headers

    def problem(self) -> dict[str, str | int]:
        """The members of ``application/problem+json`` (RFC 9457), the same as an order's."""
        return {
            "type": "about:blank",
            "title": self.title,
            "status": int(self.status),
            "detail": self.detail,
            "code": self.code,
        }


def refusal_of(error: LockError, busy_status: int = 423) -> Refusal | None:
    """The answer to an error of ``names_for`` or ``acquire``; None: a defect, so let it raise.

    LeaseLost has one for an adapter that has rolled everything back: nothing was done then, and
    trying again is safe. Else let it raise: the view's work may have been done.
    """
    match error:
        case TooManyWaiters():
            detail = "Too many requests wait."
            return _unavailable("lock-waiting-room-full", detail, error.retry_after)
        case AcquireTimeout():
            return _busy(busy_status, error.retry_after)
        case BackendError():
            detail = "The lock store fails. Nothing was done."
            return _unavailable("lock-store-unavailable", detail, STORE_RETRY_AFTER)
        case LeaseLost():
            return _unavailable("lock-lease-lost", "It took too long. Nothing was done.", 1)
        case FieldError():
            return _wrong_request(error)
    return None


def _unavailable(code: str, detail: str, retry_after: int) -> Refusal:
    status = HTTPStatus.SERVICE_UNAVAILABLE
    return Refusal(status, code, "Service Unavailable", detail, retry_after)


def _busy(status: int, retry_after: int) -> Refusal:
    title = "Locked" if status == HTTPStatus.LOCKED else "Busy"
    detail = "Another request works on the same thing."
    return Refusal(status, "lock-busy", title, detail, retry_after)


def _wrong_request(error: FieldError) -> Refusal:
    if isinstance(error, AnonymousUser):
        detail = "Authentication is needed."
        return Refusal(HTTPStatus.FORBIDDEN, "lock-name-needs-user", "Forbidden", detail)
    text = str(error)
    detail = f"{text[:1].upper()}{text[1:]}."
    return Refusal(HTTPStatus.BAD_REQUEST, "lock-name-not-found", "Bad Request", detail)


def prefers_html(accept: str) -> bool:
    """Whether a client asks for HTML by name, and rather than for JSON. Programs often say */*."""
    html = max(_quality(accept, kind) for kind in ("text/html", "application/xhtml+xml"))
    json = max(_quality(accept, kind) for kind in ("application/json", "application/problem+json"))
    return html > json


def _quality(accept: str, media_type: str) -> float:
    """The weight that an Accept header gives to exactly this media type; 0: not named."""
    for entry in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        if kind == media_type:
            return _weight(parameters)
    return 0.0


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            return float(value) if re.fullmatch(r"\d(\.\d*)?", value.strip()) else 0.0
    return 1.0
