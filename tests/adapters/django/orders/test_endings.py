"""Orders whose view failed, though something answers as if it had not; records that are odd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.db import IntegrityError, transaction
from django.test import AsyncClient, Client, override_settings
from django_project.shop.models import Sale
from orders_django import endings

from lockkit.model.errors import LeaseLost
from lockkit.orders.record import VERSION
from lockkit_django import alocks, locks
from lockkit_django.models import OrderRecord

pytestmark = pytest.mark.django_db(transaction=True)

REPLAYED = "Idempotent-Replayed"


@pytest.fixture(autouse=True)
def project(fresh_orders: None) -> Iterator[None]:
    endings.payments.clear()
    endings.refusing.clear()
    with override_settings(ROOT_URLCONF="orders_django.endings"):
        yield


@pytest.fixture
def in_redis(redis_url: str) -> Iterator[None]:
    rules = {"PATHS": ["^/orders/"], "STORE": "redis", "NAMESPACE": "shop", "WAIT": 0}
    with override_settings(LOCKKIT={"default": redis_url}, LOCKKIT_ORDERS=rules):
        yield


@pytest.fixture
def locks_in_redis(redis_url: str) -> Iterator[None]:
    """The same ones for threads and for event loops."""
    with override_settings(LOCKKIT={"default": redis_url}):
        yield


@pytest.fixture
def thankful() -> Iterator[None]:
    middleware = [
        "orders_django.endings.Thanks" if "Catch" in path else path for path in settings.MIDDLEWARE
    ]
    with override_settings(MIDDLEWARE=middleware):
        yield


def send(kind: str, **headers: str) -> Any:
    client = Client(raise_request_exception=False)
    headers = {"Idempotency-Key": "A-1", "Authorization": "Token a", **headers}
    return client.post(f"/orders/{kind}", b"{}", content_type="application/json", headers=headers)


def answers(kind: str) -> list[tuple[int, Any]]:
    """Status and code of three tries."""
    found = [send(kind) for _ in range(3)]
    assert not list(locks["default"].holders())
    assert not any(REPLAYED in each for each in found)
    return [(each.status_code, is_code(each)) for each in found]


def is_code(response: Any) -> Any:
    if response.get("Content-Type") != "application/problem+json":
        return None
    return response.json()["code"]


@pytest.mark.usefixtures("in_redis")
@pytest.mark.parametrize("kind", ["handled", "handled-in-class", "unhandled"])
def test_a_500_that_is_made_of_any_exception_leaves_an_orphan(kind: str) -> None:
    orphaned = (409, "order-orphaned")
    assert answers(kind) == [(500, None), orphaned, orphaned]
    assert len(endings.payments) == 1


@pytest.mark.usefixtures("in_redis", "thankful")
@pytest.mark.parametrize("status", [401, 403, 409, 429])
def test_a_passing_refusal_that_is_made_of_any_exception_leaves_an_orphan(status: int) -> None:
    orphaned = (409, "order-orphaned")
    assert answers(f"raises?status={status}") == [(status, None), orphaned, orphaned]
    assert Sale.objects.count() == 1


@pytest.mark.usefixtures("in_redis", "thankful")
@pytest.mark.parametrize("kind", ["raises", "soothed"])
def test_a_success_that_is_made_of_any_exception_leaves_an_orphan(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    orphaned = (409, "order-orphaned")
    assert answers(kind) == [(503, "order-outcome-unknown"), orphaned, orphaned]
    assert "makes 201 of it" in caplog.text


@pytest.mark.usefixtures("in_redis", "thankful")
@pytest.mark.parametrize(("kind", "status"), [("raises?status=302", 302), ("envelope", 200)])
def test_what_shows_a_failure_that_is_made_of_any_exception_leaves_an_orphan(
    kind: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets it: a redirect, and an answer of DRF that says in its body what is wrong."""
    orphaned = (409, "order-orphaned")
    assert answers(kind) == [(status, None), orphaned, orphaned]
    assert Sale.objects.count() == 1
    assert f"makes {status} of it" in caplog.text


@pytest.mark.usefixtures("in_redis", "thankful")
def test_a_4xx_that_is_made_of_any_exception_is_the_answer() -> None:
    first, again = (send("raises?status=422") for _ in range(2))
    assert (first.status_code, again.status_code, again[REPLAYED]) == (422, 422, "true")
    assert Sale.objects.count() == 1


@pytest.mark.usefixtures("in_redis")
def test_an_exception_that_says_that_nothing_has_happened_does_so_in_any_envelope() -> None:
    assert answers("envelope-inside") == [(200, None)] * 3
    assert Sale.objects.count() == 3


@pytest.fixture
def decorating() -> Iterator[None]:
    decorates = "orders_django.endings.Decorates"
    with override_settings(MIDDLEWARE=[decorates, *settings.MIDDLEWARE]):
        yield


UNANSWERED = ["nothing", "nothing-inside", "async-nothing", "template"]


