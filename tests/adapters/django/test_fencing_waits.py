"""A stale holder whose write waits for a later one's transaction, on PostgreSQL and MariaDB."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models import Count, F
from django_project.servers import database_of
from django_project.shop.models import ChilledPallet, Pallet, Stock, Supplier
from orders_django import mysql

from lockkit.leases.client import Lease
from lockkit.model.errors import LeaseLost

__all__ = ["mysql"]

SECONDS = 30.0
MODELS = (Stock, Supplier, Pallet, ChilledPallet)
WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT variable_value FROM information_schema.global_status"
    " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
}

FROM_ULM: dict[str, object] = {"supplier__city": "Ulm"}

WRITES: dict[str, Callable[[Lease], object]] = {
    "plain": lambda lease: stock(lease).update(count=99),
    "plain-delete": lambda lease: stock(lease).delete(),
    "many": lambda lease: stock(lease).bulk_update(changed(), ["count"]),
    "subquery": lambda lease: stock(lease).filter(pk__in=stock(lease).values("pk")).delete(),
    "join": lambda lease: pallets(lease).filter(**FROM_ULM).update(count=99),
    "join-delete": lambda lease: pallets(lease).filter(**FROM_ULM).delete(),
    "annotated": lambda lease: pallets(lease).annotate(city=F("supplier__city")).update(count=99),
    "grouped": lambda lease: shared(lease).filter(others=1).update(count=99),
    "distinct": lambda lease: pallets(lease).filter(**FROM_ULM).distinct().update(count=99),
    "cascade": lambda lease: pallets(lease).delete(),
    "inherited": lambda lease: chilled(lease).update(count=99, degrees=99),
    "inherited-delete": lambda lease: chilled(lease).delete(),
}


def stock(lease: Lease) -> Any:
    return Stock.objects.using("fenced").fenced(lease)


def pallets(lease: Lease) -> Any:
    return Pallet.objects.using("fenced").fenced(lease)


def chilled(lease: Lease) -> Any:
    return ChilledPallet.objects.using("fenced").fenced(lease)


def shared(lease: Lease) -> Any:
    return pallets(lease).annotate(others=Count("supplier__pallet"))


def changed() -> list[Stock]:
    rows = [*Stock.objects.using("fenced")]
    for row in rows:
        row.count = 99
    return rows


@pytest.fixture(scope="module", params=["postgres_server", "mariadb_server"])
def database(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[Any]:
    """The alias ``fenced``, with a table of each model."""
    server = request.getfixturevalue(request.param)
    with django_db_blocker.unblock(), database_of(server, "fenced", *MODELS) as connection:
        yield connection


@pytest.fixture(autouse=True)
def rows(database: Any) -> Iterator[None]:
    ulm = Supplier.objects.using("fenced").create(city="Ulm")
    Stock.objects.using("fenced").create(sku="a", count=10)
    ChilledPallet.objects.using("fenced").create(supplier=ulm, count=10, degrees=10)
    yield
    for model in (Stock, Supplier):
        model._default_manager.using("fenced").all().delete()


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Future[Any]]]:
    """Calls a function in a thread of its own, and so by a connection of its own."""

    def work(function: Callable[..., object], *args: object) -> object:
        try:
            return function(*args)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        yield lambda *args: pool.submit(work, *args)


def sell(lease: Lease) -> None:
    stock(lease).update(count=1)
    chilled(lease).update(count=1, degrees=1)


def what_is_left() -> list[Any]:
    return [
        *Stock.objects.using("fenced").values_list("count", flat=True),
        *ChilledPallet.objects.using("fenced").values_list("count", "degrees"),
    ]


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def waits(connection: Any) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(WAITING[connection.vendor])
        return int(cursor.fetchone()[0]) > 0


@pytest.mark.parametrize("write", WRITES)
def test_what_a_later_holder_was_writing_meanwhile_stays(
    write: str, database: Any, stale: Lease, later: Lease, elsewhere: Any
) -> None:
    with transaction.atomic("fenced"):
        sell(later)
        written = elsewhere(WRITES[write], stale)
        until(lambda: waits(database) or written.done())
        assert not written.done()
    with pytest.raises(LeaseLost):
        written.result(SECONDS)
    assert what_is_left() == [1, (1, 1)]


SAVES: dict[str, Callable[[Any], object]] = {
    "save": lambda row: row.save(),
    "save-update-fields": lambda row: row.save(update_fields=["count", "fence"]),
    "bulk-update": lambda row: (
        type(row).objects.using("fenced").bulk_update([row], ["count", "fence"])
    ),
}


@pytest.mark.parametrize(
    "how", [(model, save) for model in (Stock, ChilledPallet) for save in SAVES]
)
def test_a_save_that_waits_for_a_later_holder_does_not_lower_the_fence(
    how: tuple[Any, str], database: Any, stale: Lease, later: Lease, elsewhere: Any
) -> None:
    """Only the UPDATE itself can know what that holder commits meanwhile."""
    model, save = how
    old = model.objects.using("fenced").get()
    with transaction.atomic("fenced"):
        sell(later)
        saved = elsewhere(SAVES[save], old)
        until(lambda: waits(database) or saved.done())
        assert not saved.done()
    saved.result(SECONDS)
    assert model.objects.using("fenced").get().fence == later.fencing_token
    with pytest.raises(LeaseLost):
        model.objects.using("fenced").fenced(stale).update(count=1000)


@pytest.mark.parametrize("database", ["mariadb_server"], indirect=True)
@pytest.mark.parametrize("write", ["plain", "plain-delete", "join"])
def test_a_snapshot_does_not_hide_a_later_holder(
    write: str, database: Any, stale: Lease, later: Lease, elsewhere: Any
) -> None:
    """PostgreSQL refuses such a write by itself."""
    with database.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with transaction.atomic("fenced"):
        assert what_is_left() == [10, (10, 10)]
        elsewhere(sell, later).result(SECONDS)
        assert what_is_left() == [10, (10, 10)]
        with pytest.raises(LeaseLost):
            WRITES[write](stale)
    assert what_is_left() == [1, (1, 1)]


@pytest.mark.parametrize("database", ["postgres_server"], indirect=True)
def test_an_update_holds_up_nobody_who_refers_to_the_row(later: Lease, elsewhere: Any) -> None:
    """Nor would it without a fence. In MariaDB it does, with and without."""
    supplier = Supplier.objects.using("fenced").get()
    pallet = Pallet.objects.using("fenced").create(supplier=supplier, count=10)
    chill = ChilledPallet(pallet_ptr=pallet, degrees=1).save_base
    with transaction.atomic("fenced"):
        assert pallets(later).filter(pk=pallet.pk, **FROM_ULM).update(count=9) == 1
        elsewhere(lambda: chill(raw=True, using="fenced")).result(SECONDS)


@pytest.mark.parametrize("write", WRITES)
def test_the_later_holder_writes(write: str, later: Lease) -> None:
    WRITES[write](later)
    assert what_is_left() != [10, (10, 10)]


def test_as_many_as_have_no_room_in_one_statement(
    database: Any, later: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Oracle, and 65 535 parameters."""
    monkeypatch.setattr(database.ops, "bulk_batch_size", lambda fields, rows: 2)
    lyon = Supplier.objects.using("fenced").create(city="Lyon")
    for _ in range(5):
        ChilledPallet.objects.using("fenced").create(supplier=lyon, count=10, degrees=10)
    rows = pallets(later).filter(supplier__city="Lyon")
    assert rows.update(count=F("count") - 1) == 5
    assert {*rows.values_list("count", flat=True)} == {9}
    assert rows.delete() == (10, {"shop.Pallet": 5, "shop.ChilledPallet": 5})
    assert rows.delete() == (0, {})
    assert pallets(later).count() == 1
