"""The answers to refused requests: HTTP exceptions for ``app.errorhandler``, and responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flask import after_this_request, current_app, render_template, request
from jinja2 import TemplatesNotFound
from werkzeug.exceptions import HTTPException, default_exceptions

from lockkit.model.errors import LockError
from lockkit.web.refusal import Refusal, log_refusal, refusal_of_uncaught

if TYPE_CHECKING:
    import flask


def http_exception(refusal: Refusal, why: LockError) -> HTTPException:
    """The exception to raise: 423 is ``Locked``, 503 ``ServiceUnavailable``, and so on.

    ``app.errorhandler(423)`` sees it, with ``description`` and ``retry_after``. Without a handler
    the client gets what ``refused`` makes. If a handler returns the same status without a
    Retry-After, that is added.
    """
    log_refusal(request, refusal, why=why)
    said = in_language(refusal)
    error = default_exceptions.get(said.status, HTTPException)(said.detail)
    error.code = said.status
    vars(error)["retry_after"] = said.retry_after
    error.response = _response(said)

    @after_this_request
    def add_missing(response: flask.Response) -> flask.Response:
        if response.status_code == said.status:
            headers = said.headers()
            del headers["Content-Language"]  # of a text that the handler may not have used
            for header, value in headers.items():
                response.headers.setdefault(header, value)
        return response

    return error


def answer_lock_errors(app: flask.Flask, busy_status: int) -> None:
    """If a lock by hand raises and nobody catches it, answer as ``lock_view`` does.

    The app's own error handlers go first: those for the exception or a class above it, and those
    for 423 and 503.
    """
    handle = app.handle_user_exception

    def handle_or_answer(*args: Any) -> Any:  # the error; after Flask 3.1 the context before it
        try:
            return handle(*args)
        except LockError as uncaught:
            refusal = refusal_of_uncaught(uncaught, busy_status)
            if refusal is None:
                raise
            answer: Any = app.handle_http_exception
            return answer(*args[:-1], http_exception(refusal, uncaught))

    vars(app)["handle_user_exception"] = handle_or_answer


def refused(refusal: Refusal) -> flask.Response:
    """The answer to an order that is refused: ``application/problem+json``.

    For a browser it is the app's template ``lockkit/<code>.html``, ``lockkit/<status>.html`` or
    ``lockkit/refusal.html``, else a page of ours.
    """
    log_refusal(request, refusal)
    return _response(in_language(refusal))


def _response(refusal: Refusal) -> flask.Response:
    text, headers = refusal.answer(request.headers.get("Accept", ""), _render)
    return current_app.response_class(text, refusal.status, headers)


def _render(names: list[str], context: dict[str, object]) -> str | None:
    try:
        return render_template([*names], **context)
    except TemplatesNotFound:
        return None


def in_language(refusal: Refusal) -> Refusal:
    """The refusal in the language that is active in Flask-Babel, else in English."""
    if "babel" not in current_app.extensions:
        return refusal
    from flask_babel import get_locale  # type: ignore[import-untyped]

    return refusal.in_language(str(get_locale()))
