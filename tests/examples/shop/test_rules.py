"""The rule of the shop by itself."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shop.rules import Order


@pytest.fixture
def rules(example_importable: None) -> Any:
    return import_module("shop.rules")


class Books:
    """In memory. Like MariaDB, they take an SKU without regard to case and trailing blanks."""

    def __init__(self) -> None:
        self.left = 9
        self.orders: list[Order] = []

    def find(self, user: str, order_id: str) -> Order | None:
        found = [each for each in self.orders if (each.user, each.order_id) == (user, order_id)]
        return found[0] if found else None

    def stock(self, sku: str) -> int | None:
        return self.left if sku.casefold().rstrip() == "mug" else None

    def put_stock(self, sku: str, left: int) -> None:
        self.left = left

    def add(self, order: Order) -> None:
        self.orders.append(order)


@pytest.mark.parametrize("sku", ["MUG", "mug ", "Mug", "\xadmug"])
def test_a_product_has_one_spelling(rules: Any, sku: str) -> None:
    """Its lock has one, too. Another one would be sold under another lock, from the same row."""
    fields = {"order_id": "A-17", "sku": sku}
    for of_the_path in None, sku:
        with pytest.raises(rules.Refused):
            rules.sell(Books(), rules.read_order(fields, user="alice", sku=of_the_path))


def test_an_order_of_another_guest_is_another_order(rules: Any) -> None:
    """All guests are one user to the shop. A user's order ID is his own."""
    books = Books()
    wanted = [
        rules.Order("A-17", user, "mug", 1) for user in (rules.GUEST, rules.GUEST, "bob", "bob")
    ]
    assert [rules.sell(books, order).new for order in wanted] == [True, True, True, False]
    assert (books.left, len(books.orders)) == (6, 3)
