"""Two requests for one order at the same time, and stores that are down: in one process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from django.test import Client, override_settings
from django_project.shop.models import Sale
from orders_django import views

from lockkit_django import locks
from lockkit_django.models import OrderRecord

pytestmark = pytest.mark.django_db(transaction=True)

REPLAYED = "Idempotent-Replayed"
Send = Callable[..., "Future[Any]"]


def buy(kind: str = "waits", body: str = "{}") -> Any:
    headers = {"Idempotency-Key": "A-1", "Authorization": "Token a"}
    client = Client(raise_request_exception=False)
    return client.post(f"/orders/{kind}", body, content_type="application/json", headers=headers)


@pytest.fixture
def send() -> Iterator[Send]:
    """Sends an order from a thread of its own, which closes its connections."""

    def work(*args: str) -> Any:
        try:
            return buy(*args)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        try:
            yield lambda *args: pool.submit(work, *args)
        finally:
            views.go_on.set()


def settings(**orders: Any) -> Any:
    return override_settings(LOCKKIT_ORDERS={"PATHS": ["^/orders/"], **orders})


def wait_for_waiters(count: int) -> None:
    deadline = time.monotonic() + 30
    while sum(info.waiters for info in locks["default"].holders()) < count:
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_a_duplicate_waits_for_the_one_that_runs_and_replays_it(send: Send) -> None:
    with settings(WAIT=30):
        first = send()
        assert views.started.wait(30)
        others = [send() for _ in range(3)]
        wait_for_waiters(3)
        views.go_on.set()
        answers = [future.result(60) for future in (first, *others)]
    assert [REPLAYED in answer for answer in answers] == [False, True, True, True]
    assert {answer.content for answer in answers} == {answers[0].content}
    assert (views.calls, Sale.objects.count()) == (["waits"], 1)


def test_a_duplicate_that_waited_in_vain_is_told_to_come_back(send: Send) -> None:
    with settings(WAIT=0.05):
        first = send()
        assert views.started.wait(30)
        late = send().result(60)
        assert (late.status_code, late.json()["code"]) == (409, "order-running")
        assert int(late["Retry-After"]) >= 1
        views.go_on.set()
        assert first.result(60).status_code == 201
    assert views.calls == ["waits"]


def test_another_payload_is_refused_at_once_while_the_first_runs(send: Send) -> None:
    with settings(WAIT=30):
        first = send()
        assert views.started.wait(30)
        assert send("waits", '{"n": 2}').result(60).status_code == 422
        views.go_on.set()
        assert first.result(60).status_code == 201


def test_the_number_of_waiting_duplicates_is_limited(send: Send) -> None:
    with settings(WAIT=30, MAX_WAITERS=1):
        first = send()
        assert views.started.wait(30)
        second = send()
        wait_for_waiters(1)
        third = send().result(60)
        assert (third.status_code, third.json()["code"]) == (503, "order-waiting-room-full")
        assert int(third["Retry-After"]) >= 1
        views.go_on.set()
        assert [f.result(60).status_code for f in (first, second)] == [201, 201]


def test_after_a_failure_one_of_those_that_waited_runs(send: Send) -> None:
    with settings(WAIT=30):
        first = send("waits?status=500")
        assert views.started.wait(30)
        second = send("waits?status=500")
        wait_for_waiters(1)
        views.go_on.set()
        assert [f.result(60).status_code for f in (first, second)] == [500, 500]
    assert (views.calls, Sale.objects.count()) == (["waits", "waits"], 0)


def test_without_the_lock_the_unique_key_decides(
    send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first runner whose lease was broken, and a second that takes the lock meanwhile.

    SQLite allows one writer: the second meets the key when the first has committed.
    """
    with settings(WAIT=30):
        first = send()
        assert views.started.wait(30)
        (held,) = locks["default"].holders()
        assert held.fence is not None
        assert locks["default"].break_(held.name, fence=held.fence)
        second = send()
        wait_until_held_again(held.fence)
        views.go_on.set()
        answers = [future.result(60) for future in (first, second)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert [REPLAYED in answer for answer in answers] == [False, True]
    assert (views.calls, Sale.objects.count(), OrderRecord.objects.count()) == (["waits"], 1, 1)


def test_a_record_that_another_request_has_replaced_meanwhile_is_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have seen the expired one; the lock was free again when the second asked for it."""
    from lockkit_django.orders.table import OrderTable

    buy("function")
    OrderRecord.objects.update(expires=1)
    find, others = OrderTable.find, []

    def find_and_be_overtaken(self: OrderTable, key: str, *, fresh: bool) -> Any:
        record = find(self, key, fresh=fresh)
        monkeypatch.setattr(OrderTable, "find", find)
        others.append(buy("function"))
        return record

    monkeypatch.setattr(OrderTable, "find", find_and_be_overtaken)
    answer = buy("function")
    assert (answer.content, answer[REPLAYED]) == (others[0].content, "true")
    assert (len(views.calls), Sale.objects.count(), OrderRecord.objects.count()) == (2, 2, 1)


def wait_until_held_again(fence: int) -> None:
    deadline = time.monotonic() + 30
    while not any((info.fence or 0) > fence for info in locks["default"].holders()):
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_the_lock_store_is_down() -> None:
    with override_settings(LOCKKIT={"default": "redis://127.0.0.1:1/0"}):
        answer = buy("function")
    assert (answer.status_code, json.loads(answer.content)["code"]) == (
        503,
        "order-store-unavailable",
    )
    assert (int(answer["Retry-After"]) > 0, views.calls) == (True, [])


def test_the_database_of_the_records_is_down() -> None:
    from django.db import OperationalError

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "lockkit_order" in sql:
            raise OperationalError("server closed the connection unexpectedly")
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(refuse):
        answer = buy("function")
    assert (answer.status_code, answer.json()["code"], views.calls) == (
        503,
        "order-store-unavailable",
        [],
    )
    assert not list(locks["default"].holders())


def test_a_database_that_fails_at_the_commit_leaves_the_outcome_unknown() -> None:
    from django.db import OperationalError

    connection = connections["default"]
    commit = connection._commit

    def fail() -> None:
        raise OperationalError("server closed the connection unexpectedly")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_commit", fail)
        answer = buy("function")
    assert connection._commit == commit
    assert (answer.status_code, answer.json()["code"]) == (503, "order-outcome-unknown")
    assert REPLAYED not in buy("function")
    assert (len(views.calls), Sale.objects.count()) == (2, 1)


@pytest.mark.parametrize("attribute", ["sqlstate", "pgcode"])  # psycopg's, and psycopg2's
def test_after_a_conflict_at_the_commit_it_is_known_that_nothing_was_saved(attribute: str) -> None:
    from django.db import OperationalError

    def fail() -> None:
        cause = Exception("could not serialize access")
        setattr(cause, attribute, "40001")
        raise OperationalError("could not serialize access") from cause

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections["default"], "_commit", fail)
        answer = buy("function")
    assert (answer.status_code, answer.json()["code"]) == (503, "order-not-saved")
    assert int(answer["Retry-After"]) > 0
