"""System checks: what is wrong or dangerous in the settings, and whether the locks of decorated
views fit their routes.

Errors stop ``manage.py`` commands and say what to change; warnings can be silenced by their ID in
SILENCED_SYSTEM_CHECKS. Checks that ask the store run only under ``check --deploy``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core import checks
from django.db import connections
from django.urls.converters import StringConverter

from lockkit.model.checks import check_setting_names
from lockkit.model.errors import ConfigurationError
from lockkit.model.types import Finding
from lockkit.operate.setting_checks import setting_findings, store_findings
from lockkit.orders.settings import UNSAFE_METHODS
from lockkit.orders.visit import options_in
from lockkit.web.route_checks import Route, below_partials, module_behind, route_findings
from lockkit.web.view_lock import view_locks_of
from lockkit_django import conf
from lockkit_django.leases.client import locks
from lockkit_django.web.routes import Routed, routes
from lockkit_django.web.view_functions import class_of, ninja_operation, places_of

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

SETTINGS = ("LOCKKIT", "LOCKKIT_VIEWS", "LOCKKIT_ORDERS")

LOCK_ERRORS = "lockkit_django.middleware.LockErrors"
ANSWERING = {LOCK_ERRORS, "lockkit_django.web.refusals.LockErrors"}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE")
"""The HTTP methods of a view without a class."""

DRF_GENERICS = "rest_framework.generics"
IDS = {
    "no-store": "E003",
    "missing-alias": "E004",
    "missing-field": "E006",
    "store-fails": "E010",
    "within-process": "W001",
    "unlimited-hold": "W002",
    "short-ttl": "W003",
    "long-ttl": "W004",
    "relative-path": "W008",
    "store-danger": "W010",
    "within-host": "I001",
    "bare-field": "W006",
    "path-of-no-route": "W104",
    "path-of-some-languages": "W105",
    "replay-unknown": "W107",
    "record-danger": "W103",
    "record-capacity": "W106",
}
LEVELS = {"E": checks.Error, "W": checks.Warning, "I": checks.Info}
AT_ONCE = ("IMMEDIATE", "EXCLUSIVE")


def check_settings() -> list[CheckMessage]:
    """The settings, as far as they can be judged without a connection."""
    return [*_misspelt(), *_mistakes(), *_lock_errors()]


def check_store() -> list[CheckMessage]:
    """Whether each alias' store answers, and whether it is configured to keep its data."""
    found: list[CheckMessage] = []
    for alias in conf.known_aliases():
        try:
            client = locks[alias]
        except ConfigurationError:  # E003 reports it
            continue
        found += map(message_of, store_findings(client))
    return found


def _misspelt() -> Iterator[CheckMessage]:
    """A message for each misspelt setting, so that you can correct all of them at once."""
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
    if ANSWERING.isdisjoint(conf.middleware()):
        yield message(
            "I002",
            "If a view takes a lock by hand and does not catch its error, the answer is 500.",
            f"Add {LOCK_ERRORS!r} to MIDDLEWARE: such errors are then answered with 423 or 503, as "
            "lock_view does; or silence this check if no view takes a lock by hand.",
        )


def check_views() -> list[CheckMessage]:
    """The checks E004, E006, E007, E008, W006 and W009."""
    described = (route for routed in routes() for route in _described(routed))
    found = route_findings(described, conf.known_aliases())
    return [*map(message_of, found), *_orders_in_locks(), *_without_commit()]


def _orders_in_locks() -> Iterator[CheckMessage]:
    """E007, for orders that ``lock_view`` itself cannot see: in a class, or behind a wrapper."""
    views = (below_partials(routed.view)[0] for routed in routes())
    found = {
        name_of(view)
        for view in views
        for method in UNSAFE_METHODS
        if _is_locked_before(places_of(view, method))
    }
    for name in sorted(found):
        yield message(
            "E007",
            f"{name} has @idempotent inside lock_view: its lock would be released before the order "
            f"commits, so each order is an error",
            "Put @idempotent above lock_view, both on the same function or method.",
        )


def _is_locked_before(places: Iterable[Any]) -> bool:
    """Whether an outer one of these has ``lock_view``, and one inside it ``@idempotent``."""
    is_locked = False
    for place in places:
        if options_in([place]).inside:
            return is_locked
        is_locked = is_locked or bool(view_locks_of([place]))
    return False


