"""A replay gets the headers that middleware gave to the first answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.conf import settings
from django.utils.translation import get_language

from lockkit.orders.record import FRAMED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.http import HttpResponseBase

LOCALE = "django.middleware.locale.LocaleMiddleware"
EXEMPT = "xframe_options_exempt"
"""Attribute of a response: XFrameOptionsMiddleware leaves it alone."""


def set_later(response: HttpResponseBase) -> list[tuple[str, str]]:
    """What a record keeps besides the headers that are set on the response so far."""
    framed = [(FRAMED, "")] if getattr(response, EXEMPT, False) else []
    return [*_language(response), *framed]


def set_headers(response: HttpResponseBase, headers: Iterable[tuple[str, str]]) -> None:
    for name, value in headers:
        if name == FRAMED:
            setattr(response, EXEMPT, True)
        else:
            response.headers[name] = value


def _language(response: HttpResponseBase) -> list[tuple[str, str]]:
    """The header that LocaleMiddleware is about to set for this body: a replay repeats it."""
    language: str | None = get_language()  # None: translations are off
    if language is None or LOCALE not in settings.MIDDLEWARE or "Content-Language" in response:
        return []
    return [("Content-Language", language)]
