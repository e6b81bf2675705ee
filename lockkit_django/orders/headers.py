"""A replay gets the headers that middleware gave to the first answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import get_language

from lockkit.orders.record import FRAMED, POLICY, REPORTED_POLICY
from lockkit_django import conf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from django.http import HttpResponseBase

LOCALE = "django.middleware.locale.LocaleMiddleware"
EXEMPT = "xframe_options_exempt"
"""Attribute of a response: XFrameOptionsMiddleware leaves it alone."""

CSP = "django.middleware.csp.ContentSecurityPolicyMiddleware"
POLICIES = {POLICY: "_csp_config", REPORTED_POLICY: "_csp_ro_config"}
"""Attributes of a response: that middleware takes these policies in place of those of the settings.
"""


def set_later(response: HttpResponseBase) -> list[tuple[str, str]]:
    """What a record keeps besides the headers that are set on the response so far: the mark of
    XFrameOptionsMiddleware, the policies for CSP, and the language that LocaleMiddleware is about
    to set for this body.
    """
    later = [(FRAMED, "")] if getattr(response, EXEMPT, False) else []
    language: str | None = get_language()  # None: translations are off
    if language and LOCALE in conf.middleware() and "Content-Language" not in response:
        later.append(("Content-Language", language))
    if CSP in conf.middleware():
        later += _policies(response)
    return later


def _policies(response: HttpResponseBase) -> Iterator[tuple[str, str]]:
    """The response's own policies. One with a nonce is not kept: each request has another nonce."""
    from django.utils.csp import build_policy  # there is none before Django 6

    for name, attribute in POLICIES.items():
        config = getattr(response, attribute, None)
        if config is not None and build_policy(config) == build_policy(config, "nonce"):
            yield name, build_policy(config)


def set_headers(response: HttpResponseBase, headers: Iterable[tuple[str, str]]) -> None:
    for name, value in headers:
        if name == FRAMED:
            setattr(response, EXEMPT, True)
        elif name in POLICIES:
            setattr(response, POLICIES[name], {value: True} if value else {})
        else:
            response.headers[name] = value
