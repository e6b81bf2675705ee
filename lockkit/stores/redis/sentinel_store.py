"""The store behind ``sentinel``."""

from __future__ import annotations

from typing import Self

import redis
from redis.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection

from lockkit.engine.effects import Step
from lockkit.model.settings import AliasSettings
from lockkit.model.types import Finding
from lockkit.stores.redis.connections import OwnConnections
from lockkit.stores.redis.health import eviction, isolation
from lockkit.stores.redis.plain import PlainStore
from lockkit.stores.redis.sentinel import Resolver, master_maker
from lockkit.stores.redis.steps import ScriptSteps
from lockkit.stores.redis.store import RedisStore
from lockkit.stores.wires import AsyncWire


class OfSentinels(ScriptSteps):
    """Claims in the master of that moment."""

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> Self:
        store = cls._speaking(settings)
        store._connections = OwnConnections(
            master_maker(
                cls._for_driver(settings),
                redis.ConnectionPool,
                SentinelManagedConnection,
                SentinelManagedSSLConnection,
                Resolver,
            )
        )
        return store

    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        from lockkit.stores.redis.aio_sentinel import async_master_maker
        from lockkit.stores.redis.aio_wire import AsyncRedisWire

        return AsyncRedisWire(async_master_maker(self._for_driver(self._settings)), self.inbox)

    def health(self) -> Step[list[Finding]]:
        found = yield from eviction()
        return found + (yield from isolation())


class SentinelStore(OfSentinels, RedisStore):
    """``redis+sentinel://`` and ``rediss+sentinel://``."""


class PlainSentinelStore(OfSentinels, PlainStore):
    """The same with ``?protocol=plain``."""
