"""The current Flask request, as lockkit's name templates read it."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from lockkit.model.errors import ConfigurationError
from lockkit.web.name_fields import URL_ENCODED, url_encoded
from lockkit_flask.conf import flask_login_user, has_flask_login

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flask import Request

    from lockkit_flask.conf import UserHook

LONGEST_FORM = 500_000
"""Bytes of a form that Flask keeps in memory. Flask answers a longer one with 413."""


class RequestView:
    """One request. Nothing of it is read until a field asks for it.

    A body larger than MAX_CONTENT_LENGTH is Werkzeug's 413, as in the view itself.
    """

    def __init__(self, request: Request, user_pk: UserHook) -> None:
        self._request = request
        self._user_pk = user_pk

    def kwarg(self, key: str) -> object:
        return (self._request.view_args or {}).get(key)

    def user_pk(self) -> object:
        if self._user_pk is flask_login_user and not has_flask_login():
            raise ConfigurationError(
                "{user.pk} names the user, and this app does not say who that is: set LOCKKIT_USER "
                "to a callable that returns the user's primary key, or set Flask-Login up"
            )
        return self._user_pk()

    def content_type(self) -> str:
        return self._request.content_type or ""

    def body(self) -> bytes:
        return _read(self._request)

    def form(self, key: str) -> Sequence[str]:
        request = self._request
        if request.mimetype == URL_ENCODED and (request.content_length or 0) <= LONGEST_FORM:
            raw = _read(request)  # empty if the form was parsed before
            if raw:
                return url_encoded(raw, key)
        return request.form.getlist(key)

    def query(self, key: str) -> Sequence[str]:
        return url_encoded(self._request.query_string, key)

    def header(self, name: str) -> str | None:
        return self._request.headers.get(name)


def _read(request: Request) -> bytes:
    """The body, which the view can read again, also from ``request.stream``."""
    body = request.get_data()
    vars(request)["stream"] = BytesIO(body)
    return body
