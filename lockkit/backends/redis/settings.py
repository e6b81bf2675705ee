"""An alias's settings as a redis-py connection pool."""

from __future__ import annotations

from typing import Any, TypeVar

from lockkit.backends.base import reject_unknown_options
from lockkit.config import AliasSettings
from lockkit.errors import ConfigurationError

__all__ = ["connection_pool"]

P = TypeVar("P")

SOCKET_TIMEOUT = 2.0
OPTIONS = (
    "socket_timeout",
    "socket_connect_timeout",
    "username",
    "password",
    "db",
    "client_name",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)


def connection_pool(settings: AliasSettings, kind: type[P]) -> P:
    """A pool (sync or asyncio) for the LOCATION and OPTIONS of an alias; no I/O.

    RESP 2, because scripts reply with nothing newer, and subscriptions then need no push parser.
    """
    _check_database(settings)
    options: dict[str, Any] = reject_unknown_options(settings, OPTIONS)
    timeout = options.setdefault("socket_timeout", SOCKET_TIMEOUT)
    options.setdefault("socket_connect_timeout", timeout)
    try:
        pool: P = kind.from_url(settings.location, protocol=2, **options)  # type: ignore[attr-defined]
        # Without I/O, this finds options that redis-py does not know.
        pool.make_connection()  # type: ignore[attr-defined]
    except (ValueError, TypeError):
        raise ConfigurationError(
            f"the LOCATION of lock alias {settings.alias!r} is not a Redis URL; it looks like "
            f"redis://user:password@host:6379/0, rediss://… or unix:///path?db=0{_hint(settings)}"
        ) from None
    return pool


def _hint(settings: AliasSettings) -> str:
    """The query may hold a password, so it is not shown."""
    if "?" in settings.location:
        return "; what else the driver is to know goes into OPTIONS, and ssl_… needs rediss://"
    return ""


def _check_database(settings: AliasSettings) -> None:
    """The path of redis:// is a number. redis-py takes what it cannot read for database 0."""
    _, _, rest = settings.location.partition("://")
    path = rest.partition("?")[0].partition("/")[2]
    if settings.location.startswith("redis") and path and not (path.isascii() and path.isdecimal()):
        raise ConfigurationError(
            f"the LOCATION of lock alias {settings.alias!r} must end in the number of a database, "
            "as redis://host:6379/0 does"
        )
