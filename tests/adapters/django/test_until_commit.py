"""``until="commit"``: a lock inside a transaction is held until that has ended, and no longer."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Timer
from typing import Any
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, OperationalError, connections, transaction
from django_project.servers import KINDS, place
from django_project.shop.models import Sale
from django_project.spy import SpyBackend
from garbage import collected, unreleased
from interrupting import Interrupting
from orders_django import mysql

import lockkit
from lockkit.model.errors import (
    ConfigurationError,
    KindMismatch,
    LeaseLost,
    LockHeld,
    UpgradeRefused,
)
from lockkit_django import OpenTransaction, alocks, locked, locks

__all__ = ["mysql"]

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture(params=KINDS)
def using(request: pytest.FixtureRequest) -> Iterator[str]:
    with place(request, Sale) as alias:
        yield alias


@pytest.fixture
def seen(using: str) -> list[int]:
    """The sales that another connection sees at the instant of each release."""
    found: list[int] = []

    def look() -> int:
        try:
            return Sale.objects.using(using).count()
        finally:
            connections.close_all()

    def observe(event: str, _: str) -> None:
        if event == "release":
            with ThreadPoolExecutor(1) as other:
                found.append(other.submit(look).result())

    SpyBackend.observers.append(observe)
    return found


def sell(using: str, name: str = "stock:42") -> lockkit.Lease:
    """A service deep in the code, which does not know who has called it."""
    with locks["default"].lock(name, timeout=0, until="commit") as lease:
        Sale.objects.using(using).create(sku=name)
        return lease


def fail() -> None:
    raise ZeroDivisionError


def is_free(name: str = "stock:42") -> bool:
    return locks["default"].inspect(name) is None


def hooks(using: str) -> set[str]:
    return {*vars(connections[using])} & {"commit", "rollback", "close", "savepoint_commit"}


def test_it_is_held_until_the_commit(using: str, seen: list[int]) -> None:
    assert not hooks(using)
    with transaction.atomic(using):
        lease = sell(using)
        assert not lease.released
        assert hooks(using)
        with pytest.raises(LockHeld):
            locks["default"].lock("stock:42", timeout=0, in_atomic="allow").acquire()
    assert seen == [1]
    assert lease.released
    assert not hooks(using)


def test_only_the_end_of_the_outermost_block_counts(using: str, seen: list[int]) -> None:
    with transaction.atomic(using):
        with transaction.atomic(using):
            sell(using)
        assert not is_free()
        with suppress(ZeroDivisionError), transaction.atomic(using):
            sell(using, "stock:43")
            fail()
        assert not is_free("stock:43")
    assert seen == [1, 1]
    assert is_free()


@pytest.mark.parametrize("how", ["raise", "set-rollback"])
def test_a_rollback_gives_it_back(how: str, using: str, seen: list[int]) -> None:
    with suppress(ZeroDivisionError), transaction.atomic(using):
        sell(using)
        if how == "raise":
            fail()
        transaction.set_rollback(True, using)
    assert (seen, is_free(), hooks(using)) == ([0], True, set())
    Sale.objects.using(using).create(sku="the connection works")


def test_a_closed_connection_gives_it_back(using: str, seen: list[int]) -> None:
    with transaction.atomic(using):
        sell(using)
        connections[using].close()
        assert is_free()
    assert seen == [0]
    assert not hooks(using)


def test_after_its_connection_is_closed_a_block_keeps_none(using: str) -> None:
    with transaction.atomic(using):
        connections[using].close()
        with locks["default"].lock("stock:42", until="commit") as lease:
            pass
        assert lease.released
    assert not hooks(using)


KILL = {
    "postgresql": "SELECT pg_terminate_backend({})",
    "mysql": "KILL {}",
}
WHO = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}


@pytest.mark.parametrize("using", [*KILL, "psycopg2"], indirect=True)
def test_a_lost_connection_gives_it_back(using: str, seen: list[int]) -> None:
    vendor = connections[using].vendor

    def execute(query: str, result: bool = True) -> Any:
        with connections[using].cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0] if result else None

    def kill(who: int) -> None:
        try:
            execute(KILL[vendor].format(who), result=False)
        finally:
            connections.close_all()

    @transaction.atomic(using)
    def lose_it() -> None:
        sell(using)
        with ThreadPoolExecutor(1) as other:
            other.submit(kill, execute(WHO[vendor])).result()
        execute("SELECT 1")

    with pytest.raises(DatabaseError):
        lose_it()
    assert seen == [0]
    assert (is_free(), hooks(using)) == (True, set())


def test_without_a_transaction_it_is_a_lock_like_others(using: str, seen: list[int]) -> None:
    assert sell(using).released
    with locks["default"].lock("a", until="commit") as lease, transaction.atomic(using):
        Sale.objects.using(using).create(sku="x")
    assert lease.released
    assert seen == [1, 2]
    assert not hooks(using)


def test_with_autocommit_off_it_is_held_until_commit_or_rollback(using: str) -> None:
    connection = connections[using]
    connection.set_autocommit(False)
    for end in ("commit", "rollback"):
        sell(using)
        with transaction.atomic(using):
            sell(using, "stock:43")
        if connection.vendor != "postgresql":  # psycopg refuses it
            connection.set_autocommit(False)  # as it was
            connection.set_autocommit(autocommit=False)
        assert not is_free("stock:43")
        getattr(connection, end)()
        assert is_free()
        assert is_free("stock:43")
        assert not hooks(using)
    connection.set_autocommit(True)


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_without_autocommit_it_is_held_though_nothing_was_connected(
    end: str, using: str, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new thread, the default database has no connection yet."""

    def in_a_thread() -> tuple[bool, bool]:
        try:
            lease = sell(using)
            before = lease.released
            getattr(connections[using], end)()
            return before, lease.released
        finally:
            connections.close_all()

    monkeypatch.setitem(connections.settings[using], "AUTOCOMMIT", False)
    monkeypatch.setattr("lockkit_django.leases.until.DEFAULT_DB_ALIAS", using)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(in_a_thread).result() == (False, True)
    assert seen == [end == "commit"]


