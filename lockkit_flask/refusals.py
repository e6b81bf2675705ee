"""A refused request, as the HTTP exception of Werkzeug that an ``errorhandler`` knows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flask import after_this_request, current_app, render_template, request
from jinja2 import TemplatesNotFound
from werkzeug.exceptions import HTTPException, default_exceptions
from werkzeug.wrappers import Response

from lockkit.idempotency.advice import advice, page
from lockkit.refusal import Refusal, prefers_html

if TYPE_CHECKING:
    import flask

    from lockkit.idempotency import Reject

__all__ = ["http_exception", "problem_response", "refused"]


def http_exception(refusal: Refusal) -> HTTPException:
    """The exception to raise: 423 is ``Locked``, 503 ``ServiceUnavailable``, and so on.

    ``app.errorhandler(423)`` sees it, with ``description`` and ``retry_after``. Without a handler
    the client gets HTML if it asks for HTML, else problem+json. What a handler returns with the
    same status gets the Retry-After, should it forget that.
    """
    error = default_exceptions.get(refusal.status, HTTPException)(refusal.detail)
    error.code = refusal.status
    vars(error)["retry_after"] = refusal.retry_after
    if not prefers_html(request.headers.get("Accept", "")):
        error.response = problem_response(refusal)
    _insist_on_headers(refusal)
    return error


def problem_response(refusal: Refusal) -> Response:
    """``application/problem+json`` (RFC 9457)."""
    return Response(
        json.dumps(refusal.problem()),
        status=refusal.status,
        headers=refusal.headers(),
        content_type="application/problem+json",
    )


def refused(reject: Reject) -> flask.Response:
    """The answer to a request that is an order and is not let in.

    ``application/problem+json``; for a browser the app's template ``lockkit/<code>.html`` or
    ``lockkit/<status>.html``, else a page of ours.
    """
    response = current_app.response_class(reject.problem(), reject.status, list(reject.headers()))
    if prefers_html(request.headers.get("Accept", "")):
        response.set_data(_page(reject))
        response.content_type = "text/html; charset=utf-8"
    return response


def _page(reject: Reject) -> str:
    code, status = f"lockkit/{reject.code}.html", f"lockkit/{reject.status}.html"
    try:
        return render_template([code, status], refusal=reject, advice=advice(reject))
    except TemplatesNotFound:
        return page(reject)


def _insist_on_headers(refusal: Refusal) -> None:
    @after_this_request
    def add_missing(response: flask.Response) -> flask.Response:
        if response.status_code == refusal.status:
            for header, value in refusal.headers().items():
                response.headers.setdefault(header, value)
        return response
