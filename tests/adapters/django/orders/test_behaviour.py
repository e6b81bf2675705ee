"""The table of behaviours, through Django's middleware, on every kind of view."""

from __future__ import annotations

import unittest
from types import ModuleType
from typing import Any

import django
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.csrf import csrf_exempt
from django_project.shop.models import Sale
from orders_django import views
from orders_django.people import to_sell

from lockkit.model.errors import ConfigurationError
from lockkit_django import lock_view, locks
from lockkit_django.middleware import IdempotentOrderMiddleware
from lockkit_django.models import OrderRecord
from lockkit_django.orders import idempotent

pytestmark = pytest.mark.django_db(transaction=True)

FRAMES = "django.middleware.clickjacking.XFrameOptionsMiddleware"
CSP = "django.middleware.csp.ContentSecurityPolicyMiddleware"
OF_ALL = {"default-src": ["'self'"]}
SETTINGS = {
    "ORDER_ID": ["header:Idempotency-Key", "header:X-Order-ID", "json:order_id", "form:order_id"],
    "PATHS": [r"^/orders/"],
    "WAIT": 0.2,
}
WITHOUT_USERS = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "lockkit_django.middleware.IdempotentOrderMiddleware",
]
REPLAYED = "Idempotent-Replayed"


def orders(**changes: Any) -> Any:
    return override_settings(LOCKKIT_ORDERS={**SETTINGS, **changes})


@pytest.fixture
def alice(client: Client) -> Client:
    """A client that is logged in, and gets a 500 where a server would send one."""
    return logged_in("alice")


def logged_in(name: str) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.get_or_create(username=name)[0])
    return client


def buy(client: Client, kind: str, order_id: str | None = "A-1", **more: Any) -> Any:
    headers = {"Authorization": "Token alice", **more.pop("headers", {})}
    if order_id is not None:
        headers["Idempotency-Key"] = order_id
    return client.post(f"/orders/{kind}", headers=headers, **more)


def rows(kind: str) -> int:
    return Sale.objects.filter(sku=kind).count()


def nothing_is_held() -> bool:
    return not list(locks["default"].holders())


@pytest.fixture
def atomic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", request.param)
    return bool(request.param)


def with_and_without_atomic_requests(*kinds: str) -> Any:
    """Each kind under both settings; Django has no ATOMIC_REQUESTS for async views."""
    pairs = [(k, a) for k in kinds for a in (False, True) if not (a and k.startswith("async"))]
    names = [f"{kind}-{'atomic' if atomic else 'autocommit'}" for kind, atomic in pairs]
    return pytest.mark.parametrize(("kind", "atomic"), pairs, ids=names, indirect=["atomic"])


@with_and_without_atomic_requests(
    "function",
    "class",
    "template",
    "template-query",
    "api",
    "api-mixed",
    "api-set",
    "api-set-mixed",
    "api-function",
    "for-users",
    "async",
    "async-inside",
)
def test_a_duplicate_gets_the_same_bytes_and_the_view_does_not_run(
    kind: str, atomic: bool, alice: Client
) -> None:
    first, second = buy(alice, kind), buy(alice, kind)
    assert (first.status_code, REPLAYED in first) == (201, False)
    assert (second.status_code, second[REPLAYED]) == (201, "true")
    assert (second.content, second["Content-Type"]) == (first.content, first["Content-Type"])
    assert (views.calls, rows(kind), OrderRecord.objects.count()) == ([kind], 1, 1)
    assert nothing_is_held()


@with_and_without_atomic_requests(
    "broken", "returns-500", "template-broken", "api-broken", "async-broken"
)
def test_a_failure_is_rolled_back_and_the_next_try_runs(
    kind: str, atomic: bool, alice: Client
) -> None:
    for _ in range(2):
        response = buy(alice, kind)
        assert (response.status_code, REPLAYED in response) == (500, False)
    assert (len(views.calls), rows(kind), OrderRecord.objects.count()) == (2, 0, 0)
    assert nothing_is_held()


@with_and_without_atomic_requests("not-found", "caught")
def test_an_exception_that_becomes_a_4xx_rolls_back_and_is_stored(
    kind: str, atomic: bool, alice: Client
) -> None:
    status = {"not-found": 404, "caught": 400}[kind]
    first, second = buy(alice, kind), buy(alice, kind)
    assert (first.status_code, second.status_code) == (status, status)
    assert second[REPLAYED] == "true"
    assert second.content == first.content
    assert (views.calls, rows(kind)) == ([kind], 0)


