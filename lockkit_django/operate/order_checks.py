"""System checks of the orders: settings that are wrong, a middleware in the wrong place, routes
that PATHS does not fit, and views whose answers are not repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.connection import ConnectionDoesNotExist
from django.utils.translation import override

from lockkit.model.errors import BackendError, ConfigurationError
from lockkit.model.types import Finding
from lockkit.orders.redis_records import dangers
from lockkit.orders.settings import HOOKS, SOURCE, UNSAFE_METHODS
from lockkit.stores.registry import load_store
from lockkit.web.route_checks import Url, module_behind, path_findings, unknown_finding
from lockkit_django import conf
from lockkit_django.leases.client import locks
from lockkit_django.operate.checks import message, message_of, name_of
from lockkit_django.orders.authorize import unknown_check
from lockkit_django.orders.request import in_signed_cookies
from lockkit_django.orders.table import OrderTable, written_in
from lockkit_django.orders.visit import options_of, order_rules
from lockkit_django.web.routes import Routed, routes
from lockkit_django.web.view_functions import API_VIEW, may_take, ninja_operation

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

    from lockkit.orders import Orders

CHANGING = (None, *UNSAFE_METHODS)
MIDDLEWARE = "lockkit_django.middleware.IdempotentOrderMiddleware"
OURS = {MIDDLEWARE, "lockkit_django.orders.middleware.IdempotentOrderMiddleware"}
BEFORE = {
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
}
LAST = f"Move {MIDDLEWARE!r} to the end of MIDDLEWARE"


def check_orders() -> list[CheckMessage]:
    """The checks E101 to E109, E111, W101 and W102."""
    found = [*_presence(), *_place(), *_sessions()]
    if getattr(settings, SOURCE, None) is None and not _is_there():
        return found
    try:
        orders = order_rules()
    except ConfigurationError as error:
        return [message("E101", error, "Correct LOCKKIT_ORDERS in the settings."), *found]
    return [*_names(orders), *found]


def check_records() -> list[CheckMessage]:
    """The checks E110, W103 and W106. They ask the store that the settings name, and not those of
    ``@idempotent(using=…)``."""
    orders = _orders()
    if orders is None or not _reason():
        return []
    rules = orders.settings
    if rules.claims:
        return _dangers(rules.alias)
    try:
        alias = written_in(rules.using)
    except ConfigurationError as error:
        return [message("E110", error, "Let them name one, or USING; or silence this check.")]
    try:
        OrderTable(alias).find("lockkit-check", fresh=True)
    except (BackendError, ConnectionDoesNotExist) as error:
        return [message("E110", error, "Start the database, or correct USING.")]
    except ConfigurationError as error:
        return [message("E110", error, "Until then, each order is answered with 500.")]
    return []


def check_paths() -> list[CheckMessage]:
    """The checks W104 and W105."""
    orders = _orders()
    if orders is None or not orders.settings.paths or not routes():
        return []
    found = path_findings(orders.settings.paths, _urls(orders))
    return [message_of(finding) for finding in found]


def check_replays() -> list[CheckMessage]:
    """The check W107."""
    orders = _orders()
    if orders is None or orders.settings.authorize_replay is not None:
        return []
    found = (finding for routed in routes() for finding in _not_repeated(routed, orders))
    return [message_of(finding) for finding in dict.fromkeys(found)]


def _orders() -> Orders | None:
    """The rules of orders. None: there are none, or they are wrong, which E101 reports."""
    with suppress(ConfigurationError):
        return order_rules()
    return None


def _dangers(alias: str) -> list[CheckMessage]:
    try:
        found = dangers(alias, conf.known_aliases(), locks.__getitem__)
        return [message_of(finding) for finding in found]
    except (BackendError, ConfigurationError):
        return []  # E010 or a check of the settings reports it


def _names(orders: Orders) -> Iterator[CheckMessage]:
    rules, aliases = orders.settings, conf.known_aliases()  # if there are none, E001 says why
    for name, call in HOOKS.items():
        try:
            orders.hook(name)
        except ConfigurationError as error:
            yield message("E102", error, f"Give the dotted path of a function: {call}.")
    for database in () if rules.claims else sorted(_databases(rules.using)):
        known = connections.settings
        if database not in known:
            text = f"orders are to be kept in {database!r}, which DATABASES does not have"
            have = ", ".join(sorted(known))
            hint = f"Correct USING, or @idempotent(using=…). DATABASES has {have}."
            yield message("E103", text, hint)
        elif known[database].get("AUTOCOMMIT") is False:  # the end of a block is not a COMMIT then
            text = f"orders cannot commit in the database {database!r}: it has AUTOCOMMIT False"
            yield message("E108", text, "Remove AUTOCOMMIT.")
    if aliases and rules.alias not in aliases:
        text = f"LOCKKIT_ORDERS['ALIAS'] is {rules.alias!r}, which LOCKKIT does not have"
        yield message("E104", text, f"Add {rules.alias!r} to LOCKKIT, or correct it.")
    elif rules.claims and not _is_redis(rules.alias):
        text = (
            f"LOCKKIT_ORDERS['STORE'] is 'redis', and lock alias {rules.alias!r} keeps no records"
        )
        hint = "Give ALIAS a redis:// location without protocol=plain, or leave STORE 'database'."
        yield message("E107", text, hint)


def _databases(using: str | None) -> set[str]:
    """The database that the settings name, and those that views name."""
    named = {options_of(each.view, method).using for each in routes() for method in CHANGING}
    return {using or DEFAULT_DB_ALIAS, *(each for each in named if each is not None)}


def _is_redis(alias: str) -> bool:
    try:
        return load_store(conf.lock_settings()[alias]).records() is not None
    except ConfigurationError:
        return True  # lockkit.E001 or E003 says what is wrong


def _presence() -> Iterator[CheckMessage]:
    """Without the middleware, the views of LOCKKIT_ORDERS would run for every repeated request."""
    reason = _reason()
    if reason and not _is_there():
        text = f"{reason}, and IdempotentOrderMiddleware is not in MIDDLEWARE: nothing is an order"
        yield message("E109", text, f"Add {MIDDLEWARE!r} at the end of MIDDLEWARE.")


def _reason() -> str:
    """Why the project has orders; empty: it has none."""
    if getattr(settings, SOURCE, None) is not None:
        return "LOCKKIT_ORDERS is set"
    for each in routes():
        if any(options_of(each.view, method).inside for method in CHANGING):
            return f"{name_of(each.view)} has @idempotent or IdempotentMixin"
    return "the middleware is there" if _is_there() else ""


def _is_there() -> bool:
    return not OURS.isdisjoint(conf.middleware())


def _place() -> Iterator[CheckMessage]:
    paths: Sequence[str] = settings.MIDDLEWARE
    ours = [i for i, path in enumerate(paths) if _is_a(path, OURS)]
    if len(ours) > 1:
        text = "IdempotentOrderMiddleware is in MIDDLEWARE more than once"
        yield message("E105", text, "Keep the last one only.")
    after = [path for path in paths[ours[0] + 1 :] if not _is_a(path, OURS)] if ours else []
    others = []
    for path in after:
        text = f"{path} comes after IdempotentOrderMiddleware in MIDDLEWARE"
        if _is_a(path, BEFORE):
            told = f"{text}: orders would be answered before it has looked at them"
            yield message("E106", told, f"{LAST}.")
        elif hasattr(conf.imported(path), "process_exception"):
            told = (
                f"{text} and has process_exception: if it answers an exception of a view, what the "
                f"view saved before would be committed"
            )
            yield message("E111", told, f"{LAST}, or silence this if it answers none.")
        else:
            others.append(path)
    if others:
        text = (
            f"after IdempotentOrderMiddleware in MIDDLEWARE: {', '.join(others)}. They are not "
            f"asked before a replay, and their changes to a response are stored and repeated"
        )
        yield message("W101", text, f"{LAST}.")


def _is_a(path: str, classes: set[str]) -> bool:
    """Whether a middleware is one of these classes, or derived from one."""
    return not classes.isdisjoint(conf.classes_at(path))


def _sessions() -> Iterator[CheckMessage]:
    store = conf.imported(f"{settings.SESSION_ENGINE}.SessionStore")
    if _is_there() and store is not None and in_signed_cookies(store):
        yield message(
            "W102",
            "SESSION_ENGINE keeps sessions in cookies, which have no key that stays the same: "
            "guests' requests with an order ID are refused",
            "Use another SESSION_ENGINE, or say whose order it is with LOCKKIT_ORDERS['SCOPE'].",
        )


def _urls(orders: Orders) -> list[Url]:
    """The URLs that may make orders; in each language, if the language is a part of their paths."""
    methods = orders.settings.methods
    found = [each for each in routes() if any(may_take(each.view, method) for method in methods)]
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
    for method in UNSAFE_METHODS:
        options = options_of(routed.view, method)
        is_order = options.inside or any(rules.covers(method, path) for path in paths)
        if is_order and not options.exempt:
            is_mixin = options.inside and options.below is None
            unknown = None if is_mixin else unknown_check(routed.view, method, options.below)
            if unknown is not None:
                line = _line_for(routed.view, method)
                yield unknown_finding(name_of(routed.view), routed.shown, unknown, line)


def _line_for(view: Any, method: str) -> str:
    if ninja_operation(view, method) is not None:
        return "Put @idempotent on the function, below the operation's decorator"
    cls = getattr(view, "cls", None)
    if module_behind(getattr(cls, method.lower(), None)) == API_VIEW:
        return "Put @idempotent on the function, below @api_view and its other checks"
    if cls is not None and hasattr(cls, "initial"):
        return f"Let {cls.__name__} inherit IdempotentMixin, before its other bases"
    line = "Put @idempotent on the function or method, below its checks"
    return f"{line}, which need functools.wraps"


ALWAYS = (check_orders, check_paths, check_replays)
DEPLOYED = (check_records,)
