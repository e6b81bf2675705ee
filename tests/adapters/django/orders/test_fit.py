"""Orders in every shape of view that a project has, with its checks before a replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.http import HttpRequest
from django.test import AsyncClient, Client, override_settings
from django.views import View
from django_project.shop.models import Sale
from ninja.decorators import decorate_view
from orders_django import fit_views, views
from orders_django.people import to_sell
from rest_framework.views import APIView

from lockkit.model.errors import ConfigurationError
from lockkit_django import locks, signals
from lockkit_django.models import OrderRecord
from lockkit_django.orders import IdempotentMixin, idempotent

pytestmark = pytest.mark.django_db(transaction=True)

REPLAYED = "Idempotent-Replayed"
BUY = {"sku": "x", "order_id": "A-1"}
HOOKS = {"AUTHORIZE_REPLAY": "is_alice", "RECOVER": "of_this_user"}


@pytest.fixture(autouse=True)
def fitting(fresh_orders: None) -> Iterator[None]:
    fit_views.revoked.clear()
    with override_settings(ROOT_URLCONF="orders_django.fit_views"):
        yield


@pytest.fixture(params=[False, True], ids=["autocommit", "atomic"])
def atomic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", request.param)
    return bool(request.param)


def client() -> Client:
    return Client(raise_request_exception=False)


def send(kind: str, order_id: str | None = "A-1", token: str = "Token alice", **more: Any) -> Any:
    headers = {"Authorization": token, **more.pop("headers", {})}
    if order_id is not None:
        headers["Idempotency-Key"] = order_id
    more = {"data": BUY, "content_type": "application/json", **more}
    return more.pop("by", client()).post(f"/orders/{kind}", headers=headers, **more)


def twice(kind: str, **more: Any) -> Any:
    """Sends it two times, and returns the first answer: the second is a replay of it."""
    first, second = send(kind, **more), send(kind, **more)
    assert (first.status_code, REPLAYED in first) in {(201, False), (302, False)}, first.content
    assert (second.status_code, second.get(REPLAYED)) == (first.status_code, "true")
    assert second.content == first.content
    assert OrderRecord.objects.count() == 1
    assert not list(locks["default"].holders())
    return first


@pytest.mark.parametrize("kind", ["with-dot", "with-colon"])
def test_a_source_for_one_view(kind: str, atomic: bool) -> None:
    with override_settings(LOCKKIT_ORDERS={"PATHS": ["^/nowhere/"]}):
        twice(kind, order_id=None)
        missing = send(kind, None, data={"sku": "x"})
    assert (missing.status_code, missing.json()["code"]) == (400, "order-id-missing")
    assert views.calls == [kind]


@pytest.mark.parametrize(
    "kind",
    ["method", "api-inside", "api-method", "api-below-lock", "sales/gift/", "sales-mixed/gift/"],
)
def test_functions_below_the_callback(kind: str, atomic: bool) -> None:
    if kind == "sales-mixed/gift/":
        assert send(kind).status_code == 500  # it has an order already
        return
    User.objects.create(username="alice")  # not by her token: that would be a change before
    twice(kind)
    assert (len(views.calls), Sale.objects.count()) == (1, 1)


def test_the_version_is_in_the_accept_header(atomic: bool) -> None:
    first = twice("versioned", headers={"Accept": "application/json; version=2"})
    assert first.json()["version"] == "2"


def test_an_answer_that_the_client_does_not_accept_is_not_recorded(atomic: bool) -> None:
    refused = send("versioned", headers={"Accept": "text/csv"})
    assert (refused.status_code, OrderRecord.objects.count()) == (406, 0)
    twice("versioned", headers={"Accept": "application/json"})


@pytest.mark.parametrize("failure", ["", "?clash"])
@pytest.mark.parametrize(
    ("kind", "again"),
    [
        ("recovers", 201),
        ("recovers-inside", 201),
        ("api-recovers", 201),
        ("api-set-recovers", 201),
        ("api-function-recovers", 201),
        ("ninja/recovers", 409),
    ],
)
def test_a_locked_method_whose_own_block_fails_has_ordered(
    kind: str, again: int, failure: str, atomic: bool
) -> None:
    """Its block is a savepoint also below the transaction that the handler has opened."""
    assert [send(kind + failure).status_code for _ in range(2)] == [201, again]
    assert [sale.sku for sale in Sale.objects.all()] == ["recovers"]
    assert (views.calls, OrderRecord.objects.count()) == (["recovers"], 1)
    assert not list(locks["default"].holders())


def test_one_method_of_a_class_is_exempt_and_another_as_the_settings_say() -> None:
    with override_settings(
        LOCKKIT_ORDERS={"PATHS": ["^/orders/"], "METHODS": ["PUT", "PATCH", "POST"]}
    ):
        headers = {"Authorization": "T", "Idempotency-Key": "1"}
        for method, expected in (("put", False), ("patch", True)):
            answers = [
                getattr(client(), method)("/orders/method", headers=headers) for _ in range(2)
            ]
            assert [a.status_code for a in answers] == [201, 201]
            assert [REPLAYED in a for a in answers] == [False, expected]


def test_beside_an_exempt_method_the_class_makes_orders() -> None:
    headers = {"Authorization": "T"}
    assert client().put("/orders/exempt-method", headers=headers).status_code == 400
    assert client().put("/orders/exempt-class", headers=headers).status_code == 201
    assert send("exempt-method", None).status_code == 201


@pytest.mark.parametrize(
    "kind", ["exempt-mixed", "exempt-method-mixed", "exempt-method", "exempt-class"]
)
def test_a_class_of_orders_or_its_method_may_be_exempt(kind: str, atomic: bool) -> None:
    """It keeps the transaction of ATOMIC_REQUESTS."""
    answers = [send(kind) for _ in range(2)]
    assert [(a.status_code, REPLAYED in a) for a in answers] == [(201, False)] * 2
    assert [a.json()["atomic"] for a in answers] == [atomic] * 2
    assert (Sale.objects.count(), OrderRecord.objects.count()) == (2, 0)


@pytest.mark.parametrize("bases", [(APIView, IdempotentMixin), (IdempotentMixin, View)])
def test_a_mixin_that_would_do_nothing_is_refused(bases: Any) -> None:
    advice = r"class Orders\(IdempotentMixin, APIView\)\. On a view of Django's use"
    with pytest.raises(ConfigurationError, match=advice):
        type("Orders", bases, {})


def test_a_method_of_http_that_has_the_name_of_an_attribute() -> None:
    """DRF's ``self.headers`` are the headers of the answer."""
    token = {"Authorization": "Token alice"}
    answer = client().generic("HEADERS", "/orders/on-behalf-mixed", headers=token)
    assert (answer.status_code, OrderRecord.objects.count()) == (405, 0)


