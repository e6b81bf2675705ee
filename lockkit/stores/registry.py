"""Finds the store class of an alias: by its URL's scheme, its BACKEND, or an entry point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockkit.model.checks import Unshown, nearest
from lockkit.model.errors import ConfigurationError, DriverMissing, UnknownBackend
from lockkit.model.settings import AliasSettings, settings_from_url

if TYPE_CHECKING:
    from lockkit.stores.contract import Store

ENTRY_POINTS = "lockkit.backends"
TABLE = "table"
"""The default mode of a database. SCHEMES has no entry of its own for it."""

SCHEMES = {
    "memory": "lockkit.stores.memory:MemoryStore",
    "sqlite": "lockkit.stores.sql.sqlite:SQLiteStore",
    "sqlalchemy": "lockkit.stores.sql.alchemy:SQLAlchemyStore",
    "postgresql": "lockkit.stores.sql.alchemy:SQLAlchemyStore",
    "postgresql?mode=advisory": "lockkit.stores.sessions.postgresql:PostgresAdvisoryStore",
    "postgresql?mode=row": "lockkit.stores.sessions.postgresql:PostgresRowStore",
    "mysql": "lockkit.stores.sql.alchemy:SQLAlchemyStore",
    "mysql?mode=advisory": "lockkit.stores.sessions.mysql:GetLockStore",
    "mysql?mode=row": "lockkit.stores.sessions.mysql:MySQLRowStore",
    "mariadb": "lockkit.stores.sql.alchemy:SQLAlchemyStore",
    "mariadb?mode=advisory": "lockkit.stores.sessions.mysql:GetLockStore",
    "mariadb?mode=row": "lockkit.stores.sessions.mysql:MySQLRowStore",
    "redis": "lockkit.stores.redis:RedisStore",
    "redis?protocol=plain": "lockkit.stores.redis.plain:PlainStore",
    "redis+sentinel?protocol=plain": "lockkit.stores.redis.sentinel_store:PlainSentinelStore",
    "rediss": "lockkit.stores.redis:RedisStore",
    "redis+cluster": "lockkit.stores.redis.cluster_store:ClusterStore",
    "rediss+cluster": "lockkit.stores.redis.cluster_store:ClusterStore",
    "redis+sentinel": "lockkit.stores.redis.sentinel_store:SentinelStore",
    "rediss+sentinel": "lockkit.stores.redis.sentinel_store:SentinelStore",
    "unix": "lockkit.stores.redis:RedisStore",
    "zookeeper": "lockkit.stores.zookeeper:ZooKeeperStore",
    "redlock": "lockkit.stores.redlock:RedlockStore",
    "redlocks": "lockkit.stores.redlock:RedlockStore",
    "django": "lockkit_django.stores.database:DatabaseStore",
    "django-redis": "lockkit_django.stores.redis:CacheStore",
    "django-cache": "lockkit_django.stores.redis:CacheStore",
}
"""By the scheme; for another mode or protocol, by "scheme?mode=…" or "scheme?protocol=…"."""

OF_SQLALCHEMY = {"sqlalchemy", "postgresql", "mysql", "mariadb"}
"""Schemes of SQLAlchemy's URLs: a driver may follow after a plus sign."""

WITH_MODES = {*OF_SQLALCHEMY, "django"}

NAMED = ("postgresql", "mysql", "mariadb")
"""Schemes whose URL itself names the database, unlike an alias of Django's or an engine."""

DATABASES = {"psycopg", "pgsql", "oracle", "mssql"}
"""Unknown schemes that are answered with a hint at those of databases."""

OF_A_CLUSTER = "redis://", "lockkit.stores.redis.handed_cluster:HandedClusterStore", "client"

HANDED_OVER = {
    "redis.cluster": OF_A_CLUSTER,
    "redis.asyncio.cluster": OF_A_CLUSTER,
    "redis": ("redis://", "lockkit.stores.redis.handed:HandedStore", "client"),
    "sqlalchemy": ("sqlalchemy://", None, "engine"),
}
"""For a client that is handed over: the LOCATION, the BACKEND and the name of its option, by the
module or the package of its class."""


def load_store(settings: AliasSettings) -> Store:
    """The store of an alias: imports its driver, but does no I/O."""
    return _store_class(settings).from_settings(settings)


