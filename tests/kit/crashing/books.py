"""Reads what was really sold, and judges it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import sqlalchemy as sa

from crashing.customers import Answer

__all__ = ["Books", "Sold", "Verdict", "judge"]

SOLD, SOLD_OUT = 201, 410


class Sold(NamedTuple):
    """``sales``: (order ID, SKU), one per row. ``units``: what is left per SKU."""

    sales: list[tuple[str, str]]
    units: dict[str, int]


class Books:
    """Looks into the shop's database from outside."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(
            url.replace("postgresql://", "postgresql+psycopg://"), pool_pre_ping=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.dispose()

    def stock_up(self, units: Mapping[str, int]) -> None:
        insert = sa.text("INSERT INTO stock (sku, units, fence) VALUES (:sku, :units, 0)")
        with self._engine.begin() as connection:
            for sku, count in units.items():
                connection.execute(insert, {"sku": sku, "units": count})

    def read(self) -> Sold:
        with self._engine.connect() as connection:
            sales = connection.execute(sa.text("SELECT order_id, sku FROM sale")).all()
            units = connection.execute(sa.text("SELECT sku, units FROM stock")).all()
        return Sold([(row[0], row[1]) for row in sales], {row[0]: row[1] for row in units})

    def sales(self, order_id: str) -> int:
        return sum(sold == order_id for sold, _ in self.read().sales)

    def records(self) -> int:
        query = sa.text("SELECT COUNT(*) FROM lockkit_order")
        with self._engine.connect() as connection:
            return int(connection.execute(query).scalar_one())


@dataclass(frozen=True)
class Verdict:
    """Counts of what is wrong.

    ``oversold``: units that were sold and were not there, or whose sale did not reach the stock.
    ``duplicated``: sales beyond the first of an order.
    ``lost``: orders without an end, or whose end does not say what was done.
    ``different``: orders whose final answers are not the same: status, headers, body, each byte.
    """

    oversold: int
    duplicated: int
    lost: int
    different: int

    @property
    def is_right(self) -> bool:
        return not (self.oversold or self.duplicated or self.lost or self.different)

    def __str__(self) -> str:
        return (
            f"oversold {self.oversold}, duplicated {self.duplicated}, lost {self.lost}, "
            f"answered differently {self.different}"
        )


def judge(
    stocked: Mapping[str, int], sold: Sold, answers: Mapping[str, Iterable[Answer]]
) -> Verdict:
    """``stock0 - stock = COUNT(DISTINCT order_id)`` for each SKU; ``answers``: the final ones."""
    rows = Counter(order_id for order_id, _ in sold.sales)
    orders = Counter(sku for _, sku in set(sold.sales))
    ends = {order_id: set(map(_essence, found)) for order_id, found in answers.items()}
    return Verdict(
        oversold=sum(
            abs(count - sold.units[sku] - orders[sku]) + max(0, -sold.units[sku])
            for sku, count in stocked.items()
        ),
        duplicated=sum(rows.values()) - len(rows),
        lost=sum(not _told(rows[order_id], found) for order_id, found in ends.items())
        + len(rows.keys() - ends.keys()),
        different=sum(len(found) > 1 for found in ends.values()),
    )


Essence = tuple[int, tuple[tuple[str, str], ...], bytes]


def _essence(answer: Answer) -> Essence:
    return answer.status, answer.headers, answer.body


def _told(sales: int, ends: set[Essence]) -> bool:
    """Whether there is an end, and every end says that it was sold if and only if it was."""
    return bool(ends) and {end[0] for end in ends} == {SOLD if sales else SOLD_OUT}
