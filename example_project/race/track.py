"""One race from its first order to its result, in the shop's own database."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from django.core.management import call_command
from django.db.models import Count, Sum

from race.buyers import buy, clicks
from race.machines import Machine
from race.result import Ledger, Result, result
from shop import models

BUYERS = 16


@dataclass(frozen=True, slots=True)
class Race:
    orders: int = 200
    stock: int = 20
    seed: int = 0
    buyers: int = BUYERS


def prepare_database() -> None:
    """Make the tables. Does nothing when they are there."""
    call_command("migrate", verbosity=0, interactive=False)


def run(race: Race, mode: str, machines: Sequence[Machine], token: str) -> Result:
    """Put a new product on sale, let the buyers loose, and count. Leaves nothing behind."""
    product = models.Product.objects.create(
        sku=f"{models.RACE}{mode}-{secrets.token_hex(4)}", title="the race", stock=race.stock
    )
    planned = clicks(machines, race.orders, race.seed)
    try:
        answers = buy(planned, f"/race/{mode}/{product.sku}", token, race.buyers)
        ledger = _ledger(product.sku)
    finally:
        models.Order.objects.filter(sku=product.sku).delete()
        product.delete()
    return result(mode, requested=race.orders, stock=race.stock, answers=answers, ledger=ledger)


def _ledger(sku: str) -> Ledger:
    orders = models.Order.objects.filter(sku=sku)
    extra = orders.values("user", "order_id").annotate(n=Count("pk")).filter(n__gt=1)
    return Ledger(
        left=models.Product.objects.get(sku=sku).stock,
        sold=orders.aggregate(units=Sum("quantity"))["units"] or 0,
        duplicates=sum(row["n"] - 1 for row in extra),
    )
