"""Finds the faults of an app: for ``flask locks check``, and for the log at the first request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from flask import request_started
from werkzeug.routing import AnyConverter, BaseConverter

from lockkit.model.log import log
from lockkit.model.types import Finding
from lockkit.operate.setting_checks import setting_findings, store_findings
from lockkit.orders.redis_records import dangers
from lockkit.orders.settings import UNSAFE_METHODS
from lockkit.web.route_checks import (
    Route,
    Url,
    below_partials,
    fillings,
    path_findings,
    route_findings,
    unknown_finding,
    wrappers,
)
from lockkit.web.view_lock import view_locks_of
from lockkit_flask.orders.authorize import unknown_check
from lockkit_flask.orders.visit import options_of
from lockkit_flask.state import app_locks
from lockkit_flask.web.view_functions import TO_THE_TOP, misplaced, places_of

if TYPE_CHECKING:
    from flask import Flask
    from werkzeug.routing import Rule

    from lockkit.orders import Orders
    from lockkit.orders.visit import ViewOptions
    from lockkit_flask.orders.app_orders import AppOrders

ERRORS = (
    *("misplaced-decorator", "missing-alias", "missing-field", "no-orders", "replaced-dispatch"),
    *("path-of-no-route", "path-of-some-languages", "path-of-one-slash"),
)


def findings(app: Flask) -> Iterator[Finding]:
    """The faults of routes and settings. No I/O. Raises ConfigurationError without LockKit."""
    locks = app_locks(app)
    aliases, app_orders = locks.config.aliases, locks.orders
    for finding in setting_findings(aliases.values(), debug=app.debug or app.testing):
        if finding.code != "within-host":  # the default location is within one host
            yield finding
    for text in misplaced(app):
        yield Finding("misplaced-decorator", f"{text}: its requests are errors", f"{TO_THE_TOP}.")
    if app_orders is None:
        yield from dict.fromkeys(_without_orders(app))
    elif paths := app_orders.orders.settings.paths:
        yield from path_findings(paths, _urls(app, app_orders.orders))
        yield from dict.fromkeys(_of_one_slash(app, app_orders.orders))
        yield from _replaced_dispatch(app.dispatch_request, app_orders)
    yield from route_findings(_routes(app), aliases)
    if app_orders is not None and app_orders.orders.settings.authorize_replay is None:
        yield from dict.fromkeys(_unknown_checks(app, app_orders.orders))  # once for all methods


def every_finding(app: Flask) -> Iterator[Finding]:
    """All faults, also those of the stores of locks and orders: it asks them. Raises BackendError
    if the orders' store is down, and ConfigurationError for a setting that came after LockKit."""
    locks = app_locks(app)
    yield from findings(app)
    for alias in locks:
        yield from store_findings(locks[alias])
    for table in locks.orders.tables() if locks.orders is not None else ():
        if table.is_missing():
            yield Finding("no-order-table", *table.MISSING)
    if locks.config.orders is not None and locks.config.orders.claims:
        yield from dangers(locks.config.orders.alias, locks, locks.__getitem__)


def tell_at_first_request(app: Flask) -> None:
    """At the first request, log the faults. Raise ConfigurationError in it, and in each later one,
    as long as a setting is there that came after LockKit."""

    def tell(sender: Flask, **_: object) -> None:
        app_locks(sender).serves = True
        request_started.disconnect(tell, sender)
        for finding in findings(sender):
            tell_it = log.error if finding.code in ERRORS else log.warning
            tell_it("%s. %s", finding.text, finding.remedy)

    request_started.connect(tell, app, weak=False)


def _without_orders(app: Flask) -> Iterator[Finding]:
    """Views with ``@idempotent`` where LOCKKIT_ORDERS is not set."""
    for view, rule, _, options in _routed(app, UNSAFE_METHODS):
        if options.inside:
            yield Finding(
                "no-orders",
                f"{_name_of(view, rule)} at {rule.rule!r} has @idempotent, and LOCKKIT_ORDERS is "
                f"not set: each order is an error",
                "Set it before LockKit(app): {'PATHS': []} is enough.",
            )


def _urls(app: Flask, orders: Orders) -> list[Url]:
    """The URLs that can make orders. No pattern is meant for a route that is only read, such as
    that of static files."""
    methods = orders.settings.methods
    rules = (rule for rule in app.url_map.iter_rules() if methods & (rule.methods or set()))
    return [Url(rule.rule, {"": _paths(rule)}) for rule in rules]