@with_and_without_atomic_requests("api-invalid", "api-invalid-mixed")
def test_an_exception_that_drf_handles_is_stored(kind: str, atomic: bool, alice: Client) -> None:
    first, second = buy(alice, kind), buy(alice, kind)
    assert (first.status_code, second.status_code, second[REPLAYED]) == (400, 400, "true")
    assert views.calls == [kind]
    assert rows(kind) == 0  # as DRF itself does where ATOMIC_REQUESTS is on


@pytest.mark.parametrize("kind", ["swallows", "swallows-in-bulk"])
def test_a_database_error_that_the_view_swallows_is_not_a_stored_success(
    alice: Client, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    assert buy(alice, kind).json()["code"] == "order-not-saved"
    assert "has caught an error of the database" in caplog.text
    assert (rows(kind), OrderRecord.objects.count()) == (0, 0)


def test_a_view_may_ask_whether_it_runs_as_an_order() -> None:
    def view(request: Any) -> HttpResponse:
        return HttpResponse(repr(request.order))

    request = RequestFactory().post("/orders/function")
    assert IdempotentOrderMiddleware(view)(request).content == b"None"  # type: ignore[union-attr]
    request.order = "of another middleware"  # type: ignore[attr-defined]
    assert b"another" in IdempotentOrderMiddleware(view)(request).content  # type: ignore[union-attr]


class Sites:
    """As django-hosts and tenants do: the URLs are those of the site."""

    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        request.urlconf = SITES[request.headers["X-Site"]]
        return self._get_response(request)


SITES = {name: ModuleType(name) for name in ("books", "games")}
for site in SITES.values():
    vars(site)["urlpatterns"] = [path("orders/function", views.function)]


def test_another_site_with_the_same_routes_is_another_order(alice: Client) -> None:
    with override_settings(MIDDLEWARE=[f"{__name__}.Sites", *settings.MIDDLEWARE]):
        answers = [buy(alice, "function", headers={"X-Site": s}) for s in [*SITES, *SITES]]
    assert [REPLAYED in answer for answer in answers] == [False, False, True, True]
    assert rows("function") == 2


FORM = "application/x-www-form-urlencoded"


def test_the_view_reads_the_form_after_the_middleware_has(alice: Client) -> None:
    upload = SimpleUploadedFile("a.txt", b"content")
    response = buy(alice, "fields", data={"a": "1", "f": upload})
    assert b"'a': '1'" in response.content
    assert b"content" in response.content


def test_what_steers_the_client_is_stored(alice: Client) -> None:
    """An answer may have nothing else."""
    first, second = buy(alice, "steers"), buy(alice, "steers")
    assert second[REPLAYED] == "true"
    for answer in (first, second):
        assert {name: answer[name] for name in views.STEERING} == views.STEERING
    assert "HX-Unknown" not in second


@pytest.mark.parametrize("kind", ["gzipped", "by-the-server"])
def test_what_cannot_be_kept_leaves_a_tombstone(kind: str, alice: Client) -> None:
    with orders(MAX_RESPONSE=1000):
        gzip = {"headers": {"Accept-Encoding": "gzip"}}
        first, second = buy(alice, kind, **gzip), buy(alice, kind, **gzip)
    assert first.status_code == 200
    assert (second.status_code, second.json()["code"]) == (409, "order-completed")
    assert second.get("Location") == first.get("Location")
    assert rows(kind) == 1


def test_clients_with_a_token_are_told_apart_by_it() -> None:
    client = Client()
    first = client.post("/orders/api", headers={"Idempotency-Key": "1", "Authorization": "Token a"})
    other = client.post("/orders/api", headers={"Idempotency-Key": "1", "Authorization": "Token b"})
    assert (first.json()["to"], other.json()["to"]) == ("a", "b")
    plain = [
        client.post("/orders/function", headers={"Idempotency-Key": "1", "Authorization": f"T {x}"})
        for x in "aab"
    ]
    assert [REPLAYED in response for response in plain] == [False, True, False]


def test_a_session_owns_the_orders_of_a_guest_and_nobody_owns_none() -> None:
    guest, other = Client(), Client()
    for client in (guest, other):
        session = client.session
        session["basket"] = 1
        session.save()
    headers = {"Idempotency-Key": "1"}
    answers = [c.post("/orders/function", headers=headers) for c in (guest, guest, other)]
    assert [REPLAYED in answer for answer in answers] == [False, True, False]
    nobody = Client()
    assert nobody.post("/orders/function", headers=headers).status_code == 400
    nobody.cookies["sessionid"] = "made-up-by-the-client"
    assert nobody.post("/orders/function", headers=headers).status_code == 400
    with override_settings(MIDDLEWARE=WITHOUT_USERS):
        assert nobody.post("/orders/function", headers=headers).status_code == 400
    assert rows("function") == 2


@xframe_options_exempt
def framed(_: HttpRequest) -> HttpResponse:
    return HttpResponse("framed", status=201)


def unframed(_: HttpRequest) -> HttpResponse:
    return HttpResponse("unframed", status=201)


urlpatterns = [path("orders/framed", framed), path("orders/unframed", unframed)]


@pytest.mark.parametrize(("kind", "header"), [("framed", None), ("unframed", "DENY")])
@override_settings(ROOT_URLCONF=__name__)
def test_a_replay_may_be_in_a_frame_if_the_first_answer_may(
    kind: str, header: str | None, alice: Client
) -> None:
    with override_settings(MIDDLEWARE=[FRAMES, *settings.MIDDLEWARE]):
        first, second = buy(alice, kind), buy(alice, kind)
    assert (REPLAYED in first, second[REPLAYED]) == (False, "true")
    assert [answer.get("X-Frame-Options") for answer in (first, second)] == [header, header]
    assert not [name for name in second.headers if name.startswith(":")]


OWN = {"default-src": ["'self'", "https://cdn.example"], "upgrade-insecure-requests": True}
NONCE = {"script-src": ["'self'", "<CSP_NONCE_SENTINEL>"]}


def overridden(own: dict[str, Any], reported: dict[str, Any]) -> HttpResponse:
    """An answer as Django's ``csp_override`` and ``csp_report_only_override`` leave it."""
    response = HttpResponse("sold", status=201)
    vars(response).update(_csp_config=own, _csp_ro_config=reported)
    return response


def policy(_: HttpRequest) -> HttpResponse:
    return overridden(OWN, {"img-src": ["'none'"]})


def no_policy(_: HttpRequest) -> HttpResponse:
    return overridden({}, {})


def nonce(_: HttpRequest) -> HttpResponse:
    return overridden(NONCE, NONCE)


urlpatterns += [
    path("orders/policy", policy),
    path("orders/no-policy", no_policy),
    path("orders/nonce", nonce),
]


def policies(response: Any) -> list[str | None]:
    names = ("Content-Security-Policy", "Content-Security-Policy-Report-Only")
    return [response.get(name) for name in names]


if django.VERSION >= (6,):
    WITH_CSP = {"SECURE_CSP": OF_ALL, "SECURE_CSP_REPORT_ONLY": OF_ALL}

    @pytest.mark.parametrize("kind", ["policy", "no-policy"])
    @override_settings(ROOT_URLCONF=__name__, **WITH_CSP)
    def test_a_replay_has_the_policies_of_the_first_answer(kind: str, alice: Client) -> None:
        with override_settings(MIDDLEWARE=[CSP, *settings.MIDDLEWARE]):
            first, second = buy(alice, kind), buy(alice, kind)
        assert (REPLAYED in first, second[REPLAYED]) == (False, "true")
        assert policies(first) == policies(second)
        assert (None in policies(first)) == (kind == "no-policy")

    @override_settings(ROOT_URLCONF=__name__, **WITH_CSP)
    def test_a_replay_has_no_policy_with_a_nonce_of_the_first_answer(alice: Client) -> None:
        with override_settings(MIDDLEWARE=[CSP, *settings.MIDDLEWARE]):
            buy(alice, "nonce")
            assert policies(buy(alice, "nonce")) == ["default-src 'self'"] * 2


@override_settings(ROOT_URLCONF=__name__)
def test_policies_are_left_alone_without_django_s_middleware(alice: Client) -> None:
    """Packages give a response attributes of the same names."""
    first, second = buy(alice, "policy"), buy(alice, "policy")
    assert (second[REPLAYED], policies(first), policies(second)) == ("true", [None] * 2, [None] * 2)


def test_csrf_comes_first() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create(username="alice"))
    headers = {"Idempotency-Key": "1"}
    assert client.post("/orders/function", headers=headers).status_code == 403
    assert client.post("/orders/no-csrf", headers=headers).status_code == 201
    assert views.calls == ["no-csrf"]


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        ("permitted", 403),
        ("permitted-or-login", 403),
        ("permitted-inside", 403),
        ("permitted-class", 403),
        ("permitted-dispatch-inside", 403),
    ],
)
def test_who_lost_the_permission_does_not_see_the_response_again(kind: str, refusal: int) -> None:
    user = User.objects.create(username="carol")
    permission = to_sell()
    user.user_permissions.add(permission)
    client = Client(raise_request_exception=False)
    client.force_login(user)
    assert buy(client, kind).status_code == 201
    assert buy(client, kind)[REPLAYED] == "true"
    user.user_permissions.remove(permission)
    response = buy(client, kind)
    assert (response.status_code, b"sold" in response.content) == (refusal, False)
    user.user_permissions.add(permission)
    assert buy(client, kind)[REPLAYED] == "true"
    assert rows(kind) == 1


