"""``manage.py clerk``: sells one unit by hand, and falls asleep at the worst moment.

It has the lock, has looked whether it still has it, and is about to write. Then it stops itself, as
a virtual machine or a process under SIGSTOP stops: without notice, and for as long as it takes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import connection, transaction

from lockkit import Lease, LeaseLost, name
from lockkit_django import locks
from race.clerk import SOLD, SOLD_OUT, TTL, end_with_the_launcher
from shop.books import DjangoBooks, FencedBooks
from shop.rules import Order, SoldOut, sell


class Command(BaseCommand):
    help = "For the race: sell one unit, and be stopped before the write. Exit status 0: sold."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("mode", choices=("paused", "fenced"))
        parser.add_argument("sku")
        parser.add_argument("order_id")

    def handle(self, *_: Any, mode: str, sku: str, order_id: str, **options: Any) -> None:
        end_with_the_launcher()
        order = Order(order_id, "clerk", sku, 1)
        lock = locks["default"].lock(name("stock:{sku}", sku=sku), ttl=TTL, timeout=None)
        with connection.execute_wrapper(_StopsBefore("UPDATE")):
            while True:
                try:
                    _sell(lock.acquire(), mode, order)
                except LeaseLost:  # a later holder has written: begin anew, under a new lease
                    continue
                except SoldOut:
                    raise SystemExit(SOLD_OUT) from None
                raise SystemExit(SOLD)


def _sell(lease: Lease, mode: str, order: Order) -> None:
    """Not by ``with lock``, which would say at its end that the lease was lost: after the COMMIT,
    when it is too late."""
    try:
        books = FencedBooks(lease) if mode == "fenced" else DjangoBooks()
        with transaction.atomic():
            sell(books, order, think=lease.check)
    finally:
        lease.release()


class _StopsBefore:
    """Stops the process when it is about to send the first such statement: after every check."""

    def __init__(self, statement: str) -> None:
        self._statement = statement
        self._stopped = False

    def __call__(
        self, execute: Callable[..., Any], sql: str, parameters: Any, many: bool, context: Any
    ) -> Any:
        if sql.startswith(self._statement) and not self._stopped:
            self._stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)
        return execute(sql, parameters, many, context)
