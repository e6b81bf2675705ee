"""The orders' Django tests run in ``django_project``, with views of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import django
import pytest

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")
django.setup()

from django.test import override_settings  # noqa: E402  needs the settings

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "orders_django.views.CatchKeyErrors",
    "lockkit_django.middleware.IdempotentOrderMiddleware",
]
ORDERS: dict[str, Any] = {
    "ORDER_ID": ["header:Idempotency-Key", "header:X-Order-ID", "json:order_id", "form:order_id"],
    "PATHS": [r"^/orders/"],
    "WAIT": 0.2,
}


@pytest.fixture(autouse=True)
def fresh_orders() -> Iterator[None]:
    """A project with the middleware, without orders and without locks."""
    from orders_django import views

    views.calls.clear()
    views.refused_drf_users.clear()
    views.started.clear()
    views.go_on.clear()
    with override_settings(
        ROOT_URLCONF="orders_django.urls",
        MIDDLEWARE=MIDDLEWARE,
        LOCKKIT={"default": "memory://"},
        LOCKKIT_ORDERS=ORDERS,
    ):
        yield