def _without_commit() -> Iterator[CheckMessage]:
    """E008 and W009, for databases without autocommit: the end of a block is no COMMIT there."""
    entries = connections.settings.items()
    off = [(alias, entry) for alias, entry in entries if entry.get("AUTOCOMMIT") is False]
    exempt = _exempt_of_locked() if off else {}
    for alias, entry in off:
        is_atomic = entry["ATOMIC_REQUESTS"]
        refused = [view for view, aliases in exempt.items() if is_atomic and alias not in aliases]
        if refused:
            yield message(
                "E008",
                f"The database {alias!r} has ATOMIC_REQUESTS, and AUTOCOMMIT False: lock_view "
                f"cannot commit there, so it refuses each request, such as for {min(refused)}",
                "Remove AUTOCOMMIT; or let the views with lock_view be "
                "@transaction.non_atomic_requests, on a class around as_view() as the lock, and "
                "commit before they return.",
            )
        elif exempt:
            yield message(
                "W009",
                f"The database {alias!r} has AUTOCOMMIT False: views with lock_view have to commit "
                f"before they return, or it is after the release. One is {min(exempt)}",
                "Remove AUTOCOMMIT; or call transaction.commit() in each such view, and silence "
                "this check.",
            )


def _exempt_of_locked() -> dict[str, list[str]]:
    """The views with ``lock_view``, each with the databases whose ATOMIC_REQUESTS it is without."""
    return {
        name_of(view): [*getattr(place, "_non_atomic_requests", ())]
        for view in (below_partials(routed.view)[0] for routed in routes())
        for method in _methods_of(view)
        for place in _places_of(view, method)
        if view_locks_of([place])
    }


def message_of(finding: Finding) -> CheckMessage:
    return message(IDS[finding.code], finding.text, finding.remedy)


def message(number: str, text: object, hint: str) -> CheckMessage:
    return LEVELS[number[0]](str(text), hint=hint, id=f"lockkit.{number}")


def _described(routed: Routed) -> Iterator[Route]:
    """The routes for the core's checks, one for each HTTP method that has a lock."""
    view, given = below_partials(routed.view)
    routed = routed._replace(view=view, given=routed.given | given)
    for method in _methods_of(view):
        view_locks = view_locks_of(_places_of(view, method))
        if view_locks:
            yield Route(name_of(view), routed.shown, view_locks, _parameters(routed, method))


def _methods_of(view: Any) -> Iterator[str]:
    return map(str.upper, getattr(class_of(view), "http_method_names", METHODS))


def _places_of(view: Any, method: str) -> Iterator[Any]:
    """Where a lock may be: also on an object's ``__call__``, and on the methods that the handlers
    of DRF's generic views call, such as ``create``."""
    yield type(view).__call__
    for place in places_of(view, method):
        yield place
        if module_behind(place) == DRF_GENERICS:
            yield from (getattr(class_of(view), name, None) for name in place.__code__.co_names)


def _parameters(routed: Routed, method: str) -> dict[str, bool]:
    found = {name: _is_text(converter) for name, converter in routed.parameters.items()}
    operation = ninja_operation(routed.view, method)
    if operation is not None:  # Ninja converts the URL's parameters, and adds others
        typed = inspect.signature(operation.view_func).parameters.items()
        found |= {name: each.annotation in (str, "str", each.empty) for name, each in typed}
    return {**found, **dict.fromkeys(routed.given, False)}


def _is_text(converter: Any) -> bool:
    if converter is None or isinstance(converter, StringConverter):
        return True
    to_python = getattr(converter, "to_python", None)
    return getattr(to_python, "__annotations__", {}).get("return") in (str, "str")


def name_of(view: Any) -> str:
    named = getattr(view, "view_class", None) or getattr(view, "cls", None) or view
    return f"{named.__module__}.{getattr(named, '__qualname__', type(named).__qualname__)}"


def check_transactions() -> list[CheckMessage]:
    """W007: a transaction of SQLite that reads first and then writes fails at once if another one
    has written in between, whatever ``timeout`` says."""
    return [
        message(
            "W007",
            f"The database {alias!r} is SQLite with ATOMIC_REQUESTS, and its transactions begin by "
            f"reading: a view that then writes fails with 'database is locked' when another one "
            f"has written meanwhile.",
            f"Set DATABASES[{alias!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE'}}: each "
            f"request then waits for its turn, up to the option 'timeout'.",
        )
        for alias, entry in connections.settings.items()
        if entry.get("ATOMIC_REQUESTS")
        and "lite" in entry["ENGINE"].rpartition(".")[2]  # sqlite3, spatialite
        and str(entry["OPTIONS"].get("transaction_mode") or "").upper() not in AT_ONCE
    ]


ALWAYS = (check_settings, check_views, check_transactions)
DEPLOYED = (check_store,)
