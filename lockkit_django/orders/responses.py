"""The engine's answers as Django responses."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from lockkit.idempotency import REPLAYED_HEADER, Reject, Snapshot
from lockkit.idempotency.advice import advice, page
from lockkit.refusal import prefers_html
from lockkit_django.responses import template_text

__all__ = ["for_browser", "refusal", "refusal_for_browser", "replay", "same"]

_REJECT = "_lockkit_reject"


def refusal(reject: Reject) -> HttpResponse:
    """``application/problem+json``, never cached. The middleware makes a page of it if need be."""
    response = HttpResponse(reject.problem(), status=reject.status, headers=dict(reject.headers()))
    setattr(response, _REJECT, reject)
    return response


def refusal_for_browser(request: HttpRequest, response: HttpResponseBase) -> Reject | None:
    """The refusal that this response is, if it is to become a page."""
    reject: Reject | None = getattr(response, _REJECT, None)
    if reject is None or not prefers_html(request.headers.get("Accept", "")):
        return None
    return reject


def for_browser(request: HttpRequest, response: HttpResponseBase, reject: Reject) -> HttpResponse:
    """The refusal as a page: ``lockkit/<code>.html``, ``lockkit/<status>.html``, or ours."""
    names = (reject.code, str(reject.status), "order")
    context = {"refusal": reject, "advice": advice(reject)}
    text = template_text(request, [f"lockkit/{name}.html" for name in names], context)
    answer = HttpResponse(page(reject) if text is None else text, status=reject.status)
    for header, value in response.headers.items():
        if header != "Content-Type":
            answer.headers[header] = value
    answer.cookies = response.cookies
    return answer


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
