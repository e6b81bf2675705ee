"""Two databases, both with ATOMIC_REQUESTS: one has the record, both have their transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from asgi_scope import http_scope
from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django_project.shop.models import Sale
from orders_django import elsewhere, losing

from lockkit.orders import Record
from lockkit_django import locks
from lockkit_django.models import OrderRecord
from lockkit_django.orders.table import OrderTable

REPLAYED = "Idempotent-Replayed"
KINDS = ["outside", "inside", "inside-other", "inside-locked", "method", "mixed"]


ALIASES = ("orders", "other")


@pytest.fixture(autouse=True)
def files(django_db_blocker: Any, tmp_path: Path) -> Iterator[Path]:
    """A directory with one file for each database."""
    elsewhere.calls.clear()
    for alias in ALIASES:
        connections.settings[alias] = entry(tmp_path / alias)
    settings = {"PATHS": ["^/orders/"], "USING": "orders"}
    try:
        with (
            django_db_blocker.unblock(),
            override_settings(ROOT_URLCONF="orders_django.elsewhere", LOCKKIT_ORDERS=settings),
            override_settings(MIDDLEWARE=["lockkit_django.middleware.IdempotentOrderMiddleware"]),
        ):
            for alias in ALIASES:
                with connections[alias].schema_editor() as editor:
                    editor.create_model(OrderRecord)
                    editor.create_model(Sale)
            yield tmp_path
    finally:
        for alias in ALIASES:
            connections[alias].close()
            del connections[alias]
            del connections.settings[alias]


def entry(path: Path) -> dict[str, Any]:
    engine = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "ATOMIC_REQUESTS": True}
    return dict(type(connections)({"default": engine}).settings["default"])


def records(alias: str) -> int:
    return OrderRecord.objects.using(alias).count()


def committed(path: Path) -> int:
    """What somebody else sees."""
    with closing(sqlite3.connect(path)) as looking:
        return int(looking.execute("SELECT COUNT(*) FROM shop_sale").fetchone()[0])


def buy(kind: str, method: str = "post", order_id: str | None = "A-1") -> Any:
    headers = {"Authorization": "Token a"}
    if order_id is not None:
        headers["Idempotency-Key"] = order_id
    return getattr(Client(), method)(f"/orders/{kind}", headers=headers)


@pytest.mark.parametrize("kind", KINDS)
def test_each_database_has_a_transaction_and_one_the_record(kind: str, files: Path) -> None:
    first, second = buy(kind), buy(kind)
    assert (first.status_code, b"orders other" in first.content) == (201, True)
    assert (second[REPLAYED], second.content) == ("true", first.content)
    assert [committed(files / alias) for alias in ALIASES] == [1, 1]
    expected = [0, 1] if kind == "inside-other" else [1, 0]
    assert [records(alias) for alias in ALIASES] == expected
    assert not list(locks["default"].holders())


@pytest.mark.parametrize(
    ("kind", "method", "order_id"),
    [
        ("inside", "post", None),
        ("method", "get", "A-1"),
        ("method", "post", None),
        ("mixed", "post", None),
    ],
)
def test_a_request_that_is_no_order_has_its_transactions_all_the_same(
    kind: str, method: str, order_id: str | None
) -> None:
    response = buy(kind, method, order_id)
    assert (response.status_code, b"orders other" in response.content) == (201, True)
    assert records("orders") == 0


@pytest.mark.parametrize("kind", losing.KINDS)
def test_under_a_lost_lease_no_database_commits(kind: str, files: Path) -> None:
    with override_settings(ROOT_URLCONF="orders_django.losing"):
        answers = [buy(f"{kind}?using=other") for _ in range(2)]
    assert [(each.status_code, each.json()["code"]) for each in answers] == [
        (503, "order-lease-lost"),
        (503, "order-lease-lost"),
    ]
    assert (committed(files / "other"), records("orders")) == (0, 0)
    assert not list(locks["default"].holders())


class Replica:
    """Records are read in ``other``, which is behind: there are none yet."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "other" if model is OrderRecord else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "orders" if model is OrderRecord else None


