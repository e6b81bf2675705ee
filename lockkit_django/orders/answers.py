"""Refusals of orders as pages and in the log, and CSRF tokens in answers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.middleware.csrf import CSRF_ALLOWED_CHARS, CSRF_SECRET_LENGTH, CSRF_TOKEN_LENGTH

from lockkit.web.refusal import log_refusal, prefers_html
from lockkit_django.web.refusals import response_of

OF_CONTENT = ("Content-Encoding", "Content-Length", "ETag")
"""Headers that a decorator of the view may have set for the JSON."""
LONGEST_ESCAPE = 16
r"""Letters and digits that can precede a token: a quote is \u0022 in a script, %22 in a URL."""

REFUSAL = "_lockkit_reject"
"""Attribute of a response: the refusal that it shows."""

_RUNS = re.compile(rb"[A-Za-z0-9]{32,}")


def is_for_page(request: HttpRequest, response: HttpResponseBase) -> bool:
    """Whether this refusal is to become a page. Logs it."""
    log_refusal(request, getattr(response, REFUSAL))
    return prefers_html(request.headers.get("Accept", "")) and isinstance(response, HttpResponse)


def make_page(request: HttpRequest, response: HttpResponse) -> None:
    """The refusal as a page: ``lockkit/<code>.html``, ``lockkit/<status>.html``, or ours."""
    page = response_of(getattr(response, REFUSAL), "text/html", request)
    response.content = page.content
    for header in (*OF_CONTENT, "Content-Language"):
        response.headers.pop(header, None)
    for header in ("Content-Type", "Content-Language"):
        if header in page.headers:
            response.headers[header] = page.headers[header]


def tokens_in(known: str, body: bytes) -> Iterator[str]:
    """CSRF tokens in the body that are valid for this visitor: the secret itself, and the secret
    under any mask."""
    secret = _unmasked(known)
    for run in {found.decode() for found in _RUNS.findall(body)}:
        if secret in run:
            yield secret
        for start in range(min(len(run) - CSRF_TOKEN_LENGTH, LONGEST_ESCAPE) + 1):
            token = run[start : start + CSRF_TOKEN_LENGTH]
            if _unmasked(token) == secret:
                yield token


def _unmasked(token: str) -> str:
    """The secret of a token: each letter of the cipher was moved by one of the mask."""
    mask, cipher = token[:CSRF_SECRET_LENGTH], token[CSRF_SECRET_LENGTH:]
    if not cipher:
        return mask
    at = CSRF_ALLOWED_CHARS.index
    return "".join(CSRF_ALLOWED_CHARS[at(c) - at(m)] for c, m in zip(cipher, mask, strict=True))