def test_another_mixin_may_come_first() -> None:
    class Tenant:
        def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
            super().initial(request, *args, **kwargs)  # type: ignore[misc]

    class OfTenant(Tenant, IdempotentMixin):
        """Of a project, for its views."""

    type("Orders", (OfTenant, APIView), {})


async def test_an_async_method() -> None:
    headers = {"Authorization": "T", "Idempotency-Key": "1"}
    answers = [await AsyncClient().post("/orders/async-method", headers=headers) for _ in range(2)]
    assert [(a.status_code, REPLAYED in a) for a in answers] == [(201, False), (201, True)]
    assert views.calls == ["async-method"]


@pytest.mark.parametrize("kind", ["create-view", "form-view"])
def test_generic_views(kind: str, atomic: bool) -> None:
    form = {"data": {"sku": "x"}, "content_type": "application/x-www-form-urlencoded"}
    first = twice(kind, **{**form, "data": "sku=x"})
    assert (first.status_code, Sale.objects.count()) == (302, 1)


def test_a_permission_on_a_method_with_the_order_below_it(atomic: bool) -> None:
    user = User.objects.create(username="carol")
    permission = to_sell()
    user.user_permissions.add(permission)
    browser = client()
    browser.force_login(user)
    twice("decorated", by=browser)
    user.user_permissions.remove(permission)
    assert send("decorated", by=browser).status_code == 403
    assert views.calls == ["decorated"]


def test_a_form_that_drf_has_parsed_before_is_compared_as_it_was_sent() -> None:
    form = {"content_type": "application/x-www-form-urlencoded"}
    twice("form-mixed", data=b"sku=%FF", **form)
    assert send("form-mixed", data=b"sku=%FE", **form).status_code == 422


@pytest.mark.parametrize("kind", ["create", "create-mixed", "sales/", "sales-mixed/"])
def test_drf_generics_and_routers(kind: str, atomic: bool) -> None:
    first = twice(kind)
    assert first.json()["sku"] == "x"
    assert Sale.objects.count() == 1
    views.refused_drf_users.add("alice")
    assert send(kind).status_code == 403
    assert send(kind, token="Token wrong").status_code == 401
    assert REPLAYED not in send(kind, token="Token bob")
    assert Sale.objects.count() == 2


@pytest.mark.parametrize("kind", ["", "-mixed", "-method", "-inside", "-hidden"])
def test_a_drf_order_belongs_to_the_customer_for_whom_the_staff_acts(kind: str) -> None:
    """Whatever the authenticator leaves in ``request.auth``."""
    for name in ("alice", "bob", "staff"):
        User.objects.create(username=name)
    with override_settings(LOCKKIT_ORDERS={"PATHS": ["^/orders/on-behalf$"]}):
        answers = [send(f"on-behalf{kind}", token=f"Token {n}") for n in ("alice", "bob", "alice")]
    assert [a.status_code for a in answers] == [201] * 3
    assert [REPLAYED in a for a in answers] == [False, False, True]
    assert len({a.content for a in answers}) == Sale.objects.count() == 2


