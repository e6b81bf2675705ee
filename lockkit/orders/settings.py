"""The settings ``LOCKKIT_ORDERS``, which are validated before the first request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockkit.model.checks import (
    Check,
    check_count,
    check_flag,
    check_strings,
    check_text,
    check_timeout,
    check_ttl,
    one_of,
    optional,
    read_mapping,
    required,
    wrong,
)
from lockkit.model.errors import ConfigurationError
from lockkit.model.settings import DEFAULT_ALIAS
from lockkit.orders.order import IdSource

SOURCE = "LOCKKIT_ORDERS"

DATABASE, REDIS = "database", "redis"
BLOCK, RETRY = "block", "retry"
ALWAYS, NEVER = "always", "never"
UNSAFE_METHODS = ("POST", "PUT", "PATCH", "DELETE")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")
HOOKS = {
    "scope": "f(request)",
    "tenant": "f(request)",
    "authorize_replay": "f(request)",
    "recover": "f(request, order_id)",
}
"""The settings that are dotted paths of functions, and how each function is called."""
_WHERE = (
    "PATHS says which paths have orders, such as [r'^/orders/$']; [] leaves only views with "
    "@idempotent"
)


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """Which requests are orders, and how they are stored. Times are seconds, sizes are bytes."""

    order_id: tuple[IdSource, ...] = (
        IdSource("header", ("Idempotency-Key",)),
        IdSource("header", ("X-Order-ID",)),
    )
    paths: tuple[re.Pattern[str], ...] = ()  #: empty: only views with ``@idempotent``
    methods: frozenset[str] = frozenset({"POST", "PATCH"})
    required: bool | None = None  #: True: no order ID is a 400; None: it is a warning
    namespace: str = ""  #: separates applications that share a store of records
    scope: str | None = None  #: dotted path of callable(request) -> str | None: the owner
    tenant: str | None = None  #: dotted path of callable(request) -> str | None: the tenant
    authorize_replay: str | None = None  #: dotted path of callable(request) -> bool: replay or not
    ttl: float = 86400.0  #: a record lives so many seconds
    max_request: int = 1024 * 1024  #: of a request's body; a larger one is 413
    max_response: int = 256 * 1024  #: of a stored body
    guest_ttl: float = 3600.0  #: the TTL for owners without a login, never more than ``ttl``
    guest_max_response: int = 16 * 1024  #: ``max_response`` without a login, if it is less
    wait: float = 2.0  #: seconds that a duplicate waits for the running try
    max_waiters: int = 16  #: duplicates that wait at one time, per process
    using: str | None = None  #: database of the records; None: the routers choose
    alias: str = DEFAULT_ALIAS  #: lock alias
    lock: str = ALWAYS  #: "never": the unique key of the record alone decides
    store: str = DATABASE  #: "database": records commit with the order; "redis": beside the locks
    orphans: str = BLOCK  #: "block": an operator decides about an orphan; "retry": it runs again
    recover: str | None = None  #: dotted path of callable(request, order_id) -> response | None

    @property
    def claims(self) -> bool:
        """Whether records are kept beside the lock, and not in the order's transaction."""
        return self.store == REDIS

    @property
    def retries_orphans(self) -> bool:
        """Whether an orphan runs again. In a database it does not: a part of it is saved there."""
        return self.claims and self.orphans == RETRY

    @property
    def form_field(self) -> str | None:
        """The first form field that ORDER_ID reads; None if it reads none."""
        return next((s.path[0] for s in self.order_id if s.kind == "form"), None)


def read_order_settings(mapping: Mapping[str, Any] | None) -> OrderSettings:
    """Validate a settings mapping. Raises ConfigurationError, which names the key and the remedy.

    PATHS is required: an order rolls back the changes of a failing view, so a client must not be
    able to choose which requests are orders.
    """
    if mapping is None:
        raise ConfigurationError(f"{SOURCE} is missing: {_WHERE}")
    values = read_mapping(SOURCE, mapping, _CHECKS)
    if values.get("paths") is None:
        raise ConfigurationError(f"{SOURCE}['PATHS'] is missing: {_WHERE}")
    settings = OrderSettings(**values)
    if settings.claims:
        _check_claims(settings)
    return settings


def _check_claims(settings: OrderSettings) -> None:
    """Refuse settings that do not go with STORE "redis". NAMESPACE is required: applications may
    share a Redis. It is not derived from the project, because many projects use the same names."""
    if not settings.namespace:
        raise ConfigurationError(
            f"{SOURCE}['NAMESPACE'] is missing: with STORE 'redis' give this application a name, "
            f"such as 'shop-production', so that no other application with the same Redis answers "
            f"its orders. Use the same name on all machines, and do not change it"
        )
    if settings.using is not None:
        raise ConfigurationError(
            f"{SOURCE}['USING'] is for records in a database, but with STORE 'redis' they are in "
            f"the store of lock alias {settings.alias!r}. Remove one of the two"
        )
    if settings.lock == NEVER:
        raise ConfigurationError(
            f"{SOURCE}['LOCK'] is 'never', but with STORE 'redis' the lock alone decides which try "
            f"runs. Remove one of the two"
        )


def _sources(key: str, value: object) -> tuple[IdSource, ...]:
    return tuple(IdSource.parse(text, where=key) for text in check_strings(key, value))


def _paths(key: str, value: object) -> tuple[re.Pattern[str], ...]:
    if value in ([], ()):
        return ()
    texts = check_strings(key, value, "a list of strings, which may be empty")
    return tuple(_pattern(key, text) for text in texts)


def _pattern(key: str, text: str) -> re.Pattern[str]:
    if not text:
        raise ConfigurationError(f"{key} has '', which is every path: write '^/' if you mean that")
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigurationError(f"{key} has {text!r}, which is not a regex: {error}") from None


def _methods(key: str, value: object) -> frozenset[str]:
    methods = frozenset(check_strings(key, value))
    for method in methods - set(UNSAFE_METHODS):
        raise wrong(key, method, f"one of {', '.join(UNSAFE_METHODS)}")
    return methods


def _dotted(key: str, value: object) -> str:
    if isinstance(value, str) and "." in value:
        return value
    raise wrong(key, value, "the dotted path of a callable, or None")


def _text_or_empty(key: str, value: object) -> str:
    return "" if value == "" else check_text(key, value)


_bytes = required(check_count, "a number of bytes")

_CHECKS: dict[str, Check] = {
    "ORDER_ID": _sources,
    "PATHS": optional(_paths),
    "METHODS": _methods,
    "REQUIRED": check_flag,
    "NAMESPACE": _text_or_empty,
    "SCOPE": optional(_dotted),
    "TENANT": optional(_dotted),
    "AUTHORIZE_REPLAY": optional(_dotted),
    "TTL": check_ttl,
    "GUEST_TTL": check_ttl,
    "MAX_REQUEST": _bytes,
    "MAX_RESPONSE": _bytes,
    "GUEST_MAX_RESPONSE": _bytes,
    "WAIT": required(check_timeout, "seconds: a request cannot wait for ever"),
    "MAX_WAITERS": required(check_count, "a number of requests: each one waiting holds a thread"),
    "USING": optional(check_text),
    "ALIAS": check_text,
    "LOCK": one_of(ALWAYS, NEVER),
    "STORE": one_of(DATABASE, REDIS),
    "ORPHANS": one_of(BLOCK, RETRY),
    "RECOVER": optional(_dotted),
}
