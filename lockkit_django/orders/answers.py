"""The engine's answers as Django responses."""

from __future__ import annotations

from functools import partial

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.middleware.csrf import get_token

from lockkit.orders import Refusal, Snapshot
from lockkit.orders.decisions import REPLAYED_HEADER
from lockkit.orders.forgery import with_token
from lockkit.web.refusal import log_refusal, prefers_html
from lockkit.web.view_lock import request_label
from lockkit_django.web.refusals import html_response, in_language, problem_response

__all__ = [
    "log_if_refused",
    "make_page",
    "note_order",
    "refusal",
    "refusal_for_browser",
    "replay",
    "same",
]

OF_CONTENT = ("Content-Encoding", "Content-Length", "ETag")
"""What a decorator of the view may have said of the JSON."""
_REJECT = "_lockkit_reject"
_ORDER_ID = "_lockkit_order_id"


def refusal(reject: Refusal) -> HttpResponse:
    """``application/problem+json``, never cached. The middleware makes a page of it if need be."""
    said = in_language(reject)
    response = problem_response(said)
    setattr(response, _REJECT, said)
    return response


def note_order(request: HttpRequest, order_id: str) -> None:
    """For the log, should the request be refused."""
    vars(request)[_ORDER_ID] = order_id


def log_if_refused(request: HttpRequest, response: HttpResponseBase) -> None:
    reject: Refusal | None = getattr(response, _REJECT, None)
    if reject is not None:
        label = request_label(request.method or "", request.path)
        log_refusal(label, reject, order_id=vars(request).get(_ORDER_ID))


def refusal_for_browser(request: HttpRequest, response: HttpResponseBase) -> HttpResponse | None:
    """This response, if it is a refusal that is to become a page."""
    if not hasattr(response, _REJECT) or not prefers_html(request.headers.get("Accept", "")):
        return None
    return response if isinstance(response, HttpResponse) else None


def make_page(request: HttpRequest, response: HttpResponse) -> None:
    """The refusal as a page: ``lockkit/<code>.html``, ``lockkit/<status>.html``, or ours."""
    reject: Refusal = getattr(response, _REJECT)
    page = html_response(request, reject, (reject.code, str(reject.status), "refusal"))
    response.content = page.content
    for header in (*OF_CONTENT, "Content-Language"):
        response.headers.pop(header, None)
    for header in ("Content-Type", "Content-Language"):
        if header in page.headers:
            response.headers[header] = page.headers[header]


def replay(request: HttpRequest, snapshot: Snapshot) -> HttpResponse:
    """The stored response, byte for byte but for CSRF tokens, marked as a replay."""
    snapshot = with_token(snapshot, partial(get_token, request))
    response = HttpResponse(snapshot.body, status=snapshot.status)
    del response.headers["Content-Type"]  # Django's default; the stored one, if any, follows
    for name, value in (*snapshot.headers, REPLAYED_HEADER):
        response.headers[name] = value
    return response


def same(one: HttpResponseBase, other: HttpResponseBase) -> bool:
    """Whether a client would see the same status and body."""
    if one is other:
        return True
    content = getattr(one, "content", None)
    return one.status_code == other.status_code and content == getattr(other, "content", content)
