"""System checks of the orders: settings that are wrong, and a middleware in the wrong place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.connection import ConnectionDoesNotExist
from django.utils.module_loading import import_string

from lockkit.model.errors import BackendError, ConfigurationError
from lockkit.orders import OrderSettings, read_order_settings
from lockkit.orders.dangers import dangers
from lockkit.orders.settings import HOOKS
from lockkit.stores.registry import load_store
from lockkit_django import conf
from lockkit_django.leases.aliases import locks
from lockkit_django.orders.request import in_signed_cookies
from lockkit_django.orders.visit import options_of
from lockkit_django.web.checks import as_error, as_warning
from lockkit_django.web.routes import routed_views

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

METHODS = (None, "POST", "PUT", "PATCH", "DELETE")
MIDDLEWARE = "lockkit_django.middleware.IdempotentOrderMiddleware"
OURS = (MIDDLEWARE, "lockkit_django.orders.middleware.IdempotentOrderMiddleware")
BEFORE = (
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
)


@checks.register("lockkit")
def check_orders(**_: Any) -> list[CheckMessage]:
    """E101 to E109, E111, W101 and W102."""
    middleware = list(settings.MIDDLEWARE)
    mapping = getattr(settings, "LOCKKIT_ORDERS", None)
    if mapping is None and not _is_there(middleware):
        return list(_presence(middleware))
    try:
        rules = read_order_settings(mapping)
    except ConfigurationError as error:
        mistake = as_error("E101", str(error), "Correct LOCKKIT_ORDERS in the settings.")
        return [mistake, *_presence(middleware)]
    return [*_names(rules), *_presence(middleware), *_place(middleware), *_sessions()]


@checks.register("lockkit", deploy=True)
def check_records(**_: Any) -> list[CheckMessage]:
    """E110, W103, W106: asks the store of the settings, not those of ``@idempotent(using=…)``."""
    from lockkit_django.orders.table import OrderTable

    try:
        rules = read_order_settings(getattr(settings, "LOCKKIT_ORDERS", None))
    except ConfigurationError:
        return []  # E101 says it
    if not _reason(list(settings.MIDDLEWARE)):
        return []
    if rules.claims:
        return list(_dangers(rules.alias))
    try:
        OrderTable(rules.using).find("lockkit-check", fresh=True)
    except (BackendError, ConnectionDoesNotExist) as error:
        return [as_error("E110", str(error), "Start the database, or correct USING.")]
    except ConfigurationError as error:
        return [as_error("E110", str(error), "Orders answer 500 until then.")]
    return []


def _dangers(alias: str) -> Iterator[CheckMessage]:
    try:
        found = list(dangers(alias, _lock_aliases(alias), locks.__getitem__))
    except (BackendError, ConfigurationError):
        return  # E010, or what is wrong with the settings, says it
    for danger in found:
        number = "W106" if danger.identifier == "capacity" else "W103"
        yield as_warning(number, danger.text, danger.remedy)


def _names(rules: OrderSettings) -> Iterator[CheckMessage]:
    for key, call in HOOKS.items():
        path = getattr(rules, key)
        if path is not None and not _is_callable(path):
            text = (
                f"LOCKKIT_ORDERS[{key.upper()!r}] is {path!r}, which cannot be imported or called"
            )
            yield as_error("E102", text, f"Give the dotted path of a function: {call}.")
    if rules.using is not None and rules.using not in settings.DATABASES:
        text = f"LOCKKIT_ORDERS['USING'] is {rules.using!r}, which DATABASES does not have"
        yield as_error("E103", text, f"There are {', '.join(sorted(settings.DATABASES))}.")
    if rules.alias not in _lock_aliases(rules.alias):
        text = f"LOCKKIT_ORDERS['ALIAS'] is {rules.alias!r}, which LOCKKIT does not have"
        yield as_error("E104", text, f"Add {rules.alias!r} to LOCKKIT, or correct it.")
    elif rules.claims and not _is_redis(rules.alias):
        text = f"LOCKKIT_ORDERS['STORE'] is 'redis', and the lock alias {rules.alias!r} is not"
        yield as_error("E107", text, "Give ALIAS a redis:// location, or leave STORE 'database'.")
    if not rules.claims:
        yield from _autocommit(rules)


def _autocommit(rules: OrderSettings) -> Iterator[CheckMessage]:
    """Records are committed at the end of a block, which is none with autocommit off."""
    alias = rules.using or DEFAULT_DB_ALIAS
    if connections.settings.get(alias, {}).get("AUTOCOMMIT") is False:
        text = f"orders cannot commit in the database {alias!r}: it has AUTOCOMMIT False"
        yield as_error("E108", text, "Remove AUTOCOMMIT, or name another database in USING.")


def _is_redis(alias: str) -> bool:
    try:
        store = load_store(conf.lock_settings()[alias])
    except ConfigurationError:
        return True  # lockkit.E001 or E003 says what is wrong
    return store.records() is not None


def _is_callable(path: str) -> bool:
    try:
        return callable(import_string(path))
    except ImportError:
        return False


def _lock_aliases(default: str) -> set[str]:
    try:
        return set(conf.lock_settings())
    except ConfigurationError:
        return {default}  # lockkit.E001 says what is wrong


def _presence(middleware: list[str]) -> Iterator[CheckMessage]:
    """Without it the views of LOCKKIT_ORDERS would run as often as they are asked for."""
    if _is_there(middleware):
        return
    reason = _reason(middleware)
    if reason:
        text = f"{reason}, and IdempotentOrderMiddleware is not in MIDDLEWARE: there are no orders"
        yield as_error("E109", text, f"Add {MIDDLEWARE!r} at the end of MIDDLEWARE.")


def _reason(middleware: list[str]) -> str:
    """Why the project has orders; empty: it has none."""
    if getattr(settings, "LOCKKIT_ORDERS", None) is not None:
        return "LOCKKIT_ORDERS is set"
    if any(options_of(view, method).inside for view in routed_views() for method in METHODS):
        return "a view has @idempotent"
    return "the middleware is there" if _is_there(middleware) else ""


def _is_there(middleware: list[str]) -> bool:
    return any(_is_a(path, OURS) for path in middleware)


def _place(middleware: list[str]) -> Iterator[CheckMessage]:
    ours = [i for i, path in enumerate(middleware) if _is_a(path, OURS)]
    if not ours:
        return
    if len(ours) > 1:
        text = "IdempotentOrderMiddleware is in MIDDLEWARE more than once"
        yield as_error("E105", text, "Keep the last one only.")
    after = middleware[ours[0] + 1 :]
    for path in filter(partial(_is_a, classes=BEFORE), after):
        yield as_error(
            "E106",
            f"{path} comes after IdempotentOrderMiddleware in MIDDLEWARE: orders would be "
            f"answered before it has looked at them",
            f"Move {MIDDLEWARE!r} to the end of MIDDLEWARE.",
        )
    rest = [path for path in after if not _is_a(path, (*BEFORE, *OURS))]
    yield from _between([path for path in rest if _answers_exceptions(path)])
    others = [path for path in rest if not _answers_exceptions(path)]
    if others:
        text = (
            f"{', '.join(others)} after IdempotentOrderMiddleware: not asked before a replay, and "
            f"what becomes of a response there is stored and repeated"
        )
        yield as_warning("W101", text, f"Move {MIDDLEWARE!r} to the end of MIDDLEWARE.")


def _between(paths: list[str]) -> Iterator[CheckMessage]:
    """Django asks the last of them first, and the others only if that one has no answer."""
    for path in paths:
        yield as_error(
            "E111",
            f"{path} comes after IdempotentOrderMiddleware in MIDDLEWARE and has "
            f"process_exception: of a view whose exception it answers, what was saved before "
            f"would be committed",
            f"Move {MIDDLEWARE!r} to the end of MIDDLEWARE, or silence this if it answers none.",
        )


def _answers_exceptions(path: str) -> bool:
    try:
        return hasattr(import_string(path), "process_exception")
    except ImportError:
        return False


def _is_a(path: str, classes: tuple[str, ...]) -> bool:
    """Whether a middleware is one of these classes, or derived from one."""
    if path in classes:
        return True
    try:
        found = import_string(path)
    except ImportError:
        return False
    return isinstance(found, type) and any(
        f"{base.__module__}.{base.__qualname__}" in classes for base in found.__mro__
    )


def _sessions() -> Iterator[CheckMessage]:
    if _is_there(list(settings.MIDDLEWARE)) and _is_signed_cookies(settings.SESSION_ENGINE):
        yield as_warning(
            "W102",
            "SESSION_ENGINE keeps sessions in cookies, which have no key that stays the same: "
            "guests' requests with an order ID are refused",
            "Use another SESSION_ENGINE, or say whose order it is with LOCKKIT_ORDERS['SCOPE'].",
        )


def _is_signed_cookies(engine: str) -> bool:
    try:
        store = import_module(engine).SessionStore
    except (ImportError, AttributeError):
        return False  # nothing works then, and Django says so
    return in_signed_cookies(store)
