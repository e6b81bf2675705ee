"""Django's CSRF tokens in a body: the secret itself, or masked, each time in another way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.middleware.csrf import CSRF_ALLOWED_CHARS, CSRF_SECRET_LENGTH

if TYPE_CHECKING:
    from django.http import HttpRequest

__all__ = ["tokens_in"]

_CANDIDATES = re.compile(rb"(?<![A-Za-z0-9])(?:[A-Za-z0-9]{64}|[A-Za-z0-9]{32})(?![A-Za-z0-9])")


def tokens_in(request: HttpRequest, body: bytes) -> Iterator[str]:
    """Those that are good for this visitor."""
    secret = request.META.get("CSRF_COOKIE")
    if not secret:
        return
    for found in set(_CANDIDATES.findall(body)):
        if _unmasked(found.decode()) == _unmasked(secret):
            yield found.decode()


def _unmasked(token: str) -> str:
    """The cipher is the secret, each letter moved by one of the mask."""
    mask, cipher = token[:CSRF_SECRET_LENGTH], token[CSRF_SECRET_LENGTH:]
    if not cipher:
        return mask
    at = CSRF_ALLOWED_CHARS.index
    return "".join(CSRF_ALLOWED_CHARS[at(c) - at(m)] for c, m in zip(cipher, mask, strict=True))
