"""System checks of decorated views: whether their locks fit their routes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.core import checks
from django.db import connections
from django.urls.converters import StringConverter
from django.utils.translation import override

from lockkit.model.errors import ConfigurationError
from lockkit.orders import read_order_settings
from lockkit.orders.view_checks import unknown_finding
from lockkit.web.route_checks import Finding, Route, Url, field_findings, path_findings
from lockkit_django.handlers import ninja_operation
from lockkit_django.orders.authorize import unknown_below, unknown_check
from lockkit_django.orders.options import options_of
from lockkit_django.pending import guards_of
from lockkit_django.routes import Routed, routes

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

    from lockkit.orders import OrderSettings

__all__ = ["check_views", "register"]

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
LEVELS = {
    "missing-field": (checks.Error, "E006"),
    "bare-field": (checks.Warning, "W006"),
    "path-of-no-route": (checks.Warning, "W104"),
    "path-of-some-languages": (checks.Warning, "W105"),
    "replay-unknown": (checks.Warning, "W107"),
}
AT_ONCE = ("IMMEDIATE", "EXCLUSIVE")


def register() -> None:
    checks.register(check_views, "lockkit")
    checks.register(check_paths, "lockkit")
    checks.register(check_replays, "lockkit")
    checks.register(check_transactions, "lockkit")


def check_views(**_: Any) -> list[CheckMessage]:
    """E006, W006."""
    found = field_findings(route for routed in routes() for route in _described(routed))
    return [message_of(finding) for finding in found]


def check_paths(**_: Any) -> list[CheckMessage]:
    """W104, W105."""
    try:
        patterns = read_order_settings(getattr(settings, "LOCKKIT_ORDERS", None)).paths
    except ConfigurationError:
        return []  # there are none, or E101 says it
    urls = _urls() if patterns else []
    return [message_of(finding) for finding in path_findings(patterns, urls)] if urls else []


def check_replays(**_: Any) -> list[CheckMessage]:
    """W107."""
    try:
        rules = read_order_settings(getattr(settings, "LOCKKIT_ORDERS", None))
    except ConfigurationError:
        return []
    if rules.authorize_replay is not None:
        return []
    found = (finding for routed in routes() for finding in _not_repeated(routed, rules))
    return [message_of(finding) for finding in dict.fromkeys(found)]


def check_transactions(**_: Any) -> list[CheckMessage]:
    """W007."""
    return [*_deferred()]


def message_of(finding: Finding) -> CheckMessage:
    kind, number = LEVELS[finding.code]
    return kind(finding.text, hint=finding.remedy, id=f"lockkit.{number}")


def _urls() -> list[Url]:
    """In each language, if the language is a part of paths."""
    found = routes()
    if not found or not is_language_prefix_patterns_used(settings.ROOT_URLCONF)[0]:
        return [Url(routed.shown, {"": routed.paths()}) for routed in found]
    paths: list[dict[str, list[str]]] = [{} for _ in found]
    for language, _ in settings.LANGUAGES:
        with override(language):
            for routed, by_language in zip(found, paths, strict=True):
                by_language[language] = routed.paths()
    return [Url(each.shown, by_language) for each, by_language in zip(found, paths, strict=True)]


def _described(routed: Routed) -> Iterator[Route]:
    """As the core knows it: once for each HTTP method, as a class has a function for each."""
    for method in METHODS:
        guards = guards_of(routed.view, method)
        if guards:
            yield Route(_name(routed.view), routed.shown, guards, _parameters(routed, method))


def _parameters(routed: Routed, method: str) -> dict[str, bool]:
    found = {name: _is_text(converter) for name, converter in routed.parameters.items()}
    operation = ninja_operation(routed.view, method)
    if operation is not None:  # it converts, and gives the function more than the URL's
        typed = inspect.signature(operation.view_func).parameters.items()
        found |= {name: each.annotation in (str, "str", each.empty) for name, each in typed}
    return {**found, **dict.fromkeys(routed.given, False)}


def _not_repeated(routed: Routed, rules: OrderSettings) -> Iterator[Finding]:
    paths = routed.paths()
    for method in METHODS:
        options = options_of(routed.view, method)
        is_order = options.inside or any(rules.covers(method, path) for path in paths)
        if is_order and not options.exempt:
            look = unknown_below if options.inside else unknown_check
            unknown = look(routed.view, method)
            if unknown is not None:
                line = _line_for(routed.view, method)
                yield unknown_finding(_name(routed.view), routed.shown, unknown, line)


def _line_for(view: Any, method: str) -> str:
    if ninja_operation(view, method) is not None:
        return "Put @idempotent on the function, below the operation's decorator"
    if hasattr(getattr(view, "cls", None), "initial"):
        return f"Let {view.cls.__name__} inherit IdempotentMixin, before its other bases"
    return "Put @idempotent on the function or method, below its checks"


def _is_text(converter: Any) -> bool:
    return converter is None or isinstance(converter, StringConverter)


def _name(view: Any) -> str:
    named = getattr(view, "view_class", None) or getattr(view, "cls", None) or view
    return f"{named.__module__}.{getattr(named, '__qualname__', type(named).__qualname__)}"


def _deferred() -> Iterator[CheckMessage]:
    """A transaction of SQLite that reads first and then writes fails at once if another one has
    written in between, whatever ``timeout`` says."""
    for alias in connections:
        options = connections.settings[alias]
        mode = str(options.get("OPTIONS", {}).get("transaction_mode") or "").upper()
        if options.get("ATOMIC_REQUESTS") and _is_sqlite(alias) and mode not in AT_ONCE:
            yield checks.Warning(
                f"The database {alias!r} is SQLite with ATOMIC_REQUESTS, and its transactions "
                f"begin by reading: a view that then writes fails with 'database is locked' when "
                f"another one has written meanwhile.",
                hint=f"Set DATABASES[{alias!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE'}}: "
                f"each request then waits for its turn, up to the option 'timeout'.",
                id="lockkit.W007",
            )


def _is_sqlite(alias: str) -> bool:
    try:
        return connections[alias].vendor == "sqlite"
    except Exception:  # noqa: BLE001  the project's engine: Django says what is wrong with it
        return False
