"""A client that the checks around a view would refuse now does not see a stored answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.decorators import login_required, permission_required, user_passes_test
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django_project.shop.models import Sale
from orders_django import checked
from system_checks import shown_until_silenced

from lockkit.model.errors import ConfigurationError
from lockkit_django.operate.order_checks import check_replays
from lockkit_django.orders import idempotent

pytestmark = pytest.mark.django_db(transaction=True)

REPLAYED = "Idempotent-Replayed"


@pytest.fixture(autouse=True)
def views_with_checks(fresh_orders: None) -> Iterator[None]:
    checked.revoked.clear()
    with override_settings(ROOT_URLCONF="orders_django.checked"):
        yield
    checked.revoked.clear()


@pytest.fixture
def user() -> User:
    return User.objects.create(username="u")


@pytest.fixture
def client(user: User) -> Client:
    browser = Client(raise_request_exception=False)
    browser.force_login(user)
    return browser


def send(client: Client, kind: str, order_id: str = "A-1") -> Any:
    return client.post(
        f"/orders/{kind}",
        b"{}",
        content_type="application/json",
        headers={"Idempotency-Key": order_id},
    )


def code_of(response: Any) -> Any:
    return response.json()["code"]


@pytest.mark.parametrize("kind", checked.HARMLESS)
def test_decorators_that_refuse_nobody_let_answers_be_repeated(client: Client, kind: str) -> None:
    first, again = send(client, kind), send(client, kind)
    assert (first.status_code, REPLAYED in first) == (201, False), first.content
    assert (again.status_code, again.get(REPLAYED)) == (201, "true"), again.content
    assert (again.content, Sale.objects.count()) == (first.content, 1)


@pytest.mark.parametrize("kind", checked.UNLISTED)
def test_what_is_on_no_list_may_be_a_check(
    client: Client, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, again = send(client, kind), send(client, kind)
    assert first.status_code == 201, first.content
    assert (again.status_code, code_of(again)) == (409, "order-completed")
    assert Sale.objects.count() == 1
    told = [each.getMessage() for each in caplog.records if each.name == "lockkit"]
    assert len([each for each in told if f"'POST /orders/{kind}' gets no stored" in each]) == 1


@pytest.mark.parametrize("kind", checked.UNKNOWN)
def test_what_may_be_a_check_and_cannot_be_asked(client: Client, kind: str) -> None:
    first = send(client, kind)
    assert first.status_code == 201, first.content
    allowed = send(client, kind)
    checked.revoked.add("all")
    refused = send(client, kind)
    for again in (allowed, refused):
        assert (again.status_code, code_of(again)) == (409, "order-completed")
        assert "Location" not in again
        assert first.content not in again.content
    assert send(client, kind, "new").status_code == 403
    assert Sale.objects.count() == 1
    with override_settings(
        LOCKKIT_ORDERS={"PATHS": ["^/orders/"], "AUTHORIZE_REPLAY": "orders_django.hooks.yes"}
    ):
        assert send(client, kind).content == first.content


def test_a_system_check_names_the_view_and_the_line_to_add() -> None:
    told = {each.msg.split()[2]: each for each in check_replays()}
    kinds = {name.strip("'").removeprefix("orders/") for name in told}
    hidden = {f"{name}-inside-dispatch" for name in ("checks", "api", "proxy")}
    visible = checked.UNKNOWN.keys() - hidden
    assert kinds == {*visible, *checked.UNLISTED}
    assert {each.id for each in told.values()} == {"lockkit.W107"}
    custom, initial = told["'orders/custom'"], told["'orders/own-initial'"]
    assert "checked.made at 'orders/custom' has orders_django.checked.staff_only" in custom.msg
    assert (
        "Put @idempotent on the function or method, below its checks, which need functools.wraps"
        in str(custom.hint)
    )
    assert "Let OwnInitial inherit IdempotentMixin" in str(initial.hint)
    assert "on the function, below @api_view" in str(told["'orders/below-api'"].hint)
    assert shown_until_silenced("lockkit.W107")


def test_the_check_is_silent_where_answers_are_repeated() -> None:
    rules = {"PATHS": ["^/orders/"], "AUTHORIZE_REPLAY": "orders_django.hooks.yes"}
    with override_settings(LOCKKIT_ORDERS=rules):
        assert check_replays() == []
    with override_settings(LOCKKIT_ORDERS={"PATHS": []}):
        assert {each.msg.split()[2] for each in check_replays()} == {
            "'orders/custom-below-idempotent'",
            "'orders/custom-proxy-below-idempotent'",
            "'orders/custom-method-below-idempotent'",
            "'orders/checks-inside-callback'",
        }


@pytest.mark.parametrize("kind", checked.ASKED)
def test_checks_that_are_asked_before_an_answer_is_repeated(client: Client, kind: str) -> None:
    first, again = send(client, kind), send(client, kind)
    assert (first.status_code, again.get(REPLAYED)) == (201, "true"), again.content
    checked.revoked.add("all")
    refused = send(client, kind)
    _, status = checked.ASKED[kind]
    assert (refused.status_code, first.content in refused.content) == (status, False)
    assert Sale.objects.count() == 1


def test_a_mixin_below_the_order_is_unknown(client: Client, user: User) -> None:
    """The order is opened around ``dispatch``: the session that owns it is of a guest by then."""
    rules = {"PATHS": ["^/orders/"], "SCOPE": "orders_django.hooks.cart"}
    headers = {"Idempotency-Key": "B-1", "X-Cart": "mine"}
    with override_settings(LOCKKIT_ORDERS=rules):
        assert client.post("/orders/mixin-inside", headers=headers).status_code == 201
        client.logout()
        again = client.post("/orders/mixin-inside", headers=headers)
    assert (again.status_code, b"secret" in again.content) == (409, False)


@pytest.mark.parametrize(
    "check",
    [login_required, permission_required("shop.add_sale"), user_passes_test(checked.may)],
)
def test_idempotent_above_a_check_is_refused(check: Any) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    for decorate in (idempotent, idempotent(required=True)):
        with pytest.raises(ConfigurationError, match="put it below"):
            decorate(check(view))
        assert check(decorate(view))


@pytest.mark.parametrize("hook", ["never_async", "never_awaitable"])
async def test_a_hook_that_is_to_be_awaited_is(hook: str, user: User) -> None:
    rules = {"PATHS": ["^/orders/"], "AUTHORIZE_REPLAY": f"orders_django.hooks.{hook}"}
    with override_settings(LOCKKIT_ORDERS=rules):
        client = AsyncClient(raise_request_exception=False)
        await client.aforce_login(user)
        headers = {"Idempotency-Key": "A-1"}
        answers = [await client.post("/orders/harmless-vary", headers=headers) for _ in range(2)]
    assert [each.status_code for each in answers] == [201, 403]
    assert code_of(answers[1]) == "order-replay-refused"


@pytest.mark.parametrize("hook", ["never_async", "never_awaitable"])
def test_a_hook_that_is_to_be_awaited_is_under_wsgi_too(hook: str, client: Client) -> None:
    rules = {"PATHS": ["^/orders/"], "AUTHORIZE_REPLAY": f"orders_django.hooks.{hook}"}
    with override_settings(LOCKKIT_ORDERS=rules):
        answers = [send(client, "harmless-vary") for _ in range(2)]
    assert [each.status_code for each in answers] == [201, 403]
