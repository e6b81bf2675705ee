"""The engine's answers as Django responses, and responses as the engine keeps them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.middleware.csrf import (
    CSRF_ALLOWED_CHARS,
    CSRF_SECRET_LENGTH,
    CSRF_TOKEN_LENGTH,
    get_token,
)
from django.shortcuts import resolve_url
from django.utils.module_loading import import_string
from django.utils.translation import get_language

from lockkit.model.errors import ConfigurationError
from lockkit.orders import OrderResponse, Refusal, Snapshot
from lockkit.orders.decisions import REPLAYED_HEADER
from lockkit.orders.forgery import with_token, without_tokens
from lockkit.web.refusal import log_refusal, prefers_html
from lockkit.web.view_lock import request_label
from lockkit_django.orders.identity import value_of
from lockkit_django.web.refusals import html_response, in_language, problem_response

OF_CONTENT = ("Content-Encoding", "Content-Length", "ETag")
"""What a decorator of the view may have said of the JSON."""
LOCALE = "django.middleware.locale.LocaleMiddleware"
LONGEST_ESCAPE = 16
r"""Letters and digits that may be before a token: a quote is \u0022 in a script, %22 in a URL."""

_RUNS = re.compile(rb"[A-Za-z0-9]{32,}")
_REJECT = "_lockkit_reject"
_ORDER_ID = "_lockkit_order_id"


def refusal(reject: Refusal) -> HttpResponse:
    """``application/problem+json``, never cached. The middleware makes a page of it if need be."""
    said = in_language(reject)
    response = problem_response(said)
    setattr(response, _REJECT, said)
    return response


def note_order(request: HttpRequest, order_id: str) -> None:
    """For the log, should the request be refused."""
    vars(request)[_ORDER_ID] = order_id


def log_if_refused(request: HttpRequest, response: HttpResponseBase) -> None:
    reject: Refusal | None = getattr(response, _REJECT, None)
    if reject is not None:
        label = request_label(request.method or "", request.path)
        log_refusal(label, reject, order_id=vars(request).get(_ORDER_ID))


def refusal_for_browser(request: HttpRequest, response: HttpResponseBase) -> HttpResponse | None:
    """This response, if it is a refusal that is to become a page."""
    if not hasattr(response, _REJECT) or not prefers_html(request.headers.get("Accept", "")):
        return None
    return response if isinstance(response, HttpResponse) else None


def make_page(request: HttpRequest, response: HttpResponse) -> None:
    """The refusal as a page: ``lockkit/<code>.html``, ``lockkit/<status>.html``, or ours."""
    reject: Refusal = getattr(response, _REJECT)
    page = html_response(request, reject, (reject.code, str(reject.status), "refusal"))
    response.content = page.content
    for header in (*OF_CONTENT, "Content-Language"):
        response.headers.pop(header, None)
    for header in ("Content-Type", "Content-Language"):
        if header in page.headers:
            response.headers[header] = page.headers[header]


def replay(request: HttpRequest, snapshot: Snapshot) -> HttpResponse:
    """The stored response, byte for byte but for CSRF tokens, marked as a replay."""
    snapshot = with_token(snapshot, partial(get_token, request))
    response = HttpResponse(snapshot.body, status=snapshot.status)
    del response.headers["Content-Type"]  # Django's default; the stored one, if any, follows
    for name, value in (*snapshot.headers, REPLAYED_HEADER):
        response.headers[name] = value
    return response


def same(one: HttpResponseBase, other: HttpResponseBase) -> bool:
    """Whether a client would see the same status and body."""
    if one is other:
        return True
    content = getattr(one, "content", None)
    return one.status_code == other.status_code and content == getattr(other, "content", content)


def order_response(request: HttpRequest, response: HttpResponseBase) -> OrderResponse:
    """A rendered response, without CSRF tokens; one that streams has no body here."""
    body = None if response.streaming else bytes(getattr(response, "content", b""))
    headers = [*response.items(), *_language(response)]
    answered = OrderResponse(response.status_code, headers, body)
    known = request.META.get("CSRF_COOKIE")
    return without_tokens(answered, _tokens_in(known, body or b"")) if known else answered


def _language(response: HttpResponseBase) -> list[tuple[str, str]]:
    """What LocaleMiddleware is about to say of this body, which a replay is to say again."""
    language: str | None = get_language()  # None: translations are off
    if language is None or LOCALE not in settings.MIDDLEWARE or "Content-Language" in response:
        return []
    return [("Content-Language", language)]


def asks_to_log_in(request: HttpRequest, response: HttpResponseBase) -> bool:
    """Whether it is the redirect to the login page of Django's decorators and mixins."""
    location = response.headers.get("Location")
    if location is None or response.status_code != HTTPStatus.FOUND:
        return False
    match = request.resolver_match
    pages = {getattr(getattr(match, "func", None), "login_url", None), settings.LOGIN_URL}
    return urlsplit(location).path in {urlsplit(resolve_url(page)).path for page in pages if page}


def recovered(path: str, request: HttpRequest, order_id: str) -> OrderResponse | None:
    """Ask ``path(request, order_id)``, a function or a coroutine function.

    Raises ConfigurationError for an answer that is neither a response nor None, and what the
    function raises.
    """
    response = value_of(import_string(path)(request, order_id))
    if response is None:
        return None
    if not isinstance(response, HttpResponseBase):
        raise ConfigurationError(
            f"{path} must return a response or None, not {type(response).__name__}"
        )
    render = getattr(response, "render", None)
    if callable(render):
        render()
    return order_response(request, response)


def _tokens_in(known: str, body: bytes) -> Iterator[str]:
    """CSRF tokens that are good for this visitor: the secret itself, or masked in another way each
    time."""
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
