"""Orders on PostgreSQL: the messages to the server, and what must hold although they are so few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from bouncer import BouncerServer
from database_settings import complete, postgresql
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client, override_settings
from django_project.shop.models import Sale
from orders_django import elsewhere

from lockkit.testing.conformance.base import eventually
from lockkit.testing.servers import PostgresServer
from lockkit_django import locks
from lockkit_django.models import OrderRecord
from lockkit_django.orders.visit import order_rules

REPLAYED = "Idempotent-Replayed"
MIDDLEWARE = "lockkit_django.middleware.IdempotentOrderMiddleware"
AFTER_OURS = "django.middleware.gzip.GZipMiddleware"


@pytest.fixture(params=["prepared", "plain"])
def prepared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the connection has its statements prepared from the first order on."""
    after = {"prepared": 1, "often": 3, "plain": 10_000}[request.param]
    monkeypatch.setattr("lockkit.orders.psycopg.PREPARED_AFTER", after)
    return after == 1


@pytest.fixture(autouse=True)
def database(postgres_url: str, prepared: bool, django_db_blocker: Any) -> Iterator[Any]:
    """The alias ``orders``, migrated; it has the records and ATOMIC_REQUESTS."""
    connections.settings["orders"] = {
        **complete(postgresql(postgres_url)),
        "ATOMIC_REQUESTS": True,
        "CONN_MAX_AGE": None,
    }
    elsewhere.calls.clear()
    with django_db_blocker.unblock():
        connection = connections["orders"]
        call_command("migrate", "lockkit_django", database="orders", verbosity=0)
        with connection.schema_editor() as editor:
            editor.create_model(Sale)
        with project():
            yield connection
        connection.close()
    del connections["orders"]
    del connections.settings["orders"]


def project(*middleware: str, **settings: Any) -> Any:
    orders = {"PATHS": ["^/orders/"], "USING": "orders", **settings}
    return override_settings(
        ROOT_URLCONF="orders_django.elsewhere",
        MIDDLEWARE=[MIDDLEWARE, *middleware],
        LOCKKIT_ORDERS=orders,
    )


def buy(kind: str, order_id: str = "A-1", body: bytes = b"{}") -> Any:
    headers = {"Idempotency-Key": order_id, "Authorization": "Token a"}
    client = Client(raise_request_exception=False, headers=headers)
    return client.post(f"/orders/{kind}", body, "application/json")


def counts() -> tuple[int, int]:
    return Sale.objects.using("orders").count(), OrderRecord.objects.using("orders").count()


def as_another_process() -> None:
    """Which has not seen these orders."""
    order_rules.cache_clear()


@pytest.fixture
def said(database: Any) -> Callable[[Callable[[], Any]], list[str]]:
    """The messages that reach the server meanwhile: it tells how long each took."""
    heard: list[str] = []

    def note(notice: Any) -> None:
        heard.append(notice.message_primary.partition(" ms  statement: ")[2])

    def listen(work: Callable[[], Any]) -> list[str]:
        with database.cursor() as cursor:
            cursor.execute("SET client_min_messages = log")
            cursor.execute("SET log_min_duration_statement = 0")
        database.connection.add_notice_handler(note)
        heard.clear()
        work()
        database.connection.remove_notice_handler(note)
        return list(filter(None, heard))

    return listen


def test_a_first_order_is_as_many_messages_as_its_bare_view(said: Any, prepared: bool) -> None:
    buy("quick", "warm")
    with project(PATHS=["^/elsewhere/"]):
        assert [each.split()[0] for each in said(lambda: buy("quick"))] == [
            "BEGIN",
            "INSERT",
            "COMMIT",
        ]
    begin, sale, end = said(lambda: buy("quick"))
    assert begin.startswith("BEGIN;EXECUTE" if prepared else "BEGIN;INSERT INTO lockkit_order")
    assert sale.startswith("INSERT")
    assert end.startswith("EXECUTE") if prepared else "DO UPDATE SET" in end
    assert end.endswith(";COMMIT")
    (replay,) = said(lambda: buy("quick"))
    assert replay.startswith("EXECUTE" if prepared else "SELECT")


@pytest.mark.parametrize("kind", ["refuses", "refuses?status=429"])
def test_the_record_of_a_refusal_is_deleted_by_the_commit(kind: str, said: Any) -> None:
    *_, sale, end = said(lambda: buy(kind))
    assert sale.startswith("INSERT")
    assert end.startswith("DELETE FROM lockkit_order")
    assert end.endswith(";COMMIT")
    assert counts() == (1, 0)


