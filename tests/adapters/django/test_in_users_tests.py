"""The claims of docs/django.md about users' own tests, in test runs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from lockkit.testing.servers import PostgresServer

SETTINGS = """
import os
SECRET_KEY = "x"
DEBUG = False
USE_TZ = True
ROOT_URLCONF = "urls"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "lockkit_django", "shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ATOMIC = {"ATOMIC_REQUESTS": True}
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "project.db", **ATOMIC}}
"""
FILE = """
DATABASES["default"]["TEST"] = {"NAME": "test.db"}
"""
POSTGRES = """
from urllib.parse import urlsplit
url = urlsplit(os.environ["POSTGRES_URL"])
DATABASES["default"] = {
    "ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "HOST": url.hostname,
    "PORT": url.port, "USER": url.username, "PASSWORD": url.password, **ATOMIC,
}
"""
PAST_A_POOLER = """
DATABASES["direct"] = {
    **DATABASES["default"], "ATOMIC_REQUESTS": False, "TEST": {"MIRROR": "default"},
}
LOCKKIT = {"default": "django://direct"}
"""
MODELS = """
from django.db import models
class Sale(models.Model):
    sku = models.CharField(max_length=20)
"""
URLS = """
from django.http import HttpResponse
from django.urls import path
from django.views import View
from lockkit_django import lock_view
from shop.models import Sale

@lock_view("stock:{sku}", timeout=0)
def sell(request, sku):
    Sale.objects.create(sku=sku)
    if request.GET.get("fail"):
        raise ValueError
    return HttpResponse("sold")

class Give(View):
    @lock_view("stock:{sku}", timeout=0)
    def post(self, request, sku):
        Sale.objects.create(sku=sku)
        return HttpResponse("given")

urlpatterns = [path("sell/<sku>", sell), path("give/<sku>", Give.as_view())]
"""
TESTS = """
from django.db import transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from lockkit_django import OpenTransaction, locks
from shop.models import Sale

class Behaviour:
    def test_the_view_runs(self):
        assert self.client.post("/sell/A1").status_code == 200
        assert Sale.objects.count() == 1

    def test_the_method_runs(self):
        Sale.objects.create(sku="fixture")
        assert self.client.post("/give/A1").status_code == 200
        assert Sale.objects.count() == 2

    def test_a_failing_view_is_rolled_back(self):
        with self.assertRaises(ValueError):
            self.client.post("/sell/A1?fail=1")
        assert Sale.objects.count() == 0

    def test_busy(self):
        with locks["default"].lock("stock:A1"):
            assert self.client.post("/sell/A1").status_code == 423
        assert Sale.objects.count() == 0

    def test_a_lock_inside_atomic_is_refused_here_as_well(self):
        with transaction.atomic(), self.assertRaises(OpenTransaction):
            locks["default"].lock("a").acquire()

    def test_a_lock_until_the_commit_of_the_users_own_block(self):
        lock = locks["default"].lock("a", timeout=0, until="commit")
        with transaction.atomic():
            with transaction.atomic(), lock:
                pass
            assert locks["default"].inspect("a")
        assert not locks["default"].inspect("a")
        with self.assertRaises(ZeroDivisionError), transaction.atomic(), lock:
            assert 1 / 0
        with lock as lease:
            pass
        assert lease.released

    def test_a_lock_for_the_rest_of_the_test(self):
        self.enterContext(locks["default"].lock("stock:A1"))
        assert self.client.post("/sell/A1").status_code == 423

class InTestCase(Behaviour, TestCase):
    pass

class InSimpleTestCase(SimpleTestCase):
    def test_a_lock(self):
        with locks["default"].lock("a"):
            assert locks["default"].lock("a").try_acquire() is None

class InTransactionTestCase(Behaviour, TransactionTestCase):
    pass
"""
PYTEST = """
import pytest
from lockkit_django import locks

def test_a_lock_without_the_database():
    with locks["default"].lock("a"):
        assert locks["default"].lock("a").try_acquire() is None

def test_a_lock_without_the_database_again():
    test_a_lock_without_the_database()

@pytest.mark.django_db
def test_a_view(client):
    assert client.post("/sell/A1").status_code == 200

@pytest.mark.django_db(transaction=True)
def test_a_view_that_commits(client):
    assert client.post("/sell/A1").status_code == 200
