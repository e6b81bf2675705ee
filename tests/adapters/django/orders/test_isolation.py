"""Orders on PostgreSQL and MariaDB, under READ COMMITTED and REPEATABLE READ: real servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from django.test import Client, override_settings
from django_project.servers import ENGINES, KINDS, database_of
from django_project.shop.models import Sale
from django_psycopg2.base import IsolationLevel as Psycopg2Level
from orders_django import elsewhere, mysql
from psycopg import IsolationLevel

from lockkit_django import locks
from lockkit_django.models import OrderRecord

__all__ = ["mysql"]

REPLAYED = "Idempotent-Replayed"
SECONDS = 30.0
LEVELS = ("READ_COMMITTED", "REPEATABLE_READ")
NAMED = {"postgresql": IsolationLevel, "psycopg2": Psycopg2Level}
BLOCKED = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND datname = current_database()",
    "mysql": "SELECT variable_value FROM information_schema.global_status"
    " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
}


@pytest.fixture(
    params=[
        *((kind, level) for kind in ("postgresql", "mysql") for level in LEVELS),
        ("psycopg2", "REPEATABLE_READ"),
    ],
    ids="-".join,
    autouse=True,
)
def database(
    request: pytest.FixtureRequest, django_db_blocker: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """The alias ``orders``, with the two tables; it has the records and ATOMIC_REQUESTS. With one
    of the levels, psycopg's statements are prepared."""
    kind, level = request.param
    if level == LEVELS[1]:
        monkeypatch.setattr("lockkit.orders.psycopg.PREPARED_AFTER", 1)
    isolation = NAMED[kind][level] if kind in NAMED else level.lower().replace("_", " ")
    settings = {"OPTIONS": {"isolation_level": isolation}, **ENGINES.get(kind, {})}
    server = request.getfixturevalue(KINDS[kind])
    reset()
    with (
        django_db_blocker.unblock(),
        database_of(
            server, "orders", OrderRecord, Sale, ATOMIC_REQUESTS=True, **settings
        ) as connection,
        project(),
    ):
        yield connection


def reset() -> None:
    elsewhere.calls.clear()
    elsewhere.started.clear()
    elsewhere.go_on.clear()
    elsewhere.both.reset()
    elsewhere.before_update.clear()


def project(wait: float = SECONDS, **settings: Any) -> Any:
    orders = {"PATHS": ["^/orders/"], "USING": "orders", "WAIT": wait, **settings}
    return override_settings(
        ROOT_URLCONF="orders_django.elsewhere",
        MIDDLEWARE=["lockkit_django.middleware.IdempotentOrderMiddleware"],
        LOCKKIT_ORDERS=orders,
    )


@pytest.fixture
def send() -> Iterator[Callable[..., Future[Any]]]:
    """Sends an order from a thread of its own, which closes its connections."""

    def work(kind: str, order_id: str = "A-1") -> Any:
        try:
            return buy(kind, order_id)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        try:
            yield lambda *args: pool.submit(work, *args)
        finally:
            elsewhere.go_on.set()


def buy(kind: str, order_id: str = "A-1") -> Any:
    headers = {"Idempotency-Key": order_id, "Authorization": "Token a"}
    return Client(raise_request_exception=False).post(f"/orders/{kind}", headers=headers)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def counts() -> tuple[int, int]:
    return Sale.objects.using("orders").count(), OrderRecord.objects.using("orders").count()


def test_a_status_may_be_one_of_an_enumeration() -> None:
    first, again = buy("created"), buy("created")
    assert (first.status_code, REPLAYED in first) == (201, False)
    assert (again.status_code, again[REPLAYED], again.content) == (201, "true", first.content)
    assert counts() == (1, 1)


@pytest.mark.parametrize("kind", ["quick", "commits"])
def test_of_many_at_once_one_takes_effect(kind: str, send: Any) -> None:
    answers = [future.result(SECONDS) for future in [send(kind) for _ in range(6)]]
    assert {answer.status_code for answer in answers} == {201}
    assert sorted(REPLAYED in answer for answer in answers) == [False, *[True] * 5]
    assert len({answer.content for answer in answers}) == 1
    assert (elsewhere.calls, counts()) == ([kind], (1, 1))


