"""The orders' Django tests run in ``django_project``, with views of their own."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from typing import Any

import django
import pytest
from django.db import connections

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


class Releases:
    """What another connection sees at the instant a lock is released."""

    def __init__(self) -> None:
        self.path = connections["default"].settings_dict["NAME"]
        self.seen: list[tuple[str, int, bool]] = []

    def __call__(self, event: str, name: str) -> None:
        if event == "release":
            self.seen.append((name.partition(":")[0], *self._look()))

    def _look(self) -> tuple[int, bool]:
        """The sales that are committed, and whether a writer is still at work."""
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            (count,) = connection.execute("SELECT COUNT(*) FROM shop_sale").fetchone()
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return -1, True
        else:
            return int(count), False
        finally:
            connection.close()


@pytest.fixture
def releases() -> Iterator[Releases]:
    from django_project.spy import SpyBackend

    told = Releases()
    SpyBackend.observers.append(told)
    spy = {"BACKEND": "django_project.spy.SpyBackend", "LOCATION": "memory://"}
    with override_settings(LOCKKIT={"default": spy}):
        yield told
    SpyBackend.observers.remove(told)


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