def _of_one_slash(app: Flask, orders: Orders) -> Iterator[Finding]:
    """Routes of orders that take a path with and without its last slash, while PATHS fits only one
    of the two."""
    for _, rule, method, options in _routed(app, orders.settings.methods):
        fit = [path for path in _paths(rule) if orders.covers(method, path)]
        other = next((other for path in fit if (other := _other(path)) not in fit), None)
        if rule.strict_slashes or options.exempt or options.inside or other is None:
            continue
        yield Finding(
            "path-of-one-slash",
            f"LOCKKIT_ORDERS['PATHS'] fits {_other(other)!r}, but not {other!r}, which has the "
            f"same route with strict_slashes=False: there two clicks are two orders",
            "Let the pattern match both, as r'^/orders(/|$)' does, or leave strict_slashes out.",
        )


def _replaced_dispatch(found: Any, app_orders: AppOrders) -> Iterator[Finding]:
    """A replacement of ``dispatch_request`` after LockKit, unless functools.wraps tells that it
    calls the one that was there."""
    if app_orders.dispatch not in wrappers(found):
        name = getattr(found, "__qualname__", repr(found))
        yield Finding(
            "replaced-dispatch",
            f"app.dispatch_request was replaced by {name} after LockKit(app): unless that calls "
            f"what was there, PATHS makes no orders, and two clicks are two orders",
            "Set up the extension that did so before LockKit(app). If it does call what was "
            "there, let it use functools.wraps.",
        )


def _routed(app: Flask, of: Iterable[str]) -> Iterator[tuple[Any, Rule, str, ViewOptions]]:
    """The views at their routes, for each of these methods."""
    for rule in app.url_map.iter_rules():
        view = app.view_functions.get(rule.endpoint)
        for method in sorted((rule.methods or set()).intersection(of) if view else ()):
            yield view, rule, method, options_of(view, method)


def _unknown_checks(app: Flask, orders: Orders) -> Iterator[Finding]:
    """Views of orders whose answers are not given again."""
    for view, rule, method, options in _routed(app, UNSAFE_METHODS):
        covered = any(orders.covers(method, path) for path in _paths(rule))
        if options.exempt or not (covered or options.inside):
            continue
        unknown = unknown_check(app, view, method, options.below)
        if unknown is not None:
            line = "Put @idempotent below what checks: on the function, or on the method"
            yield unknown_finding(_name_of(view, rule), rule.rule, unknown, line)


def _routes(app: Flask) -> Iterator[Route]:
    for rule, called in _called(app):
        view, _ = below_partials(called)
        view_locks = view_locks_of(places_of(view))
        if view_locks:
            yield Route(_name_of(view, rule), rule.rule, view_locks, _parameters(rule))


def _called(app: Flask) -> Iterator[tuple[Rule, Any]]:
    """The view of each route, and the hooks of the app and of its blueprints that run before it."""
    for rule in app.url_map.iter_rules():
        yield rule, app.view_functions.get(rule.endpoint)
        blueprints = accumulate(rule.endpoint.split(".")[:-1], "{}.{}".format)
        for name in (None, *blueprints):
            for hook in app.before_request_funcs.get(name, ()):
                yield rule, hook


def _name_of(view: Any, rule: Rule) -> str:
    named = getattr(view, "view_class", view)
    return f"{named.__module__}.{getattr(named, '__qualname__', rule.endpoint)}"


def _parameters(rule: Rule) -> dict[str, bool]:
    texts = {name: _is_text(converter) for name, converter in rule._converters.items()}
    return {**dict.fromkeys(rule.defaults or {}, False), **texts}


def _is_text(converter: BaseConverter) -> bool:
    """Whether the view gets the text that was sent."""
    kind = type(converter)
    if kind is AnyConverter:  # fixed words
        return False
    returned = getattr(kind.to_python, "__annotations__", {}).get("return")
    return kind.to_python is BaseConverter.to_python or returned in (str, "str")


def _paths(rule: Rule) -> list[str]:
    """Some paths that the rule matches; with and without a last slash, if it takes both."""
    regexes = {name: converter.regex for name, converter in rule._converters.items()}
    built = []
    for values in fillings(regexes):
        with contextlib.suppress(Exception):  # a converter of the app may refuse a text
            built.append(rule.build(values, append_unknown=False))
    found = [each[1] for each in built if each is not None]
    return found if rule.strict_slashes else [*found, *map(_other, found)]


def _other(path: str) -> str:
    """The same path without its last slash, or with one."""
    return path.removesuffix("/") or "/" if path.endswith("/") else f"{path}/"
