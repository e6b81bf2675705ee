"""``{% order_id %}`` and its twin: guests, and who logs in or out between two clicks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.template import engines
from django.test import AsyncClient, Client, override_settings
from django_project.settings import TEMPLATES
from django_project.shop.models import Sale

from lockkit.model.errors import ConfigurationError

pytestmark = pytest.mark.django_db(transaction=True)

SETTINGS: dict[str, Any] = {
    "ROOT_URLCONF": "orders_django.form_urls",
    "LOCKKIT_ORDERS": {"ORDER_ID": ["form:order_id"], "PATHS": ["^/orders/"], "REQUIRED": True},
    "TEMPLATES": [
        *TEMPLATES,
        {
            "BACKEND": "django.template.backends.jinja2.Jinja2",
            "OPTIONS": {"extensions": ["lockkit_django.jinja2.OrderForms"]},
        },
    ],
}
FIELD = re.compile(r'<input type="hidden" name="order_id" value="([^"]*)">')


@pytest.fixture(autouse=True)
def shop(fresh_orders: None) -> Iterator[None]:
    with override_settings(**SETTINGS):
        yield


def form(client: Client, page: str = "django") -> str:
    return forms(client, page)[0]


def forms(client: Client, page: str = "django") -> list[str]:
    response = client.get(f"/{page}")
    assert response.status_code == 200
    return [unescape(value) for value in FIELD.findall(response.content.decode())]


def buy(client: Client, value: str, quantity: str = "1") -> Any:
    return client.post("/orders/", {"order_id": value, "quantity": quantity})


def answer(response: Any) -> tuple[int, bytes, bool]:
    return response.status_code, response.content, "Idempotent-Replayed" in response


def code(response: Any) -> str:
    return str(response.json()["code"])


@pytest.mark.parametrize("page", ["django", "jinja", "late"])
@pytest.mark.parametrize("user", [None, "alice"])
def test_a_form_sent_twice_is_one_order(client: Client, page: str, user: str | None) -> None:
    if user is not None:
        client.get(f"/login/{user}")
    value = form(client, page)
    first, second = answer(buy(client, value)), answer(buy(client, value))
    assert first[0] == 201
    assert first[1:] == (second[1], False)
    assert second[2]
    assert [sale.sku for sale in Sale.objects.all()] == [value.split(".")[1]]
    assert code(buy(client, value, quantity="2")) == "order-id-reused"


def test_a_guest_gets_a_session_and_the_page_is_for_him_only(client: Client) -> None:
    response = client.get("/django")
    assert response.cookies["sessionid"]["httponly"]
    assert "Cookie" in response["Vary"]
    secret = client.session["_lockkit_guest"]
    assert secret not in response.content.decode()


def test_an_old_session_shows_no_guest_what_the_user_has_ordered(client: Client) -> None:
    """Somebody keeps the cookies of a computer, and another logs in there."""
    client.get("/django")
    secret = client.session["_lockkit_guest"]
    value = form(client)
    client.get("/login/alice")
    assert b"alice" in buy(client, value).content
    thief = Client()
    thief.get("/django")
    session = thief.session
    session["_lockkit_guest"] = secret
    session.save()
    for login in (None, "bob"):
        if login is not None:
            thief.get(f"/login/{login}")
        refused = buy(thief, value)
        assert (refused.status_code, code(refused)) == (422, "order-id-reused")
    assert Sale.objects.count() == 1


def test_djangos_cache_keeps_no_page_with_a_form(client: Client) -> None:
    client.get("/login/alice")
    assert form(client, "cached") != form(client, "cached")


def test_guests_work_with_sessions_in_cookies() -> None:
    with override_settings(SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies"):
        client = Client()
        value = form(client)
        first = buy(client, value)
        client.get("/login/alice")
        assert answer(buy(client, value)) == (201, first.content, True)


@pytest.mark.parametrize("page", ["no-request", "jinja-no-request"])
def test_a_template_without_the_request_is_told_so(client: Client, page: str) -> None:
    with pytest.raises(ConfigurationError, match="needs the request"):
        client.get(f"/{page}")


def test_a_guest_needs_the_session_middleware(client: Client) -> None:
    middleware = ["lockkit_django.middleware.IdempotentOrderMiddleware"]
    with (
        override_settings(MIDDLEWARE=middleware),
        pytest.raises(ConfigurationError, match="SessionMiddleware"),
    ):
        client.get("/django")


@pytest.mark.parametrize("page", ["django", "jinja", "late"])
@pytest.mark.parametrize("orders", [{"PATHS": []}, {"PATHS": ["^/orders/"]}])
def test_a_field_that_nobody_reads_is_not_rendered(
    client: Client, page: str, orders: dict[str, Any]
) -> None:
    """Two clicks would be two orders, and nothing would say so."""
    with (
        override_settings(LOCKKIT_ORDERS=orders),
        pytest.raises(ConfigurationError, match="'form:order_id'"),
    ):
        client.get(f"/{page}")


@pytest.mark.parametrize("page", ["django", "jinja", "late"])
def test_a_field_has_the_name_that_is_read(client: Client, page: str) -> None:
    sources = ["header:Idempotency-Key", "form:oid", "form:order_id"]
    with override_settings(LOCKKIT_ORDERS={"ORDER_ID": sources, "PATHS": ["^/orders/"]}):
        assert b'name="oid"' in client.get(f"/{page}").content


@pytest.mark.parametrize(
    ("engine", "source"),
    [
        ("django", "{% load lockkit %}{% order_id field='oid' %}"),
        ("jinja2", "{{ order_id_field(field='oid') }}"),
    ],
)
def test_a_field_may_be_named_for_a_view_with_a_source_of_its_own(
    client: Client, engine: str, source: str
) -> None:
    request = client.get("/django").wsgi_request
    with override_settings(LOCKKIT_ORDERS={"PATHS": ["^/orders/"]}):
        assert 'name="oid"' in engines[engine].from_string(source).render({}, request)


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize("asgi", [False, True])
async def test_a_browser_is_shown_a_page_that_says_what_to_do(asgi: bool) -> None:
    def refused(**headers: str) -> Any:
        return Client().post("/orders/", {"order_id": "no-form"}, headers=headers)

    if asgi:
        client = AsyncClient()
        response: Any = await client.post("/orders/", {"order_id": "no-form"}, headers=BROWSER)
    else:
        response = await sync_to_async(refused)(**BROWSER)
    assert response.status_code == 400
    assert response["Content-Type"] == "text/html; charset=utf-8"
    assert (response["Cache-Control"], "Accept" in response["Vary"]) == ("no-store", True)
    assert "<h1>We do not know who you are</h1>" in response.content.decode()
    assert "allow cookies" in response.content.decode()
    assert code(await sync_to_async(refused)(Accept="*/*")) == "order-without-owner"


def test_a_template_of_the_project_is_preferred(client: Client, tmp_path: Any) -> None:
    (tmp_path / "lockkit").mkdir()
    page = tmp_path / "lockkit" / "order-without-owner.html"
    page.write_text("{{ refusal.code }}: {{ advice }} {{ request.path }}")
    django = {**TEMPLATES[0], "DIRS": [str(tmp_path)]}
    with override_settings(TEMPLATES=[django]):
        response = client.post("/orders/", {"order_id": "no-form"}, headers=BROWSER)
    assert response.content.startswith(b"order-without-owner: Log in")


@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_a_page_is_told_apart_from_what_a_decorator_made_of_the_json(
    client: Client, accept: str
) -> None:
    headers = {"Accept": accept, "Accept-Encoding": "gzip"}
    response = client.post("/packed", headers=headers)
    assert (response.status_code, "Content-Encoding" in response) == (
        400,
        accept == "application/json",
    )


def test_a_project_without_templates_has_a_page_too(client: Client) -> None:
    with override_settings(TEMPLATES=[]):
        response = client.post("/orders/", {"order_id": "no-form"}, headers=BROWSER)
    assert "<h1>We do not know who you are</h1>" in response.content.decode()
