"""Order IDs for plain HTML forms: ``{% order_id %}``, its twin for Jinja, and the guest's secret.

A guest's secret lives in the session; a guest without a session gets one. Django's ``login`` keeps
what is in a guest's session. ``logout`` deletes it, and then the forms that were shown to the guest
are refused. ``lockkit.orders.forms`` says why that is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.safestring import SafeString, mark_safe

from lockkit.model.errors import ConfigurationError
from lockkit.orders.forms import field_of, hidden_field, new_secret
from lockkit_django.orders.request import GUEST, guest_of
from lockkit_django.orders.visit import form_ids, order_rules
from lockkit_django.web.request import http_request

if TYPE_CHECKING:
    from django.http import HttpRequest


DO_NOT_CACHE = "_cache_update_cache"
"""Attribute of a request: if it is False, Django's cache middleware does not store the page."""


def order_id_field(request: HttpRequest | None, field: str | None = None) -> SafeString:
    """The hidden field with a new order ID, for a form that is shown to this visitor.

    Its name is the one in LOCKKIT_ORDERS["ORDER_ID"]. ``field``: another name, for a view with
    ``@idempotent(order_id="form:…")``. A guest gets a session. Django's own cache does not store
    the page; keep it out of other caches yourself. Raises ConfigurationError if ORDER_ID names no
    form field, in a template without the request, and for a guest without SessionMiddleware.
    """
    if request is None:
        raise ConfigurationError(
            "the field of an order ID needs the request: render(request, …), or pass it in the "
            "context; in Jinja2, import … with context"
        )
    name = field_of(order_rules().settings, field)
    return mark_safe(hidden_field(name, new_order_id(request)))  # noqa: S308  escaped there


def new_order_id(request: HttpRequest) -> str:
    """A new order ID, without the field: for the header ``Idempotency-Key``, or for a field that
    you write yourself. Raises ConfigurationError for a guest without SessionMiddleware."""
    request = http_request(request)
    setattr(request, DO_NOT_CACHE, False)
    user = getattr(request, "user", None)
    known = user is not None and user.is_authenticated
    return form_ids.issue(None if known else _secret(request))


def _secret(request: HttpRequest) -> str:
    secret = guest_of(request)
    if secret is not None:
        return secret
    session = getattr(request, "session", None)
    if session is None:
        raise ConfigurationError(
            "a form for a visitor who is not logged in needs "
            "'django.contrib.sessions.middleware.SessionMiddleware' in MIDDLEWARE"
        )
    secret = session[GUEST] = new_secret()
    return secret
