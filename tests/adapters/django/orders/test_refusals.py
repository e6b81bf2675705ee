"""A refusal keeps what its view saved, as without orders, so that no header can undo it."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections
from django.db.transaction import TransactionManagementError
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django_project.shop.models import Sale
from orders_django import refusing

from lockkit_django import locks
from lockkit_django.models import OrderRecord

pytestmark = pytest.mark.django_db(transaction=True)

KINDS = [
    "returns?status=401",
    "returns?status=403",
    "returns?status=408",
    "returns?status=409",
    "returns?status=423",
    "returns?status=425",
    "returns?status=429",
    *(
        kind
        for kind in refusing.VIEWS
        if "break" not in kind and kind not in ("api-broken", "clashes", "tears")
    ),
    "ninja/raises",
    "ninja/inside",
]
OPENED_INSIDE = [kind for kind in KINDS if "inside" in kind or "mixed" in kind]


def with_transactions(kinds: list[str]) -> list[tuple[str, str]]:
    """Each with and without ATOMIC_REQUESTS, which Django does not have for async views."""
    atomic = [(kind, "atomic") for kind in kinds if not kind.startswith("async")]
    return [*atomic, *((kind, "autocommit") for kind in kinds)]


@pytest.fixture(autouse=True)
def project(fresh_orders: None) -> Iterator[None]:
    with override_settings(ROOT_URLCONF="orders_django.refusing"):
        yield


@pytest.fixture(params=["autocommit", "atomic"])
def atomic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    is_on = bool(request.param == "atomic")
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", is_on)
    return is_on


def send(kind: str, order_id: str | None, query: str = "", **more: str) -> Any:
    headers = {"Authorization": "x", **more}  # nobody has verified it
    if order_id is not None:
        headers["Idempotency-Key"] = order_id
    client = Client(raise_request_exception=False)
    path = kind + ("&" if "?" in kind else "?") + query
    return client.post(f"/orders/{path}", b"{}", content_type="application/json", headers=headers)


def _bare(kind: str) -> str:
    """The same view without anything of lockkit's on it."""
    kind = kind.replace("ninja/inside", "ninja/raises").replace("-inside", "")
    kind = kind.replace("-guarded", "")
    return kind.replace("locked", "raises").replace("-mixed", "")


