"""``django-redis://alias``: locks in the Redis of a django-redis cache, over the cache's own pool.

The pool's limits, time-outs and credentials apply, and its size: give it SOCKET_TIMEOUT and
SOCKET_CONNECT_TIMEOUT. Errors are lockkit's own: IGNORE_EXCEPTIONS is about the cache only.
Coroutines share the pool by way of worker threads; ``redis://`` is native there.
"""

from __future__ import annotations

from typing import Any, Self

import redis
from django.conf import settings as django_settings
from django.core.cache import caches

from lockkit.model.checks import unknown_key
from lockkit.model.errors import ConfigurationError, DriverMissing
from lockkit.model.settings import AliasSettings
from lockkit.stores.contract import reject_unknown_options
from lockkit.stores.redis import RedisStore
from lockkit.stores.wires import AsyncWire


class DjangoRedisStore(RedisStore):
    """``RedisStore`` over the connections that a cache has already."""

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> Self:
        reject_unknown_options(settings, ())
        pool = _pool_of_cache(settings.location.partition("://")[2] or "default")
        return cls.from_pool(settings, pool)

    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        from lockkit.stores.redis.thread_wire import ThreadRedisWire

        return ThreadRedisWire(self.wire())

    def database(self) -> str:
        made = self._connections.fresh
        return f"{made.server()}, {made.described()}"


def _pool_of_cache(alias: str) -> redis.ConnectionPool:
    """The cache's pool for its primary. Makes the pool if it is the first to ask; no I/O."""
    if alias not in django_settings.CACHES:
        raise unknown_key("CACHES", alias, django_settings.CACHES)
    try:
        from django_redis.cache import RedisCache  # type: ignore[import-untyped]
    except ImportError as error:
        raise DriverMissing(
            "django-redis:// needs django-redis: pip install 'lockkit[django-redis]'"
        ) from error
    cache: Any = caches[alias]
    if not isinstance(cache, RedisCache):
        raise ConfigurationError(
            f"the cache {alias!r} is a {type(cache).__module__}.{type(cache).__name__}; "
            f"django-redis://{alias} needs django_redis.cache.RedisCache"
        )
    pool: Any = cache.client.get_client(write=True).connection_pool
    if not isinstance(pool, redis.ConnectionPool):
        raise ConfigurationError(f"the cache {alias!r} has no connection pool that can be shared")
    return pool