often = pytest.mark.parametrize("prepared", ["often"], indirect=True)


def are_prepared(said: Callable[[Callable[[], Any]], list[str]], order_id: str) -> bool:
    """Whether this order, a new one, is sent as prepared statements, in the beginning and the end.
    If only the one or the other is, it fails."""
    sent = said(lambda: buy("quick", order_id))
    (both,) = {"EXECUTE lockkit_" in each for each in (sent[-3], sent[-1])}
    return both


@often
def test_a_connection_that_is_used_often_has_its_statements_prepared(said: Any) -> None:
    assert [are_prepared(said, f"A-{n}") for n in range(4)] == [False, False, True, True]
    assert [order.status_code for order in (buy("quick", "A-0"), buy("quick", "A-3"))] == [201] * 2
    assert counts() == (4, 4)


LOSSES = [
    "DISCARD ALL",
    "DEALLOCATE ALL",
    "ALTER TABLE lockkit_order ALTER order_id TYPE text",
    "ALTER TABLE lockkit_order ALTER headers TYPE jsonb USING headers::jsonb",
]


@often
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("meets_it", ["a first order", "a replay"])
def test_what_was_prepared_may_be_lost(loss: str, meets_it: str, said: Any, database: Any) -> None:
    """The connection goes on without."""
    for number in range(3):
        buy("quick", f"A-{number}")
    assert are_prepared(said, "A-3")
    with database.cursor() as cursor:
        cursor.execute(loss)
    if meets_it == "a replay" and "jsonb" not in loss:  # psycopg's texts of it differ
        assert [REPLAYED in buy("quick", f"A-{n}") for n in range(4)] == [True] * 4
    is_met = meets_it == "a replay" or "order_id" not in loss  # which only a look-up reads
    assert [are_prepared(said, f"B-{n}") for n in range(9)] == [not is_met] * 9
    assert counts() == (13, 13)


