"""The behaviour of orders over HTTP, in Django: the suite that every adapter runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from html import unescape
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client, RequestFactory, override_settings
from django_project.shop.models import Sale
from order_suite import ORDERS, Answer, OpenShop
from order_suite.claims import Claims
from order_suite.duplicates import Duplicates, Locks
from order_suite.forms import Forms
from order_suite.owners import Owners, Replays
from order_suite.refusals import Carts, Refusals
from order_suite.requests import OrderIds, SameRequests
from order_suite.uncovered import Uncovered
from orders_django import views

from lockkit_django import locks
from lockkit_django.forms import new_order_id
from lockkit_django.models import OrderRecord

pytestmark = pytest.mark.django_db(transaction=True)


FIELD = re.compile(r'<input type="hidden" name="order_id" value="([^"]*)">')


def answer_of(response: Any) -> Answer:
    kept = dict(response.headers)
    if response.cookies:
        kept["Set-Cookie"] = response.cookies.output(header="")
    content = b"".join(response) if response.streaming else response.content
    is_json = "json" in kept.get("Content-Type", "")
    return Answer(response.status_code, kept, content, response.json() if is_json else None)


class DjangoShop:
    def __init__(self) -> None:
        self._clients: dict[str | None, Client] = {}

    def send(
        self,
        kind: str,
        key: str | None = "A-1",
        *,
        user: str | None = "alice",
        method: str = "POST",
        body: bytes = b"",
        content_type: str = "",
        query: str = "",
        headers: Mapping[str, str] | None = None,
        below: str = "/orders/",
    ) -> Answer:
        own = {} if key is None else {"Idempotency-Key": key}
        response = self._client(user).generic(
            method,
            f"{below}{kind}",
            body,
            content_type or "application/octet-stream",
            headers={**own, **(headers or {})},
            QUERY_STRING=query,
        )
        return answer_of(response)

    def _client(self, user: str | None) -> Client:
        if user not in self._clients:
            client = self._clients[user] = Client(raise_request_exception=False)
            if user is not None:
                client.force_login(User.objects.get_or_create(username=user)[0])
        return self._clients[user]

    def rows(self, kind: str) -> int:
        return Sale.objects.filter(sku=kind).count()

    def runs(self) -> list[str]:
        return list(views.calls)

    def records(self) -> list[dict[str, Any]]:
        return list(OrderRecord.objects.values())

    def change_records(self, **columns: object) -> None:
        OrderRecord.objects.update(**columns)

    def is_anything_held(self) -> bool:
        return bool(list(locks["default"].holders()))

    def new_order_id(self) -> str:
        request = RequestFactory().get("/")
        request.user = User.objects.get_or_create(username="alice")[0]
        request.session = {}  # type: ignore[assignment]
        return new_order_id(request)

    def hold(self, name: str) -> AbstractContextManager[object]:
        return locks["default"].lock(name)


@pytest.fixture
def open_shop(fresh_orders: None) -> Iterator[OpenShop]:
    with ExitStack() as stack:

        def open_(**changes: object) -> DjangoShop:
            orders = {**ORDERS, **changes}
            locale = "django.middleware.locale.LocaleMiddleware"
            stack.enter_context(
                override_settings(
                    LOCKKIT_ORDERS=orders,
                    LOCKKIT_VIEWS={"TIMEOUT": 0},
                    MIDDLEWARE=[locale, *settings.MIDDLEWARE],
                    ROOT_URLCONF="orders_django.suite_urls",
                )
            )
            return DjangoShop()

        yield open_


@pytest.fixture
def open_in_redis(open_shop: OpenShop, redis_url: str) -> Iterator[OpenShop]:
    with override_settings(LOCKKIT={"default": redis_url}):
        yield open_shop


class DjangoVisitor:
    def __init__(self) -> None:
        self._client = Client()

    def forms(self) -> list[str]:
        page = self._client.get("/django").content.decode()
        return [unescape(value) for value in FIELD.findall(page)]

    def buy(self, value: str, quantity: str = "1", *, accept: str = "*/*") -> Answer:
        form = {"order_id": value, "quantity": quantity}
        return answer_of(self._client.post("/orders/", form, headers={"Accept": accept}))

    def log_in(self, name: str) -> None:
        self._client.get(f"/login/{name}")

    def log_out(self) -> None:
        self._client.get("/logout")


class DjangoFormShop:
    def visitor(self) -> DjangoVisitor:
        return DjangoVisitor()

    def sold(self) -> list[str]:
        return list(Sale.objects.values_list("sku", flat=True))

    def with_key(self, key: str, *, fallback: bool) -> AbstractContextManager[object]:
        fallbacks = [settings.SECRET_KEY] if fallback else []
        return override_settings(SECRET_KEY=key, SECRET_KEY_FALLBACKS=fallbacks)


@pytest.fixture
def form_shop(fresh_orders: None) -> Iterator[DjangoFormShop]:
    orders = {"ORDER_ID": ["form:order_id"], "PATHS": ["^/orders/"], "REQUIRED": True}
    with override_settings(ROOT_URLCONF="orders_django.form_urls", LOCKKIT_ORDERS=orders):
        yield DjangoFormShop()


class TestDuplicates(Duplicates):
    pass


class TestLocks(Locks):
    pass


class TestOrderIds(OrderIds):
    pass


class TestSameRequests(SameRequests):
    pass


class TestOwners(Owners):
    pass


class TestReplays(Replays):
    pass


class TestRefusals(Refusals):
    pass


class TestCarts(Carts):
    pass


class TestUncovered(Uncovered):
    pass


class TestForms(Forms):
    pass


class TestClaims(Claims):
    pass