def settings_for_client(client: object, **options: Any) -> AliasSettings:
    """The settings of ``lockkit.connect(client=…, ttl=…)``. Raises ConfigurationError."""
    modules = [kind.__module__ for kind in type(client).__mro__]
    for origin in (*modules, *(module.partition(".")[0] for module in modules)):
        if origin in HANDED_OVER:
            location, backend, option = HANDED_OVER[origin]
            if options.pop("backend", None) is not None:
                raise ConfigurationError("connect() takes a client or a backend, not both")
            given = options.pop("options", {})
            if isinstance(given, Mapping):  # else the check of OPTIONS says what it must be
                given = {**given, option: client}
            return settings_from_url(location, backend=backend, options=given, **options)
    raise ConfigurationError(
        f"connect() cannot use a {type(client).__module__}.{type(client).__qualname__}: hand it a "
        "client or a pool of redis-py, an engine of SQLAlchemy, or a URL"
    )


def _store_class(settings: AliasSettings) -> type[Store]:
    from importlib import import_module

    path = settings.backend or _built_in(settings) or _entry_point(settings)
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except DriverMissing:
        raise
    except (ImportError, AttributeError) as error:
        raise UnknownBackend(
            f"the store class {path!r} of {settings.title} cannot be imported: {error}"
        ) from error
    from lockkit.stores.contract import Store

    if not (isinstance(found, type) and issubclass(found, Store)):
        raise UnknownBackend(
            f"{path!r} of {settings.title} is not a subclass of lockkit.stores.contract.Store. "
            "Without BACKEND, LOCATION chooses the store"
        )
    return found


def _built_in(settings: AliasSettings) -> str | None:
    scheme = settings.scheme
    if settings.is_plain:
        for kind in ("redis", "redis+sentinel"):
            if SCHEMES.get(scheme) == SCHEMES[kind]:
                return SCHEMES[f"{kind}?protocol=plain"]
        raise ConfigurationError(
            f"{settings.place}: ?protocol=plain is for redis://, rediss://, "
            f"unix:// and redis+sentinel://, not for {scheme}://"
        )
    base, _, driver = scheme.partition("+")
    base = base if driver and base in OF_SQLALCHEMY else scheme
    mode = _mode(settings) if base in WITH_MODES else None
    if mode in (None, TABLE):
        return SCHEMES.get(base)
    if f"{base}?mode={mode}" not in SCHEMES:
        known = [TABLE, *(key.partition("=")[2] for key in SCHEMES if key.startswith(f"{base}?"))]
        there = [f"{key}://…?mode={mode}" for key in NAMED if f"{key}?mode={mode}" in SCHEMES]
        hint = f"; to lock by sessions, use the database's own URL, {' or '.join(there)}"
        raise ConfigurationError(
            f"{settings.place}: {base}:// has no mode {mode!r}; "
            f"a database may have {', '.join(known)}{hint * bool(there)}"
        )
    return SCHEMES[f"{base}?mode={mode}"]


def _mode(settings: AliasSettings) -> str | None:
    """The mode of a database: ``?mode=`` of its URL, or the one in OPTIONS."""
    from urllib.parse import parse_qs

    found = parse_qs(settings.location.partition("?")[2], keep_blank_values=True).get("mode")
    if found and "mode" in settings.options:
        raise ConfigurationError(
            f"{settings.place} and its OPTIONS both say 'mode': say it in one of them"
        )
    return Unshown(found[-1]) if found else settings.options.get("mode")


def _entry_point(settings: AliasSettings) -> str:
    """The class of a scheme that another package adds by its entry point."""
    from importlib.metadata import entry_points

    found = {point.value for point in entry_points(group=ENTRY_POINTS, name=settings.scheme)}
    if len(found) == 1:
        return found.pop()
    if found:
        raise UnknownBackend(
            f"several packages offer a store for {settings.scheme!r}: "
            f"{', '.join(sorted(found))}; name one as BACKEND"
        )
    if not settings.scheme:
        what = "has no scheme" if settings.location else "is empty"
        raise UnknownBackend(
            f"{settings.place} {what}; it looks like 'redis://127.0.0.1:6379/0' or "
            "'sqlite:///locks.sqlite3'"
        )
    known = sorted(scheme for scheme in SCHEMES if "?" not in scheme)
    close = nearest(settings.scheme, known)
    hint = f"; did you mean {close!r}?" if close else f"; there are {', '.join(known)}"
    if settings.scheme.partition("+")[0] in DATABASES:
        hint = (
            "; for locks in a database: postgresql://…, mysql://…, mariadb://…, "
            "or in Django django://default"
        )
    raise UnknownBackend(f"no store has the scheme {settings.scheme!r} of {settings.place}{hint}")