def test_without_autocommit_a_database_that_is_down_fails_no_lock(
    using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program may not need it now, and nothing waits for a COMMIT there."""

    def in_a_thread() -> bool:
        with locks["default"].lock("a", until="commit") as lease:
            pass
        return lease.released

    monkeypatch.setitem(connections.settings[using], "AUTOCOMMIT", False)
    monkeypatch.setattr("lockkit_django.leases.until.DEFAULT_DB_ALIAS", using)
    monkeypatch.setattr(type(connections[using]), "connect", Mock(side_effect=OperationalError))
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(in_a_thread).result()


def test_the_same_transaction_asks_for_it_twice(using: str, seen: list[int]) -> None:
    with transaction.atomic(using):
        assert sell(using) is sell(using)
        assert list(locks["default"].multi("stock:41", "stock:42", until="commit").acquire())
    assert seen == [2, 2]


def ask(kind: str, **options: Any) -> lockkit.Lease:
    multi = locks["default"].multi("a", kind=kind, timeout=0, until="commit", **options)
    return multi.acquire()["a"]


@pytest.mark.parametrize("using", ["sqlite"], indirect=True)
def test_what_is_held_already_is_given_only_for_the_same(using: str) -> None:
    with transaction.atomic(using):
        ask("read")
        with pytest.raises(UpgradeRefused):
            ask("write")
    with transaction.atomic(using):
        assert ask("write") is ask("write") is ask("read")
    with transaction.atomic(using):
        assert ask("semaphore", permits=3) is ask("semaphore", permits=3)
        with pytest.raises(KindMismatch):
            ask("mutex")
    with transaction.atomic(using):
        ask("reentrant", owner="x")
        with pytest.raises(LockHeld):
            ask("reentrant", owner="y")
    assert is_free("a")


@pytest.mark.parametrize("using", ["sqlite"], indirect=True)
def test_of_several_it_keeps_all_or_none(using: str) -> None:
    several = locks["default"].multi("a", "b", "c", until="commit", timeout=0)
    with locks["default"].lock("c"), transaction.atomic(using):
        sell(using, "a")
        assert several.try_acquire() is None
        assert (is_free("a"), is_free("b")) == (False, True)
    assert is_free("a")


@pytest.mark.parametrize("using", ["sqlite"], indirect=True)
def test_one_that_it_keeps_and_loses_before_it_has_all_leaves_it_no_other(using: str) -> None:
    several = locks["default"].multi("a", "b", "c", until="commit", timeout=0)

    @transaction.atomic(using)
    def lose_it() -> None:
        kept = sell(using, "a")
        SpyBackend.observers.append(lambda *told: told == ("grant", "c") and kept._hold.lose())
        with pytest.raises(LeaseLost, match="'a' is lost"):
            several.acquire()
        assert (is_free("b"), is_free("c")) == (True, True)

    with pytest.raises(LeaseLost, match="'a' is lost"):
        lose_it()
    assert not Sale.objects.using(using).exists()


@pytest.mark.parametrize("using", ["postgresql"], indirect=True)
def test_of_several_transactions_the_last_one_releases_it(using: str) -> None:
    later = connections["default"]
    with transaction.atomic(using):
        sell(using)
        later.set_autocommit(False)
        sell(using)
    assert not is_free()
    later.rollback()
    assert is_free()
    later.set_autocommit(True)


@pytest.mark.django_db(databases="__all__")
@pytest.mark.parametrize("using", ["sqlite"], indirect=True)
def test_in_a_testcase_a_block_without_a_savepoint_ends_with_the_next_lock(using: str) -> None:
    with transaction.atomic(using, savepoint=False):
        sell(using)
    with transaction.atomic(using):
        with transaction.atomic(using):
            lease = sell(using)
        assert not lease.released
    assert is_free()


@pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("using", ["sqlite"], indirect=True)
def test_interrupted_anywhere_it_leaves_nothing_behind(using: str) -> None:
    places = iter(range(1, 10_000))
    interrupts = Interrupting(0)
    while interrupts.places >= (at := next(places)) - 1:
        with Interrupting(at) as interrupts, transaction.atomic(using):
            sell(using)
        assert not hooks(using), interrupts.where
        assert connections[using].get_autocommit()
        for info in locks["default"].holders():  # the store was not told, so it is to expire
            assert info.fence is not None
            locks["default"].break_(info.name, fence=info.fence)
        Sale.objects.using(using).all().delete()
        with transaction.atomic(using):
            sell(using)
        assert is_free(), interrupts.where
    for lease in unreleased():  # that an exception may still refer to
        lease.release()
    collected()  # what an interrupt has left without a name is told here, and not in another test


@pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("using", ["sqlite"], indirect=True)
def test_interrupted_while_it_is_given_back_it_expires(using: str) -> None:
    """Though it is still referred to."""
    leases: list[lockkit.Lease] = []

    def sell_until(at: int) -> Interrupting:
        with Interrupting(at) as interrupts, transaction.atomic(using):
            lock = locks["default"].lock(f"stock:{at}", ttl=3, until="commit")
            leases.append(lock.acquire())
        return interrupts

    places = min(sell_until(0).places for _ in range(4))  # now and then it comes to more
    interrupted = [sell_until(at).where for at in range(places - 200, places)]
    assert any("in _Outermost.give_back" in where for where in interrupted)
    for lease in leases:
        locks["default"].lock(lease.name, timeout=30).acquire().release()
        lease.release()


def test_a_lost_lease_is_no_commit(using: str) -> None:
    @transaction.atomic(using)
    def lose_it() -> None:
        lease = sell(using)
        locks["default"].break_("stock:42", fence=lease.fencing_token)
        with suppress(LeaseLost):
            lease.extend()

    with pytest.raises(LeaseLost):
        lose_it()
    assert Sale.objects.using(using).count() == 0
    assert not hooks(using)
    Sale.objects.using(using).create(sku="the connection works")


@pytest.mark.parametrize("using", ["sqlite", "mysql"], indirect=True)
def test_a_lost_lease_is_no_commit_by_switching_autocommit_on_either(using: str) -> None:
    connections[using].set_autocommit(False)
    lease = sell(using)
    locks["default"].break_("stock:42", fence=lease.fencing_token)
    with suppress(LeaseLost):
        lease.extend()
    with pytest.raises(LeaseLost):
        connections[using].set_autocommit(True)
    connections[using].set_autocommit(True)
    assert Sale.objects.using(using).count() == 0
    assert not hooks(using)


def test_locked_may_be_called_inside_a_transaction(using: str, seen: list[int]) -> None:
    @locked("stock:{sku}", until="commit")
    def deduct(sku: str) -> None:
        Sale.objects.using(using).create(sku=sku)

    with transaction.atomic(using):
        deduct("42")
        assert not is_free()
    deduct("43")
    assert seen == [1, 2]


@pytest.fixture
def at_level(using: str) -> Iterator[Callable[[str], None]]:
    """Sets the isolation level of the next transaction, before its first statement."""
    connection = connections[using]

    def change(level: str) -> None:
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(
                    f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}"
                )
            else:
                cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")

    yield change
    change("READ COMMITTED")


@pytest.mark.parametrize("using", ["postgresql", "psycopg2", "mysql"], indirect=True)
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_that_is_older_than_the_grant_is_refused(
    level: str, using: str, at_level: Callable[[str], None]
) -> None:
    at_level(level)
    with transaction.atomic(using):
        assert Sale.objects.using(using).count() == 0
        with pytest.raises(OpenTransaction, match="READ COMMITTED"):
            sell(using)
        assert is_free()
    with transaction.atomic(using):  # nothing was read yet
        sell(using)
        sell(using, "stock:42")  # kept already
    assert Sale.objects.using(using).count() == 2


@pytest.mark.parametrize("using", ["mysql"], indirect=True)
def test_mysql_does_not_tell_that_nothing_was_read_yet(
    using: str, at_level: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB stands in for it, and has another name for the level."""

    def translated(execute: Any, sql: str, *args: Any) -> Any:
        return execute(sql.replace("@@transaction_isolation", "@@tx_isolation"), *args)

    monkeypatch.setattr(connections[using], "mysql_is_mariadb", False)
    at_level("REPEATABLE READ")
    with connections[using].execute_wrapper(translated):
        with transaction.atomic(using), pytest.raises(OpenTransaction, match="READ COMMITTED"):
            sell(using)
        at_level("READ COMMITTED")
        with transaction.atomic(using):
            sell(using)
    assert Sale.objects.using(using).count() == 1


@pytest.mark.parametrize("using", ["postgresql", "psycopg2", "mysql"], indirect=True)
def test_read_committed_sees_what_the_last_holder_has_committed(using: str) -> None:
    def elsewhere() -> None:
        try:
            sell(using)
        finally:
            connections.close_all()

    with transaction.atomic(using):
        assert Sale.objects.using(using).count() == 0
        with ThreadPoolExecutor(1) as other:
            other.submit(elsewhere).result()
        with locks["default"].lock("stock:42", until="commit"):
            assert Sale.objects.using(using).count() == 1


@pytest.mark.parametrize("using", ["sqlite"], indirect=True)
def test_sqlite_refuses_a_transaction_that_has_read_before_somebody_committed(
    using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere() -> None:
        try:
            Sale.objects.create(sku="x")
        finally:
            connections.close_all()

    connections[using].ensure_connection()
    monkeypatch.setattr(connections[using], "transaction_mode", "DEFERRED")
    with transaction.atomic(using):
        assert Sale.objects.count() == 0
        with ThreadPoolExecutor(1) as other:
            other.submit(elsewhere).result()
        with pytest.raises(OpenTransaction, match="IMMEDIATE"):
            sell(using)
        assert is_free()
    with transaction.atomic(using):
        assert Sale.objects.count() == 1
        sell(using)
    assert Sale.objects.count() == 2


@pytest.mark.parametrize("using", ["sqlite"], indirect=True)
def test_sqlite_waits_for_a_writer_if_the_transaction_has_read_nothing(
    using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connections[using]
    connection.ensure_connection()
    monkeypatch.setattr(connection, "transaction_mode", "DEFERRED")
    writer = sqlite3.connect(connection.settings_dict["NAME"], check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    with transaction.atomic(using):
        Timer(0.3, writer.close).start()
        sell(using)
    assert Sale.objects.count() == 1


def test_what_it_is_not_for() -> None:
    with pytest.raises(ConfigurationError, match="'commit'"):
        locks["default"].lock("a", until="rollback")  # type: ignore[call-overload,arg-type]
    with lockkit.connect("memory://") as client, pytest.raises(ConfigurationError, match="until"):
        client.lock("a", until="commit")  # type: ignore[call-arg]

    async def in_loop() -> None:
        alocks["default"].lock("a", until="commit")  # type: ignore[call-arg]

    with pytest.raises(ConfigurationError, match="sync_to_async"):
        locked("a", until="commit")(in_loop)
    with pytest.raises(ConfigurationError, match="sync_to_async"):
        async_to_sync(in_loop)()
