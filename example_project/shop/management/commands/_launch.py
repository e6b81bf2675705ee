"""What demo, race and serve have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError

from lockkit import BackendError, ConfigurationError
from lockkit_django import locks
from race.machines import Machine, MachineFailed, Plan, ending_on_signals, running
from race.track import prepare_database

STORE_DOWN = 69


@contextmanager
def shop(plan: Plan) -> Iterator[list[Machine]]:
    """The machines, up, over a database that has its tables and locks that work.

    They are stopped at the end: of the block, by Ctrl-C or SIGTERM, or by an error.
    """
    with ending_on_signals():
        prepare_database()
        check_locks()
        try:
            with running(plan) as machines:
                yield machines
        except MachineFailed as failure:
            raise CommandError(str(failure)) from failure


def check_locks() -> None:
    """One cheap request. Raises CommandError when the store of the locks is down."""
    try:
        locks["default"].backend.check()
    except BackendError as error:
        raise CommandError(f"the locks: {error}", returncode=STORE_DOWN) from error
    except ConfigurationError as error:
        raise CommandError(f"the locks: {error}") from error


def where_locks_are() -> str:
    """For people: the store, without its password."""
    return locks["default"].settings.shown_location
