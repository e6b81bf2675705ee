"""What demo, race and serve have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from django.db import DatabaseError

from lockkit import BackendError, ConfigurationError
from lockkit.stores.contract import Fenced
from lockkit_django import locks
from race.machines import Machine, MachineFailed, Plan, ending_on_signals, running
from race.track import prepare_database
from shop import place
from shop.models import Product

STORE_DOWN = 69


@contextmanager
def shop(plan: Plan) -> Iterator[list[Machine]]:
    """The machines, up, over a database that has its tables and locks that work.

    They are stopped at the end: of the block, by Ctrl-C or SIGTERM, or by an error.
    """
    with ending_on_signals():
        _prepare_database()
        check_locks()
        try:
            with running(plan) as machines:
                yield machines
        except MachineFailed as failure:
            raise CommandError(str(failure)) from failure


def _prepare_database() -> None:
    """Raises CommandError for a database that is down, or that has tables of another program."""
    try:
        prepare_database()
        Product.objects.first()
    except DatabaseError as error:
        reason = str(error).strip().partition("\n")[0]
        raise CommandError(
            f"the database: {reason}. {place.DATABASE_VARIABLE} must name an empty one, or the "
            f"shop's own"
        ) from error


def check_locks() -> None:
    """Make the locks' table, if LOCKKIT_URL names a database, and ask the store once. Raises
    CommandError if the store is down, or is in one process."""
    try:
        client = locks["default"]
        if client.store.is_within_process():
            raise CommandError(
                "the locks: this store holds in one process, and the shop has several"
            )
        if make := getattr(client.store, "create_table", None):
            make()
        client.perform(client.store.check())
    except BackendError as error:
        raise CommandError(f"the locks: {error}", returncode=STORE_DOWN) from error
    except ConfigurationError as error:
        raise CommandError(f"the locks: {error}") from error


def where_locks_are() -> str:
    """For people: the store, without its password."""
    return locks["default"].settings.shown_location


def why_not(mode: str) -> str:
    """Why a race cannot be run with these locks; empty if it can."""
    if mode == "fenced" and not isinstance(locks["default"].store, Fenced):
        return "these locks have no fencing tokens, so no row can refuse what the seller writes"
    return ""
