"""Order IDs for plain HTML forms: ``{% order_id %}``, its twin for Jinja, and the guest's secret.

The secret lives in the session, which is made for it. Django's ``login`` keeps what is in a guest's
session and ``logout`` ends it, and with it the claim to the forms. ``lockkit.orders.forms``
says why that is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.utils.safestring import SafeString, mark_safe

from lockkit.model.errors import ConfigurationError
from lockkit.orders.forms import field_of, hidden_field, new_secret, tell_uncovered
from lockkit.web.view_lock import request_label
from lockkit_django.orders.answers import ORDER_ID
from lockkit_django.orders.request import GUEST, guest_of
from lockkit_django.orders.visit import form_ids, order_rules
from lockkit_django.web.request import http_request

if TYPE_CHECKING:
    from django.http import HttpRequest


DO_NOT_CACHE = "_cache_update_cache"
"""What Django's cache middleware looks at before it stores the page of a request."""


def order_id_field(request: HttpRequest, field: str | None = None) -> SafeString:
    """The hidden field with a new order ID, for a form that is shown to this visitor.

    It has the name that LOCKKIT_ORDERS["ORDER_ID"] reads; ``field`` is another one, for a view with
    ``@idempotent(order_id="form:…")``. A guest gets a session. The page is not stored by Django's
    own cache; other caches must be kept from it. Raises ConfigurationError if ORDER_ID reads no
    field of a form, and for a guest without SessionMiddleware.
    """
    name = field_of(order_rules().settings, field)
    return mark_safe(hidden_field(name, new_order_id(request)))  # noqa: S308  escaped there


def new_order_id(request: HttpRequest) -> str:
    """The value alone: for ``Idempotency-Key`` or a field that is written in another way."""
    request = http_request(request)
    setattr(request, DO_NOT_CACHE, False)
    user = getattr(request, "user", None)
    known = user is not None and user.is_authenticated
    return form_ids().issue(None if known else _secret(request))


def tell_if_uncovered(request: HttpRequest) -> None:
    """A form with an order ID is an error in the log if nothing has looked for an order.

    Looks at what Django keeps of a request once it was read, and has nothing read.
    """
    kept: dict[str, Any] = vars(request)
    if ORDER_ID in kept:
        return
    label = request_label(request.method or "", request.path)
    tell_uncovered(form_ids(), label, kept.get("_post"), kept.get("_body"))


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
