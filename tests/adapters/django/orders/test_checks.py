"""System checks of the orders, each triggered and silenced; the admin page; settings."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin.sites import AdminSite
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.test import Client, RequestFactory, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import path
from orders_django import views
from system_checks import shown_until_silenced

from lockkit.model.errors import ConfigurationError
from lockkit.testing.servers import RedisServer, ValkeyServer
from lockkit_django import locks
from lockkit_django.models import OrderRecord
from lockkit_django.operate.order_checks import check_orders, check_records
from lockkit_django.orders import idempotent

OURS = "lockkit_django.middleware.IdempotentOrderMiddleware"
CSRF = "django.middleware.csrf.CsrfViewMiddleware"
ALL: dict[str, Any] = {"PATHS": ["^/"]}
CLAIMS = {**ALL, "STORE": "redis", "NAMESPACE": "shop"}


def found(**changes: Any) -> list[str]:
    with override_settings(**changes):
        messages = check_orders()
    assert all(message.hint for message in messages)
    return [str(message.id) for message in messages]


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("E101", {"LOCKKIT_ORDERS": {"PATH": ["^/"]}}),
        ("E102", {"LOCKKIT_ORDERS": {**ALL, "SCOPE": "orders_django.hooks.nothing"}}),
        ("E102", {"LOCKKIT_ORDERS": {**ALL, "AUTHORIZE_REPLAY": "no_such_module.x"}}),
        ("E102", {"LOCKKIT_ORDERS": {**ALL, "RECOVER": "orders_django.hooks.nothing"}}),
        ("E107", {"LOCKKIT_ORDERS": CLAIMS}),
        ("E101", {"LOCKKIT_ORDERS": {**ALL, "STORE": "redis"}}),
        ("E101", {"LOCKKIT_ORDERS": {**CLAIMS, "USING": "default"}}),
        ("E103", {"LOCKKIT_ORDERS": {**ALL, "USING": "elsewhere"}}),
        ("E104", {"LOCKKIT_ORDERS": {**ALL, "ALIAS": "elsewhere"}}),
        ("E105", {"MIDDLEWARE": [OURS, OURS]}),
        ("E106", {"MIDDLEWARE": [OURS, CSRF]}),
        ("E111", {"MIDDLEWARE": [OURS, "orders_django.views.CatchKeyErrors"]}),
        ("W101", {"MIDDLEWARE": [OURS, "django.middleware.locale.LocaleMiddleware"]}),
        ("E101", {"LOCKKIT_ORDERS": {}}),
        ("E101", {"LOCKKIT_ORDERS": None}),
        ("E109", {"LOCKKIT_ORDERS": ALL, "MIDDLEWARE": []}),
        ("E109", {"LOCKKIT_ORDERS": None, "MIDDLEWARE": []}),  # a view has @idempotent
        ("W102", {"SESSION_ENGINE": "django.contrib.sessions.backends.signed_cookies"}),
    ],
)
def test_each_check_speaks_up(expected: str, changes: dict[str, Any]) -> None:
    assert found(**changes) == [f"lockkit.{expected}"]
    with override_settings(**changes):
        assert shown_until_silenced(f"lockkit.{expected}")


@pytest.mark.parametrize("url", ["memory://", "redis://h?protocol=plain", "redlock://h1,h2,h3"])
def test_a_store_without_records(url: str) -> None:
    with override_settings(LOCKKIT_ORDERS=CLAIMS, LOCKKIT={"default": {"LOCATION": url}}):
        (found,) = check_orders()
    assert found.msg.endswith("lock alias 'default' keeps no records")
    assert found.hint is not None
    assert "redis:// location without protocol=plain" in found.hint


def test_a_hook_that_cannot_be_imported_is_told_with_its_reason() -> None:
    with override_settings(LOCKKIT_ORDERS={**ALL, "SCOPE": "no_such_module.x"}):
        (found,) = check_orders()
    assert "No module named 'no_such_module'" in found.msg


def test_a_missing_middleware_is_told_with_a_view_that_needs_it() -> None:
    with override_settings(LOCKKIT_ORDERS=None, MIDDLEWARE=[]):
        (found,) = check_orders()
    assert re.match(r"orders_django\.\S+ has @idempotent or IdempotentMixin", found.msg)


def test_wrong_settings_do_not_hide_that_the_middleware_is_missing() -> None:
    changes: dict[str, Any] = {"LOCKKIT_ORDERS": {"PATH": ["^/"]}, "MIDDLEWARE": []}
    assert found(**changes) == ["lockkit.E101", "lockkit.E109"]


def test_the_checks_are_silent_when_all_is_well() -> None:
    assert found() == []
    assert found(MIDDLEWARE=[], LOCKKIT_ORDERS=None, ROOT_URLCONF="django_project.urls") == []


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


def test_where_the_order_id_is_has_its_name() -> None:
    with pytest.raises(ConfigurationError, match="order_id='json:order_id'"):
        idempotent("json:order_id")  # type: ignore[type-var]


def test_idempotent_is_not_for_classes() -> None:
    with pytest.raises(ConfigurationError, match="IdempotentMixin"):
        idempotent(views.ClassView)


def test_without_the_application_the_middleware_says_what_is_missing() -> None:
    """In a process of its own: here the application is installed."""
    code = """