@pytest.mark.parametrize("kind", ["quick", "commits"])
def test_without_locks_one_takes_effect_all_the_same(kind: str, send: Any) -> None:
    with project(LOCK="never"):
        answers = [future.result(SECONDS) for future in [send(kind) for _ in range(6)]]
    assert {answer.status_code for answer in answers} == {201}
    assert sorted(REPLAYED in answer for answer in answers) == [False, *[True] * 5]
    assert len({answer.content for answer in answers}) == 1
    assert (elsewhere.calls, counts()) == ([kind], (1, 1))


@pytest.mark.parametrize("end", ["commits", "fails"])
def test_without_locks_a_duplicate_waits_for_the_key(end: str, send: Any, database: Any) -> None:
    kind = "waits?fail" if end == "fails" else "waits"
    with project(LOCK="never"):
        first = send(kind)
        assert elsewhere.started.wait(SECONDS)
        assert not list(locks["default"].holders())
        second = send(kind)
        until(lambda: ask(database, BLOCKED[database.vendor]))
        assert elsewhere.calls == ["waits"]
        elsewhere.go_on.set()
        answers = [first.result(SECONDS), second.result(SECONDS)]
    assert [a.status_code for a in answers] == [500 if end == "fails" else 201, 201]
    assert [REPLAYED in answer for answer in answers] == [False, end == "commits"]
    assert counts() == (1, 1)


def test_without_locks_one_of_those_that_waited_for_a_failure_takes_effect(
    send: Any, database: Any
) -> None:
    """MariaDB lets one of them in, and calls the rest deadlocked."""
    with project(LOCK="never"):
        first = send("waits?fail")
        assert elsewhere.started.wait(SECONDS)
        others = [send("waits") for _ in range(3)]
        until(lambda: ask(database, BLOCKED[database.vendor]) >= len(others))
        elsewhere.go_on.set()
        answers = [each.result(SECONDS) for each in others]
        assert first.result(SECONDS).status_code == 500
    assert [a.status_code for a in answers] == [201] * 3
    assert sorted(REPLAYED in a for a in answers) == [False, True, True]
    assert counts() == (1, 1)


def test_without_locks_a_duplicate_waits_no_longer_than_wait(send: Any) -> None:
    with project(wait=1, LOCK="never"):
        first = send("waits")
        assert elsewhere.started.wait(SECONDS)
        second = buy("waits")
        assert (second.status_code, second.json()["code"]) == (409, "order-running")
        assert elsewhere.patience()
        elsewhere.go_on.set()
        assert first.result(SECONDS).status_code == 201
        assert REPLAYED in buy("waits")
    assert (elsewhere.calls, counts()) == (["waits"], (1, 1))


def test_who_has_waited_sees_what_was_committed_meanwhile(send: Any) -> None:
    first = send("waits")
    assert elsewhere.started.wait(SECONDS)
    second = send("waits")
    until(lambda: any(info.waiters for info in locks["default"].holders()))
    elsewhere.go_on.set()
    answers = [first.result(SECONDS), second.result(SECONDS)]
    assert [REPLAYED in answer for answer in answers] == [False, True]
    assert (elsewhere.calls, counts()) == (["waits"], (1, 1))


@pytest.mark.parametrize("end", ["commits", "fails"])
def test_a_second_runner_is_blocked_by_the_key_until_the_first_has_ended(
    end: str, send: Any, database: Any
) -> None:
    """The first has lost its lease without knowing; the second is not to reach its view."""
    kind = "waits?fail" if end == "fails" else "waits"
    first = send(kind)
    assert elsewhere.started.wait(SECONDS)
    (held,) = locks["default"].holders()
    assert held.fence is not None
    assert locks["default"].break_(held.name, fence=held.fence)
    second = send(kind)
    until(lambda: ask(database, BLOCKED[database.vendor]))
    assert elsewhere.calls == ["waits"]
    elsewhere.go_on.set()
    answers = [first.result(SECONDS), second.result(SECONDS)]
    assert [a.status_code for a in answers] == [500 if end == "fails" else 201, 201]
    assert [REPLAYED in answer for answer in answers] == [False, end == "commits"]
    assert counts() == (1, 1)


