"""Like ``sentinel``, for asyncio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis.asyncio.sentinel

from lockkit.engine.effects import Exchange
from lockkit.runtime.aio_run import arun
from lockkit.runtime.aio_wires import AsyncLocalWire
from lockkit.stores.redis.failures import checked
from lockkit.stores.redis.hosts import Node
from lockkit.stores.redis.line import connected
from lockkit.stores.redis.resp import ALONE
from lockkit.stores.redis.sentinel import Resolver, discover
from lockkit.stores.redis.settings import Maker


class AsyncResolver(Resolver):
    driver = redis.asyncio.sentinel

    async def get_master_address(self) -> Any:
        return await arun(discover(self.master, self._silent), _SentinelWire(self._makers))


class _SentinelWire(AsyncLocalWire):
    def __init__(self, makers: Mapping[Node, Maker]) -> None:
        self._makers = makers

    async def exchange(self, effect: Exchange) -> Any:
        line = await connected(self._makers[effect.route]())  # type: ignore[index]
        try:
            return checked(await line.ask(effect.payload, ALONE))
        finally:
            line.abort()
