"""``django-redis://alias`` and ``django-cache://alias``: locks in the Redis of a cache, over the
cache's own pool; the first for a cache of django-redis, the second for Django's own.

The pool's size, time-outs and credentials apply: give it time-outs. Errors are lockkit's own:
IGNORE_EXCEPTIONS is for the cache only. Coroutines use the pool through worker threads;
``redis://`` needs no threads for them. ``cache.clear()`` empties the whole database, so all locks
in it are lost.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import redis
from django.conf import settings as django_settings
from django.core.cache import caches

from lockkit.model.checks import unknown_key
from lockkit.model.errors import ConfigurationError, DriverMissing
from lockkit.model.settings import AliasSettings
from lockkit.stores.contract import reject_unknown_options
from lockkit.stores.redis.handed import HandedStore, pool_of
from lockkit_django.conf import need_settings

SCHEMES = {"django_redis.cache": "django-redis", "django.core.cache.backends.redis": "django-cache"}


class CacheStore(HandedStore):
    """Locks over the connections of a cache."""

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> Self:
        need_settings(settings.scheme)
        reject_unknown_options(settings, ())
        alias = settings.location.partition("://")[2] or "default"
        if alias not in django_settings.CACHES:
            raise unknown_key("CACHES", alias, django_settings.CACHES)
        pool = getattr(cls._client_of(alias), "connection_pool", None)
        if not isinstance(pool, redis.ConnectionPool):
            raise ConfigurationError(
                f"the cache {alias!r} has no connection pool that can be shared: give the locks a "
                "redis:// URL"
            )
        return cls.from_pool(settings, pool_of(pool))

    @staticmethod
    @abstractmethod
    def _client_of(alias: str) -> Any:
        """The client for the cache's primary, if it has one. Makes its pool if it is the first to
        ask; no I/O. Raises ConfigurationError."""


class DjangoRedisStore(CacheStore):
    """``django-redis://``."""

    @staticmethod
    def _client_of(alias: str) -> Any:
        try:
            from django_redis.cache import RedisCache  # type: ignore[import-untyped]
        except ImportError as error:
            raise DriverMissing(
                "django-redis:// needs django-redis: pip install 'lockkit[django-redis]'"
            ) from error
        cache: Any = _checked(alias, "django-redis", RedisCache)
        try:
            return cache.client.get_client(write=True)
        except NotImplementedError:  # a ShardClient has several
            return None


class DjangoCacheStore(CacheStore):
    """``django-cache://``. Each thread has caches of its own, and so its own pool. Locks of all
    threads use the pool of the thread that made their client."""

    @staticmethod
    def _client_of(alias: str) -> Any:
        from django.core.cache.backends.redis import RedisCache

        cache: Any = _checked(alias, "django-cache", RedisCache)
        return cache._cache.get_client(write=True)


def _checked(alias: str, scheme: str, wanted: type) -> Any:
    cache = caches[alias]
    if isinstance(cache, wanted):
        return cache
    other = SCHEMES.get(type(cache).__module__)
    hint = f"; {other}://{alias} is for that" if other else ""
    raise ConfigurationError(
        f"the cache {alias!r} is a {type(cache).__module__}.{type(cache).__name__}; "
        f"{scheme}://{alias} needs {wanted.__module__}.{wanted.__name__}{hint}"
    )
