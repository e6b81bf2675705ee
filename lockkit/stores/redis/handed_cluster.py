"""Locks in the cluster to which somebody else's ``RedisCluster`` connects.

lockkit takes only how it connects: its servers, credentials, TLS and timeouts. The connections
are lockkit's own: a client of a cluster lends none.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import redis
import redis.asyncio

from lockkit.model.errors import ConfigurationError
from lockkit.model.settings import AliasSettings
from lockkit.stores.redis.cluster_store import ClusterStore
from lockkit.stores.redis.cluster_wire import ClusterWire, ManyConnections
from lockkit.stores.redis.handed import OPTION, options_of
from lockkit.stores.redis.hosts import Node
from lockkit.stores.redis.settings import Maker
from lockkit.stores.redis.slots import Slots
from lockkit.stores.wires import AsyncWire

OF_THE_CLIENT = ("redis_connect_func", "parser_class", "oss_cluster_maint_notifications_handler")
"""Arguments of the client's connections that serve only the client itself."""


class HandedClusterStore(ClusterStore):
    """``connect(client=RedisCluster(…))``."""

    _is_async: bool

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> Self:
        """Raises ConfigurationError for anything but a client of a Redis Cluster."""
        client: Any = options_of(settings)[OPTION]
        if not isinstance(client, (redis.RedisCluster, redis.asyncio.RedisCluster)):
            raise ConfigurationError(f"a {type(client).__name__} is not a Redis Cluster's client")
        if getattr(client, "user_on_connect_func", None) is not None:
            raise ConfigurationError(
                "this client of a Redis Cluster has a function of its own for new connections, "
                "which only its own connections can call: give connect() the URL, redis+cluster://…"
            )
        store = cls._speaking(settings)
        store._is_async = isinstance(client, redis.asyncio.RedisCluster)
        seeds = [*client.nodes_manager.startup_nodes.values()]
        nodes = [Node(seed.host, int(seed.port)) for seed in seeds]
        store._slots = Slots(nodes, client.nodes_manager.address_remap)
        pool: Any = seeds[0]  # as much of one as a Maker needs
        if isinstance(client, redis.RedisCluster):
            pool = client.get_redis_connection(seeds[0]).connection_pool
        known = {k: v for k, v in pool.connection_kwargs.items() if k not in OF_THE_CLIENT}
        kind = pool.connection_class
        make = Maker(SimpleNamespace(connection_class=kind, connection_kwargs=known))
        store._connections = ManyConnections(store._slots, make)
        return store

    def wire(self) -> ClusterWire:
        if self._is_async:
            raise ConfigurationError(
                "a client of redis.asyncio is for lockkit.aio.connect(): hand a redis.RedisCluster "
                "over"
            )
        return super().wire()

    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        if self._is_async:
            from lockkit.stores.redis.aio_cluster_wire import AsyncClusterWire

            return AsyncClusterWire(self._slots, self._connections.rotation.make, self.inbox)
        from lockkit.stores.redis.thread_wire import ThreadRedisWire

        return ThreadRedisWire(self.wire())
