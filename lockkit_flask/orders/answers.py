"""A view's response as the order engine reads it, and the answer to whoever sends it again."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flask import current_app, g, request, url_for

from lockkit.orders import OrderResponse
from lockkit.orders.decisions import REPLAYED_HEADER
from lockkit.orders.forgery import with_token, without_tokens

if TYPE_CHECKING:
    from flask import Response

    from lockkit.orders import Replay

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


def response_facts(response: Response, max_body: int) -> OrderResponse:
    """A body that streams is left alone, unless it says that it is small.

    An HTTPException's response does: Flask makes an iterator of what is in memory.
    """
    body = None if _streams(response, max_body) else response.get_data()
    facts = OrderResponse(response.status_code, list(response.headers.items()), body)
    return without_tokens(facts, _tokens())


def replayed(replay: Replay) -> Response:
    status, headers, body = with_token(replay.snapshot, _new_token)
    response = current_app.response_class(body, status)
    del response.headers["Content-Type"]  # Flask's default; the stored one, if any, follows
    response.headers.extend([*headers, REPLAYED_HEADER])
    return response


def asks_to_log_in(response: Response) -> bool:
    """Whether it is the redirect to the login page of Flask-Login."""
    manager = getattr(current_app, "login_manager", None)
    if manager is None or not 300 <= response.status_code < 400:  # noqa: PLR2004
        return False
    view = manager.blueprint_login_views.get(request.blueprint) or manager.login_view
    return view is not None and _path(response.location) == _path(_url_of(view))


def _streams(response: Response, max_body: int) -> bool:
    if response.direct_passthrough:
        return True
    length = response.headers.get("Content-Length", type=int)
    return response.is_streamed and (length is None or length > max_body)


def _url_of(view: str) -> str:
    """Flask-Login takes an endpoint, or a URL."""
    return view if view.startswith(("https://", "http://", "/")) else url_for(view)


def _path(url: str | None) -> str:
    return urlsplit(url or "").path


def _tokens() -> list[str]:
    """Flask-WTF's, against forgery: the one of this request, and the one of its form."""
    field = str(current_app.config.get("WTF_CSRF_FIELD_NAME", "csrf_token"))
    sent = request.form.get(field) if request.mimetype in FORMS else None
    return [token for token in (g.get(field), sent) if isinstance(token, str)]


def _new_token() -> str:
    """For whoever asks now; empty where Flask-WTF is not there any more."""
    try:
        csrf = import_module("flask_wtf.csrf")
    except ImportError:
        return ""
    return str(csrf.generate_csrf())
