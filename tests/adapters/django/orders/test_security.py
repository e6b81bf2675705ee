"""Which clients may see an answer again, and data that are never stored, on real servers."""

from __future__ import annotations

import json
import tracemalloc
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
from orders_django.running import Answer, Machine, Site

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

pytestmark = pytest.mark.timeout(180)

FORM = "application/x-www-form-urlencoded"


def visited(request: Any, **settings: Any) -> Visit:
    """A request at its view, with these settings of orders."""
    with override_settings(LOCKKIT_ORDERS={"PATHS": [], **settings}):
        return Visit(request, None, ViewOptions(), checked=True)


class Browser:
    """Keeps the cookie of its session, and nothing else."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.session: str | None = None

    def send(self, path: str, *args: Any, **more: Any) -> Answer:
        cookies = [("Cookie", f"sessionid={self.session}")] if self.session else []
        headers = [*cookies, *more.pop("headers", [])]
        answer = self._machine.send(path, *args, token=None, headers=headers, **more)
        for cookie in answer.headers.get_all("Set-Cookie") or []:
            if cookie.startswith("sessionid="):
                value = cookie.partition("=")[2].partition(";")[0].strip('"')
                self.session = value or None
        return answer

    def sign_in(self, name: str) -> Browser:
        assert self.send(f"/people/in/{name}", order_id=None).status == 200
        assert self.session
        return self


def signed_in(site: Site, name: str) -> Browser:
    return Browser(site.hasty).sign_in(name)


@pytest.mark.parametrize("kind", ["cookie", "async", "for-users"])
def test_another_user_with_the_same_id_makes_his_own_order(
    site: Site, order_id: str, kind: str
) -> None:
    alice, bob = signed_in(site, "alice"), signed_in(site, "bob")
    first = alice.send(f"/orders/{kind}", order_id=order_id)
    other = bob.send(f"/orders/{kind}", b'{"quite": "different"}', order_id=order_id)
    assert (other.status, other.replayed) == (first.status, False)
    assert first.body != other.body
    again = alice.send(f"/orders/{kind}", order_id=order_id)
    assert (again.replayed, again.body) == (True, first.body)


def test_an_id_that_an_attacker_has_used_before_is_still_the_victims(
    site: Site, order_id: str
) -> None:
    mallory, alice = signed_in(site, "mallory"), signed_in(site, "alice")
    assert mallory.send("/orders/fields", b'{"n": 666}', order_id=order_id).status == 201
    first, again = [alice.send("/orders/fields", order_id=order_id) for _ in range(2)]
    assert [(first.status, first.replayed), (again.status, again.replayed)] == [
        (201, False),
        (201, True),
    ]
    assert b"666" not in first.body + again.body


@pytest.mark.parametrize(
    "kind", ["permitted", "permitted-inside", "permitted-class", "permitted-dispatch-inside"]
)
def test_a_permission_that_is_taken_away(site: Site, order_id: str, kind: str) -> None:
    carol = signed_in(site, "carol")
    carol.send("/people/carol/1", order_id=None)
    first, again = [carol.send(f"/orders/{kind}", order_id=order_id) for _ in range(2)]
    assert (first.status, again.replayed) == (201, True)
    carol.send("/people/carol/0", order_id=None)
    refused = carol.send(f"/orders/{kind}", order_id=order_id)
    assert (refused.status, first.body in refused.body) == (403, False)


def test_login_and_logout_between_the_tries(site: Site, order_id: str) -> None:
    alice = signed_in(site, "alice")
    first = alice.send("/orders/function", order_id=order_id)
    stolen = Browser(site.hasty)
    stolen.session = alice.session
    alice.send("/people/out", order_id=None)
    for browser in (alice, stolen):
        nobody = browser.send("/orders/function", order_id=order_id)
        assert (nobody.status, nobody.code) == (400, "order-without-owner")
    assert signed_in(site, "bob").send("/orders/function", order_id=order_id).body != first.body
    assert alice.sign_in("alice").send("/orders/function", order_id=order_id).body == first.body


def test_a_guest_owns_what_his_session_ordered_and_only_that(site: Site, order_id: str) -> None:
    one, two = Browser(site.hasty), Browser(site.hasty)
    for guest in (one, two):
        guest.send("/people/guest", order_id=None)
    answers = [g.send("/orders/function", order_id=order_id) for g in (one, one, two)]
    assert [answer.replayed for answer in answers] == [False, True, False]
    made_up = Browser(site.hasty)
    made_up.session = token_hex(16)
    assert made_up.send("/orders/function", order_id=order_id).code == "order-without-owner"


def test_tokens_are_told_apart(site: Site, order_id: str) -> None:
    tokens = ["Token a", "Token b", "Token a", "token a", "Bearer a"]
    for kind in ("function", "async"):
        answers = [site.hasty.send(f"/orders/{kind}", order_id=order_id, token=t) for t in tokens]
        assert [a.replayed for a in answers] == [False, False, True, False, False]


def test_csrf_and_authentication_are_asked_before_a_replay(site: Site, order_id: str) -> None:
    site.hasty.send("/orders/api", order_id=order_id, token="Token alice")
    assert site.hasty.send("/orders/api", order_id=order_id, token="Token wrong").status == 401
    alice = signed_in(site, "alice")
    first = alice.send("/orders/function", order_id=order_id)
    forged = alice.send("/orders/function", order_id=order_id, headers=[("X-CSRFToken", "wrong")])
    assert (forged.status, first.body in forged.body) == (403, False)


HOSTILE = ["'; DROP TABLE lockkit_order; --", '"', "%s%n", "../../etc", "{0.__class__}", "*"]


@pytest.mark.parametrize("text", HOSTILE)
def test_ids_are_only_data(site: Site, text: str) -> None:
    body = json.dumps({"order_id": text}).encode()
    answers = [site.hasty.send("/orders/function", body, order_id=None) for _ in range(2)]
    assert [(a.status, a.replayed) for a in answers] == [(201, False), (201, True)]
    assert site.records(text)[0][0] == "done"


@pytest.mark.parametrize(
    "text", ["a\x00b", "a\r\nSet-Cookie: x=1", "é", "\ud800", "x" * 10_000, ""]
)
def test_ids_that_are_none(site: Site, text: str) -> None:
    before = site.sales()
    refused = site.hasty.send("/orders/function", json.dumps({"order_id": text}).encode(), None)
    assert refused.status in {400, 413}
    assert refused.code in {"order-id-malformed", "order-too-large"}
    assert (site.sales(), refused.headers["Set-Cookie"]) == (before, None)


def test_secrets_of_a_request_are_nowhere(site: Site, order_id: str) -> None:
    """In a good order, one that fails, one that is refused, and one without a store."""
    canaries = [token_hex(16) for _ in range(4)]
    authorization, cookie, password, csrf = canaries
    body = f"password={password}&csrfmiddlewaretoken={csrf}".encode()
    kinds = ["cookie", "broken", "async-broken", "api-set", "api-broken", "api-set-mixed"]
    for machine in (site.hasty, site.patient, site.lost):
        for kind in kinds:
            for text in (body, body + b"&other=1"):
                machine.send(
                    f"/orders/{kind}",
                    text,
                    order_id=order_id,
                    token=f"Token {authorization}",
                    content_type=FORM,
                    headers=[("Cookie", f"basket={cookie}")],
                )
    # The tests' own view makes a user of each token, under its name.
    site.query("DELETE FROM auth_user WHERE username = ?", authorization)
    files = [*site.database.parent.glob("locks.sqlite3*"), *site.database.parent.glob("*.log")]
    kept = {path.name: path.read_bytes() for path in files} | {"tables": site.dump()}
    assert {"locks.sqlite3", "tables"} < kept.keys()
    assert order_id.encode() in kept["tables"]
    found = [
        (canary, where)
        for where, data in kept.items()
        for canary in canaries
        if canary.encode() in data or canary.encode().hex().encode() in data.lower()
    ]
    assert found == []
    assert not any(b"of-the-first" in data for data in kept.values())


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
    """The engine keeps nothing of 100,000 random keys, and locks nothing of orders that are over.

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
        for _ in range(100_000):
            identified()
        place(5_000)
        tracemalloc.start()
        place(100)
        after, _ = tracemalloc.get_traced_memory()
        assert not list(locks.holders())
    finally:
        tracemalloc.stop()
        locks.close()
    assert after < before + 200_000
