"""``FencedModel``: rows that a holder cannot write after a later one has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from django.db.models import F
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


@pytest.fixture
def stale() -> Iterator[Lease]:
    """A lease that somebody else has now, and that has not heard of it."""
    client = locks["default"]
    lease = client.lock("stock", ttl=60).acquire()
    assert client.break_("stock", fence=lease.fencing_token)
    yield lease
    lease.release()


@pytest.fixture
def later(stale: Lease) -> Iterator[Lease]:
    with locks["default"].lock("stock", ttl=60).acquire() as lease:
        yield lease


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
