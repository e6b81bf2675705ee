"""``manage.py locks prune``: expired records, a few in each transaction, and those only."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from lockkit.orders import table
from lockkit.orders.record import VERSION, is_damaged
from lockkit_django import locks
from lockkit_django.models import OrderRecord
from lockkit_django.operate.order_checks import check_records
from lockkit_django.orders.table import OrderTable

pytestmark = pytest.mark.django_db(transaction=True)


def prune(*argv: str, status: int = 0, **options: Any) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    options.update(stdout=out, stderr=err)
    if status == 0:
        call_command("locks", "prune", *argv, **options)
    else:
        with pytest.raises(CommandError) as ended:
            call_command("locks", "prune", *argv, **options)
        assert ended.value.returncode == status
    return out.getvalue(), err.getvalue()


def listing(*argv: str) -> str:
    out = io.StringIO()
    call_command("locks", *argv, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def record(key: str, *, left: float, version: int = VERSION) -> None:
    OrderRecord.objects.create(
        key=key,
        order_id=key,
        request="POST /orders/",
        fingerprint="2:x",
        state="done",
        status=201,
        headers="[]",
        body=b"",
        version=version,
        created=0,
        expires=int((time.time() + left) * 1_000_000),
    )


def test_only_what_has_expired() -> None:
    for number in range(7):
        record(f"old-{number}", left=-60)
    record("new", left=3600)
    record("of a newer release", left=-60, version=VERSION + 1)
    with CaptureQueriesContext(connection) as queries:
        assert prune("--batch", "3") == ("default: 7 expired order records deleted\n", "")
    deletes = [query["sql"] for query in queries if query["sql"].startswith("DELETE")]
    assert len(deletes) == 3
    left = OrderRecord.objects.order_by("key").values_list("key", flat=True)
    assert list(left) == ["new", "of a newer release"]
    assert prune("--database", "default")[0] == "default: 0 expired order records deleted\n"


@pytest.mark.parametrize("days", [-3, 3])
def test_the_clock_of_the_database_says_what_has_expired(
    days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's says something else here, as that of another host might."""
    record("old", left=-60)
    record("new", left=3600)
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + days * 86400)
    assert prune()[0] == "default: 1 expired order records deleted\n"
    assert OrderRecord.objects.get().key == "new"


def test_records_in_redis_expire_by_themselves() -> None:
    with override_settings(LOCKKIT_ORDERS={"PATHS": [], "STORE": "redis", "NAMESPACE": "shop"}):
        out, err = prune()
        assert (out, "in Redis, where they expire" in err, "python -m" in err) == ("", True, False)
        record("of before", left=-60)
        assert prune("--database", "default")[0] == "default: 1 expired order records deleted\n"


def test_a_project_without_orders_has_locks_to_list_and_nothing_to_prune() -> None:
    with override_settings(LOCKKIT_ORDERS=None):
        with pytest.raises(CommandError) as refused:
            prune()
        assert refused.value.returncode == 1
        assert listing() == ""


@pytest.mark.parametrize(
    "wrong",
    [{"ORPHANS": "perhaps"}, {"RETENTIONS": 5}, {"USING": "orderz"}],
    ids=["value", "key", "database"],
)
def test_with_wrong_settings_of_orders_the_locks_are_shown(wrong: dict[str, object]) -> None:
    with (
        override_settings(LOCKKIT_ORDERS={"PATHS": [], **wrong}),
        locks["default"].lock("stock:42").acquire(),
    ):
        assert "stock:42" in listing()
        _, err = prune(status=1)
    (line,) = err.splitlines()
    assert "locks: LOCKKIT_ORDERS" in line
    assert next(iter(wrong)) in line


@pytest.mark.parametrize("argv", [["--database", "nope"], ["--batch", "x"]])
def test_usage(argv: list[str]) -> None:
    with pytest.raises(CommandError) as refused:
        prune(*argv)
    assert refused.value.returncode == 2


