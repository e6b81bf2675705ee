"""The way of an order through our files: somebody who reads it must be able to follow it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from database_settings import complete, postgresql
from django.db import connections
from django.test import Client, override_settings
from django_project.shop.models import Sale
from entered import ROOT, files_entered, is_calm
from orders_django import elsewhere

from lockkit.testing.conformance.base import eventually
from lockkit_django import locks
from lockkit_django.models import OrderRecord

MOST_FILES = 30
MOST_OF_DJANGO = 8
LINES = 300


@pytest.fixture(autouse=True)
def records_in_postgresql(
    postgres_url: str, redis_url: str, django_db_blocker: Any
) -> Iterator[None]:
    """And the locks in Redis."""
    connections.settings["orders"] = complete(postgresql(postgres_url))
    elsewhere.calls.clear()
    with django_db_blocker.unblock():
        connection = connections["orders"]
        with connection.schema_editor() as editor:
            editor.create_model(OrderRecord)
            editor.create_model(Sale)
        with override_settings(
            ROOT_URLCONF="orders_django.elsewhere",
            MIDDLEWARE=["lockkit_django.middleware.IdempotentOrderMiddleware"],
            LOCKKIT={"default": redis_url},
            LOCKKIT_ORDERS={"PATHS": ["^/orders/"], "USING": "orders"},
        ):
            yield
        connection.close()
    del connections["orders"]
    del connections.settings["orders"]


def test_a_first_order_goes_through_few_files_of_ours() -> None:
    def buy(order_id: str) -> None:
        headers = {"Idempotency-Key": order_id, "Authorization": "Token a"}
        response = Client(headers=headers).post("/orders/quick", b"{}", "application/json")
        assert response.status_code == 201

    buy("warm-up")
    eventually(lambda: is_calm(locks["default"]))
    entered = files_entered(lambda: buy("first"))
    assert OrderRecord.objects.using("orders").count() == 2
    assert len(entered) <= MOST_FILES, "\n".join(sorted(entered))
    ours = {name for name in entered if name.startswith("lockkit_django/")}
    assert len(ours) <= MOST_OF_DJANGO, sorted(ours)
    assert all(len((ROOT / name).read_text().splitlines()) <= LINES for name in entered)