@pytest.mark.usefixtures("in_redis", "decorating")
@pytest.mark.parametrize("kind", UNANSWERED)
def test_a_view_that_has_run_and_whose_answer_fails_leaves_an_orphan(kind: str) -> None:
    orphaned = (409, "order-orphaned")
    assert answers(kind) == [(500, None), orphaned, orphaned]
    assert Sale.objects.count() == 1


@pytest.mark.usefixtures("in_redis", "decorating")
@pytest.mark.parametrize("kind", UNANSWERED)
async def test_a_view_that_has_run_and_whose_answer_fails_leaves_an_orphan_under_asgi(
    kind: str,
) -> None:
    client = AsyncClient(raise_request_exception=False)
    headers = {"Idempotency-Key": "A-1", "Authorization": "Token a"}
    found = [await client.post(f"/orders/{kind}", headers=headers) for _ in range(2)]
    assert [each.status_code for each in found] == [500, 409]
    assert (is_code(found[1]), await Sale.objects.acount()) == ("order-orphaned", 1)


POLITE = ["polite", "polite-inside", "async-polite"]


@pytest.mark.usefixtures("in_redis")
@pytest.mark.parametrize("kind", POLITE)
def test_what_a_view_says_while_its_lock_is_busy_is_not_the_answer_of_its_order(kind: str) -> None:
    def tries() -> list[tuple[int, bool]]:
        return [(each.status_code, REPLAYED in each) for each in (send(kind), send(kind))]

    with locks["default"].lock("cart:1"):
        assert tries() == [(202, False)] * 2
    assert tries() == [(201, False), (201, True)]
    assert Sale.objects.count() == 1


@pytest.mark.usefixtures("in_redis")
@pytest.mark.parametrize("kind", POLITE)
async def test_what_a_view_says_while_its_lock_is_busy_is_not_the_answer_under_asgi(
    kind: str,
) -> None:
    headers = {"Idempotency-Key": "A-1", "Authorization": "Token a"}

    async def tries() -> list[tuple[int, bool]]:
        found = [await AsyncClient().post(f"/orders/{kind}", headers=headers) for _ in range(2)]
        return [(each.status_code, REPLAYED in each) for each in found]

    async with alocks["default"].lock("cart:1"):
        assert await tries() == [(202, False)] * 2
    assert await tries() == [(201, False), (201, True)]
    assert await Sale.objects.acount() == 1


@pytest.mark.usefixtures("decorating")
@pytest.mark.parametrize("kind", ["nothing", "nothing-inside", "template"])
def test_in_a_database_a_view_whose_answer_fails_is_rolled_back(kind: str) -> None:
    assert answers(kind) == [(500, None)] * 3
    assert (Sale.objects.count(), OrderRecord.objects.count()) == (0, 0)


@pytest.mark.parametrize("rules", [{}, {"STORE": "redis", "NAMESPACE": "shop"}])
def test_a_success_stands_though_its_view_has_reported_an_exception(
    rules: dict[str, str], redis_url: str
) -> None:
    rules = {"PATHS": ["^/orders/"], **rules}
    with override_settings(LOCKKIT={"default": redis_url}, LOCKKIT_ORDERS=rules):
        first, again = send("reports"), send("reports")
    assert (first.status_code, again.status_code, again[REPLAYED]) == (201, 201, "true")
    assert Sale.objects.count() == 1


@pytest.mark.usefixtures("in_redis")
@pytest.mark.parametrize("kind", ["says", "api-exception"])
def test_a_500_that_the_view_means_lets_the_next_try_run(kind: str) -> None:
    assert answers(kind) == [(500, None)] * 3
    assert len(endings.payments) == 3


@pytest.mark.usefixtures("in_redis")
def test_the_way_to_the_login_page_is_not_stored() -> None:
    assert answers("to-login") == [(302, None)] * 3
    assert len(endings.payments) == 3