def test_what_decides_is_not_read_from_a_replica() -> None:
    rules = override_settings(LOCKKIT_ORDERS={"PATHS": ["^/orders/"]}, DATABASE_ROUTERS=[Replica()])
    with rules, CaptureQueriesContext(connections["other"]) as asked:
        answers = [buy("quick") for _ in range(2)]
        assert [REPLAYED in answer for answer in answers] == [False, True]
        looks = [query["sql"] for query in asked if "lockkit_order" in query["sql"]]
        assert [sql.split()[0] for sql in looks] == ["SELECT"]  # for the second
    assert (elsewhere.calls, records("orders"), records("other")) == (["quick"], 1, 0)


def test_under_the_lock_a_replica_is_not_believed() -> None:
    """What a view does before ``commit_in`` is guarded by its lock alone."""
    rules = {"PATHS": ["^/orders/"]}
    with override_settings(LOCKKIT_ORDERS=rules, DATABASE_ROUTERS=[Replica()]):
        answers = [buy("charges") for _ in range(2)]
    assert [REPLAYED in answer for answer in answers] == [False, True]
    assert elsewhere.calls == ["charged", "charges"]


def test_a_look_before_the_lock_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another try ends between the look and the lock."""
    buy("charges")  # so this process looks for it
    OrderRecord.objects.using("orders").all().delete()
    elsewhere.calls.clear()
    find = OrderTable.find
    answers = []

    def found_then_first(self: OrderTable, key: str, *, fresh: bool) -> Record | None:
        monkeypatch.setattr(OrderTable, "find", find)
        found = find(self, key, fresh=fresh)
        answers.append(buy("charges"))
        return found

    monkeypatch.setattr(OrderTable, "find", found_then_first)
    answers.append(buy("charges"))
    assert [REPLAYED in answer for answer in answers] == [False, True]
    assert elsewhere.calls == ["charged", "charges"]


@pytest.fixture
def tenants(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The database of everything is that of the tenant whose request this thread works on."""
    for alias in ALIASES:  # coroutines have none
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", False)
    ours = "lockkit_django.middleware.IdempotentOrderMiddleware"
    with (
        override_settings(MIDDLEWARE=["orders_django.elsewhere.for_tenant", ours]),
        override_settings(LOCKKIT_ORDERS={"PATHS": ["^/orders/"]}),
        override_settings(DATABASE_ROUTERS=["orders_django.elsewhere.OfTenant"]),
    ):
        yield


async def abuy(kind: str) -> dict[bytes, bytes]:
    """The headers of the answer, by Django's ASGI handler."""
    headers = (b"authorization", b"Token a"), (b"idempotency-key", b"A-1")
    client = ApplicationCommunicator(ASGIHandler(), http_scope("POST", f"/orders/{kind}", *headers))
    await client.send_input({"type": "http.request"})
    start = await client.receive_output(60)
    while (await client.receive_output(60)).get("more_body"):
        pass
    await client.wait(60)
    return dict(start["headers"])


@pytest.mark.usefixtures("tenants")
@pytest.mark.parametrize(
    "kind", ["of-tenant", "of-tenant-inside", "of-tenant-async", "of-tenant-async-inside"]
)
async def test_the_routers_are_asked_in_the_thread_of_the_request(kind: str, files: Path) -> None:
    answers = [await abuy(kind) for _ in range(2)]
    assert [REPLAYED.encode() in headers for headers in answers] == [False, True]
    assert [committed(files / alias) for alias in ALIASES] == [1, 0]
    assert elsewhere.calls == ["of-tenant"]


@pytest.mark.usefixtures("tenants")
def test_an_order_keeps_its_database_whatever_the_view_tells_the_routers() -> None:
    answers = [buy("of-tenant-until-refused") for _ in range(2)]
    assert [(answer.status_code, REPLAYED in answer) for answer in answers] == [
        (422, False),
        (422, True),
    ]
    assert [records(alias) for alias in ALIASES] == [1, 0]
    assert elsewhere.calls == ["of-tenant"]