from django.conf import settings
settings.configure(MIDDLEWARE=["lockkit_django.middleware.IdempotentOrderMiddleware"])
import django
django.setup()
from django.core.handlers.wsgi import WSGIHandler
WSGIHandler()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "lockkit's middleware need 'lockkit_django' in INSTALLED_APPS" in ran.stderr


def test_a_database_without_autocommit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "AUTOCOMMIT", False)
    assert found() == ["lockkit.E108"]
    assert shown_until_silenced("lockkit.E108")


def test_the_database_of_one_view(monkeypatch: pytest.MonkeyPatch) -> None:
    view = path("orders/buy", idempotent(using="orders")(views.function))
    with override_settings(ROOT_URLCONF=(view,)):
        assert found() == ["lockkit.E103"]
        assert found(LOCKKIT_ORDERS={"PATHS": []}) == ["lockkit.E103"]
        orders = {**connections.settings["default"], "AUTOCOMMIT": False}
        monkeypatch.setitem(connections.settings, "orders", orders)
        assert found() == ["lockkit.E108"]


@pytest.mark.django_db
def test_the_tables_are_as_the_migrations_say() -> None:
    from django.core.management import call_command

    call_command("makemigrations", "lockkit_django", check=True, dry_run=True, verbosity=0)


def test_redis_for_the_records_is_no_mistake(redis_url: str) -> None:
    assert found(LOCKKIT={"default": redis_url}, LOCKKIT_ORDERS=CLAIMS) == []


RECORDS_PAGE = "/admin/lockkit_django/orderrecord/"


@pytest.fixture
def root(db: None) -> Iterator[Client]:
    """The most powerful user, on a site with the admin pages."""
    from django.contrib.auth.models import User

    admin = [
        *settings.INSTALLED_APPS,
        "django.contrib.admin",
        "django.contrib.messages",
    ]
    middleware = [*settings.MIDDLEWARE, "django.contrib.messages.middleware.MessageMiddleware"]
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    with override_settings(
        INSTALLED_APPS=admin, MIDDLEWARE=middleware, ROOT_URLCONF="orders_django.admin"
    ):
        yield client


def record_that_ends(expires: int) -> OrderRecord:
    return OrderRecord.objects.create(
        key="k1", order_id="A-1", request="POST /", fingerprint="1:x", state="done", status=201,
        headers="[]", body=b"a secret of hers", version=1, created=1, expires=expires,
    )  # fmt: skip


@pytest.mark.parametrize("expires", [2**62, "never"])
def test_the_admin_pages_show_a_record_with_a_time_that_is_none(
    expires: object, root: Client
) -> None:
    """One that another program has spoilt hides no other."""
    record_that_ends(2)
    with connections["default"].cursor() as cursor:
        cursor.execute("UPDATE lockkit_order SET expires = %s", [expires])
    for page in RECORDS_PAGE, f"{RECORDS_PAGE}k1/change/":
        assert b"A-1" in root.get(page).content


def test_the_admin_pages_show_records_and_change_none(root: Client) -> None:
    record = record_that_ends(2)
    page = RECORDS_PAGE
    listed, shown = root.get(page), root.get(f"{page}k1/change/")
    answers = [
        root.get(f"{page}add/"),
        root.post(f"{page}k1/delete/", {"post": "yes"}),
        root.post(f"{page}k1/change/", {"order_id": "B"}),
    ]
    assert b"A-1" in listed.content
    assert b"A-1" in shown.content
    assert b"secret" not in listed.content + shown.content
    assert [answer.status_code for answer in answers] == [403, 403, 403]
    record.refresh_from_db()
    assert record.order_id == "A-1"