def test_a_form_is_no_order(alice: Client) -> None:
    User.objects.get(username="alice").user_permissions.add(to_sell())
    for _ in range(2):
        response = alice.get("/orders/permitted-dispatch-inside", headers={"Idempotency-Key": "1"})
        assert (response.status_code, REPLAYED in response) == (200, False)


@pytest.mark.parametrize("kind", ["permitted-dispatch", "permitted-method", "api-permitted-method"])
def test_checks_that_cannot_be_made_from_outside_are_not_taken_as_passed(kind: str) -> None:
    user = User.objects.create(username="carol")
    user.user_permissions.add(to_sell())
    client = Client()
    client.force_login(user)
    assert buy(client, kind).status_code == 201
    response = buy(client, kind)
    assert (response.status_code, response.json()["code"]) == (409, "order-completed")
    assert "Location" not in response
    with orders(AUTHORIZE_REPLAY="orders_django.hooks.yes"):
        assert buy(client, kind)[REPLAYED] == "true"
    with orders(AUTHORIZE_REPLAY="orders_django.hooks.no"):
        assert buy(client, kind).status_code == 403


@pytest.mark.parametrize("kind", ["api", "api-mixed", "api-set", "api-set-mixed"])
def test_drf_authenticates_and_permits_before_a_replay(kind: str) -> None:
    client = Client()
    assert buy(client, kind).status_code == 201
    assert buy(client, kind)[REPLAYED] == "true"
    views.refused_drf_users.add("alice")
    assert buy(client, kind).status_code == 403
    assert buy(client, kind, headers={"Authorization": "Token wrong"}).status_code == 401
    assert buy(client, kind, headers={"Authorization": ""}).status_code == 401
    assert views.calls == [kind]


