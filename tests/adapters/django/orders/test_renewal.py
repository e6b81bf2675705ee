"""The lease of an order is renewed for as long as its view runs."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client, override_settings
from orders_django import claiming

from lockkit.testing.conformance.base import at_least_once

pytestmark = pytest.mark.django_db(transaction=True)

TTL = 3.0
"""Seconds: a machine that stalls for longer spoils one try."""


@pytest.fixture(autouse=True, params=["database", "redis"])
def store(request: pytest.FixtureRequest, redis_url: str) -> Iterator[None]:
    with override_settings(
        ROOT_URLCONF="orders_django.claiming",
        LOCKKIT={"default": {"LOCATION": redis_url, "TTL": TTL}},
        LOCKKIT_ORDERS={"PATHS": ["^/orders/"], "STORE": request.param, "NAMESPACE": "shop"},
    ):
        yield


def headers() -> dict[str, str]:
    return {"Idempotency-Key": token_hex(8), "Authorization": "Token a"}


def test_of_a_view() -> None:
    def renewed() -> bool:
        claiming.payments.clear()
        response = Client().post("/orders/outlasts", headers=headers())
        return (response.content, len(claiming.payments)) == (b"renewed", 1)

    at_least_once(renewed)


def test_of_a_coroutine() -> None:
    def renewed() -> bool:
        claiming.payments.clear()
        response = async_to_sync(AsyncClient().post)("/orders/async-outlasts", headers=headers())
        return (response.content, len(claiming.payments)) == (b"renewed", 1)

    at_least_once(renewed)
