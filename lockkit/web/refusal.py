"""The answer to a request that did not reach its view, by RFC 9110 and RFC 9457."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from html import escape
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from lockkit.model.errors import (
    AcquireTimeout,
    BackendError,
    BackendUnavailable,
    LeaseLost,
    LockError,
    TooManyWaiters,
)
from lockkit.model.log import log
from lockkit.texts import DEFAULT, Text, catalogue
from lockkit.web.name_fields import AnonymousUser, FieldError

ORDER_ID = "_lockkit_order_id"
"""Attribute of a request: its order ID, or None. It is set as soon as an order is looked for."""

UNAVAILABLE = HTTPStatus.SERVICE_UNAVAILABLE
STORE_RETRY_AFTER = 5
"""Seconds after which a client may try again if the store is down."""


_PAGE = """<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
</head>
<body>
<h1>{title}</h1>
{paragraphs}
</body>
</html>
"""


Render = Callable[[list[str], dict[str, object]], str | None]
"""Fills the first of these templates that the application has; None: it has none of them."""


class Answer(NamedTuple):
    """The body of a response, and all its headers."""

    text: str
    headers: dict[str, str]


class Refusal(NamedTuple):
    """The answer to a request that did not reach its view. It shows no name, owner or token."""

    status: int
    code: str  #: for programs, and stable
    retry_after: int | None = None  #: whole seconds
    location: str | None = None  #: the URL of what an order made
    values: Mapping[str, object] = MappingProxyType({})  #: what its text has placeholders for
    variant: str = ""  #: of its text: added to ``code`` in the catalogue
    language: str = DEFAULT  #: of its text
    reason: str = ""  #: for programs and the log, not for pages: it is not translated
    seen: str = ""  #: for the log alone: which name, and who holds it

    def in_language(self, language: str | None) -> Refusal:
        """This refusal in a language if a catalogue has all its texts; otherwise in English."""
        found, codes = catalogue(language), [self.code + self.variant]
        if self.location is not None:
            codes.append("page")
        return self._replace(language=found.language if all(map(found.has, codes)) else DEFAULT)

    @property
    def title(self) -> str:
        return self._text.title

    @property
    def detail(self) -> str:
        return self._text.detail

    @property
    def advice(self) -> str:
        """What somebody with a browser can do now; may be empty."""
        return self._text.advice

    @property
    def _text(self) -> Text:
        values = {"seconds": self.retry_after, **self.values}
        return catalogue(self.language).text(self.code + self.variant, values)

    @property
    def your_order(self) -> str:
        """The text of a link to ``location``."""
        return catalogue(self.language).page("order")

    def headers(self) -> dict[str, str]:
        """Headers that forbid caching, because a refusal is about this moment."""
        headers = {
            "Cache-Control": "no-store",
            "Vary": "Accept",
            "Content-Language": self.language,
        }
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.location is not None:
            headers["Location"] = self.location
        return headers

    def problem(self) -> dict[str, str | int]:
        """The members of ``application/problem+json`` (RFC 9457), with ``code`` and ``reason``."""
        members: dict[str, str | int] = {
            "type": "about:blank",
            "title": self.title,
            "status": int(self.status),
            "detail": self.detail,
            "code": self.code,
        }
        return members | ({"reason": self.reason} if self.reason else {})

    def answer(self, accept: str, render: Render) -> Answer:
        """The answer to a client that sends this Accept header: a page, or RFC 9457."""
        if prefers_html(accept):
            return self.html(render)
        headers = {**self.headers(), "Content-Type": "application/problem+json"}
        return Answer(json.dumps(self.problem()), headers)

    def html(self, render: Render) -> Answer:
        """A page from a template of the application, if it has one, otherwise our own."""
        headers = {**self.headers(), "Content-Type": "text/html; charset=utf-8"}
        names = [f"lockkit/{name}.html" for name in (self.code, int(self.status), "refusal")]
        text = render(names, {"refusal": self._replace(seen=""), "advice": self.advice})
        if text is None:
            return Answer(self.page(), headers)
        del headers["Content-Language"]  # only the application knows that of its template
        return Answer(text, headers)

    def page(self) -> str:
        """A whole page of HTML, for an application that has no template of its own."""
        paragraphs = [f"<p>{escape(text)}</p>" for text in (self.detail, self.advice) if text]
        if self.location is not None:
            link = f'<a href="{escape(self.location)}">{escape(self.your_order)}</a>'
            paragraphs.append(f"<p>{link}</p>")
        return _PAGE.format(
            language=self.language, title=escape(self.title), paragraphs="\n".join(paragraphs)
        )


def refusal_of(error: LockError, busy_status: int = 423) -> Refusal:
    """The answer to an error of ``names_for`` or ``acquire``. Raises the error if it is a defect.

    Use the answer to LeaseLost only if everything was rolled back: it says that trying again is
    safe. Otherwise raise the error, because the view's work may have been done.
    """
    match error:
        case TooManyWaiters():
            return Refusal(UNAVAILABLE, "lock-waiting-room-full", error.retry_after)
        case AcquireTimeout():
            return Refusal(busy_status, "lock-busy", error.retry_after)
        case BackendError():
            return Refusal(UNAVAILABLE, "lock-store-unavailable", STORE_RETRY_AFTER)
        case LeaseLost():
            return Refusal(UNAVAILABLE, "lock-lease-lost", 1)
        case AnonymousUser():
            return Refusal(HTTPStatus.FORBIDDEN, "lock-name-needs-user")
        case FieldError():
            return Refusal(HTTPStatus.BAD_REQUEST, "lock-name-not-found", reason=str(error))
    raise error


def log_refusal(request: Any, refusal: Refusal, *, why: Exception | None = None) -> None:
    """Log what the client is not told: which name, whose lease, which order.

    A store that fails is an error, a view that waits for itself is a warning, and everything else
    is INFO.
    """
    order_id = vars(request).get(ORDER_ID)
    order = "" if order_id is None else f" for the order {order_id!r}"
    reason = f": {why or refusal.seen or refusal.reason}".removesuffix(": ")
    if isinstance(why, LockError) and why.name and repr(why.name) not in reason:
        reason = f" for {why.name!r}{reason}"
    failed = isinstance(why, BackendError) or refusal.code.endswith("-store-unavailable")
    own = isinstance(why, AcquireTimeout) and why.own
    say = log.error if failed else log.warning if own else log.info
    say("%s gets %d %s%s%s", request_label(request), refusal.status, refusal.code, order, reason)


def request_label(request: Any) -> str:
    """The label beside the owner: the request line without its query, escaped."""
    path = quote(request.path, safe="/:@!$&'()*+,;=", errors="replace")
    return f"{quote(request.method or '', safe='')} {path}"[:200]


def refusal_of_uncaught(error: Exception, busy_status: int = 423) -> Refusal | None:
    """The answer to an exception of a view that asked for a lock itself and did not get it.

    None for any other exception: raise that. LeaseLost, OutcomeUnknown and errors of a lease that
    the view had are among them, because the view's work may have been done.
    """
    if isinstance(error, (AcquireTimeout, BackendUnavailable)) and not error.of_lease:
        return refusal_of(error, busy_status)
    return None


def prefers_html(accept: str) -> bool:
    """Whether a client asks for HTML by name, and prefers it to JSON. Programs often send */*."""
    html = max(_quality(accept, kind) for kind in ("text/html", "application/xhtml+xml"))
    json = max(_quality(accept, kind) for kind in ("application/json", "application/problem+json"))
    return html > json


def _quality(accept: str, media_type: str) -> float:
    """The weight that an Accept header gives to exactly this media type; 0 if it is not named."""
    for entry in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        if kind == media_type:
            weights = (re.fullmatch(r"q\s*=\s*(.*)", each) for each in parameters)
            weight = next((each[1] for each in weights if each), "1")
            return float(weight) if re.fullmatch(r"\d(\.\d*)?", weight) else 0.0
    return 0.0
