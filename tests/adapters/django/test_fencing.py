"""``FencedModel``: rows that a holder cannot write after a later one has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.db.models import F, QuerySet
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django_project.shop.models import Stock

from lockkit.leases.client import Lease
from lockkit.model.errors import ConfigurationError, LeaseLost
from lockkit_django import locks

pytestmark = pytest.mark.django_db

Combined = Callable[[Any, Any], Any]


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


def test_a_token_is_put_on_the_row_before_it_is_read(stale: Lease, later: Lease) -> None:
    assert Stock.objects.fenced(later).filter(sku="a").update() == 1
    with pytest.raises(LeaseLost):
        Stock.objects.fenced(stale).filter(sku="a").update(count=9)
    assert count("a") == 10


COMBINED: dict[str, Combined] = {
    "or": lambda rows, fenced: rows | fenced,
    "or-fenced-first": lambda rows, fenced: fenced | rows,
    "and": lambda rows, fenced: rows & fenced,
    "xor": lambda rows, fenced: rows.none() ^ fenced,
    "none-of-it": lambda rows, fenced: fenced.none() | rows,
    "and-none-of-it": lambda rows, fenced: rows & (fenced.none() | rows),
    "none-else": lambda rows, fenced: rows.none() | fenced,
}


@pytest.mark.parametrize("how", COMBINED)
def test_a_combination_has_the_lease_of_either_side(how: str, stale: Lease, later: Lease) -> None:
    Stock.objects.fenced(later).update(count=8)
    combined = COMBINED[how](Stock.objects.all(), Stock.objects.fenced(stale))
    with pytest.raises(LeaseLost):
        combined.update(count=5)
    assert (count("a"), count("b")) == (8, 8)
    assert COMBINED[how](Stock.objects.all(), Stock.objects.fenced(later)).update(count=7) == 2


UNCLEAR: dict[str, Combined] = {
    "two-leases": lambda later, fenced: later | fenced,
    "a-slice": lambda later, fenced: fenced[:1] | Stock.objects.all(),
    "another-class-after-it": lambda later, fenced: fenced.none() | QuerySet(Stock),
    "another-class-before-it": lambda later, fenced: QuerySet(Stock) | fenced,
    "another-class-and-it": lambda later, fenced: QuerySet(Stock) & fenced,
    "another-class-xor-it": lambda later, fenced: QuerySet(Stock) ^ fenced,
}


@pytest.mark.parametrize("how", UNCLEAR)
def test_a_combination_that_could_not_keep_the_lease_is_refused(
    how: str, stale: Lease, later: Lease
) -> None:
    with pytest.raises(ConfigurationError, match=r"call fenced\(lease\) last"):
        UNCLEAR[how](Stock.objects.fenced(later), Stock.objects.fenced(stale))


def test_combinations_without_a_lease_are_as_ever() -> None:
    assert (QuerySet(Stock) | Stock.objects.filter(sku="a")).update(count=1) == 2
    assert (Stock.objects.all()[:1] | Stock.objects.filter(sku="b")).count() == 2


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


SAVES: dict[str, Any] = {
    "save": lambda old: old.save(),
    "save-update-fields": lambda old: old.save(update_fields=["count", "fence"]),
    "save-force-update": lambda old: old.save(force_update=True),
    "asave": lambda old: async_to_sync(old.asave)(),
    "bulk-update": lambda old: Stock.objects.bulk_update([old], ["count", "fence"]),
    "bulk-update-fence": lambda old: Stock.objects.bulk_update([old], ["fence"]),
    "update": lambda old: Stock.objects.filter(pk=old.pk).update(fence=old.fence),
    "loaddata": lambda old: old.save_base(raw=True),
    "another-manager": lambda old: QuerySet(Stock).filter(pk=old.pk).update(fence=old.fence),
    "another-manager-many": lambda old: QuerySet(Stock).bulk_update([old], ["fence"]),
}
"""What forms, the admin and scripts do with an instance that they have read before."""


@pytest.mark.parametrize("save", SAVES)
def test_what_is_saved_never_lowers_the_fence(save: str, stale: Lease, later: Lease) -> None:
    old = Stock.objects.get(sku="a")
    Stock.objects.fenced(later).filter(sku="a").update(count=3)
    old.count = 5
    with CaptureQueriesContext(connection) as queries:
        SAVES[save](old)
    assert [query["sql"][:6] for query in queries if "UPDATE" in query["sql"]] == ["UPDATE"]
    with pytest.raises(LeaseLost):
        Stock.objects.fenced(stale).filter(sku="a").update(count=1000)
    of_all = {"save", "asave", "bulk-update", "loaddata", "save-update-fields", "save-force-update"}
    assert count("a") == (5 if save in of_all else 3)
    assert Stock.objects.get(sku="a").fence == later.fencing_token


@pytest.mark.parametrize("save", SAVES)
def test_what_is_saved_may_raise_the_fence(save: str, stale: Lease, later: Lease) -> None:
    old = Stock.objects.get(sku="a")
    old.fence = later.fencing_token
    SAVES[save](old)
    with pytest.raises(LeaseLost):
        Stock.objects.fenced(stale).filter(sku="a").update(count=1000)


def test_a_row_that_is_new_has_the_fence_that_it_was_given(later: Lease) -> None:
    Stock(sku="c", count=1, fence=7).save()
    Stock(pk=99, sku="d", count=1, fence=8).save()
    assert {*Stock.objects.filter(sku__in="cd").values_list("fence", flat=True)} == {7, 8}


def test_a_fence_that_an_upsert_would_lower_is_refused(later: Lease) -> None:
    upsert = {**UPSERT, "update_fields": ["count", "fence"]}
    with pytest.raises(ConfigurationError, match="lower"):
        Stock.objects.bulk_create([Stock(sku="a", count=5)], **upsert)
    assert count("a") == 10


def test_its_holder_updates_many_with_the_token_of_the_lease(stale: Lease, later: Lease) -> None:
    rows = [*Stock.objects.all()]
    assert Stock.objects.fenced(later).bulk_update(rows, ["count", "fence"]) == 2
    assert {*Stock.objects.values_list("fence", flat=True)} == {later.fencing_token}


def test_a_migration_knows_the_fence_as_a_plain_column() -> None:
    _, path, _, options = Stock._meta.get_field("fence").deconstruct()
    assert path == "django.db.models.BigIntegerField"
    assert options == {"default": 0, "editable": False}


def test_all_rows_are_deleted_only_by_name() -> None:
    """As of every manager of Django's: ``objects.all().delete()``."""
    assert not hasattr(Stock.objects, "delete")
