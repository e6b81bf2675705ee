"""``FencedModel``: rows that a holder cannot write after a later one has."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.db.models import F
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django_project.shop.models import Stock

from lockkit.client import Lease
from lockkit.errors import ConfigurationError, LeaseLost
from lockkit_django import locks

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def stock() -> None:
    Stock.objects.create(sku="a", count=10)
    Stock.objects.create(sku="b", count=10)


def count(sku: str) -> int:
    return Stock.objects.get(sku=sku).count


def test_an_update_is_one_statement_with_the_condition(later: Lease) -> None:
    with CaptureQueriesContext(
        connection,
    ) as queries:
        rows = Stock.objects.fenced(later).filter(sku="a", count__gt=0)
        assert rows.update(count=F("count") - 1) == 1
    updates = [query["sql"] for query in queries if query["sql"].startswith("UPDATE")]
    assert len(updates) == 1
    assert f'"fence" <= {later.fencing_token}' in updates[0]
    assert count("a") == 9


def test_a_stale_holder_is_refused(stale: Lease, later: Lease) -> None:
    Stock.objects.fenced(stale).filter(sku="a").update(count=F("count") - 1)
    Stock.objects.fenced(later).filter(sku="a").update(count=F("count") - 1)
    with pytest.raises(LeaseLost):
        Stock.objects.filter(sku="a").fenced(stale).update(count=F("count") - 1)
    assert count("a") == 8


def test_all_or_nothing_is_written(stale: Lease, later: Lease) -> None:
    Stock.objects.fenced(later).filter(sku="b").update(count=0)
    for write in ("update", "delete"):
        with pytest.raises(LeaseLost):
            getattr(Stock.objects.fenced(stale), write)(**{"count": 5} if write == "update" else {})
        assert (count("a"), count("b")) == (10, 0)
    with pytest.raises(LeaseLost), transaction.atomic():
        Stock.objects.fenced(stale).bulk_update(
            [Stock(pk=pk, count=7) for pk in Stock.objects.values_list("pk", flat=True)], ["count"]
        )
    assert (count("a"), count("b")) == (10, 0)


def test_the_later_holder_deletes(later: Lease) -> None:
    assert Stock.objects.fenced(later).filter(sku="a").delete()[0] == 1
    assert not Stock.objects.filter(sku="a").exists()


def test_no_row_is_no_loss(later: Lease) -> None:
    assert Stock.objects.fenced(later).filter(sku="c").update(count=0) == 0


def test_a_lost_lease_writes_nothing(later: Lease) -> None:
    later.release()
    with pytest.raises(LeaseLost):
        Stock.objects.fenced(later).update(count=0)
    assert count("a") == 10


def test_a_lease_that_is_shared_is_refused() -> None:
    with locks["default"].semaphore("stock", 2, in_atomic="allow").acquire() as permit:
        for write in (Stock.objects.fenced(permit).update, Stock.objects.fenced(permit).delete):
            with pytest.raises(ConfigurationError, match="shared"):
                write()
    assert count("a") == 10


def test_without_a_lease_it_is_a_plain_model(stale: Lease, later: Lease) -> None:
    Stock.objects.fenced(later).update(count=3)
    assert Stock.objects.update(count=4) == 2
    assert Stock.objects.filter(sku="a").delete()[0] == 1


class Replica:
    """Reads elsewhere; that is not there, so who asks it fails."""

    def db_for_read(self, model: object, **hints: object) -> str:
        return "replica"

    def db_for_write(self, model: object, **hints: object) -> str:
        return "default"


def test_the_check_is_made_where_it_writes(stale: Lease, later: Lease) -> None:
    with override_settings(DATABASE_ROUTERS=[Replica()]):
        assert Stock.objects.fenced(later).filter(sku="b").update(count=0) == 1
        for write in (lambda rows: rows.update(count=5), lambda rows: rows.delete()):
            with pytest.raises(LeaseLost):
                write(Stock.objects.fenced(stale))
    assert (count("a"), count("b")) == (10, 0)


CREATES = {
    "create": lambda rows, **values: rows.create(**values),
    "get_or_create": lambda rows, **values: rows.get_or_create(defaults=values, sku="c"),
    "bulk_create": lambda rows, **values: rows.bulk_create(iter([Stock(**values)])),
    "acreate": lambda rows, **values: async_to_sync(rows.acreate)(**values),
    "aget_or_create": lambda rows, **values: async_to_sync(rows.aget_or_create)(values, sku="c"),
    "abulk_create": lambda rows, **values: async_to_sync(rows.abulk_create)([Stock(**values)]),
}


@pytest.mark.parametrize("create", CREATES)
def test_what_it_creates_has_its_token(create: str, stale: Lease, later: Lease) -> None:
    CREATES[create](Stock.objects.fenced(later), sku="c", count=10)
    with pytest.raises(LeaseLost):
        Stock.objects.fenced(stale).filter(sku="c").update(count=5)
    assert count("c") == 10


@pytest.mark.parametrize("create", CREATES)
def test_a_lost_lease_creates_nothing(create: str, later: Lease) -> None:
    later.release()
    with pytest.raises(LeaseLost):
        CREATES[create](Stock.objects.fenced(later), sku="c", count=10)
    assert not Stock.objects.filter(sku="c").exists()


def test_without_a_lease_it_creates_for_everybody(later: Lease) -> None:
    for create in CREATES.values():
        create(Stock.objects.all(), sku="c", count=10)
        assert Stock.objects.filter(sku="c", fence=0).delete()[0] == 1


UPSERT: dict[str, Any] = {
    "update_conflicts": True,
    "unique_fields": ["sku"],
    "update_fields": ["count"],
}
OVERWRITES = {
    "update_or_create": lambda rows: rows.update_or_create({"count": 5}, sku="a"),
    "bulk_create": lambda rows: rows.bulk_create([Stock(sku="a", count=5)], **UPSERT),
    "aupdate_or_create": lambda rows: async_to_sync(rows.aupdate_or_create)({"count": 5}, sku="a"),
    "abulk_create": lambda rows: async_to_sync(rows.abulk_create)(
        [Stock(sku="a", count=5)], **UPSERT
    ),
}


@pytest.mark.parametrize("write", OVERWRITES)
def test_what_would_write_over_a_row_is_refused_by_name(write: str, later: Lease) -> None:
    with pytest.raises(ConfigurationError, match=f"{write.removeprefix('a')}.* cannot be fenced"):
        OVERWRITES[write](Stock.objects.fenced(later))
    assert count("a") == 10
    OVERWRITES[write](Stock.objects.all())
    assert count("a") == 5


def test_all_rows_are_deleted_only_by_name() -> None:
    """As of every manager of Django's: ``objects.all().delete()``."""
    assert not hasattr(Stock.objects, "delete")
