"""The stores of ``redis+sentinel://``."""

from __future__ import annotations

from typing import Any

import redis

from lockkit.engine.effects import Step
from lockkit.model.settings import AliasSettings
from lockkit.model.types import Finding
from lockkit.stores.redis.health import of_master
from lockkit.stores.redis.plain import PlainStore
from lockkit.stores.redis.sentinel import Resolver, master_maker
from lockkit.stores.redis.settings import Maker
from lockkit.stores.redis.steps import ScriptSteps
from lockkit.stores.redis.store import RedisStore


class OfSentinels(ScriptSteps):
    """Claims in the current master."""

    @classmethod
    def _maker(cls, settings: AliasSettings, pool: Any) -> Maker:
        found = cls._for_driver(settings)
        if pool is redis.ConnectionPool:
            return master_maker(found, pool, Resolver)
        from lockkit.stores.redis.aio_sentinel import AsyncResolver

        return master_maker(found, pool, AsyncResolver)

    def health(self) -> Step[list[Finding]]:
        return of_master()


class SentinelStore(OfSentinels, RedisStore):
    """``redis+sentinel://`` and ``rediss+sentinel://``."""


class PlainSentinelStore(OfSentinels, PlainStore):
    """``redis+sentinel://`` and ``rediss+sentinel://`` with ``?protocol=plain``."""