def test_a_refusal_by_login_redirect_is_not_stored() -> None:
    user = User.objects.create(username="carol")
    client = Client()
    client.force_login(user)
    assert buy(client, "permitted-or-login").status_code == 302
    user.user_permissions.add(to_sell())
    assert buy(client, "permitted-or-login").status_code == 201


def test_a_connection_that_breaks_in_the_view_is_no_success(alice: Client) -> None:
    response = buy(alice, "closes")
    assert response.status_code == 503
    assert (rows("closes"), OrderRecord.objects.count()) == (0, 0)
    assert buy(alice, "function").status_code == 201  # the connection is usable again


@with_and_without_atomic_requests(
    "function",
    "locked/s1",
    "locked-twice/s1",
    "locked-twice-class/s1",
    "locked-inside-class/s1",
    "inside-locked/s1",
    "api-locked",
    "api-locked-mixed",
    "async-locked/s1",
)
def test_every_lock_is_released_after_the_commit(
    kind: str, atomic: bool, alice: Client, releases: Any
) -> None:
    with orders(AUTHORIZE_REPLAY="orders_django.hooks.yes"):  # of a decorated dispatch
        first, second = buy(alice, kind), buy(alice, kind)
    assert (first.status_code, second[REPLAYED]) == (201, "true")
    names = {"function": ["order"], "locked-twice": ["stock", "outer", "order"]}
    names["locked-twice-class"] = names["locked-twice"]
    expected = names.get(kind.partition("/")[0], ["stock", "order"])
    assert releases.seen == [(name, 1, False) for name in expected]
    assert (Sale.objects.count(), len(views.calls)) == (1, 1)


