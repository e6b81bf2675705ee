"""Django's CSRF tokens in a body: the secret itself, or masked, each time in another way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.middleware.csrf import CSRF_ALLOWED_CHARS, CSRF_SECRET_LENGTH, CSRF_TOKEN_LENGTH

if TYPE_CHECKING:
    from django.http import HttpRequest

__all__ = ["tokens_in"]

_RUNS = re.compile(rb"[A-Za-z0-9]{32,}")
LONGEST_ESCAPE = 16
r"""Letters and digits that may be before a token: a quote is \u0022 in a script, %22 in a URL."""


def tokens_in(request: HttpRequest, body: bytes) -> Iterator[str]:
    """Those that are good for this visitor."""
    known = request.META.get("CSRF_COOKIE")
    if not known:
        return
    secret = _unmasked(known)
    for run in {found.decode() for found in _RUNS.findall(body)}:
        if secret in run:
            yield secret
        for start in range(min(len(run) - CSRF_TOKEN_LENGTH, LONGEST_ESCAPE) + 1):
            token = run[start : start + CSRF_TOKEN_LENGTH]
            if _unmasked(token) == secret:
                yield token


def _unmasked(token: str) -> str:
    """The cipher is the secret, each letter moved by one of the mask."""
    mask, cipher = token[:CSRF_SECRET_LENGTH], token[CSRF_SECRET_LENGTH:]
    if not cipher:
        return mask
    at = CSRF_ALLOWED_CHARS.index
    return "".join(CSRF_ALLOWED_CHARS[at(c) - at(m)] for c, m in zip(cipher, mask, strict=True))