def test_the_admin_pages_read_no_stored_response(root: Client) -> None:
    """The list reads a hundred records, in the order of an index."""
    record_that_ends(2)
    with CaptureQueriesContext(connections["default"]) as queries:
        for page in RECORDS_PAGE, f"{RECORDS_PAGE}k1/change/":
            assert root.get(page).status_code == 200
    read = [each["sql"] for each in queries if "lockkit_order" in each["sql"]]
    assert not [sql for sql in read if "body" in sql or "headers" in sql]
    assert [sql for sql in read if 'ORDER BY "lockkit_order"."expires" DESC' in sql]


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


@pytest.fixture
def bounded(redis_server: RedisServer) -> Iterator[RedisServer]:
    """It has a limit, and persists, so that nothing else is wrong with it."""
    with redis_server.client() as admin:
        admin.config_set("appendonly", "yes")
        admin.config_set("maxmemory", "100mb")
        yield redis_server
        admin.config_set("maxmemory", "0")
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("appendonly", "no")


def beside(url: str, own: str = "memory://", **orders: Any) -> Any:
    """The locks of a project at ``url``, and records of orders at ``own``, if ALIAS says so."""
    return override_settings(
        LOCKKIT={"default": url, "orders": own}, LOCKKIT_ORDERS={**CLAIMS, **orders}
    )


def test_records_that_fill_the_memory_of_the_locks(bounded: RedisServer) -> None:
    """Under another name and in another database it is the same server."""
    same = bounded.url.replace("127.0.0.1", "localhost").replace("/0", "/5")
    assert same != bounded.url
    plain = f"{bounded.url}?protocol=plain"
    apart = (beside(url, same, ALIAS="orders") for url in (bounded.url, plain))
    for place in (beside(bounded.url), *apart):
        with place:
            (message,) = check_records()
            assert (message.id, "104857600" in str(message)) == ("lockkit.W106", True)
            assert "LOCKKIT_ORDERS['ALIAS']" in str(message.hint)
    with beside(bounded.url), bounded.client() as admin:
        assert shown_until_silenced("lockkit.W106", "--deploy")
        admin.config_set("maxmemory-policy", "volatile-lru")
        (message,) = check_records()
        assert (message.id, "volatile-lru" in str(message)) == ("lockkit.W106", True)


@pytest.mark.parametrize("other", ["memory://", "redis://127.0.0.1:1/0", "nothing://"])
def test_records_in_a_redis_of_their_own_may_be_bounded(bounded: RedisServer, other: str) -> None:
    with beside(other, bounded.url, ALIAS="orders"), bounded.client() as admin:
        assert check_records() == []
        admin.config_set("appendonly", "no")
        assert [message.id for message in check_records()] == ["lockkit.W103"]


def test_records_beside_locks_on_another_server(
    bounded: RedisServer, valkey_server: ValkeyServer
) -> None:
    with beside(valkey_server.url, bounded.url, ALIAS="orders"):
        assert check_records() == []


@pytest.mark.django_db
def test_records_that_fill_a_redis_of_their_own_stop_orders_and_no_lock(
    bounded: RedisServer, valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    rules = beside(valkey_url, bounded.url, ALIAS="orders", PATHS=["^/orders/"])
    with rules, bounded.client() as admin:
        admin.config_set("maxmemory", "1")
        known = {"Idempotency-Key": "A-1", "Authorization": "made up"}
        answer = Client(headers=known).post("/orders/function")
        assert (answer.status_code, answer.json()["code"]) == (503, "order-store-unavailable")
        assert "an order is refused" in caplog.text
        lease = locks["default"].lock("stock:1").acquire(timeout=0)
        assert lease.release()


def test_a_redis_that_forgets_the_records_of_orders(redis_server: RedisServer) -> None:
    """That of the tests persists nothing."""
    claims = {"LOCKKIT": {"default": redis_server.url}, "LOCKKIT_ORDERS": CLAIMS}
    with override_settings(**claims), redis_server.client() as admin:
        (message,) = check_records()
        assert message.id == "lockkit.W103"
        assert "appendonly" in str(message.hint)
        assert shown_until_silenced("lockkit.W103", "--deploy")
        admin.config_set("appendonly", "yes")
        assert check_records() == []
        admin.config_set("appendonly", "no")
    down = {"LOCKKIT": {"default": "redis://127.0.0.1:1/0"}}
    with override_settings(**{**claims, **down}):
        assert check_records() == []  # E010 says it
