"""Like ``cluster_wire``, for the tasks of an event loop: one connection to each server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from lockkit.engine.effects import Exchange
from lockkit.runtime.aio_run import arun
from lockkit.runtime.aio_wires import AsyncLocalWire
from lockkit.stores.redis.aio_wire import AsyncRedisWire
from lockkit.stores.redis.cluster_wire import Rotation, node_of
from lockkit.stores.redis.hosts import Node
from lockkit.stores.redis.line import Line
from lockkit.stores.redis.settings import Connection, Maker
from lockkit.stores.redis.slots import Slots
from lockkit.stores.redis.subscription import Inbox


class AsyncNodeWire(AsyncLocalWire):
    def __init__(self, slots: Slots, make: Maker) -> None:
        self._slots = slots
        self._make = make
        self._wires: dict[Node, AsyncRedisWire] = {}
        self._known: Sequence[Node] = ()

    async def exchange(self, effect: Exchange) -> Any:
        payload, node = effect
        if self._known is not self._slots.nodes:
            self._leave_others()
        wire = self._wires.get(node)  # type: ignore[call-overload]
        if wire is None:
            wire = AsyncRedisWire(self._make.at(*node), Inbox(b""))  # type: ignore[misc]
            self._wires[node] = wire  # type: ignore[index]
        return await wire.exchange(Exchange(payload))

    def _leave_others(self) -> None:
        """Close the connections to servers that are no longer in the cluster, unless they are in
        use: then later."""
        nodes = self._slots.nodes
        left = [node for node in self._wires if node not in nodes]
        closed = [node for node in left if self._wires[node].leave()]
        for node in closed:
            del self._wires[node]
        if closed == left:
            self._known = nodes

    async def close(self) -> None:
        await asyncio.gather(*(wire.close() for wire in self._wires.values()))


class AsyncClusterWire(AsyncRedisWire):
    _listens_at: Node | None = None

    def __init__(self, slots: Slots, make: Maker, inbox: Inbox) -> None:
        super().__init__(Rotation(slots, make), inbox)
        self._slots = slots
        self._nodes = AsyncNodeWire(slots, make)

    async def exchange(self, effect: Exchange) -> Any:
        return await arun(self._slots.exchange(effect), self._nodes)

    async def close(self) -> None:
        await asyncio.gather(super().close(), self._nodes.close())

    async def _subscribe_over(self, connection: Connection) -> None:
        node = self._listens_at = node_of(connection)
        with self._slots.noting(node):
            await super()._subscribe_over(connection)

    def _broke(self, line: Line) -> None:
        if self._mail is line and self._listens_at is not None:
            self._slots.missed(self._listens_at)
        super()._broke(line)
