"""Visitors without a login: an order ID belongs to somebody, so they get an ID in their session."""

from __future__ import annotations

import secrets

from flask import session

__all__ = ["guest", "remember_guest"]

_KEY = "lockkit_guest"


def remember_guest() -> None:
    """Give the visitor's session a random ID, if it has none, so that orders can be theirs.

    Call it in the view that shows the order form: Flask's own sessions have no ID.
    """
    if _KEY not in session:
        session[_KEY] = secrets.token_urlsafe(16)


def guest() -> str | None:
    """The ID, if ``remember_guest`` was called in this session."""
    found = session.get(_KEY)
    return found if isinstance(found, str) else None
