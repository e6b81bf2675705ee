"""System checks of the orders' routes: whether PATHS fits them, and their answers are repeated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.core import checks
from django.utils.translation import override

from lockkit.model.errors import ConfigurationError
from lockkit.orders import read_order_settings
from lockkit.web.route_checks import Finding, Url, below_order, path_findings, unknown_finding
from lockkit_django.orders.authorize import ORDERED, unknown_check
from lockkit_django.orders.visit import options_of, order_rules
from lockkit_django.web.checks import METHODS, message_of, name_of
from lockkit_django.web.routes import Routed, routes
from lockkit_django.web.view_functions import functions_of, ninja_operation

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

    from lockkit.orders import Orders


@checks.register("lockkit")
def check_paths(**_: Any) -> list[CheckMessage]:
    """W104, W105."""
    try:
        patterns = read_order_settings(getattr(settings, "LOCKKIT_ORDERS", None)).paths
    except ConfigurationError:
        return []  # there are none, or E101 says it
    urls = _urls() if patterns else []
    return [message_of(finding) for finding in path_findings(patterns, urls)] if urls else []


@checks.register("lockkit")
def check_replays(**_: Any) -> list[CheckMessage]:
    """W107."""
    try:
        rules = read_order_settings(getattr(settings, "LOCKKIT_ORDERS", None))
    except ConfigurationError:
        return []
    if rules.authorize_replay is not None:
        return []
    found = (each for routed in routes() for each in _not_repeated(routed, order_rules()))
    return [message_of(finding) for finding in dict.fromkeys(found)]


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


def _not_repeated(routed: Routed, rules: Orders) -> Iterator[Finding]:
    paths = routed.paths()
    for method in METHODS:
        options = options_of(routed.view, method)
        is_order = options.inside or any(rules.covers(method, path) for path in paths)
        if is_order and not options.exempt:
            below = below_order([routed.view, *functions_of(routed.view, method)], ORDERED)
            is_mixin = options.inside and below is None
            unknown = None if is_mixin else unknown_check(routed.view, method, below)
            if unknown is not None:
                line = _line_for(routed.view, method)
                yield unknown_finding(name_of(routed.view), routed.shown, unknown, line)


def _line_for(view: Any, method: str) -> str:
    if ninja_operation(view, method) is not None:
        return "Put @idempotent on the function, below the operation's decorator"
    if hasattr(getattr(view, "cls", None), "initial"):
        return f"Let {view.cls.__name__} inherit IdempotentMixin, before its other bases"
    return "Put @idempotent on the function or method, below its checks"