"""

ORDERS = """
MIDDLEWARE = ["lockkit_django.middleware.IdempotentOrderMiddleware"]
LOCKKIT = {"default": "memory://"}
LOCKKIT_ORDERS = {"PATHS": [], "SCOPE": "urls.scope"}
"""
ORDER_URLS = """
from django.http import HttpResponse
from django.urls import path
from django.views import View
from lockkit_django.orders import idempotent
from shop.models import Sale

def scope(request):
    return "shop"

class Buy(View):
    @idempotent
    def post(self, request):
        Sale.objects.create(sku="A1")
        return HttpResponse("bought")

urlpatterns = [path("buy", Buy.as_view())]
"""
ORDER_TESTS = """
import pytest
from shop.models import Sale

@pytest.mark.django_db
def test_orders(client):
    Sale.objects.create(sku="fixture")
    for order in "12":
        answer = client.post("/buy", {}, "application/json", headers={"Idempotency-Key": order})
        assert answer.status_code == 200, answer.content
    assert Sale.objects.count() == 3
"""
LOCKED_URLS = """
from django.http import HttpResponse
from django.urls import path
from django.views import View
from lockkit_django import lock_view
from lockkit_django.orders import idempotent
from shop.models import Sale

def scope(request):
    return "shop"

@lock_view("stock:A1")
def sell(request):
    Sale.objects.create(sku="A1")
    return HttpResponse("bought")

class Buy(View):
    @idempotent
    def post(self, request):
        return sell(request)

urlpatterns = [path("buy", Buy.as_view())]
"""
LOCKED_TESTS = """
import pytest
from lockkit_django import OpenTransaction

def buy(client):
    with pytest.raises(OpenTransaction, match="stock:A1"):
        client.post("/buy", {}, "application/json", headers={"Idempotency-Key": "1"})

@pytest.mark.django_db
def test_in_a_transaction(client):
    buy(client)

@pytest.mark.django_db(transaction=True)
def test_as_in_production(client):
    buy(client)
"""
METHOD_TESTS = """
import pytest
from shop.models import Sale

@pytest.mark.django_db
def test_the_first_request_meets_the_lock_of_a_method(client):
    Sale.objects.create(sku="fixture")
    assert client.post("/give/A1").status_code == 200
"""
ROUTER = """
class Router:
    def allow_migrate(self, db, app_label, model_name=None, **hints):
        if app_label == "lockkit_django":
            return model_name is None or (db == "orders") == (model_name == "orderrecord")

