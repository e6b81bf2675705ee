"""``django-redis://alias`` and ``django-cache://alias``: locks in the Redis of a cache, over the
cache's own pool. Both schemes work with a cache of django-redis and with Django's own.

The pool's size, timeouts and credentials apply: give it timeouts. Errors are raised as
lockkit's: IGNORE_EXCEPTIONS is for the cache only. Coroutines use the pool through worker threads;
``redis://`` needs no threads for them. ``cache.clear()`` empties the whole database, so all locks
in it are lost.
"""

from __future__ import annotations

from typing import Any, Self

import redis
from django.conf import settings as django_settings
from django.core.cache import InvalidCacheBackendError, caches

from lockkit.model.checks import unknown_key
from lockkit.model.errors import ConfigurationError, DriverMissing
from lockkit.model.settings import AliasSettings
from lockkit.stores.contract import reject_unknown_options
from lockkit.stores.redis.handed import HandedStore, pool_of
from lockkit_django.conf import need_settings


class CacheStore(HandedStore):
    """Locks over the connections of a cache. Django makes a cache, and so its pool, for each
    thread. The locks of all threads use the pool of the thread that made their client."""

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> Self:
        need_settings(settings.scheme)
        reject_unknown_options(settings, ())
        alias = settings.location.partition("://")[2] or "default"
        if alias not in django_settings.CACHES:
            raise unknown_key("CACHES", alias, django_settings.CACHES)
        return cls.from_pool(settings, pool_of(_pool_of_cache(alias)))


def _pool_of_cache(alias: str) -> Any:
    """The pool of connections to the cache's primary. A pool that is not there yet is made, without
    I/O."""
    cache: Any = None
    pool = None
    try:
        cache = caches[alias]
        clients: Any = getattr(cache, "client", None) or cache._cache  # each is made when asked for
        pool = clients.get_client(write=True).connection_pool
    except InvalidCacheBackendError as error:
        extra = "for django-redis: pip install 'lockkit[django-redis]'"
        raise DriverMissing(f"the cache {alias!r}: {error} ({extra})") from error
    except NotImplementedError:  # a ShardClient has several pools
        pass
    except AttributeError:
        if cache is None:  # it cannot even be made: its options have the wrong type, say
            text = f"the cache {alias!r} cannot be used: it raises AttributeError"
            raise ConfigurationError(text) from None
    except Exception as error:  # noqa: BLE001  of the cache or a driver; its text may show the URL
        kind = type(error).__name__
        raise ConfigurationError(f"the cache {alias!r} cannot be used: it raises {kind}") from None
    if isinstance(pool, redis.ConnectionPool):
        return pool
    raise ConfigurationError(
        f"the cache {alias!r} is a {type(cache).__module__}.{type(cache).__name__}, which has no "
        "connection pool that can be shared: give the locks a redis:// URL"
    )
