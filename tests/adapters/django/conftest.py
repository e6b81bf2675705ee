"""Django's tests run in ``django_project``; locks are in memory unless a test says otherwise."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator

import django
import pytest
from django.db import connections
from django.utils import translation

from lockkit.leases.client import Lease

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")
django.setup()


@pytest.fixture(autouse=True)
def fresh_locks() -> Iterator[None]:
    """Each test begins without a client, and without what another one was told."""
    from django_project import views
    from django_project.spy import SpyBackend

    from lockkit_django.leases.client import reset

    reset()
    views.calls.clear()
    SpyBackend.observers.clear()
    yield
    reset()
    SpyBackend.observers.clear()


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@pytest.fixture
def committed() -> Iterator[Committed]:
    """What another process sees: a connection of its own, outside Django."""
    found = Committed(connections["default"].settings_dict["NAME"])
    yield found
    found.close()


@pytest.fixture
def stale() -> Iterator[Lease]:
    """A lease that somebody else has now, and that has not heard of it."""
    from lockkit_django import locks

    client = locks["default"]
    lease = client.lock("stock", ttl=60).acquire()
    assert client.break_("stock", fence=lease.fencing_token)
    yield lease
    lease.release()


@pytest.fixture
def later(stale: Lease) -> Iterator[Lease]:
    """The lease of that somebody."""
    from lockkit_django import locks

    with locks["default"].lock("stock", ttl=60).acquire() as lease:
        yield lease


class Committed:
    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False)

    def sales(self, sku: str) -> int:
        query = "SELECT COUNT(*) FROM shop_sale WHERE sku = ?"
        (count,) = self._connection.execute(query, [sku]).fetchone()
        return int(count)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(autouse=True)
def no_language() -> Iterator[None]:
    """LocaleMiddleware leaves its language with the thread."""
    yield
    translation.deactivate()