@pytest.mark.usefixtures("thankful")
@pytest.mark.parametrize("kind", ["raises", "raises-in-commit-in"])
def test_a_success_made_of_an_exception_is_not_told_to_the_client(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert answers(kind) == [(503, "order-not-saved")] * 3
    assert (Sale.objects.count(), OrderRecord.objects.count()) == (0, 0)
    assert "makes 201 of it" in caplog.text


@pytest.mark.usefixtures("thankful")
@pytest.mark.parametrize("kind", ["raises", "raises-in-commit-in"])
def test_a_redirect_made_of_an_exception_is_given_and_not_recorded(kind: str) -> None:
    assert answers(f"{kind}?status=302") == [(302, None)] * 3
    assert (Sale.objects.count(), OrderRecord.objects.count()) == (0, 0)


@pytest.mark.parametrize("kind", ["envelope", "envelope-in-commit-in"])
def test_a_success_that_drf_makes_of_an_exception_is_given_and_not_recorded(kind: str) -> None:
    assert answers(kind) == [(200, None)] * 3
    assert (Sale.objects.count(), OrderRecord.objects.count()) == (0, 0)


@pytest.fixture
def overtaken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whoever is about to record a refusal has lost its lease without knowing, and another try
    succeeds before it: its answer."""
    from lockkit_django.orders.transaction import OrderInDatabase

    keep, others = OrderInDatabase._keep_refusal, []

    def late(self: OrderInDatabase, *args: Any) -> Any:
        monkeypatch.setattr(OrderInDatabase, "_keep_refusal", keep)
        endings.refusing.clear()
        (held,) = locks["default"].holders()
        assert held.fence is not None
        assert locks["default"].break_(held.name, fence=held.fence)
        others.append(send(self.visit.request.path.removeprefix("/orders/")))
        return keep(self, *args)

    monkeypatch.setattr(OrderInDatabase, "_keep_refusal", late)
    return others


@pytest.mark.parametrize("kind", ["sold-out", "sold-out-in-commit-in"])
def test_who_refuses_what_another_has_done_gives_its_answer(
    kind: str, overtaken: list[Any]
) -> None:
    endings.refusing.append(True)
    late = send(kind)
    assert (late.status_code, late.content) == (201, overtaken[0].content)
    assert late[REPLAYED] == "true"
    assert (Sale.objects.count(), OrderRecord.objects.count()) == (1, 1)
    assert not list(locks["default"].holders())


@pytest.mark.usefixtures("locks_in_redis")
@pytest.mark.parametrize("kind", ["sold-out", "sold-out-in-commit-in"])
async def test_who_refuses_what_another_has_done_gives_its_answer_under_asgi(
    kind: str, overtaken: list[Any]
) -> None:
    endings.refusing.append(True)
    headers = {"Idempotency-Key": "A-1", "Authorization": "Token a"}
    client = AsyncClient()
    late = await client.post(
        f"/orders/{kind}", b"{}", content_type="application/json", headers=headers
    )
    assert not [info async for info in alocks["default"].holders()]
    assert (late.status_code, late.content) == (201, overtaken[0].content)


@pytest.mark.parametrize("kind", ["sold-out", "sold-out-in-commit-in"])
def test_a_refusal_that_comes_after_the_lease_is_not_recorded(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lockkit_django.orders.open_order import OpenOrder

    def lost(self: OpenOrder) -> None:
        raise LeaseLost("paused for too long")

    endings.refusing.append(True)
    with monkeypatch.context() as patch:
        patch.setattr(OpenOrder, "check_leases", lost)
        assert answers(kind) == [(503, "order-lease-lost")] * 3
    assert OrderRecord.objects.count() == 0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("hooks", [500, 201]),
        ("hooks-in-commit-in", [500, 409]),
        ("hooks-that-lose", [500, 201]),
        ("hooks-in-commit-in?respond", [201, 201]),
    ],
)
def test_a_hook_of_the_commit_that_fails_does_not_undo_it(kind: str, expected: list[int]) -> None:
    """Whatever error of the database it is: nobody is told that nothing was saved."""
    first, again = send(kind), send(kind)
    assert [first.status_code, again.status_code] == expected
    assert is_code(again) in (None, "order-completed")
    assert Sale.objects.count() == 1


@pytest.mark.parametrize("kind", ["dangling", "dangling-in-commit-in"])
def test_a_commit_that_the_database_refuses_is_no_success(kind: str) -> None:
    assert answers(kind) == [(500, None)] * 3
    assert (Sale.objects.count(), OrderRecord.objects.count()) == (0, 0)


def test_who_rolls_back_himself_knows_what_he_answers() -> None:
    """Whatever error an earlier transaction of this connection ended with."""
    sale = Sale.objects.create(sku="earlier")
    with pytest.raises(IntegrityError), transaction.atomic():
        Sale.objects.create(pk=sale.pk, sku="twice")
    assert answers("rolls-back") == [(200, None)] * 3
    assert (Sale.objects.count(), OrderRecord.objects.count()) == (1, 0)


def test_a_view_that_deletes_the_record_of_its_order_is_rolled_back() -> None:
    assert answers("deletes") == [(503, "order-not-saved")] * 3
    assert (Sale.objects.count(), OrderRecord.objects.count()) == (0, 0)


@pytest.mark.parametrize("headers", ['{"a": 1}', '[["a", "b", "c"]]', "[1]", "", "["])
@pytest.mark.parametrize("version", [VERSION, VERSION + 1])
def test_headers_in_another_form_are_not_guessed_at(headers: str, version: int) -> None:
    client = Client(raise_request_exception=False)
    rules = {"PATHS": ["^/orders/"], "REQUIRED": True}
    with override_settings(ROOT_URLCONF="orders_django.urls", LOCKKIT_ORDERS=rules):
        known = {"Idempotency-Key": "A-1", "Authorization": "Token a"}
        assert client.post("/orders/function", headers=known).status_code == 201
        OrderRecord.objects.update(version=version, headers=headers)
        again = client.post("/orders/function", headers=known)
    assert (again.status_code, is_code(again)) == (503, "order-record-unreadable")
    assert Sale.objects.count() == 1
