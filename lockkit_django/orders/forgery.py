"""Django's tokens against forged requests (CSRF) in an answer: see ``lockkit.orders.forgery``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from django.middleware.csrf import CSRF_ALLOWED_CHARS, CSRF_SECRET_LENGTH, CSRF_TOKEN_LENGTH

LONGEST_ESCAPE = 16
r"""Letters and digits that can precede a token: a quote is \u0022 in a script, %22 in a URL."""

_RUNS = re.compile(rb"[A-Za-z0-9]{32,}")


def tokens_in(secret: str, body: bytes) -> Iterator[str]:
    """CSRF tokens in the body that are valid for this visitor: the secret itself, and the secret
    under any mask."""
    for run in {found.decode() for found in _RUNS.findall(body)}:
        if secret in run:
            yield secret
        for start in range(min(len(run) - CSRF_TOKEN_LENGTH, LONGEST_ESCAPE) + 1):
            token = run[start : start + CSRF_TOKEN_LENGTH]
            if _is_masked(secret, token):
                yield token


def _is_masked(secret: str, token: str) -> bool:
    """Whether the token is the secret under a mask: each letter of the token's second half was
    moved by one of its first half. Most texts differ in the first letter."""
    mask, cipher = token[:CSRF_SECRET_LENGTH], token[CSRF_SECRET_LENGTH:]
    at = CSRF_ALLOWED_CHARS.index
    moved = zip(secret, cipher, mask, strict=False)  # a foreign cookie may have any length
    return len(secret) == CSRF_SECRET_LENGTH and all(
        CSRF_ALLOWED_CHARS[at(c) - at(m)] == s for s, c, m in moved
    )
