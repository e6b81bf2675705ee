"""System checks: what is wrong with the settings, and what is dangerous.

Errors stop ``manage.py`` commands and say what to change; warnings can be silenced by their ID in
SILENCED_SYSTEM_CHECKS. Checks that ask the store run only under ``check --deploy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings

from lockkit.model.checks import check_setting_names
from lockkit.model.errors import ConfigurationError
from lockkit.operate.setting_checks import setting_findings, store_findings
from lockkit_django import conf
from lockkit_django.leases.client import locks
from lockkit_django.orders.checks import check_orders, check_paths, check_records, check_replays
from lockkit_django.web.checks import check_transactions, check_views, message, message_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.checks import CheckMessage

SETTINGS = ("LOCKKIT", "LOCKKIT_VIEWS", "LOCKKIT_ORDERS")

LOCK_ERRORS = "lockkit_django.middleware.LockErrors"


def every(*, deploy: bool) -> list[CheckMessage]:
    """What lockkit's checks find; ``deploy``: run those that ask stores, otherwise the others."""
    return [found for check in (DEPLOYED if deploy else ALWAYS) for found in check()]


def check_settings(**_: Any) -> list[CheckMessage]:
    """The settings as far as they can be judged without a connection."""
    return [*_misspelt(), *_mistakes(), *_lock_errors()]


def check_store(**_: Any) -> list[CheckMessage]:
    """Whether each alias' store answers, and whether it is configured to keep its data."""
    return [message for alias in conf.known_aliases() for message in _store_messages(alias)]


def _misspelt() -> Iterator[CheckMessage]:
    """A message for each, so that you can correct all of them at once."""
    for name in dir(settings):
        try:
            check_setting_names([name], SETTINGS)
        except ConfigurationError as error:
            hint = f"Django reads {', '.join(SETTINGS)}; LOCKKIT_URL is an environment variable."
            yield message("E005", error, hint)


def _mistakes() -> Iterator[CheckMessage]:
    try:
        aliases = conf.lock_settings()
    except ConfigurationError as error:
        yield message("E001", error, "Correct LOCKKIT in the settings, or LOCKKIT_URL.")
    else:
        yield from map(message_of, setting_findings(aliases.values(), debug=settings.DEBUG))
    try:
        conf.view_settings()
    except ConfigurationError as error:
        yield message("E002", error, "Correct LOCKKIT_VIEWS in the settings.")


def _lock_errors() -> Iterator[CheckMessage]:
    if LOCK_ERRORS not in settings.MIDDLEWARE:
        yield message(
            "I002",
            "If a view takes a lock by hand and does not catch its error, the answer is 500.",
            f"Add {LOCK_ERRORS!r} to MIDDLEWARE for 423 and 503, as by lock_view; or silence this "
            "check if no view takes a lock by hand.",
        )


def _store_messages(alias: str) -> list[CheckMessage]:
    try:
        client = locks[alias]
    except ConfigurationError:
        return []  # E003 says it
    return [message_of(finding) for finding in store_findings(client)]


ALWAYS = (
    *(check_settings, check_views, check_transactions),
    *(check_orders, check_paths, check_replays),
)
DEPLOYED = (check_store, check_records)
