"""Records of orders by guests, who have no login: they are small, and live for an hour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from orders_django import people

from lockkit.testing.servers import RedisServer
from lockkit_django.models import OrderRecord

pytestmark = pytest.mark.django_db(transaction=True)

CLAIMS = {"PATHS": ["^/orders/"], "STORE": "redis", "NAMESPACE": "shop"}
HOUR, DAY = 3600, 86400


def answers(request: HttpRequest) -> HttpResponse:
    return HttpResponse(b"x" * int(request.GET["size"]))


def registers(request: HttpRequest) -> HttpResponse:
    return people.sign_in(request, "alice")


def rotates(request: HttpRequest) -> HttpResponse:
    request.session.cycle_key()
    return HttpResponse()


def fails(request: HttpRequest) -> HttpResponse:
    request.session.cycle_key()
    return HttpResponse(status=500)


urlpatterns = [
    path("orders/answers", answers),
    path("orders/registers", registers),
    path("orders/rotates", rotates),
    path("orders/fails", fails),
    path("people/guest", people.guest),
]


TOKENS = {"token": "made up", "session and web token": "Bearer eyJhbGciOiJub25lIn0.e30."}
"""A JSON web token changes too often to own an order."""


def visitor(kind: str) -> Client:
    client = Client(headers={"Authorization": TOKENS[kind]} if kind in TOKENS else {})
    if kind == "user":
        client.force_login(User.objects.create(username="alice"))
    elif "session" in kind:
        client.get("/people/guest")
    return client


def buy(client: Client, size: int) -> Any:
    return client.post(f"/orders/answers?size={size}", headers={"Idempotency-Key": str(size)})


@pytest.mark.parametrize("store", ["database", "redis"])
@pytest.mark.parametrize(("kind", "seconds"), [("token", HOUR), ("session", HOUR), ("user", DAY)])
def test_guests(
    kind: str, seconds: int, store: str, redis_url: str, redis_server: RedisServer
) -> None:
    rules: dict[str, Any] = {"ROOT_URLCONF": __name__}
    if store == "redis":
        rules |= {"LOCKKIT": {"default": redis_url}, "LOCKKIT_ORDERS": CLAIMS}
    with override_settings(**rules):
        client = visitor(kind)
        assert [buy(client, 16 * 1024).status_code for _ in range(2)] == [200, 200]
        assert seconds - 60 < lifetime(store, redis_server) <= seconds + 60
        large = [buy(client, 16 * 1024 + 1).status_code for _ in range(2)]
    assert large == [200, 200 if kind == "user" else 409]


@pytest.fixture(params=["database", "redis"])
def _each_store(request: pytest.FixtureRequest, redis_url: str) -> Iterator[None]:
    rules: dict[str, Any] = {"ROOT_URLCONF": __name__}
    if request.param == "redis":
        rules |= {"LOCKKIT": {"default": redis_url}, "LOCKKIT_ORDERS": CLAIMS}
    with override_settings(**rules):
        yield


@pytest.mark.usefixtures("_each_store")
@pytest.mark.parametrize(
    ("view", "kind", "is_told"),
    [
        ("registers", "session", True),
        ("rotates", "session", True),
        ("rotates", "session and web token", True),
        ("fails", "session", False),
        ("rotates", "user", False),
        ("rotates", "token", False),
        ("answers?size=1", "session", False),
    ],
)
def test_a_view_that_gives_its_guest_another_session_is_told_of(
    view: str, kind: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A repeat of the order comes with the new cookie, and would be another order."""
    visitor(kind).post(f"/orders/{view}", headers={"Idempotency-Key": "A-1"})
    assert ("has given the session another key" in caplog.text) == is_told


def lifetime(store: str, server: RedisServer) -> float:
    if store == "database":
        record = OrderRecord.objects.get()
        return (record.expires - record.created) / 1_000_000
    with server.client() as admin:
        (key,) = admin.keys("*}:o:*")
        return float(admin.ttl(key))
