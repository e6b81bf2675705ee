"""The way of an order through our files, which a reader must be able to follow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import Client, override_settings
from entered import ROOT, files_entered
from orders_django import views

pytestmark = pytest.mark.django_db(transaction=True)

MOST_FILES = 47
MOST_OF_DJANGO = 11
LINES = 300


@pytest.fixture(autouse=True)
def locks_in_redis(fresh_orders: None, redis_url: str) -> Iterator[None]:
    with override_settings(LOCKKIT={"default": redis_url}):
        yield


def test_a_first_order_goes_through_few_files_of_ours() -> None:
    def buy(order_id: str) -> None:
        headers = {"Idempotency-Key": order_id, "Authorization": "Token a"}
        response = Client(headers=headers).post("/orders/function", b"{}", "application/json")
        assert response.status_code == 201

    buy("warm-up")
    entered = files_entered(lambda: buy("first"))
    assert views.calls == ["function", "function"]
    assert len(entered) <= MOST_FILES, sorted(entered)
    ours = {name for name in entered if name.startswith("lockkit_django/")}
    assert len(ours) <= MOST_OF_DJANGO, sorted(ours)
    assert all(len((ROOT / name).read_text().splitlines()) <= LINES for name in entered)
