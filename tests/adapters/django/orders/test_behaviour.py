"""The table of behaviours, through Django's middleware, on every kind of view."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connections
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django_project.shop.models import Sale
from orders_django import views

from lockkit_django import locks
from lockkit_django.middleware import IdempotentOrderMiddleware
from lockkit_django.models import OrderRecord

pytestmark = pytest.mark.django_db(transaction=True)

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


@pytest.mark.parametrize("status", [200, 201, 204, 301, 303, 400, 402, 404, 410, 422])
def test_statuses_that_end_an_order(status: int, alice: Client) -> None:
    first, second = buy(alice, f"status/{status}"), buy(alice, f"status/{status}")
    assert (second.status_code, second[REPLAYED]) == (status, "true")
    assert (second.content, rows(str(status))) == (first.content, 1)


@pytest.mark.parametrize("status", [401, 403, 408, 409, 423, 425, 429, 500, 503])
def test_statuses_that_another_try_may_overcome(status: int, alice: Client) -> None:
    """A refusal keeps what was saved: ``test_django_refusals``."""
    responses = [buy(alice, f"status/{status}") for _ in range(2)]
    assert [r.status_code for r in responses] == [status, status]
    saved = 2 if status < 500 else 0
    assert (views.calls, rows(str(status))) == ([str(status)] * 2, saved)
    assert OrderRecord.objects.count() == 0


def test_a_database_error_that_the_view_swallows_is_not_a_stored_success(alice: Client) -> None:
    buy(alice, "swallows")
    assert (rows("swallows"), OrderRecord.objects.count()) == (0, 0)


@pytest.mark.parametrize(
    ("value", "same"),
    [("A-1", True), ('"A-1"', True), ('  "A-1" ', True), ("A-2", False), ('"A-1 "', False)],
)
def test_an_order_id_is_bare_or_a_quoted_string(value: str, same: bool, alice: Client) -> None:
    buy(alice, "function", "A-1")
    assert (REPLAYED in buy(alice, "function", value)) is same


@pytest.mark.parametrize(
    "value", ["", "a,b", '"a", "b"', '"a', 'a"b"', '"a";p=1', "x" * 256, "ü", "a\tb", "a\x7f"]
)
def test_a_malformed_order_id_is_refused(value: str, alice: Client) -> None:
    response = buy(alice, "function", value)
    assert (response.status_code, response["Content-Type"], response["Cache-Control"]) == (
        400,
        "application/problem+json",
        "no-store",
    )
    assert (json.loads(response.content)["code"], views.calls) == ("order-id-malformed", [])


def test_no_order_id_where_none_is_required_is_a_plain_request(alice: Client) -> None:
    for _ in range(2):
        assert buy(alice, "function", None).status_code == 201
    assert (rows("function"), OrderRecord.objects.count()) == (2, 0)


def test_a_view_may_ask_whether_it_runs_as_an_order() -> None:
    def view(request: Any) -> HttpResponse:
        return HttpResponse(repr(request.order))

    request = RequestFactory().post("/orders/function")
    assert IdempotentOrderMiddleware(view)(request).content == b"None"  # type: ignore[union-attr]
    request.order = "of another middleware"  # type: ignore[attr-defined]
    assert b"another" in IdempotentOrderMiddleware(view)(request).content  # type: ignore[union-attr]


def test_no_order_id_where_one_is_required_is_refused(alice: Client) -> None:
    with orders(REQUIRED=True):
        response = buy(alice, "function", None)
        assert (response.status_code, response.json()["code"]) == (400, "order-id-missing")
    response = alice.post("/orders/json-number", {"other": 1}, content_type="application/json")
    assert (response.status_code, views.calls) == (400, [])


@pytest.mark.parametrize(
    "more",
    [
        {"data": {"order_id": "B"}, "content_type": "application/json"},
        {"data": {"order_id": "B"}},
        {"headers": {"X-Order-ID": "B"}},
    ],
    ids=["json", "form", "X-Order-ID"],
)
def test_the_order_id_may_be_in_the_body_or_another_header(
    more: dict[str, Any], alice: Client
) -> None:
    first, second = (buy(alice, "fields", None, **more) for _ in range(2))
    assert (first.status_code, second[REPLAYED], rows("fields")) == (201, "true", 1)


def test_the_order_id_may_be_in_the_url(alice: Client) -> None:
    with orders(ORDER_ID=["kwargs:number"]):
        first, second = (buy(alice, "7/pay", None) for _ in range(2))
        other = buy(alice, "8/pay", None)
    assert (first.status_code, second[REPLAYED]) == (201, "true")
    assert (REPLAYED in other, rows("fields")) == (False, 2)


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "[" * 100_000,
        '{"order_id": 1.5}',
        '{"order_id": true}',
        '{"order_id": {}}',
        '{"order_id": ""}',
        '{"order_id": "A", "order_id": "B"}',
    ],
)
def test_a_body_without_a_usable_order_id_is_refused(body: str, alice: Client) -> None:
    response = buy(alice, "fields", None, data=body, content_type="application/json")
    assert (response.status_code, views.calls) == (400, [])


@pytest.mark.parametrize(
    "change",
    [
        {"data": '{"n": 2}'},
        {"content_type": "text/plain"},
        {"query_params": {"a": "2"}},
    ],
    ids=["body", "media type", "query"],
)
def test_another_request_with_the_same_order_id_is_refused(
    change: dict[str, Any], alice: Client
) -> None:
    same = {"data": '{"n": 1}', "content_type": "application/json"}
    buy(alice, "fields", **same)
    response = buy(alice, "fields", **{**same, **change})
    assert (response.status_code, response.json()["code"]) == (422, "order-id-reused")
    assert rows("fields") == 1


def test_url_values_and_methods_are_part_of_the_request(alice: Client) -> None:
    buy(alice, "7/pay")
    assert buy(alice, "8/pay").status_code == 422
    headers = {"Idempotency-Key": "A-1", "Authorization": "Token alice"}
    assert alice.patch("/orders/7/pay", headers=headers).status_code == 422


def test_another_route_is_another_order(alice: Client) -> None:
    assert REPLAYED not in buy(alice, "function")
    assert REPLAYED not in buy(alice, "class")


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


def test_query_order_charset_and_csrf_token_are_no_difference(alice: Client) -> None:
    form = {"sku": "x", "csrfmiddlewaretoken": "one"}
    buy(alice, "fields", data=form, QUERY_STRING="a=1&b=2")
    form["csrfmiddlewaretoken"] = "two"
    assert REPLAYED in buy(alice, "fields", data=form, QUERY_STRING="b=2&a=1")


FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize("method", ["post", "patch"])
@pytest.mark.parametrize("where", ["form", "query"])
def test_bytes_that_are_no_utf8_are_compared_as_they_were_sent(
    where: str, method: str, alice: Client
) -> None:
    """Of all of them Django makes U+FFFD."""

    def send(sent: bytes) -> Any:
        return getattr(alice, method)(
            "/orders/fields",
            b"a=%20" + (sent if where == "form" else b""),
            content_type=FORM,
            headers={"Idempotency-Key": "F"},
            QUERY_STRING=sent.decode("latin-1") if where == "query" else "",
        )

    assert [send(b"&name=%FF").status_code for _ in range(2)] == [201, 201]
    others = [b"&name=%FE", b"&name=%EF%BF%BD", b"&name=\\xff", b"&%FF=name"]
    assert [send(other).status_code for other in others] == [422] * 4
    assert rows("fields") == 1


@pytest.mark.parametrize("method", ["post", "patch"])
def test_uploads_are_compared_by_content_whatever_their_boundary(
    method: str, alice: Client
) -> None:
    def send(content: bytes, boundary: str) -> Any:
        head = 'Content-Disposition: form-data; name="f"; filename="a.txt"'
        start, end = f"--{boundary}\r\n{head}\r\n\r\n", f"\r\n--{boundary}--\r\n"
        body = start.encode() + content + end.encode()
        return getattr(alice, method)(
            "/orders/fields",
            body,
            content_type=f"multipart/form-data; boundary={boundary}",
            headers={"Idempotency-Key": "F"},
        )

    first = send(b"hello", "one")
    assert first.status_code == 201
    assert method == "patch" or b"hello" in first.content  # the view still reads the file
    assert REPLAYED in send(b"hello", "two")
    assert send(b"other", "one").status_code == 422


def test_the_view_reads_the_form_after_the_middleware_has(alice: Client) -> None:
    upload = SimpleUploadedFile("a.txt", b"content")
    response = buy(alice, "fields", data={"a": "1", "f": upload})
    assert b"'a': '1'" in response.content
    assert b"content" in response.content


@pytest.mark.parametrize("kind", ["streaming", "large", "gzipped"])
def test_what_cannot_be_kept_leaves_a_tombstone(kind: str, alice: Client) -> None:
    with orders(MAX_RESPONSE=1000):
        gzip = {"headers": {"Accept-Encoding": "gzip"}}
        first, second = buy(alice, kind, **gzip), buy(alice, kind, **gzip)
    assert first.status_code == 200
    assert (second.status_code, second.json()["code"]) == (409, "order-completed")
    assert second.get("Location") == first.get("Location")
    assert rows(kind) == 1


def test_a_request_that_is_too_large_is_refused(alice: Client) -> None:
    with orders(MAX_REQUEST=100):
        large = {"data": "x" * 101, "content_type": "text/plain"}
        assert buy(alice, "fields", **large).status_code == 413
        form = {"f": SimpleUploadedFile("a.txt", b"x" * 101)}
        assert buy(alice, "fields", data=form).status_code == 413
        assert alice.post("/elsewhere", **large).status_code == 201
    assert views.calls == ["fields"]


def test_only_headers_of_the_list_are_stored(alice: Client) -> None:
    first, second = buy(alice, "cookie"), buy(alice, "cookie")
    assert (first.cookies["secret"].value, first["X-Other"]) == ("of-the-first", "1")
    assert ("secret" in second.cookies, "X-Other" in second) == (False, False)
    assert second["ETag"] == '"e"'
    assert "of-the-first" not in OrderRecord.objects.get().headers


def test_only_the_paths_and_methods_of_the_settings_are_orders(alice: Client) -> None:
    headers = {"Idempotency-Key": "A-1"}
    for _ in range(2):
        assert alice.post("/elsewhere", headers=headers).status_code == 201
        assert alice.put("/orders/fields", headers=headers).status_code == 201
    assert (rows("fields"), OrderRecord.objects.count()) == (4, 0)


def test_exempt_views_and_views_with_a_source_of_their_own(alice: Client) -> None:
    for _ in range(2):
        buy(alice, "exempt")
    assert rows("exempt") == 2
    for expected in (False, True):
        response = buy(alice, "json-number", data={"number": 7}, content_type="application/json")
        assert (response.status_code, REPLAYED in response) == (201, expected)


def test_another_user_with_the_same_key_makes_another_order(alice: Client) -> None:
    bob = logged_in("bob")
    first, second = buy(alice, "function"), buy(bob, "function")
    assert (second.status_code, REPLAYED in second) == (201, False)
    assert first.content != second.content
    assert rows("function") == 2


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


def test_a_hostile_path_is_recorded_without_control_characters(alice: Client) -> None:
    assert buy(alice, "named/a%00b%0Ac%1B%5B31m").status_code == 201
    assert OrderRecord.objects.get().request == "POST /orders/named/a?b?c?[31m"


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
    permission = Permission.objects.get(codename="add_sale")
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
    User.objects.get(username="alice").user_permissions.add(
        Permission.objects.get(codename="add_sale")
    )
    for _ in range(2):
        response = alice.get("/orders/permitted-dispatch-inside", headers={"Idempotency-Key": "1"})
        assert (response.status_code, REPLAYED in response) == (200, False)


@pytest.mark.parametrize("kind", ["permitted-dispatch", "permitted-method", "api-permitted-method"])
def test_checks_that_cannot_be_made_from_outside_are_not_taken_as_passed(kind: str) -> None:
    user = User.objects.create(username="carol")
    user.user_permissions.add(Permission.objects.get(codename="add_sale"))
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
    user.user_permissions.add(Permission.objects.get(codename="add_sale"))
    assert buy(client, "permitted-or-login").status_code == 201


def test_the_scope_and_tenant_hooks() -> None:
    anybody = Client()
    headers = {"Idempotency-Key": "1", "X-Cart": "c1"}
    with orders(SCOPE="orders_django.hooks.cart"):
        assert anybody.post("/orders/function", headers=headers).status_code == 201
        assert REPLAYED in Client().post("/orders/function", headers=headers)
    with orders(SCOPE="orders_django.hooks.cart", TENANT="orders_django.hooks.tenant"):
        headers["X-Tenant"] = "t1"
        assert REPLAYED not in anybody.post("/orders/function", headers=headers)
        headers["X-Tenant"] = "t2"
        assert REPLAYED not in anybody.post("/orders/function", headers=headers)


def test_a_view_that_loses_its_lease_is_rolled_back(alice: Client) -> None:
    response = buy(alice, "loses")
    assert (response.status_code, response.json()["code"]) == (503, "order-lease-lost")
    assert (rows("loses"), OrderRecord.objects.count()) == (0, 0)


def test_a_connection_that_breaks_in_the_view_is_no_success(alice: Client) -> None:
    response = buy(alice, "closes")
    assert response.status_code == 503
    assert (rows("closes"), OrderRecord.objects.count()) == (0, 0)
    assert buy(alice, "function").status_code == 201  # the connection is usable again


@with_and_without_atomic_requests(
    "function",
    "locked/s1",
    "locked-twice/s1",
    "inside-locked/s1",
    "api-locked",
    "api-locked-mixed",
    "async-locked/s1",
)
def test_every_lock_is_released_after_the_commit(
    kind: str, atomic: bool, alice: Client, releases: Any
) -> None:
    first, second = buy(alice, kind), buy(alice, kind)
    assert (first.status_code, second[REPLAYED]) == (201, "true")
    names = {"function": ["order"], "locked-twice/s1": ["stock", "outer", "order"]}
    expected = names.get(kind, ["stock", "order"])
    assert releases.seen == [(name, 1, False) for name in expected]
    assert (Sale.objects.count(), len(views.calls)) == (1, 1)


def test_an_order_inside_a_lock_of_the_view_is_refused(alice: Client) -> None:
    response = buy(alice, "wrong-way-round/s1")
    assert (response.status_code, views.calls) == (500, [])


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


def test_a_view_with_a_lock_that_is_busy_is_not_an_order_yet(alice: Client) -> None:
    with locks["default"].lock("stock:s1"), override_settings(LOCKKIT_VIEWS={"TIMEOUT": 0}):
        assert buy(alice, "locked/s1").status_code == 423
    assert OrderRecord.objects.count() == 0
    assert buy(alice, "locked/s1").status_code == 201


def test_a_replay_is_one_query_and_a_first_request_costs_three_more() -> None:
    """Locks are no queries here: they are in memory."""
    client = Client()
    with CaptureQueriesContext(connections["default"]) as first:
        buy(client, "function")
    with CaptureQueriesContext(connections["default"]) as second:
        buy(client, "function")
    statements = [query["sql"].split()[0] for query in first.captured_queries]
    assert statements == ["SELECT", "BEGIN", "INSERT", "INSERT", "UPDATE", "COMMIT"]
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


def test_a_record_that_expired_does_not_count(alice: Client) -> None:
    buy(alice, "function")
    OrderRecord.objects.update(expires=1)
    assert REPLAYED not in buy(alice, "function")
    assert REPLAYED in buy(alice, "function")
    assert (rows("function"), OrderRecord.objects.count()) == (2, 1)


@pytest.mark.parametrize(
    "change", [{"version": 99}, {"fingerprint": "99:abc"}, {"state": "new"}], ids=str
)
def test_a_record_of_a_newer_release_is_not_run_over(change: dict[str, Any], alice: Client) -> None:
    buy(alice, "function")
    OrderRecord.objects.update(**change)
    response = buy(alice, "function")
    assert (response.status_code, response.json()["code"]) == (503, "order-record-unreadable")
    assert int(response["Retry-After"]) > 0
    assert rows("function") == 1


def test_under_a_test_case_the_block_of_the_test_does_not_count(alice: Client) -> None:
    from django.test import TestCase

    class Inner(TestCase):
        def runTest(self) -> None:
            assert buy(alice, "function").status_code == 201
            assert REPLAYED in buy(alice, "function")

    result = Inner().run()
    assert result is not None
    assert not result.errors
    assert not result.failures
