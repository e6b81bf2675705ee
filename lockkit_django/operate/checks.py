"""System checks: what is wrong with the settings, and what is dangerous.

Errors stop ``manage.py`` commands and say what to change; warnings can be silenced by their ID in
SILENCED_SYSTEM_CHECKS. Checks that ask the store run only under ``check --deploy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core import checks

from lockkit.model.checks import check_setting_names
from lockkit.model.errors import BackendError, ConfigurationError
from lockkit.model.settings import AliasSettings
from lockkit.stores.contract import HostLocal, ProcessLocal
from lockkit.stores.registry import load_store
from lockkit_django import conf
from lockkit_django.leases.aliases import locks
from lockkit_django.web.checks import as_error, as_warning
from lockkit_django.web.lock_view import view_locks
from lockkit_django.web.routes import routed_views

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.checks import CheckMessage

    from lockkit.stores.contract import Store

SETTINGS = ("LOCKKIT", "LOCKKIT_VIEWS", "LOCKKIT_ORDERS")

LOCK_ERRORS = "lockkit_django.middleware.LockErrors"

SHORTEST_TTL = 2.0
"""Seconds: below it one pause of the garbage collector or the network loses a lease."""

LONGEST_TTL = 300.0
"""Seconds for which a killed process keeps its locks from everybody."""


@checks.register("lockkit")
def check_settings(**_: Any) -> list[CheckMessage]:
    """The settings as far as they can be judged without a connection."""
    return [*_misspelt(), *_mistakes(), *_view_mistakes(), *_lock_errors(), *_dangers()]


@checks.register("lockkit", deploy=True)
def check_store(**_: Any) -> list[CheckMessage]:
    """Whether each alias' store answers, and whether it is configured to keep what it is told."""
    return [message for alias in _aliases() for message in _store_messages(alias)]


def _misspelt() -> Iterator[CheckMessage]:
    """A message for each: they are corrected in one go."""
    for name in dir(settings):
        try:
            check_setting_names([name], SETTINGS)
        except ConfigurationError as error:
            hint = f"Django reads {', '.join(SETTINGS)}; LOCKKIT_URL is an environment variable."
            yield as_error("E005", error, hint)


def _mistakes() -> Iterator[CheckMessage]:
    try:
        aliases = conf.lock_settings()
    except ConfigurationError as error:
        yield as_error("E001", error, "Correct LOCKKIT in the settings, or LOCKKIT_URL.")
        return
    for entry in aliases.values():
        try:
            load_store(entry)
        except ConfigurationError as error:
            yield as_error("E003", error, f"Correct LOCKKIT[{entry.alias!r}], or LOCKKIT_URL.")
    routed_views()  # imports them
    for alias in sorted({view_lock.alias for view_lock in view_locks} - set(aliases)):
        text = f"a view uses lock_view(alias={alias!r}), and LOCKKIT has no such alias"
        yield as_error("E004", text, f"Add {alias!r} to LOCKKIT, or correct the view.")


def _view_mistakes() -> Iterator[CheckMessage]:
    try:
        conf.view_settings()
    except ConfigurationError as error:
        yield as_error("E002", error, "Correct LOCKKIT_VIEWS in the settings.")


def _lock_errors() -> Iterator[CheckMessage]:
    if LOCK_ERRORS not in settings.MIDDLEWARE:
        yield checks.Info(
            "A lock that a view takes by hand and does not get, and does not catch, is a 500.",
            hint=f"Add {LOCK_ERRORS!r} to MIDDLEWARE for 423 and 503, as of lock_view; or silence "
            "this check if no view takes a lock by hand.",
            id="lockkit.I002",
        )


def _dangers() -> Iterator[CheckMessage]:
    for entry in _aliases():
        for check in (_process_local, _host_local, _unlimited_hold, _ttl, _ignored_exceptions):
            yield from check(entry)


def _aliases() -> list[AliasSettings]:
    try:
        return list(conf.lock_settings().values())
    except ConfigurationError:
        return []  # E001 says it


def _process_local(entry: AliasSettings) -> Iterator[CheckMessage]:
    if isinstance(_store(entry), ProcessLocal) and not settings.DEBUG:
        yield as_warning(
            "W001",
            f"The lock alias {entry.alias!r} ({entry.shown_location}) holds within one process "
            f"only: the workers of a server do not exclude one another.",
            "Use a store that all processes share, such as redis:// or django://default.",
        )


def _host_local(entry: AliasSettings) -> Iterator[CheckMessage]:
    if isinstance(_store(entry), HostLocal) and not settings.DEBUG:
        yield checks.Info(
            f"The lock alias {entry.alias!r} ({entry.shown_location}) holds on one machine only.",
            hint="With a second machine, use a server: redis://, or a database server.",
            id="lockkit.I001",
        )


def _unlimited_hold(entry: AliasSettings) -> Iterator[CheckMessage]:
    if entry.max_hold is None:
        yield as_warning(
            "W002",
            f"The lock alias {entry.alias!r} has MAX_HOLD None: a holder that hangs keeps its "
            f"lock for as long as its process lives.",
            "Set MAX_HOLD to more seconds than the longest honest work takes.",
        )


def _ttl(entry: AliasSettings) -> Iterator[CheckMessage]:
    if entry.ttl < SHORTEST_TTL:
        yield as_warning(
            "W003",
            f"The lock alias {entry.alias!r} has TTL {entry.ttl:g}: a short pause of the process "
            f"or the network loses a lease.",
            f"Set TTL to {SHORTEST_TTL:g} seconds or more; 30 is the default.",
        )
    elif entry.ttl > LONGEST_TTL:
        yield as_warning(
            "W004",
            f"The lock alias {entry.alias!r} has TTL {entry.ttl:g}: what a killed process held "
            f"stays locked for that many seconds.",
            "Leases are renewed while they are held: TTL need not cover the longest work.",
        )


def _ignored_exceptions(entry: AliasSettings) -> Iterator[CheckMessage]:
    if entry.scheme != "django-redis":
        return
    cache = settings.CACHES.get(entry.location.partition("://")[2], {})
    default = getattr(settings, "DJANGO_REDIS_IGNORE_EXCEPTIONS", False)
    if cache.get("OPTIONS", {}).get("IGNORE_EXCEPTIONS", default):
        yield as_warning(
            "W005",
            f"The cache behind the lock alias {entry.alias!r} has IGNORE_EXCEPTIONS: lockkit "
            f"does not follow it, and a store that is down refuses the views that lock.",
            "That is on purpose; silence this check if it is clear to everybody.",
        )


def _store(entry: AliasSettings) -> Store | None:
    try:
        return load_store(entry)
    except ConfigurationError:
        return None  # E003 says it


def _store_messages(entry: AliasSettings) -> Iterator[CheckMessage]:
    if _store(entry) is None:
        return
    client = locks[entry.alias]
    try:
        client.perform(client.store.check())
        findings = client.perform(client.store.health())
    except (BackendError, ConfigurationError) as error:
        yield as_error(
            "E010",
            f"The store of the lock alias {entry.alias!r} ({entry.shown_location}) fails: {error}",
            "Start it, or correct LOCKKIT. Views that lock answer 503 while it is down.",
        )
        return
    for danger in findings:
        yield as_warning("W010", f"The lock alias {entry.alias!r}: {danger.text}.", danger.remedy)