@pytest.mark.parametrize("kind", ["waits", "waits-in-commit-in"])
def test_a_second_runner_waits_for_the_key_no_longer_than_wait(
    kind: str, send: Any, database: Any
) -> None:
    """It has its answer while the first one, which lost its lease, is still paused."""
    with project(wait=1):
        first = send(kind)
        assert elsewhere.started.wait(SECONDS)
        (held,) = locks["default"].holders()
        assert held.fence is not None
        assert locks["default"].break_(held.name, fence=held.fence)
        second = send(kind).result(SECONDS)
        assert (second.status_code, second.json()["code"]) == (409, "order-running")
        assert int(second["Retry-After"]) >= 1
        assert not list(locks["default"].holders())
        elsewhere.go_on.set()
        assert first.result(SECONDS).status_code == 201
    assert (elsewhere.calls, counts()) == (["waits"], (1, 1))


def test_a_view_that_deletes_its_record_sells_nothing() -> None:
    assert [buy("clears").json()["code"] for _ in range(2)] == ["order-not-saved"] * 2
    assert counts() == (0, 0)


def test_a_view_that_ends_the_transaction_does_not_write_into_the_record_of_another_try(
    send: Any,
) -> None:
    """Its claim is gone with the transaction, so another try with this key may have succeeded."""
    with project(LOCK="never"):
        first = send("ends-it-and-waits")
        assert elsewhere.started.wait(SECONDS)
        second = send("ends-it-and-waits").result(SECONDS)
        elsewhere.go_on.set()
        assert first.result(SECONDS).json()["code"] == "order-not-saved"
        again = buy("ends-it-and-waits")
    assert (second.status_code, again.content, REPLAYED in again) == (201, second.content, True)
    assert counts() == (1, 1)


@pytest.mark.parametrize("kind", ["patient", "patient-in-commit-in"])
def test_the_view_waits_for_locks_as_long_as_the_project_says(kind: str, database: Any) -> None:
    """The bound is for the claim: neither the view has it, nor what uses the connection later."""
    with database.cursor() as cursor:
        if database.vendor == "postgresql":
            cursor.execute("SET lock_timeout = '7s'")
        else:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 7")
    before = elsewhere.patience()
    with project(wait=2):
        assert buy(kind).content.decode() == before
    assert elsewhere.patience() == before
    assert "7" in before


def test_a_claim_that_waited_in_vain_leaves_the_connection_as_it_was(
    send: Any, database: Any
) -> None:
    before = elsewhere.patience()
    with project(wait=1):
        first = send("waits")
        assert elsewhere.started.wait(SECONDS)
        (held,) = locks["default"].holders()
        assert locks["default"].break_(held.name, fence=held.fence or 0)
        assert buy("waits").status_code == 409
        elsewhere.go_on.set()
        first.result(SECONDS)
    assert elsewhere.patience() == before


def test_of_a_deadlock_one_is_told_to_repeat_and_is_done_then(send: Any) -> None:
    one, two = (Sale.objects.using("orders").create(sku="").pk for _ in range(2))
    ways = f"crosses/{one}/{two}", f"crosses/{two}/{one}"
    futures = [send(ways[0], "A-1"), send(ways[1], "A-2")]
    answers = [future.result(SECONDS) for future in futures]
    assert sorted(answer.status_code for answer in answers) == [201, 503]
    (victim,) = (i for i, answer in enumerate(answers) if answer.status_code == 503)
    assert answers[victim].json()["code"] == "order-not-saved"
    assert int(answers[victim]["Retry-After"]) >= 1
    again = buy(ways[victim], f"A-{victim + 1}")
    assert (again.status_code, REPLAYED in again) == (201, False)


