"""The rule of the shop, once, for Django and for Flask: read the stock, think, write both.

Nothing here is safe by itself: two sales at a time, and both sell the last one. The code around it
makes it safe. This module knows neither framework nor database.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

MOST = 99
"""Units in one order."""

LONGEST = 64
"""Characters of an order ID or a user's name."""

SKU = re.compile(r"[a-z0-9-]{1,64}")
"""A product has one spelling. For MariaDB, MUG and "mug " name the row of mug as well, but no lock
takes them for mug: two buyers would sell from one row at once."""

GUEST = "guest"
"""The user of orders without a login."""


class Refused(Exception):
    """The shop says no. ``status`` is what HTTP calls it."""

    status = 400


class NoSuchProduct(Refused):
    status = 404


class SoldOut(Refused):
    status = 409


@dataclass(frozen=True, slots=True)
class Order:
    order_id: str
    user: str
    sku: str
    quantity: int


class Books(Protocol):
    """What the shop keeps in its database. Each framework brings its own."""

    def find(self, user: str, order_id: str) -> Order | None: ...

    def stock(self, sku: str) -> int | None: ...

    def put_stock(self, sku: str, left: int) -> None: ...

    def add(self, order: Order) -> None: ...


@dataclass(frozen=True, slots=True)
class Sale:
    order: Order
    new: bool  #: False: this order was there already


def sell(books: Books, wanted: Order, think: Callable[[], None] = lambda: None) -> Sale:
    """Take the stock and save the order, unless it was saved before. Raises Refused.

    ``think`` is what a shop does in between: prices, a credit check. The new stock is written as
    the number computed before it, as in ``product.stock -= n; product.save()``.
    """
    earlier = books.find(wanted.user, wanted.order_id)
    if earlier is not None and wanted.user != GUEST:  # guests may choose the same ID
        return Sale(_the_same(earlier, wanted), new=False)
    stock = books.stock(wanted.sku)
    if stock is None:
        raise NoSuchProduct("no such product")
    left = stock - wanted.quantity
    if left < 0:
        raise SoldOut("sold out")
    think()
    books.put_stock(wanted.sku, left)
    books.add(wanted)
    return Sale(wanted, new=True)


def read_order(fields: Mapping[str, object], *, user: str, sku: str | None = None) -> Order:
    """The order in a form or a JSON document. Raises Refused: what arrives is hostile."""
    return Order(
        order_id=_text(fields, "order_id"),
        user=_checked("user", user),
        sku=_sku(fields.get("sku") if sku is None else sku),
        quantity=_quantity(fields.get("quantity", 1)),
    )


def read_document(body: bytes) -> dict[str, object]:
    """The JSON object in a body. Raises Refused."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused("the body is not JSON") from None
    if not isinstance(document, dict):
        raise Refused("the body is not a JSON object")
    return document


def shown(order: Order) -> dict[str, str | int]:
    """What a customer is told of an order."""
    return {"order_id": order.order_id, "sku": order.sku, "quantity": order.quantity}


def _the_same(earlier: Order, wanted: Order) -> Order:
    if earlier != wanted:
        raise Refused("another order has this order_id")
    return earlier


def _text(fields: Mapping[str, object], key: str) -> str:
    return _checked(key, fields.get(key))


def _checked(key: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST:
        raise Refused(f"{key}: 1 to {LONGEST} characters")
    if not value.isascii() or not value.isprintable():
        raise Refused(f"{key}: printable ASCII only")
    return value


def _sku(value: object) -> str:
    text = _checked("sku", value)
    if not SKU.fullmatch(text):
        raise NoSuchProduct("no such product")
    return text


def _quantity(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < LONGEST:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MOST:
        raise Refused(f"quantity: 1 to {MOST}")
    return value