@pytest.mark.parametrize("shared", [False, True], ids=["own browser", "shared browser"])
def test_hooks_and_receivers_see_the_user_whom_drf_has_authenticated(shared: bool) -> None:
    """And not the one whose session the browser still has."""
    browser, told = client(), []
    if shared:
        browser.force_login(User.objects.create(username="bob"))

    def receiver(request: HttpRequest, **_: Any) -> None:
        told.append(request.user.get_username())

    hooks = {name: f"orders_django.hooks.{hook}" for name, hook in HOOKS.items()}
    rules = {"PATHS": ["^/orders/on-behalf$"], "MAX_RESPONSE": 1, **hooks}
    signals.order_replayed.connect(receiver)
    try:
        with override_settings(LOCKKIT_ORDERS=rules):
            first, second = [send("on-behalf", by=browser) for _ in range(2)]
    finally:
        signals.order_replayed.disconnect(receiver)
    assert (first.status_code, REPLAYED in first) == (201, False)
    assert (second.status_code, second.content) == (201, b"A-1 of alice")
    assert told == ["alice"]
    assert second.wsgi_request.user.get_username() == ("bob" if shared else "")


def test_drf_refuses_what_its_own_validation_refuses_and_remembers_it() -> None:
    answers = [send("create", data={"sku": ""}) for _ in range(2)]
    assert [a.status_code for a in answers] == [400, 400]
    assert REPLAYED in answers[1]
    assert Sale.objects.count() == 0


@pytest.mark.parametrize("kind", ["sales", "sales-mixed"])
def test_object_permissions_are_asked_by_the_hook(kind: str, atomic: bool) -> None:
    sale = Sale.objects.create(sku="s")
    rules = {"PATHS": ["^/orders/"], "AUTHORIZE_REPLAY": "orders_django.hooks.may_see_sale"}
    with override_settings(LOCKKIT_ORDERS=rules):
        twice(f"{kind}/{sale.pk}/refund/")
        fit_views.revoked.add("alice")
        refused = send(f"{kind}/{sale.pk}/refund/")
        assert (refused.status_code, b"refunded" in refused.content) == (403, False)
        fit_views.revoked.clear()
        assert REPLAYED in send(f"{kind}/{sale.pk}/refund/")
    assert views.calls.count("refund") == 2  # once by ``calls``, once by ``sell``


@pytest.mark.parametrize("kind", ["sales", "sales-mixed"])
def test_an_action_that_raises_a_4xx(kind: str, atomic: bool) -> None:
    sale = Sale.objects.create(sku="s")
    answers = [send(f"{kind}/{sale.pk}/fails/") for _ in range(2)]
    assert [(a.status_code, REPLAYED in a) for a in answers] == [(404, False), (404, True)]
    assert views.calls == ["fails"]


def test_a_lock_named_by_a_body_that_drf_has_read() -> None:
    with override_settings(LOCKKIT_ORDERS={"PATHS": ["^/nowhere/"]}):
        answer = send("locked-data", None)
    assert (answer.status_code, answer.json()) == (200, {"locked": "stock:x", "sku": "x"})


NINJA = ["inside", "async-inside"]


@pytest.mark.parametrize(
    ("kind", "atomic"),
    [("inside", False), ("inside", True), ("async-inside", False)],  # Django has no fourth
    indirect=["atomic"],
)
def test_ninja(kind: str, atomic: bool) -> None:
    for name in ("alice", "bob"):
        User.objects.create(username=name)
    twice(f"ninja/{kind}", token="Bearer alice")
    assert len(views.calls) == 1
    other = send(f"ninja/{kind}", token="Bearer alice", data={**BUY, "sku": "y"})
    assert (other.status_code, other.json()["code"]) == (422, "order-id-reused")
    assert REPLAYED not in send(f"ninja/{kind}", token="Bearer bob")


@pytest.mark.parametrize("kind", NINJA)
def test_ninja_authenticates_before_a_replay(kind: str) -> None:
    assert send(f"ninja/{kind}", token="Bearer alice").status_code == 201
    fit_views.revoked.add("alice")
    answers = [send(f"ninja/{kind}", token=t) for t in ("Bearer alice", "Token alice", "")]
    assert [a.status_code for a in answers] == [401, 401, 401]
    assert not any(b"sold" in a.content for a in answers)
    assert len(views.calls) == 1


