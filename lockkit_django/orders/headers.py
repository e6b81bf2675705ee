"""A replay gets the headers that middleware gave to the first answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import get_language

from lockkit.orders.record import FRAMED
from lockkit_django import conf

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.http import HttpResponseBase

LOCALE = "django.middleware.locale.LocaleMiddleware"
EXEMPT = "xframe_options_exempt"
"""Attribute of a response: XFrameOptionsMiddleware leaves it alone."""


def set_later(response: HttpResponseBase) -> list[tuple[str, str]]:
    """What a record keeps besides the headers that are set on the response so far: the mark of
    XFrameOptionsMiddleware, and the language that LocaleMiddleware is about to set for this body.
    """
    later = [(FRAMED, "")] if getattr(response, EXEMPT, False) else []
    language: str | None = get_language()  # None: translations are off
    if language and LOCALE in conf.middleware() and "Content-Language" not in response:
        later.append(("Content-Language", language))
    return later


def set_headers(response: HttpResponseBase, headers: Iterable[tuple[str, str]]) -> None:
    for name, value in headers:
        if name == FRAMED:
            setattr(response, EXEMPT, True)
        else:
            response.headers[name] = value
