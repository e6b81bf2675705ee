"""The engine's answers as Django responses."""

from __future__ import annotations

from django.http import HttpResponse, HttpResponseBase

from lockkit.idempotency import REPLAYED_HEADER, Reject, Snapshot

__all__ = ["refusal", "replay", "same"]


def refusal(reject: Reject) -> HttpResponse:
    """``application/problem+json``, never cached."""
    return HttpResponse(reject.problem(), status=reject.status, headers=dict(reject.headers()))


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
