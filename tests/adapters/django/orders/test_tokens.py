"""CSRF tokens in answers that are kept: none is stored, and each asker gets one of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.template import engines
from django.test import Client, override_settings
from django.urls import path
from django.utils.html import escapejs

from lockkit_django.models import OrderRecord

pytestmark = pytest.mark.django_db(transaction=True)

TOKEN = re.compile(r"(?:(?<=u0022)|(?<=%22)|(?<=\\n)|(?<![A-Za-z0-9%\\]))[A-Za-z0-9]{64}")


def page(request: HttpRequest) -> HttpResponse:
    """Two forms, whose tokens are masked in two ways, and what was sent."""
    form = engines["django"].from_string("{% csrf_token %}")
    forms = [form.render({}, request) for _ in range(2)]
    sent = request.POST.get("csrfmiddlewaretoken", "")
    return HttpResponse(f"{forms} {sent}", headers={"ETag": '"of-the-first"'})


def data(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"csrf": get_token(request), "id": "z" * 64})


def script(request: HttpRequest) -> HttpResponse:
    r"""Before a token that is in a text in a script stands \u0022, or %22, or \n."""
    quoted = escapejs(f'value="{get_token(request)}"')
    return HttpResponse(f"'{quoted}' '%22{get_token(request)}%22' '\\n{get_token(request)}'")


def long(_request: HttpRequest) -> HttpResponse:
    return HttpResponse("z" * 2001)


urlpatterns = [
    path("orders/long", long),
    path("orders/page", page),
    path("orders/script", script),
    path("orders/data", data),
    path("start", data),
]


@pytest.fixture(autouse=True)
def project(fresh_orders: None) -> Iterator[None]:
    with override_settings(ROOT_URLCONF=__name__):
        yield


class Visitor:
    """A browser of Alice's, with a token of its own."""

    def __init__(self) -> None:
        self.client = Client(enforce_csrf_checks=True)
        self.client.force_login(User.objects.get_or_create(username="alice")[0])
        self.token = self.client.get("/start").json()["csrf"]

    def post(self, path: str, order_id: str = "A-1", token: str | None = None) -> Any:
        sent = {"csrfmiddlewaretoken": token or self.token}
        return self.client.post(f"/orders/{path}", sent, headers={"Idempotency-Key": order_id})


@pytest.mark.parametrize(("kind", "count"), [("page", 3), ("data", 1), ("script", 3)])
@pytest.mark.parametrize("in_session", [False, True])
def test_each_asker_gets_a_token_of_its_own(kind: str, count: int, in_session: bool) -> None:
    with override_settings(CSRF_USE_SESSIONS=in_session):
        first, later = Visitor(), Visitor()
        answer, replay = first.post(kind), later.post(kind)
        assert replay["Idempotent-Replayed"] == "true"
        stored = bytes(OrderRecord.objects.get().body).decode()
        assert [token for token in TOKEN.findall(stored) if set(token) != {"z"}] == []
        shown = [token for token in TOKEN.findall(replay.content.decode()) if set(token) != {"z"}]
        assert len(shown) == count
        assert TOKEN.sub("", replay.content.decode()) == TOKEN.sub("", answer.content.decode())
        for token in shown:
            assert later.post("data", "A-2", token).status_code == 200
            assert first.post("data", "A-3", token).status_code == 403
        assert ":csrf-placeholder" not in replay.headers
        assert "ETag" not in replay.headers


def test_an_answer_without_a_token_stays_as_it_is() -> None:
    visitor = Visitor()
    with override_settings(ROOT_URLCONF="orders_django.urls"):
        first, second = visitor.post("cookie"), visitor.post("cookie")
        assert (second.content, second["ETag"]) == (first.content, first["ETag"])


def test_an_answer_too_long_to_be_kept_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes long where much looks like a token, under the lock of the order."""
    searched: list[bytes] = []

    def tokens_in(_secret: str, body: bytes) -> list[str]:
        searched.append(body)
        return []

    monkeypatch.setattr("lockkit_django.orders.visit.tokens_in", tokens_in)
    with override_settings(LOCKKIT_ORDERS={"PATHS": ["^/orders/"], "MAX_RESPONSE": 2000}):
        assert Visitor().post("data").status_code == 200
        assert len(searched) == 1
        assert len(Visitor().post("long", "A-2").content) > 2000
        assert len(searched) == 1
