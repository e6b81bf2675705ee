"""System checks of the orders, each triggered and silenced; the admin page; settings."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin.sites import AdminSite
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.wsgi import WSGIHandler
from django.test import RequestFactory, override_settings
from orders_django import views

from lockkit.errors import ConfigurationError
from lockkit_django.models import OrderRecord
from lockkit_django.orders import idempotent
from lockkit_django.orders.checks import check_orders

OURS = "lockkit_django.middleware.IdempotentOrderMiddleware"
CSRF = "django.middleware.csrf.CsrfViewMiddleware"


def found(**changes: Any) -> list[str]:
    with override_settings(**changes):
        messages = check_orders()
    assert all(message.hint for message in messages)
    return [str(message.id) for message in messages]


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("E101", {"LOCKKIT_ORDERS": {"PATH": ["^/"]}}),
        ("E102", {"LOCKKIT_ORDERS": {"SCOPE": "orders_django.hooks.nothing"}}),
        ("E102", {"LOCKKIT_ORDERS": {"AUTHORIZE_REPLAY": "no_such_module.x"}}),
        ("E103", {"LOCKKIT_ORDERS": {"USING": "elsewhere"}}),
        ("E104", {"LOCKKIT_ORDERS": {"ALIAS": "elsewhere"}}),
        ("E105", {"MIDDLEWARE": [OURS, OURS]}),
        ("E106", {"MIDDLEWARE": [OURS, CSRF]}),
        ("W101", {"MIDDLEWARE": [OURS, "orders_django.views.CatchKeyErrors"]}),
        ("W102", {"SESSION_ENGINE": "django.contrib.sessions.backends.signed_cookies"}),
    ],
)
def test_each_check_speaks_up(expected: str, changes: dict[str, Any]) -> None:
    assert found(**changes) == [f"lockkit.{expected}"]


def test_the_checks_are_silent_when_all_is_well() -> None:
    assert found() == []
    assert found(MIDDLEWARE=[], LOCKKIT_ORDERS=None) == []


def test_the_checks_run_with_manage_py_check() -> None:
    from django.core.checks import run_checks

    with override_settings(MIDDLEWARE=[OURS, CSRF]):
        assert "lockkit.E106" in [message.id for message in run_checks(tags=["lockkit"])]


def test_wrong_settings_stop_the_server_at_its_start() -> None:
    with (
        override_settings(LOCKKIT_ORDERS={"TTL": 0}),
        pytest.raises((ConfigurationError, ImproperlyConfigured), match="TTL"),
    ):
        WSGIHandler()


def test_idempotent_without_the_middleware_does_not_run_the_view() -> None:
    request = RequestFactory().post("/orders/x")
    with pytest.raises(ConfigurationError, match="MIDDLEWARE"):
        idempotent(views.function)(request)
    assert views.calls == []


def test_idempotent_is_not_for_classes() -> None:
    with pytest.raises(ConfigurationError, match="IdempotentMixin"):
        idempotent(views.ClassView)


@override_settings(
    INSTALLED_APPS=[*settings.INSTALLED_APPS, "django.contrib.admin", "django.contrib.messages"]
)
def test_the_admin_page_is_read_only() -> None:
    from lockkit_django.admin import OrderRecordAdmin

    page = OrderRecordAdmin(OrderRecord, AdminSite())
    request = RequestFactory().get("/")
    assert not page.has_add_permission(request)
    assert not page.has_change_permission(request)
    assert not page.has_delete_permission(request)
    assert not {"body", "headers"} & {str(field) for field in page.fields}