DATABASE_ROUTERS = ["settings.Router"]
DATABASES["orders"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": "orders.db"}
"""

ORDERS_ELSEWHERE = """
DATABASES["other"] = {**DATABASES["default"], "ATOMIC_REQUESTS": False}
DATABASES["default"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": "project.db"}
LOCKKIT_ORDERS["USING"] = "other"
"""
FORBIDDEN_TESTS = """
import pytest

def buy(client):
    return client.post("/buy", {}, "application/json", headers={"Idempotency-Key": "1"})

@pytest.mark.django_db
def test_the_default_alone(client):
    with pytest.raises(AssertionError, match="queries to 'other' are not allowed"):
        buy(client)

@pytest.mark.django_db(databases=["default", "other"])
def test_both_databases(client):
    assert buy(client).status_code == 200
"""

PLUGINS = ("-p", "pytest_django.plugin", "-p", "lockkit.testing.plugin")
PYTEST_RUN = ("-m", "pytest", "-q", *PLUGINS, "-W", "error")
PYTEST_ONE = (*PYTEST_RUN[1:], "test_pytest.py", "-k", "without_the_database")

Project: TypeAlias = Callable[..., Path]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    def make(settings: str = "") -> Path:
        files = {
            "settings.py": SETTINGS + settings,
            "urls.py": URLS,
            "tests.py": TESTS,
            "shop/__init__.py": "",
            "shop/models.py": MODELS,
            "test_pytest.py": PYTEST,
        }
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return make


def run(place: Path, *command: str, **environment: str) -> str:
    """A test run in a process of its own. What it prints."""
    settings = {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(place), **environment}
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKKIT_URL")}
    kept.pop("PYTHONSAFEPATH", None)
    process = subprocess.run(
        [sys.executable, *command],
        cwd=place,
        env={**kept, **settings, "TMPDIR": str(place), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout + process.stderr


@pytest.mark.parametrize(
    ("settings", "options"),
    [("", ()), (FILE, ("--parallel", "2"))],
    ids=["memory", "parallel"],
)
def test_the_test_runner_on_sqlite(
    project: Project, settings: str, options: tuple[str, ...]
) -> None:
    """The database and the locks beside it are gone afterwards."""
    place = project(settings)
    assert "Ran 15 tests" in run(place, "-m", "django", "test", "--noinput", *options)
    assert not left_in(place)


@pytest.mark.parametrize("settings", ["", FILE], ids=["memory", "file"])
def test_pytest_django(project: Project, settings: str) -> None:
    """Locks need no django_db mark: the lock store is not the test database."""
    place = project(settings)
    assert "4 passed" in run(place, *PYTEST_RUN, "test_pytest.py")
    assert not left_in(place)


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        (ORDERS, {"urls.py": ORDER_URLS, "test_pytest.py": ORDER_TESTS}),
        ("", {"test_pytest.py": METHOD_TESTS}),
    ],
    ids=["order", "lock"],
)
def test_what_a_test_has_changed_before_the_first_request_is_final(
    project: Project, settings: str, files: dict[str, str]
) -> None:
    """In the first request of a process, and where no view has a ``lock_view``."""
    place = project(settings)
    for name, text in files.items():
        (place / name).write_text(text)
    assert "1 passed" in run(place, *PYTEST_RUN, "test_pytest.py")


def test_a_lock_inside_an_order_is_refused_as_in_production(
    project: Project, postgres_server: PostgresServer
) -> None:
    """PostgreSQL does not tell a TestCase what an order has written."""
    url = postgres_server.create_database()
    place = project(POSTGRES + ORDERS)
    (place / "urls.py").write_text(LOCKED_URLS)
    (place / "test_pytest.py").write_text(LOCKED_TESTS)
    try:
        assert "2 passed" in run(place, *PYTEST_RUN, "test_pytest.py", POSTGRES_URL=url)
    finally:
        postgres_server.drop_database(url)


def test_an_order_in_a_database_that_a_test_may_not_use_is_refused(
    project: Project, postgres_server: PostgresServer
) -> None:
    """Django would roll nothing back there, and the next test would get a replay."""
    url = postgres_server.create_database()
    place = project(POSTGRES + ORDERS + ORDERS_ELSEWHERE)
    (place / "urls.py").write_text(ORDER_URLS)
    (place / "test_pytest.py").write_text(FORBIDDEN_TESTS)
    try:
        assert "2 passed" in run(place, *PYTEST_RUN, "test_pytest.py", POSTGRES_URL=url)
    finally:
        postgres_server.drop_database(url)


def test_migrations_ask_a_router_for_the_model(project: Project) -> None:
    """One that decides by model makes no table here, so there is nothing to look at."""
    place = project(ROUTER)
    for alias in ("default", "orders"):
        run(place, "-m", "django", "migrate", "--database", alias)


def test_pytest_django_on_postgresql(project: Project, postgres_server: PostgresServer) -> None:
    """Tests without a mark, beside a test database and without one."""
    url = postgres_server.create_database()
    place = project(POSTGRES)
    try:
        assert "4 passed" in run(place, *PYTEST_RUN, "test_pytest.py", POSTGRES_URL=url)
        run(place, "-m", *PYTEST_ONE, POSTGRES_URL=url)
    finally:
        postgres_server.drop_database(url)


@pytest.mark.parametrize("command", [("django", "test", "tests.InSimpleTestCase"), PYTEST_ONE])
def test_without_a_test_database_the_projects_own_store_is_not_touched(
    project: Project, command: tuple[str, ...]
) -> None:
    place = project()
    run(place, "-m", *command)
    assert not list(place.glob("*lockkit*"))


def left_in(place: Path) -> list[Path]:
    return [*place.glob("test*.db*"), *place.rglob("*lockkit*")]


@pytest.mark.parametrize("more", ["", PAST_A_POOLER], ids=["one alias", "two aliases"])
def test_the_test_runner_on_postgresql(
    more: str, project: Project, postgres_server: PostgresServer
) -> None:
    """The test database can be dropped although locks had a connection to it."""
    url = postgres_server.create_database()
    try:
        place = project(POSTGRES + more)
        output = run(place, "-m", "django", "test", "--noinput", POSTGRES_URL=url)
        assert "Ran 15 tests" in output
    finally:
        postgres_server.drop_database(url)
