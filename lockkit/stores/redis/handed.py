"""Locks over a client or a pool that somebody else has made: its limits, timeouts and credentials
apply, and it is not closed here.

A blocking client lends its connections, one for each exchange; tasks use them in worker threads.
From a client of ``redis.asyncio``, lockkit takes only how it connects, because all tasks of an
event loop share one connection anyway; only ``LentStore`` borrows its connections. The subscription
has a connection of its own.
"""

from __future__ import annotations

from typing import Any, Self

import redis
import redis.asyncio

from lockkit.engine.effects import Step
from lockkit.model.errors import ConfigurationError
from lockkit.model.settings import AliasSettings
from lockkit.model.types import Finding
from lockkit.stores.contract import reject_unknown_options
from lockkit.stores.redis import replicas
from lockkit.stores.redis.connections import PooledConnections
from lockkit.stores.redis.health import of_master
from lockkit.stores.redis.plain import PlainStore
from lockkit.stores.redis.settings import Maker
from lockkit.stores.redis.steps import ScriptSteps
from lockkit.stores.redis.store import RedisStore
from lockkit.stores.redis.wire import RedisWire
from lockkit.stores.wires import AsyncWire

OPTION = "client"


class Handed(ScriptSteps):
    """Over a client of redis-py, or its pool."""

    _pool: Any

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> Self:
        """Raises ConfigurationError for anything but a client of redis-py."""
        client = options_of(settings)[OPTION]
        if hasattr(client, "nodes_manager"):
            raise ConfigurationError(
                f"the client of {settings.title} is for a Redis Cluster: its BACKEND is "
                "lockkit.stores.redis.handed_cluster.HandedClusterStore"
            )
        return cls.from_pool(settings, pool_of(client))

    @classmethod
    def from_pool(cls, settings: AliasSettings, pool: Any) -> Self:
        store = cls._speaking(settings)
        store._pool = pool
        store._connections = PooledConnections(pool)
        return store

    def wire(self) -> RedisWire:
        if isinstance(self._pool, redis.asyncio.ConnectionPool):
            raise ConfigurationError(
                "a client of redis.asyncio is for lockkit.aio.connect(): hand a redis.Redis over"
            )
        return super().wire()

    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        if isinstance(self._pool, redis.asyncio.ConnectionPool):
            return self._own_wire()
        from lockkit.stores.redis.thread_wire import ThreadRedisWire

        return ThreadRedisWire(self.wire())

    def _own_wire(self) -> AsyncWire:
        """Over the pool of a client of redis.asyncio."""
        from lockkit.stores.redis.aio_wire import AsyncRedisWire

        return AsyncRedisWire(Maker(self._pool), self.inbox)

    def health(self) -> Step[list[Finding]]:
        return of_master() if hasattr(self._pool, "is_master") else super().health()

    def database(self) -> str:
        made = self._connections.fresh
        return f"{made.server()}, {made.described()}"


class HandedStore(Handed, RedisStore):
    """``connect(client=…)``."""


class LentStore(Handed, PlainStore):
    """Plain keys over somebody else's client: what ``lockkit.compat`` locks in."""

    def _own_wire(self) -> AsyncWire:
        from lockkit.stores.redis.aio_pool_wire import AsyncPoolWire

        return AsyncPoolWire(self._pool, self.inbox)


def options_of(settings: AliasSettings) -> dict[str, Any]:
    """Raises ConfigurationError for options that the client itself decides."""
    options = reject_unknown_options(settings, (OPTION, replicas.OPTION))
    if settings.location.partition("://")[2]:
        raise ConfigurationError(
            f"{settings.title} has a client in its OPTIONS, which says where "
            "its server is: the URL must be 'redis://'"
        )
    return options


def pool_of(found: object) -> Any:
    """The pool of a client, or the pool itself. Raises ConfigurationError."""
    pool = getattr(found, "connection_pool", found)
    if isinstance(pool, (redis.ConnectionPool, redis.asyncio.ConnectionPool)):
        if not getattr(pool, "is_master", True):
            raise ConfigurationError("this client is for replicas of a Sentinel: use master_for()")
        if getattr(pool, "cache", None) is not None:
            raise ConfigurationError(
                "this client has a client-side cache, and its connections also read messages for "
                "that: hand over a client without a cache_config"
            )
        return pool
    if hasattr(found, "nodes_manager"):
        raise ConfigurationError("the client of a Redis Cluster cannot lend its connections")
    raise ConfigurationError(
        f"a {type(found).__module__}.{type(found).__qualname__} is not a client or a pool of "
        "redis-py: hand a redis.Redis over, or give connect() a URL"
    )
