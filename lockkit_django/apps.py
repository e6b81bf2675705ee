"""The Django application. It registers checks, and notes the names of databases for tests.

It does no I/O and starts no thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.core import checks

if TYPE_CHECKING:
    from django.core.checks import CheckMessage


class LockkitConfig(AppConfig):
    name = "lockkit_django"
    verbose_name = "Locks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from lockkit.leases import default_store
        from lockkit_django.stores import in_tests

        default_store.adapter = "lockkit_django"
        checks.register(partial(_found, deploy=False), "lockkit")
        checks.register(partial(_found, deploy=True), "lockkit", deploy=True)
        in_tests.remember()


def _found(*, deploy: bool, **_: Any) -> list[CheckMessage]:
    """The messages of all checks. Imports them only when they run: a server does not run them."""
    from lockkit_django.operate import checks as of_locks
    from lockkit_django.operate import order_checks as of_orders

    each = (of.DEPLOYED if deploy else of.ALWAYS for of in (of_locks, of_orders))
    return [found for several in each for check in several for found in check()]
