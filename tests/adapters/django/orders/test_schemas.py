"""A database backend of somebody else's, which chooses the tenant's schema in its cursors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from database_settings import complete, postgresql
from django.core.management import call_command
from django.db import connections
from django.test import Client, override_settings
from django_project.shop.models import Sale
from orders_django import elsewhere

from lockkit_django.models import OrderRecord

TENANTS = ("first", "second")


@pytest.fixture
def connection(postgres_url: str, django_db_blocker: Any) -> Iterator[Any]:
    """The alias ``orders``, where each tenant has all tables."""
    connections.settings["orders"] = {
        **complete(postgresql(postgres_url)),
        "ENGINE": "orders_django.schemas",
        "CONN_MAX_AGE": None,
    }
    elsewhere.calls.clear()
    with django_db_blocker.unblock():
        made: Any = connections["orders"]
        for tenant in TENANTS:
            with made.cursor() as cursor:
                cursor.execute(f"CREATE SCHEMA {tenant}")
            made.use(tenant)
            call_command("migrate", "lockkit_django", database="orders", verbosity=0)
            with made.schema_editor() as editor:
                editor.create_model(Sale)
        yield made
        made.close()
    del connections["orders"]
    del connections.settings["orders"]


def buy() -> Any:
    headers = {"Idempotency-Key": "A-1", "Authorization": "Token a"}
    return Client(raise_request_exception=False).post("/orders/quick", headers=headers)


@pytest.mark.parametrize("lock", ["always", "never"])
def test_an_order_and_its_record_are_in_the_schema_that_the_cursor_chooses(
    lock: str, connection: Any
) -> None:
    project = override_settings(
        ROOT_URLCONF="orders_django.elsewhere",
        MIDDLEWARE=["lockkit_django.middleware.IdempotentOrderMiddleware"],
        LOCKKIT_ORDERS={"PATHS": ["^/orders/"], "USING": "orders", "LOCK": lock},
    )
    with project:
        for again in (False, True):
            for tenant in TENANTS:
                connection.use(tenant)
                answer = buy()
                found = (answer.status_code, "Idempotent-Replayed" in answer)
                assert (tenant, *found) == (tenant, 201, again)
    for tenant in TENANTS:
        connection.use(tenant)
        sales, records = Sale.objects.using("orders"), OrderRecord.objects.using("orders")
        assert (sales.count(), records.count()) == (1, 1)
