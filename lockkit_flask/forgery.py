"""The CSRF tokens of Flask-WTF in answers that are kept."""

from __future__ import annotations

from importlib import import_module

from flask import current_app, g, request

__all__ = ["new_token", "tokens"]

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


def tokens() -> list[str]:
    """That which was made for this request, and that which came with its form."""
    field = _field()
    sent = request.form.get(field) if request.mimetype in FORMS else None
    return [token for token in (g.get(field), sent) if isinstance(token, str)]


def new_token() -> str:
    """For whoever asks now; empty where Flask-WTF is not there any more."""
    try:
        csrf = import_module("flask_wtf.csrf")
    except ImportError:
        return ""
    return str(csrf.generate_csrf())


def _field() -> str:
    return str(current_app.config.get("WTF_CSRF_FIELD_NAME", "csrf_token"))
