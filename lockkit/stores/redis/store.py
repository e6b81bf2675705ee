"""The Redis store: all kinds of locks, by scripts of our own."""

from __future__ import annotations

import contextlib
from typing import Self

from lockkit.engine.effects import Step
from lockkit.model.errors import BackendError
from lockkit.model.settings import AliasSettings
from lockkit.stores.contract import Listed, Reentrant, Shared
from lockkit.stores.redis.listing import RedisListing
from lockkit.stores.redis.protocol import Protocol
from lockkit.stores.redis.records import RedisRecords
from lockkit.stores.redis.scripts import call
from lockkit.stores.redis.steps import ScriptSteps


class RedisStore(RedisListing, ScriptSteps, Shared, Reentrant, Listed):
    """Locks in one Redis or Valkey server. See the package for guarantee and limits."""

    def __init__(self, settings: AliasSettings, protocol: Protocol) -> None:
        RedisListing.__init__(self, protocol)
        ScriptSteps.__init__(self, settings, protocol)

    @classmethod
    def _speaking(cls, settings: AliasSettings) -> Self:
        return cls(settings, Protocol(settings.key_prefix))

    def records(self) -> RedisRecords:
        return RedisRecords(self)

    def _announce(self) -> Step[None]:
        """Note the key prefix in the server, for ``prefixes``. This is tried once: a user who may
        not write the note goes without it."""
        self._is_announced = True
        with contextlib.suppress(BackendError):
            yield from call(self._protocol.announce())