class OfTheRequest:
    """A router that has an answer only while a request runs."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        raise AttributeError("no tenant")

    db_for_read = db_for_write


@override_settings(DATABASE_ROUTERS=[OfTheRequest()])
def test_a_router_that_needs_a_request() -> None:
    """It is asked only if no database is named, and its error is not the end of the command."""
    assert prune("--database", "default")[0] == "default: 0 expired order records deleted\n"
    assert "DATABASE_ROUTERS name no database" in prune(status=1)[1]
    (found,) = check_records()
    assert (found.id, "AttributeError" in found.msg) == ("lockkit.E110", True)


def test_a_database_that_fails_on_the_way() -> None:
    """What was deleted before is deleted, and said."""
    for number in range(4):
        record(f"old-{number}", left=-60)
    seen = []

    def fail(execute: Any, sql: str, *rest: Any) -> Any:
        seen.extend([sql] * sql.startswith("DELETE"))
        if len(seen) == 2:
            raise OperationalError("the disk is gone")
        return execute(sql, *rest)

    out, err = io.StringIO(), io.StringIO()
    with connection.execute_wrapper(fail), pytest.raises(CommandError) as failed:
        call_command("locks", "prune", "--batch", "2", stdout=out, stderr=err)
    assert failed.value.returncode == 69
    assert out.getvalue() == "default: 2 expired order records deleted\n"
    assert "database default:" in err.getvalue()
    with transaction.atomic():
        assert OrderRecord.objects.count() == 2


DAMAGES = [
    *(("expires", "never"), ("expires", 1e400), ("body", "text")),  # which SQLite keeps
    ("state", "gone"),
    ("fingerprint", "x"),
    *(("headers", value) for value in ("[[1", "[1]", '[["a"]]', "[x]")),
    *(("headers", f'[["Location", "/a{end}Set-Cookie: b"]]') for end in ("\\n", "\\r")),
    *(("status", value) for value in (9999, 99, 50, 0)),
    ("status", "many"),
]


@pytest.mark.parametrize(("column", "value"), DAMAGES)
def test_a_record_that_cannot_be_read(column: str, value: object) -> None:
    """It is told and stays, whatever its time; an operator may delete it, and no other."""
    record("a" * 64, left=3600)
    record("b" * 64, left=3600)
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA ignore_check_constraints = 1")
        sql = f"UPDATE lockkit_order SET {column} = %s WHERE key = %s"
        cursor.execute(sql, [value, "a" * 64])
        cursor.execute("PRAGMA ignore_check_constraints = 0")
    found = OrderTable("default").find("a" * 64, fresh=True)
    assert found is not None
    assert is_damaged(found)
    out, err = prune(status=3)
    assert out == "default: 0 expired order records deleted\n"
    advice = f"locks prune --database default --unreadable order:{'a' * 64}"
    assert advice in err
    assert "b" * 64 not in err
    with pytest.raises(CommandError):
        prune("--unreadable", "b" * 64, "--yes")
    assert prune("--unreadable", f"order:{'a' * 64}", "--yes")[0].endswith("deleted\n")
    assert OrderRecord.objects.get().key == "b" * 64


def test_the_table_is_read_in_pages_and_without_bodies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "PAGE", 10)
    for number in range(25):
        record(f"{number:064}", left=3600)
    OrderRecord.objects.filter(key=f"{24:064}").update(status=50)
    with CaptureQueriesContext(connection) as queries:
        assert list(OrderTable("default").unreadable()) == [f"{24:064}"]
    read = [query["sql"] for query in queries if "lockkit_order" in query["sql"]]
    assert len(read) == 3
    assert all(sql.endswith("LIMIT 10") and "SUBSTR(body, 1, 0)" in sql for sql in read)


def test_texts_that_cannot_be_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite keeps any bytes as a text. They hide no other record, and can be repaired."""
    monkeypatch.setattr(table, "PAGE", 1)
    for key in "abcd":
        record(key * 64, left=3600)
    with connection.cursor() as cursor:
        for column, key in (("headers", "a"), ("key", "b")):
            sql = f"UPDATE lockkit_order SET {column} = CAST(x'ff' AS TEXT) WHERE key = %s"
            cursor.execute(sql, [key * 64])
        cursor.execute("UPDATE lockkit_order SET state = x'646f6e65' WHERE key = %s", ["c" * 64])
    assert unreadable() == ["a" * 64, "c" * 64, "\ufffd"]
    assert prune("--unreadable", f"order:{'a' * 64}", "--yes")[0].endswith("deleted\n")
    assert unreadable() == ["c" * 64, "\ufffd"]


def unreadable() -> list[str]:
    """The keys that ``prune`` tells of, in the order of the table."""
    return [line.rpartition(" --unreadable order:")[2] for line in prune(status=3)[1].splitlines()]