@often
def test_an_order_whose_end_meets_the_loss_is_the_only_one(said: Any, database: Any) -> None:
    """It is not made, and says so; a repeat makes it."""
    for number in range(4):
        buy("quick", f"A-{number}")
    with database.cursor() as cursor:
        cursor.execute("ALTER TABLE lockkit_order ALTER created TYPE numeric")
    failed = buy("quick", "B-1")
    assert (failed.status_code // 100, counts()) == (5, (4, 4))
    assert [buy("quick", f"B-{n}").status_code for n in range(1, 5)] == [201] * 4


@often
def test_replays_prepare_nothing(said: Any) -> None:
    """They only read. To prepare a write they would wait, as while an index is made."""
    buy("quick", "A-1")
    for _ in range(6):
        assert [each.split()[0] for each in said(lambda: buy("quick", "A-1"))] == ["SELECT"]


@often
def test_what_cannot_be_prepared_at_once_is_not(postgres_url: str, said: Any) -> None:
    """Somebody locks the table. The order waits for that, as without."""
    waits = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'BEGIN;%'"

    def end_soon(other: psycopg.Connection) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as watching:
            eventually(lambda: watching.execute(f"SELECT 1 {waits}").fetchone())
        other.commit()

    buy("quick", "A-0")
    buy("quick", "A-1")
    with psycopg.connect(postgres_url) as other, ThreadPoolExecutor() as threads:
        other.execute("LOCK TABLE lockkit_order IN SHARE MODE")
        ending = threads.submit(end_soon, other)
        assert buy("quick", "A-2").status_code == 201
        ending.result()
    assert [are_prepared(said, f"B-{n}") for n in range(4)] == [False] * 4


@often
def test_nothing_is_prepared_behind_a_transaction_pooler(
    postgres_server: PostgresServer, said: Any
) -> None:
    """It may have another connection to the server in the next transaction, and would keep what
    others have prepared in this one."""
    with BouncerServer(postgres_server, "transaction") as bouncer:
        port = {"PORT": bouncer.port}
        connections["orders"].close()
        connections["orders"].settings_dict |= port
        assert not any(are_prepared(said, f"A-{n}") for n in range(3))
        connections["orders"].close()


def test_where_psycopg_prepares_statements_nothing_else_does(said: Any) -> None:
    """It then deallocates all of them now and then, also within a transaction."""
    connections["orders"].connection.prepare_threshold = 0
    buy("quick", "A-0")
    begin, *_, end = said(lambda: buy("rolls-back-to-a-savepoint", "A-1"))
    assert begin.startswith("BEGIN;INSERT INTO lockkit_order")
    assert end.startswith("INSERT INTO lockkit_order")
    assert counts() == (2, 2)


def test_a_middleware_after_ours_has_the_view_in_a_savepoint(said: Any) -> None:
    buy("quick", "warm")
    with project(AFTER_OURS):
        words = [each.split()[0] for each in said(lambda: buy("quick"))]
    assert words[1:-1] == ["SAVEPOINT", "INSERT", "RELEASE"]


def test_a_process_that_has_not_seen_the_order_replays_it() -> None:
    first = buy("quick")
    as_another_process()
    again = buy("quick")
    assert (again.content, REPLAYED in again) == (first.content, True)
    as_another_process()
    assert buy("quick", body=b'{"n": 2}').status_code == 422
    as_another_process()
    OrderRecord.objects.using("orders").update(expires=1)
    assert REPLAYED not in buy("quick")
    assert (elsewhere.calls, counts()) == (["quick"] * 2, (2, 1))
    assert not list(locks["default"].holders())


def test_an_answer_that_is_stored_needs_no_lock() -> None:
    buy("quick")
    with override_settings(LOCKKIT={"default": "redis://127.0.0.1:1/0"}):
        as_another_process()
        assert REPLAYED in buy("quick")
        assert buy("quick", "B-1").json()["code"] == "order-store-unavailable"
    assert elsewhere.calls == ["quick"]


def test_without_locks_no_lock_store_is_asked(said: Any) -> None:
    nowhere = override_settings(LOCKKIT={"default": "redis://127.0.0.1:1/0"})
    with nowhere, project(LOCK="never"):
        buy("quick", "warm")
        assert len(said(lambda: buy("quick"))) == 3
        as_another_process()
        assert REPLAYED in buy("quick")
        assert buy("quick", body=b'{"n": 2}').status_code == 422
        assert buy("fenced", "B-1").status_code == 500  # it has no fencing token
        assert buy("commits", "C-1").json()["code"] == "order-store-unavailable"
    assert (elsewhere.calls, counts()) == (["quick"] * 2, (2, 2))


REFUSALS = [
    ("SET default_transaction_read_only = on", "read-only transaction"),
    ("SET ROLE pg_monitor", "permission denied"),
]


@pytest.mark.parametrize("kind", ["quick", "commits"])
@pytest.mark.parametrize(("sql", "words"), REFUSALS, ids=["read-only", "no grants"])
def test_a_server_that_is_up_and_refuses(
    sql: str, words: str, kind: str, database: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a fail-over to a standby, or under a role that may not use the table."""
    buy("quick", "expired")
    OrderRecord.objects.using("orders").update(expires=1)
    with database.cursor() as cursor:
        cursor.execute(sql)
    refused = buy(kind)
    assert (refused.status_code, refused.json()["code"]) == (503, "order-store-unavailable")
    assert "Retry-After" in refused
    with pytest.raises(CommandError) as ended:
        call_command("locks", "prune", "--database", "orders")
    assert ended.value.returncode == 1
    assert words in capsys.readouterr().err
    assert not list(locks["default"].holders())


@pytest.mark.parametrize("kind", ["idles", "idles-in-commit-in"])
def test_a_transaction_that_the_server_has_ended(kind: str) -> None:
    unknown = buy(kind)
    assert (unknown.status_code, unknown.json()["code"]) == (503, "order-outcome-unknown")
    assert counts() == (0, 0)


def test_an_error_that_the_view_hides_is_seen_under_atomic_requests() -> None:
    answers = [buy("swallows-in-request") for _ in range(2)]
    assert [answer.json()["code"] for answer in answers] == ["order-not-saved"] * 2
    assert counts() == (0, 0)


def test_a_view_that_ends_the_transaction_itself_saves_nothing() -> None:
    assert buy("ends-it").json()["code"] == "order-not-saved"
    assert counts() == (0, 0)


def test_records_change_in_their_place(database: Any) -> None:
    """The end of an order touches no index, and there is none that nobody asks for."""
    for number in range(50):
        buy("quick", f"A-{number}")
    with database.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables "
            "WHERE relname = 'lockkit_order'"
        )
        updated, hot = cursor.fetchone()
        cursor.execute("SELECT indexname FROM pg_indexes WHERE tablename = 'lockkit_order'")
        indexes = [name for (name,) in cursor.fetchall()]
    assert updated == 50
    assert hot > 40  # not where a page is full
    assert len(indexes) == 2, indexes
