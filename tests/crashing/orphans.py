"""STORE = "redis": what the view does is in no transaction, so a crash may leave an orphan.

Subclassed once per framework, which says the ``module`` of its shop.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

import lockkit
from crashing.configuration import Configuration
from crashing.customers import insist, send
from crashing.machines import machines
from crashing.points import POINTS
from crashing.stories import Shop, open_shop
from lockkit.client import LockClient
from lockkit.idempotency.redis_records import orphans, resolve
from lockkit.types import LockInfo

__all__ = ["Orphans"]

UNKNOWN = ("recorded", "view", "committing")
"""Points at which nobody can say whether the order has taken effect."""

DONE = {"view", "committing", "committed", "answering"}
"""Points at which it has."""


class Orphans:
    module: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def shop(cls, on_postgres: Configuration, directory: Path) -> Iterator[Shop]:
        wanted = on_postgres._replace(orders={"STORE": "redis"})
        with open_shop(cls.module, wanted, directory) as shop:
            yield shop

    @pytest.fixture(scope="class")
    @classmethod
    def retrying(
        cls, shop: Shop, on_postgres: Configuration, directory: Path
    ) -> Iterator[list[int]]:
        """The port of another machine in the same shop, with the other policy."""
        wanted = on_postgres._replace(orders={"STORE": "redis", "ORPHANS": "retry"})
        with machines(cls.module, wanted, directory, count=1, creates=False) as (machine,):
            yield [machine.port]

    @pytest.fixture
    def locks(self, on_postgres: Configuration) -> Iterator[LockClient]:
        client = lockkit.connect(on_postgres.locks)
        yield client
        client.close()

    @pytest.mark.parametrize("point", POINTS)
    def test_killed(self, shop: Shop, point: str) -> None:
        """Done once, or not known and never done again by itself."""
        order_id = f"killed at {point}"
        _die(shop, order_id, point)
        done = point in DONE
        assert shop.books.sales(order_id) == done
        answers = shop.insist(order_id) + shop.insist(order_id)
        if point in UNKNOWN:
            assert {answer.code for answer in answers} == {"order-orphaned"}
            assert shop.books.sales(order_id) == done
        else:
            assert {answer.status for answer in answers} == {201}
            assert len({answer.body for answer in answers}) == 1
            assert shop.books.sales(order_id) == 1

    @pytest.mark.parametrize("done", [True, False], ids=["done", "retry"])
    def test_an_operator_resolves(self, shop: Shop, locks: LockClient, done: bool) -> None:
        order_id = f"resolved: {done}"
        _die(shop, order_id, "view" if done else "recorded")
        assert shop.insist(order_id)[0].code == "order-orphaned"
        assert resolve(locks, _orphan(locks, order_id), done=done)
        answers = shop.insist(order_id)
        assert {answer.code for answer in answers} == {"order-completed" if done else ""}
        assert shop.books.sales(order_id) == 1

    @pytest.mark.parametrize("point", UNKNOWN)
    def test_retried_by_policy(self, shop: Shop, retrying: list[int], point: str) -> None:
        """At least once, and no more than once after the crash."""
        order_id = f"retried after {point}"
        _die(shop, order_id, point)
        assert insist(retrying, order_id)[-1] is not None
        answers = shop.insist(order_id)
        assert {answer.status for answer in answers} == {201}
        assert {answer.replayed for answer in answers} == {True}
        assert shop.books.sales(order_id) == 1 + (point in DONE)


def _die(shop: Shop, order_id: str, point: str) -> None:
    machine = shop.machines[0]
    assert send(machine.port, order_id, stop=f"kill@{point}") is None
    machine.stopped(f"kill@{point}")


def _orphan(locks: LockClient, order_id: str) -> LockInfo:
    (found,) = (orphan for orphan in orphans(locks) if order_id in str(orphan))
    return found
