"""System checks of decorated views: whether their locks fit their routes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.core import checks
from django.db import connections
from django.urls.converters import StringConverter

from lockkit.web.route_checks import Finding, Route, below_partials, field_findings
from lockkit_django.web.routes import Routed, routes
from lockkit_django.web.view_functions import ninja_operation, view_locks_of

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
LEVELS = {
    "missing-field": (checks.Error, "E006"),
    "bare-field": (checks.Warning, "W006"),
    "path-of-no-route": (checks.Warning, "W104"),
    "path-of-some-languages": (checks.Warning, "W105"),
    "replay-unknown": (checks.Warning, "W107"),
}
AT_ONCE = ("IMMEDIATE", "EXCLUSIVE")
SNAPSHOT = ("repeatable read", "serializable")


@checks.register("lockkit")
def check_views(**_: Any) -> list[CheckMessage]:
    """E006, W006."""
    found = field_findings(route for routed in routes() for route in _described(routed))
    return [message_of(finding) for finding in found]


@checks.register("lockkit")
def check_transactions(**_: Any) -> list[CheckMessage]:
    """W007, I003."""
    return [*_deferred(), *_snapshots()]


def as_error(number: str, text: object, hint: str) -> CheckMessage:
    return checks.Error(str(text), hint=hint, id=f"lockkit.{number}")


def as_warning(number: str, text: str, hint: str) -> CheckMessage:
    return checks.Warning(text, hint=hint, id=f"lockkit.{number}")


def message_of(finding: Finding) -> CheckMessage:
    kind, number = LEVELS[finding.code]
    return kind(finding.text, hint=finding.remedy, id=f"lockkit.{number}")


def _described(routed: Routed) -> Iterator[Route]:
    """As the core knows it: once for each HTTP method, as a class has a function for each."""
    view, given = below_partials(routed.view)
    routed = routed._replace(view=view, given=routed.given | given)
    for method in METHODS:
        view_locks = view_locks_of(view, method)
        if view_locks:
            yield Route(name_of(view), routed.shown, view_locks, _parameters(routed, method))


def _parameters(routed: Routed, method: str) -> dict[str, bool]:
    found = {name: _is_text(converter) for name, converter in routed.parameters.items()}
    operation = ninja_operation(routed.view, method)
    if operation is not None:  # it converts, and gives the function more than the URL's
        typed = inspect.signature(operation.view_func).parameters.items()
        found |= {name: each.annotation in (str, "str", each.empty) for name, each in typed}
    return {**found, **dict.fromkeys(routed.given, False)}


def _is_text(converter: Any) -> bool:
    return converter is None or isinstance(converter, StringConverter)


def name_of(view: Any) -> str:
    named = getattr(view, "view_class", None) or getattr(view, "cls", None) or view
    return f"{named.__module__}.{getattr(named, '__qualname__', type(named).__qualname__)}"


def _deferred() -> Iterator[CheckMessage]:
    """A transaction of SQLite that reads first and then writes fails at once if another one has
    written in between, whatever ``timeout`` says."""
    for alias, options in _with_atomic_requests("sqlite"):
        mode = str(options.get("transaction_mode") or "").upper()
        if mode not in AT_ONCE:
            yield checks.Warning(
                f"The database {alias!r} is SQLite with ATOMIC_REQUESTS, and its transactions "
                f"begin by reading: a view that then writes fails with 'database is locked' when "
                f"another one has written meanwhile.",
                hint=f"Set DATABASES[{alias!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE'}}: "
                f"each request then waits for its turn, up to the option 'timeout'.",
                id="lockkit.W007",
            )


def _snapshots() -> Iterator[CheckMessage]:
    """MySQL does not tell whether a transaction has a snapshot yet; MariaDB does."""
    for alias, options in _with_atomic_requests("mysql"):
        level = options.get("isolation_level", "read committed")  # Django's default
        if str(level or "repeatable read").lower() in SNAPSHOT:
            yield checks.Info(
                f"The database {alias!r} has ATOMIC_REQUESTS and transactions that keep their "
                f"first snapshot: in a view, a lock with until='commit' is refused, on MariaDB "
                f"after the first query.",
                hint=f"Set DATABASES[{alias!r}]['OPTIONS'] = {{'isolation_level': 'read "
                f"committed'}}, use lock_view, or silence this if no view has such a lock.",
                id="lockkit.I003",
            )


def _with_atomic_requests(vendor: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for alias in connections:
        entry = connections.settings[alias]
        if entry.get("ATOMIC_REQUESTS") and _vendor(alias) == vendor:
            yield alias, entry.get("OPTIONS", {})


def _vendor(alias: str) -> str:
    try:
        return connections[alias].vendor
    except Exception:  # noqa: BLE001  the project's engine: Django says what is wrong with it
        return ""
