"""The orders' Django tests run in ``django_project``, with views of their own."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from secrets import token_hex
from typing import Any

import django
import pytest
from django.db import connections
from django.db.backends.signals import connection_created
from django.utils import translation

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")
django.setup()

from django.test import override_settings  # noqa: E402  needs the settings
from orders_django.running import Site, environment, machines, migrate  # noqa: E402

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


@pytest.fixture(scope="module", params=["gunicorn", "uvicorn"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """Real servers of one SQLite file, which keeps sessions and users as well."""
    home = tmp_path_factory.mktemp("site")
    path = home / "shop.sqlite3"
    options = {"transaction_mode": "IMMEDIATE", "timeout": 30}
    options["init_command"] = "PRAGMA journal_mode=WAL"
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": options}
    locks = f"sqlite:///{home}/locks.sqlite3"
    rules = {
        "ORDER_ID": ORDERS["ORDER_ID"],
        "MAX_REQUEST": 10_000,
        "MAX_RESPONSE": 1000,
        "MAX_WAITERS": 1,
    }
    with closing(socket.create_server(("127.0.0.1", 0))) as gate:
        gate.settimeout(60)
        places = [
            environment(database, where, home, **rules, WAIT=wait)
            | {"ORDERS_GATE": str(gate.getsockname()[1])}
            for where, wait in ((locks, 60), (locks, 0), ("redis://127.0.0.1:1/0", 0))
        ]
        migrate(places[0])
        with machines(request.param, *places, home=home) as (patient, hasty, lost):
            yield Site(patient, hasty, lost, path, locks, gate)


@pytest.fixture
def order_id() -> str:
    return token_hex(8)


@pytest.fixture(autouse=True)
def no_language() -> Iterator[None]:
    """LocaleMiddleware leaves its language with the thread."""
    yield
    translation.deactivate()


@pytest.fixture
def closed_at_last() -> Iterator[None]:
    """Under ASGI Django leaves connections open: those of the threads that render its error pages,
    and all of a handler that is cancelled at its own end."""
    opened: list[Any] = []

    def note(connection: Any, **_: Any) -> None:
        opened.append(connection.connection)

    connection_created.connect(note)
    yield
    connection_created.disconnect(note)
    for each in opened:
        each.close()