def test_a_row_that_changed_since_the_snapshot(database: Any, send: Any) -> None:
    """PostgreSQL refuses to go on from a snapshot that is too old; MariaDB 10.11 does not."""
    row = Sale.objects.using("orders").create(sku="").pk
    elsewhere.before_update.append(lambda: send_update(row))
    answer = buy(f"reads-first/{row}")
    level = database.settings_dict["OPTIONS"]["isolation_level"]
    if getattr(level, "name", "") == "REPEATABLE_READ":
        assert (answer.status_code, answer.json()["code"]) == (503, "order-not-saved")
        assert counts()[1] == 0
        answer = buy(f"reads-first/{row}")
    assert (answer.status_code, REPLAYED in answer) == (201, False)
    assert Sale.objects.using("orders").get().sku == "mine"


def send_update(row: int) -> None:
    def work() -> None:
        Sale.objects.using("orders").filter(pk=row).update(sku="theirs")
        connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("kind", ["swallows", "swallows-in-commit-in", "swallows-in-method"])
def test_an_error_that_django_does_not_see_is_no_success(kind: str, database: Any) -> None:
    """PostgreSQL has given the transaction up, and rolls back at a COMMIT without complaint."""
    answers = [buy(kind) for _ in range(2)]
    if database.vendor == "postgresql":
        assert [(a.status_code, a.json()["code"]) for a in answers] == [
            (503, "order-not-saved"),
            (503, "order-not-saved"),
        ]
        assert counts() == (0, 0)
    else:
        assert [a.status_code for a in answers] == [201, 201]
        assert counts() == (1, 1)


@pytest.mark.parametrize("kind", ["swallows", "swallows-in-commit-in", "swallows-in-method"])
def test_a_refusal_after_such_an_error_is_recorded(kind: str, database: Any) -> None:
    first, again = [buy(f"{kind}?status=400") for _ in range(2)]
    assert (first.status_code, again.status_code, REPLAYED in again) == (400, 400, True)
    assert counts() == (0 if database.vendor == "postgresql" else 1, 1)


@pytest.mark.parametrize("kind", ["goes-on", "goes-on-in-commit-in"])
def test_what_follows_a_rollback_by_the_database_is_not_saved(kind: str) -> None:
    """The record has gone with what came before, so the order would be made twice."""
    answers = [buy(kind) for _ in range(2)]
    assert [(a.status_code, a.json()["code"]) for a in answers] == [(503, "order-not-saved")] * 2
    assert counts() == (0, 0)


@pytest.mark.parametrize(("kind", "status"), [("refuses", 403), ("refuses?status=429", 429)])
def test_what_a_refusal_saves_stays_and_its_record_does_not(kind: str, status: int) -> None:
    assert [buy(kind).status_code for _ in range(2)] == [status] * 2
    assert counts() == (2, 0)


def test_an_expired_record_is_replaced_once(send: Any) -> None:
    buy("quick")
    OrderRecord.objects.using("orders").update(expires=1)
    answers = [future.result(SECONDS) for future in [send("quick") for _ in range(4)]]
    assert sorted(REPLAYED in answer for answer in answers) == [False, True, True, True]
    assert counts() == (2, 1)


def test_pruning_leaves_what_counts() -> None:
    from lockkit_django.orders.table import OrderTable

    for number in range(5):
        buy("quick", f"A-{number}")
    rows = OrderRecord.objects.using("orders")
    rows.exclude(order_id="A-4").update(expires=1)
    assert list(OrderTable("orders").prune(batch=3)) == [3, 1]
    assert REPLAYED in buy("quick", "A-4")


@pytest.mark.parametrize("days", [-3, 3])
def test_a_host_whose_clock_is_wrong_keeps_and_prunes_by_the_databases(
    days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lockkit_django.orders.table import OrderTable

    table = OrderTable("orders")
    buy("quick", "A-1")
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + days * 86400)
    assert REPLAYED in buy("quick", "A-1")
    buy("quick", "A-2")
    assert list(table.prune()) == []
    monkeypatch.undo()
    assert [REPLAYED in buy("quick", order_id) for order_id in ("A-1", "A-2")] == [True, True]
    assert list(table.prune()) == []
    assert counts() == (2, 2)


def ask(connection: Any, sql: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return int(cursor.fetchone()[0])
