"""Which clients may see an answer again, and data that are never stored; on real servers: see
the table."""

from __future__ import annotations

import json
import tracemalloc
import weakref
from secrets import token_hex
from tempfile import SpooledTemporaryFile
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.test.utils import CaptureQueriesContext, isolate_apps
from django.urls import ResolverMatch
from django.utils.functional import SimpleLazyObject
from garbage import collected

import lockkit
from lockkit.orders import (
    Identity,
    Order,
    OrderRequest,
    Orders,
    Payload,
    Proceed,
    drive,
    read_order_settings,
)
from lockkit.orders.visit import ViewOptions
from lockkit_django.models import OrderRecord
from lockkit_django.orders.visit import Visit

pytestmark = pytest.mark.timeout(360)


def visited(request: Any, **settings: Any) -> Visit:
    """A request at its view, with these settings of orders."""
    with override_settings(LOCKKIT_ORDERS={"PATHS": [], **settings}):
        return Visit(request, None, ViewOptions(inside=True))


def test_a_chunked_body_that_is_too_large_is_not_loaded() -> None:
    """ASGI servers hand it over in a file, and say nothing of its length."""
    with SpooledTemporaryFile(max_size=100) as body:
        body.write(b"x" * 10_001)
        body.seek(0)
        request = ASGIRequest({"type": "http", "method": "POST", "path": "/", "headers": []}, body)
        request.META["HTTP_IDEMPOTENCY_KEY"] = "A-1"
        request.resolver_match = ResolverMatch(lambda _: None, (), {}, route="orders/")
        refused = visited(request, MAX_REQUEST=10_000).identify()
        assert (refused.status_code, body.tell(), "_body" in vars(request)) == (413, 0, False)


@isolate_apps("django_project.shop")
def test_users_of_two_models_with_one_key_own_different_orders() -> None:
    class Clerk(User):
        class Meta:
            proxy = True
            app_label = "shop"

    keys = set()
    for user in (User(pk=7), Clerk(pk=7), User(pk=8)):
        request = RequestFactory().post("/orders/", headers={"Idempotency-Key": "A-1"})
        request.resolver_match = ResolverMatch(lambda _: None, (), {}, route="orders/")
        request.user = user
        order = visited(request, NAMESPACE="shop").identify()
        assert isinstance(order, Order)
        keys.add(order.key)
    assert len(keys) == 3


def test_secrets_are_in_no_repr() -> None:
    request = RequestFactory().post(
        "/orders/", {"password": "canary"}, query_params={"token": "canary"}
    )
    request.META["HTTP_AUTHORIZATION"] = "Token canary"
    request.COOKIES["sessionid"] = "canary"
    request.resolver_match = ResolverMatch(lambda _: None, (), {}, route="orders/")
    visit = visited(request)
    facts = visit.read()
    response = HttpResponse("canary")
    response.set_cookie("secret", "canary")
    request.META["HTTP_IDEMPOTENCY_KEY"] = "A-1"
    identity, order, answered = facts.read_identity(), visit.identify(), visit.answered(response)
    texts = [facts, facts.payload(), identity, order, answered]
    assert not any("canary" in repr(each) for each in texts)


def test_users_of_no_model_are_told_apart_by_their_class() -> None:
    """Also behind what Django's middleware puts in front of each of them."""

    class Customer:
        pk, is_authenticated = 7, True

    class Clerk(Customer):
        pass

    def owner(user: Any) -> str | None:
        request = RequestFactory().post("/orders/")
        request.user = user
        request.resolver_match = ResolverMatch(lambda _: None, (), {}, route="orders/")
        return visited(request).read().read_identity().user

    class Robot:
        is_authenticated = True

    assert owner(Robot()) is None  # without a key it owns nothing; SCOPE may say who it is
    plain = [owner(each()) for each in (Customer, Clerk)]
    assert [owner(SimpleLazyObject(each)) for each in (Customer, Clerk)] == plain
    assert len(set(plain)) == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["function", "api", "permitted-inside"])
def test_whether_another_user_has_used_an_id_does_not_show(kind: str) -> None:
    """Same status, same headers, same statements: for an ID of somebody else's, and for a new."""
    users = [User.objects.create_superuser(f"u{n}") for n in range(3)]
    clients = [Client() for _ in users]
    for client, user in zip(clients, users, strict=True):
        client.force_login(user)
    alice, bob, _ = clients

    def buy(client: Client, order_id: str) -> tuple[int, set[str], list[str]]:
        headers = {"Idempotency-Key": order_id}
        if kind == "api":
            number = clients.index(client)
            headers["Authorization"] = f"Token u{number}"
        with CaptureQueriesContext(connections["default"]) as queries:
            answer = client.post(f"/orders/{kind}", headers=headers)
        return answer.status_code, set(answer.headers), [q["sql"].split()[0] for q in queries]

    buy(bob, "warm-up")
    assert buy(alice, "used")[0] == 201
    assert buy(bob, "used") == buy(bob, "new")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["function", "api-mixed", "permitted-dispatch-inside"])
def test_a_repeat_leaves_nothing_of_its_request_in_the_process(kind: str) -> None:
    """Whoever repeats one order many times does not fill the memory."""
    client = Client(headers={"Authorization": "Token a", "Idempotency-Key": "A-1"})
    client.force_login(User.objects.create_superuser("alice"))
    answers = [client.post(f"/orders/{kind}") for _ in range(2)]
    assert ["Idempotent-Replayed" in answer for answer in answers] == [False, True]
    requests = [weakref.ref(answer.wsgi_request) for answer in answers]
    del answers
    collected()
    assert [request() for request in requests] == [None, None]


@pytest.mark.django_db
def test_what_is_stored_is_plain_text_and_the_answers_bytes() -> None:
    Client().post("/orders/cookie", headers={"Idempotency-Key": "1", "Authorization": "T"})
    (row,) = OrderRecord.objects.values()
    assert json.loads(row.pop("headers"))
    assert row.pop("body").startswith(b"sold")
    assert all(isinstance(value, (str, int)) for value in row.values())


class Nothing:
    """A store that knows of no order."""

    def find(self, key: str, *, fresh: bool) -> None:
        return None


def test_many_keys_leave_nothing_in_the_process() -> None:
    """The engine keeps nothing of 20,000 random keys, and locks nothing of orders that are over.

    That records expire and are pruned is tested where they are kept.
    """
    orders = Orders(read_order_settings({"PATHS": [], "WAIT": 0}))
    locks = lockkit.connect("memory://")

    def identified() -> Order:
        facts = OrderRequest(
            method="POST",
            path="/orders/",
            route="orders/",
            header={"Idempotency-Key": token_hex(16)}.get,
            read_payload=Payload,
            read_identity=lambda: Identity(user="u"),
        )
        order = orders.identify(facts)
        assert isinstance(order, Order)
        return order

    def place(count: int) -> None:
        for _ in range(count):
            decision = drive(orders.admit(identified()), Nothing(), locks)
            assert isinstance(decision, Proceed)
            decision.lease.release()

    place(100)
    tracemalloc.start()
    try:
        place(100)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for _ in range(20_000):
            identified()
        place(2_000)
        tracemalloc.start()
        place(100)
        after, _ = tracemalloc.get_traced_memory()
        assert not list(locks.holders())
    finally:
        tracemalloc.stop()
        locks.close()
    assert after < before + 200_000
