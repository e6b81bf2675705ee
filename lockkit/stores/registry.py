"""Which class keeps the locks of an alias: by its URL's scheme, its BACKEND, or an entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockkit.model.errors import DriverMissing, UnknownBackend

if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings
    from lockkit.stores.base import AsyncBackend, Backend

__all__ = ["SCHEMES", "load_async_backend", "load_backend"]

ENTRY_POINTS = "lockkit.backends"
SCHEMES = {
    "memory": "lockkit.stores.memory:MemoryBackend",
    "sqlite": "lockkit.stores.sql:SQLiteBackend",
    "sqlalchemy": "lockkit.stores.sql:SQLAlchemyBackend",
    "redis": "lockkit.stores.redis:RedisBackend",
    "rediss": "lockkit.stores.redis:RedisBackend",
    "unix": "lockkit.stores.redis:RedisBackend",
    "django": "lockkit_django.stores:DatabaseBackend",
    "django-redis": "lockkit_django.stores:DjangoRedisBackend",
}
DATABASES = {"postgres", "postgresql", "psycopg", "pgsql", "mysql", "mariadb", "oracle", "mssql"}


def load_backend(settings: AliasSettings) -> Backend:
    """The backend of an alias: imports its driver, but does no I/O."""
    return _backend_class(settings).from_settings(settings)


def load_async_backend(settings: AliasSettings) -> AsyncBackend:
    return _backend_class(settings).async_from_settings(settings)


def _backend_class(settings: AliasSettings) -> type[Backend]:
    from importlib import import_module

    path = settings.backend or _built_in(settings.scheme) or _entry_point(settings)
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except DriverMissing:
        raise
    except (ImportError, AttributeError) as error:
        raise UnknownBackend(
            f"the backend {path!r} of lock alias {settings.alias!r} cannot be imported: {error}"
        ) from error
    from lockkit.stores.base import Backend

    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise UnknownBackend(f"{path!r} is not a subclass of lockkit.stores.base.Backend")
    return found


def _built_in(scheme: str) -> str | None:
    """``sqlalchemy+`` goes before any URL of SQLAlchemy's."""
    return SCHEMES.get("sqlalchemy" if scheme.startswith("sqlalchemy+") else scheme)


def _entry_point(settings: AliasSettings) -> str:
    """A scheme of somebody else's, from the entry points of installed distributions."""
    from importlib.metadata import entry_points

    found = {point.value for point in entry_points(group=ENTRY_POINTS, name=settings.scheme)}
    if len(found) == 1:
        return found.pop()
    if found:
        raise UnknownBackend(
            f"several packages offer a lock backend for {settings.scheme!r}: "
            f"{', '.join(sorted(found))}; name one as BACKEND"
        )
    if not settings.scheme:
        what = "not a URL" if settings.location else "not a URL, but empty"
        raise UnknownBackend(
            f"the LOCATION of lock alias {settings.alias!r} is {what}; it looks like "
            "'redis://127.0.0.1:6379/0'"
        )
    import difflib

    known = sorted(SCHEMES)
    close = difflib.get_close_matches(settings.scheme, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"
    if settings.scheme.partition("+")[0] in DATABASES:
        hint = (
            "; for locks in a database: sqlalchemy+ before a URL of SQLAlchemy's, such as "
            "sqlalchemy+postgresql+psycopg://…, or in Django django://default"
        )
    where = f"lock alias {settings.alias!r}"
    raise UnknownBackend(f"no backend for the URL scheme {settings.scheme!r} of {where}{hint}")