@pytest.mark.parametrize("kind", NINJA)
async def test_ninja_on_asgi(kind: str) -> None:
    async def buy(token: str) -> Any:
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "A-1"}
        return await AsyncClient().post(
            f"/orders/ninja/{kind}", BUY, content_type="application/json", headers=headers
        )

    answers = [await buy("alice"), await buy("alice")]
    assert [(a.status_code, REPLAYED in a) for a in answers] == [(201, False), (201, True)]
    fit_views.revoked.add("alice")
    assert (await buy("alice")).status_code == 401


@pytest.mark.parametrize("kind", ["covered", "async-covered"])
def test_what_ninja_checks_inside_is_unknown(kind: str) -> None:
    first, again = (send(f"ninja/{kind}", token="Bearer alice") for _ in range(2))
    fit_views.revoked.add("alice")
    answers = [again, *(send(f"ninja/{kind}", token=t) for t in ("Bearer alice", "Token alice"))]
    assert first.status_code == 201
    assert [a.status_code for a in answers] == [409, 409, 401]
    assert not any(b"sold" in a.content for a in answers)
    assert len(views.calls) == 1


def test_a_ninja_key_stands_for_its_user() -> None:
    browser = client()
    browser.force_login(User.objects.create(username="carol"))

    def buy(key: str, by: Client) -> Any:
        headers = {"X-API-Key": key, "Idempotency-Key": "1"}
        return by.post("/orders/ninja/key", BUY, "application/json", headers=headers)

    answers = [buy(key, client()) for key in ("alice", "alice", "bob", "")]
    assert [a.status_code for a in answers] == [201, 201, 201, 401]
    assert [REPLAYED in a for a in answers] == [False, True, False, False]
    answers = [buy("dave", browser), buy("dave", client()), buy("bob", browser)]
    assert [REPLAYED in a for a in answers] == [False, True, True], "not the session's user"
    assert len({a.content for a in answers}) == 2


def test_ninja_with_a_lock_and_exempt(atomic: bool, releases: Any) -> None:
    User.objects.create(username="alice")  # not by her token: that would be a change before
    twice("ninja/locked/s1", token="Bearer alice")
    assert [name for name, *_ in releases.seen] == ["stock", "order"]
    assert [REPLAYED in send("ninja/exempt", token="Bearer a") for _ in range(2)] == [False] * 2


def test_a_lock_of_ninjas_user_is_not_that_of_the_browser() -> None:
    alice, bob = (User.objects.create(username=name) for name in ("alice", "bob"))
    browser = client()
    browser.force_login(bob)
    for by in (client(), browser):
        answer = send("ninja/cart", None, "Bearer alice", by=by)
        assert (answer.status_code, answer.json().get("lock")) == (200, f"cart:{alice.pk}")


def test_ninja_errors() -> None:
    refused = [send("ninja/refuses", token="Bearer a") for _ in range(2)]
    assert [(a.status_code, REPLAYED in a) for a in refused] == [(404, False), (404, True)]
    broken = [send("ninja/broken", token="Bearer a") for _ in range(2)]
    assert [a.status_code for a in broken] == [500, 500]
    assert (views.calls, Sale.objects.count()) == (["ninja-broken"] * 2, 0)
    invalid = [send("ninja/covered", "B", "Bearer a", data={"n": 1}) for _ in range(2)]
    assert [(a.status_code, a.json().get("code")) for a in invalid] == [
        (422, None),
        (409, "order-completed"),
    ]


def test_an_order_outside_of_ninjas_authentication_is_refused() -> None:
    operation = fit_views.api.default_router.path_operations["/key"].operations[0]
    with pytest.raises(ConfigurationError, match=r"below @api\.post"):
        decorate_view(idempotent)(operation.view_func)


@pytest.mark.parametrize(
    "locale", ["django.middleware.locale.LocaleMiddleware", "orders_django.derived.OurLocale"]
)
@pytest.mark.parametrize("asked_again", ["zh-hans", "en"])
def test_a_replay_says_in_which_language_it_is(
    asked_again: str, locale: str, settings: Any
) -> None:
    settings.MIDDLEWARE = [locale, *settings.MIDDLEWARE]
    first = send("with-dot", headers={"Accept-Language": "zh-hans"})
    second = send("with-dot", headers={"Accept-Language": asked_again})
    assert (first["Content-Language"], second["Content-Language"]) == ("zh-hans", "zh-hans")
    assert (REPLAYED in first, REPLAYED in second) == (False, True)


def test_a_refusal_is_logged_with_order_id_and_path(caplog: pytest.LogCaptureFixture) -> None:
    send("with-dot")
    with caplog.at_level("INFO", "lockkit"):
        send("with-dot", data={**BUY, "sku": "y"})
    (told,) = [r.getMessage() for r in caplog.records if r.name == "lockkit"]
    assert told == "POST /orders/with-dot gets 422 order-id-reused for the order 'A-1'"