@pytest.mark.parametrize("order_id", [None, "A-1"])
@pytest.mark.parametrize("kind", ["api-mixed", "api-mixed-breaks", "api-closed"])
def test_a_refusal_does_not_mark_the_transaction_of_a_test(
    kind: str, order_id: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.test import TestCase

    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    class Inner(TestCase):
        def runTest(self) -> None:
            assert send(kind, order_id).status_code >= 400
            assert saved() == []

    result = unittest.TestResult()
    unittest.TestSuite([Inner()]).run(result)  # the suite begins its transactions
    assert result.testsRun == 1
    assert not result.errors
    assert not result.failures


def test_a_rollback_of_the_view_in_the_transaction_of_a_test_is_not_hidden() -> None:
    from django.test import TestCase

    class Inner(TestCase):
        def runTest(self) -> None:
            send("exempt/api-tears-mixed", None)
            with pytest.raises(TransactionManagementError):
                saved()

    result = unittest.TestResult()
    unittest.TestSuite([Inner()]).run(result)
    assert result.testsRun == 1
    assert not result.errors
    assert not result.failures


def test_a_request_counts_once_against_its_throttle() -> None:
    refusing.counted.clear()
    send("api-counted", "A-1")
    assert len(refusing.counted) == 1


def saved() -> list[str]:
    return sorted(Sale.objects.values_list("sku", flat=True))


@pytest.mark.parametrize(("kind", "atomic"), with_transactions(KINDS), indirect=["atomic"])
def test_a_refusal_keeps_what_it_keeps_without_lockkit(kind: str, atomic: bool) -> None:
    without = send(_bare(kind), None)
    expected = saved()
    Sale.objects.all().delete()
    answer = send(kind, "A-1")
    assert (answer.status_code, answer.content) == (without.status_code, without.content)
    assert saved() == expected
    assert OrderRecord.objects.count() == 0
    assert not list(locks["default"].holders())


@pytest.mark.parametrize(("kind", "atomic"), with_transactions(OPENED_INSIDE), indirect=["atomic"])
def test_so_does_a_refusal_of_what_is_no_order(kind: str, atomic: bool) -> None:
    """A client that leaves the order ID out."""
    send(_bare(kind), None)
    expected = saved()
    Sale.objects.all().delete()
    send(kind, None)
    assert saved() == expected


@pytest.mark.parametrize("kind", refusing.EXEMPT)
def test_a_view_outside_of_atomic_requests_keeps_all(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    for order_id in (None, "A-1"):
        assert send(f"exempt/{kind}", order_id).status_code in {403, 429}
    assert (saved(), OrderRecord.objects.count()) == (["guess"] * 2, 0)


@pytest.mark.parametrize("kind", refusing.UNDONE)
def test_what_a_view_outside_of_atomic_requests_has_doomed_is_not_saved(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    assert send(f"exempt/{kind}", "A-1").status_code == 429
    assert (saved(), OrderRecord.objects.count()) == ([], 0)
    assert "what its view saved before is rolled back" in caplog.text


@pytest.mark.parametrize("kind", ["returns?status=429", "raises", "raises-inside", "api-mixed"])
def test_the_next_try_runs_the_view_again(kind: str) -> None:
    refusals = [send(kind, "A-1").status_code for _ in range(3)]
    assert (len(set(refusals)), saved()) == (1, ["guess"] * 3)


@pytest.mark.parametrize(("kind", "status"), [("clashes", 409), ("tears", 403)])
def test_a_refusal_whose_transaction_can_only_be_rolled_back_says_so(
    kind: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert send(kind, "A-1").status_code == status
    assert (saved(), OrderRecord.objects.count()) == ([], 0)
    assert "what its view saved before is rolled back" in caplog.text


@pytest.mark.parametrize("kind", ["breaks", "breaks-inside", "api-mixed-breaks", "api-broken"])
def test_other_exceptions_roll_back_whatever_is_made_of_them(kind: str) -> None:
    middleware = [
        "orders_django.endings.Thanks" if "Catch" in path else path for path in settings.MIDDLEWARE
    ]
    with override_settings(MIDDLEWARE=middleware):
        answer = send(kind, "A-1", "status=409")
    assert answer.status_code == (500 if kind == "api-broken" else 409)
    assert (saved(), OrderRecord.objects.count()) == ([], 0)


SSO = "https://sso.example.com"


def redirected(to: str, login_url: str, **headers: str) -> list[bool]:
    """Whether each of two tries was answered by a replay."""
    query = urlencode({"to": to})
    with override_settings(LOGIN_URL=login_url):
        tries = [send(f"redirects?{query}", "A-1", **headers) for _ in range(2)]
    assert [answer.status_code for answer in tries] == [302, 302]
    return ["Idempotent-Replayed" in answer.headers for answer in tries]


@pytest.mark.parametrize(
    ("to", "login_url"),
    [
        ("/", f"{SSO}/"),
        ("https://pay.example/", f"{SSO}/"),
        ("https://pay.example/accounts/login/", "/accounts/login/"),
        ("?thanks", SSO),
        ("?thanks", f"{SSO}/"),
        ("https://testserver:8443/", "/"),
        ("/thanks", "a-route-of-another-urlconf"),
    ],
)
def test_a_redirect_to_another_host_or_path_is_an_answer(to: str, login_url: str) -> None:
    assert redirected(to, login_url) == [False, True]
    assert saved() == ["guess"]


@pytest.mark.parametrize(
    ("to", "login_url"),
    [
        (f"{SSO}/?next=/orders/", SSO),
        (f"{SSO.upper()}:443/?wrong=1", f"{SSO}/"),
        ("//sso.example.com/", f"{SSO}/"),
        ("http://testserver/accounts/login/", "/accounts/login/"),
        ("/accounts/login/", "https://testserver/accounts/login/"),
        ("login/?wrong=1", "/orders/login/"),
    ],
)
def test_a_redirect_to_the_login_page_is_a_refusal(to: str, login_url: str) -> None:
    assert redirected(to, login_url) == [False, False]
    assert (saved(), OrderRecord.objects.count()) == (["guess"] * 2, 0)


@pytest.mark.parametrize("kind", ["", "-as", "-by", "-inside", "-above", "-above-all"])
def test_a_redirect_to_the_login_page_of_a_check_is_a_refusal(kind: str) -> None:
    """Whichever of several checks has sent there."""
    answers = [send(f"of-staff{kind}", "A-1") for _ in range(2)]
    assert ["Idempotent-Replayed" in answer.headers for answer in answers] == [False, False]
    assert [answer.headers.get("Location", "").partition("?")[0] for answer in answers] == [
        "/staff/login/",
        "/staff/login/",
    ]
    assert (saved(), OrderRecord.objects.count()) == ([], 0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_it_may_have_any_status_of_a_redirect(status: int) -> None:
    with override_settings(LOGIN_URL="/staff/login/"):
        answers = [send(f"sent-to-staff/{status}", "A-1") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status] * 2
    assert ["Idempotent-Replayed" in answer.headers for answer in answers] == [False, False]


def test_a_redirect_that_leads_nowhere_is_an_answer() -> None:
    answers = [send("sent-nowhere", "A-1") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [302, 302]
    assert ("Idempotent-Replayed" in answers[1].headers, saved()) == (True, ["guess"])


def test_the_login_page_of_a_check_is_asked_for_without_running_the_view_again() -> None:
    refusing.Goes.set_up.clear()
    answer = send("goes", "A-1")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/thanks")
    assert OrderRecord.objects.count() == 1


def of_user(path: str) -> list[Any]:
    """The answers to two tries of somebody who is logged in."""
    client = Client(headers={"Idempotency-Key": "A-1"})
    client.force_login(User.objects.create(username="alice"))
    return [client.post(f"/orders/{path}") for _ in range(2)]


@pytest.mark.parametrize("login_url", ["/", "/accounts/login/"])
def test_a_user_whose_order_ends_at_the_login_page_has_ordered(
    login_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with override_settings(LOGIN_URL=login_url):
        answers = of_user(f"redirects?to={login_url}")
    assert [answer.headers["Location"] for answer in answers] == [login_url] * 2
    assert ["Idempotent-Replayed" in answer.headers for answer in answers] == [False, True]
    assert saved() == ["guess"]
    assert not caplog.records


@pytest.mark.parametrize("path", ["redirects?to=/?next=/basket", "of-nobody", "of-nobody-at-all"])
def test_a_user_who_is_sent_to_log_in_and_back_is_refused(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with override_settings(LOGIN_URL="/"):
        answers = of_user(path)
    assert ["Idempotent-Replayed" in answer.headers for answer in answers] == [False, False]
    assert OrderRecord.objects.count() == 0
    assert not caplog.records


def test_a_guest_who_is_sent_to_the_login_page_for_good_is_refused_and_that_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert redirected("/", "/") == [False, False]
    (first, _) = [record.getMessage() for record in caplog.records]
    assert "POST /orders/redirects" in first
    assert "login page" in first
    assert saved() == ["guess"] * 2


@pytest.mark.parametrize("host", ["evil.example", "[::::]"])
def test_a_host_that_is_not_allowed_changes_no_ending(host: str) -> None:
    with override_settings(ALLOWED_HOSTS=["testserver"]):
        assert redirected("/login?wrong=1", "/login", Host=host) == [False, False]
        assert (saved(), OrderRecord.objects.count()) == (["guess"] * 2, 0)
        assert redirected("/", f"{SSO}/", Host=host) == [False, True]


def test_a_refused_order_and_what_its_view_saved_are_one_commit() -> None:
    """In a second one, a crash in between would leave a record that refuses every retry."""
    with CaptureQueriesContext(connections["default"]) as queries:
        assert send("returns", "A-1").status_code == 403
    assert [query["sql"] for query in queries].count("COMMIT") == 1
    assert OrderRecord.objects.count() == 0
