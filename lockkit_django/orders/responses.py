"""The engine's answers as Django responses."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from lockkit.idempotency import REPLAYED_HEADER, Reject, Snapshot
from lockkit.idempotency.advice import advice, page
from lockkit.refusal import prefers_html
from lockkit_django.responses import template_text

__all__ = ["make_page", "refusal", "refusal_for_browser", "replay", "same"]

OF_CONTENT = ("Content-Encoding", "Content-Length", "ETag")
"""What a decorator of the view may have said of the JSON."""
_REJECT = "_lockkit_reject"


def refusal(reject: Reject) -> HttpResponse:
    """``application/problem+json``, never cached. The middleware makes a page of it if need be."""
    response = HttpResponse(reject.problem(), status=reject.status, headers=dict(reject.headers()))
    setattr(response, _REJECT, reject)
    return response


def refusal_for_browser(request: HttpRequest, response: HttpResponseBase) -> HttpResponse | None:
    """This response, if it is a refusal that is to become a page."""
    if not hasattr(response, _REJECT) or not prefers_html(request.headers.get("Accept", "")):
        return None
    return response if isinstance(response, HttpResponse) else None


def make_page(request: HttpRequest, response: HttpResponse) -> None:
    """The refusal as a page: ``lockkit/<code>.html``, ``lockkit/<status>.html``, or ours."""
    reject: Reject = getattr(response, _REJECT)
    names = (reject.code, str(reject.status), "order")
    context = {"refusal": reject, "advice": advice(reject)}
    text = template_text(request, [f"lockkit/{name}.html" for name in names], context)
    response.content = page(reject) if text is None else text
    response.headers["Content-Type"] = f"text/html; charset={response.charset}"
    for header in OF_CONTENT:
        response.headers.pop(header, None)


def replay(snapshot: Snapshot) -> HttpResponse:
    """The stored response, byte for byte, marked as a replay."""
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