@pytest.mark.parametrize("kind", ["passes-by", "passes-by-inside"])
def test_a_view_that_passes_its_lock_by_makes_one_order(
    kind: str, alice: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with orders(AUTHORIZE_REPLAY="orders_django.hooks.yes"):
        answers = [buy(alice, kind) for _ in range(2)]
    assert [REPLAYED in answer for answer in answers] == [False, True]
    assert (rows("passes-by"), OrderRecord.objects.count()) == (1, 1)
    assert "lock_view" in caplog.text


@pytest.mark.parametrize(
    ("kind", "name"),
    [("api-locked", "stock:api"), ("async-locked/s1", "stock:s1"), ("busy", "stock:busy")],
)
@override_settings(LOCKKIT_VIEWS={"TIMEOUT": 0})
def test_a_busy_lock_is_logged_with_the_order(
    kind: str, name: str, alice: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with locks["default"].lock(name), caplog.at_level("INFO", "lockkit"):
        buy(alice, kind)
    assert f" gets 423 lock-busy for the order 'A-1': {name!r} is held by " in caplog.text


def test_what_a_lock_says_to_whoever_it_keeps_out_is_no_order(alice: Client) -> None:
    with locks["default"].lock("stock:busy"):
        assert buy(alice, "busy").content == b"come back"
    assert buy(alice, "busy").content.startswith(b"sold")


def test_an_order_inside_a_lock_of_the_view_is_refused(alice: Client) -> None:
    response = buy(alice, "wrong-way-round/s1")
    assert (response.status_code, views.calls) == (500, [])
    assert alice.get("/orders/wrong-way-round/s1").status_code == 200  # no order


def test_lock_view_above_idempotent_is_refused_where_it_is_written() -> None:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    async def aview(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    lock = lock_view("stock")
    for each in (view, aview):
        for ordered in (idempotent(each), idempotent(required=True)(each)):
            for below in (ordered, csrf_exempt(ordered)):
                with pytest.raises(ConfigurationError, match="put @idempotent above @lock_view"):
                    lock(below)
        assert idempotent(lock(each))
        assert lock(idempotent.exempt(each))


def test_drf_sees_in_its_view_who_it_would_have_seen_without_the_middleware() -> None:
    """A token's user must not be taken for one with a session, who would need a CSRF token."""
    client = Client(enforce_csrf_checks=True)
    answers = [buy(client, "api-session") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert REPLAYED in answers[1]
    session = logged_in("bob")
    answers = [buy(session, "api-session", headers={"Authorization": ""}) for _ in range(2)]
    assert [answer.json()["to"] for answer in answers] == ["bob", "bob"]
    assert [REPLAYED in answer for answer in answers] == [False, True]


def test_a_replay_is_one_query_and_a_first_request_costs_two_more() -> None:
    """Locks are no queries here: they are in memory."""
    client = Client()
    with CaptureQueriesContext(connections["default"]) as first:
        buy(client, "function")
    with CaptureQueriesContext(connections["default"]) as second:
        buy(client, "function")
    statements = [query["sql"].split()[0] for query in first.captured_queries]
    assert statements == ["BEGIN", "INSERT", "INSERT", "UPDATE", "COMMIT"]
    assert [query["sql"].split()[0] for query in second.captured_queries] == ["SELECT"]


@with_and_without_atomic_requests("told-to-end")
def test_a_process_that_is_told_to_end_rolls_back_and_releases(
    kind: str, atomic: bool, alice: Client
) -> None:
    with pytest.raises(SystemExit):
        buy(alice, kind)
    assert not connections["default"].in_atomic_block
    assert (rows(kind), OrderRecord.objects.count()) == (0, 0)
    assert nothing_is_held()


def test_under_a_test_case_the_block_of_the_test_does_not_count(alice: Client) -> None:
    from django.test import TestCase

    class Inner(TestCase):
        def runTest(self) -> None:
            assert buy(alice, "function").status_code == 201
            assert REPLAYED in buy(alice, "function")

    result = unittest.TestResult()
    unittest.TestSuite([Inner()]).run(result)  # the suite begins its transactions
    assert result.testsRun == 1
    assert not result.errors
    assert not result.failures
