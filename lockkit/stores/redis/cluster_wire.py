"""The blocking wire to a cluster: connections to each server, one subscription to any of them.

A message that is published at one server also reaches those who listen at another."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import count
from typing import Any

from lockkit.engine.effects import Exchange
from lockkit.runtime.run import run
from lockkit.runtime.wires import CallWire
from lockkit.stores.redis.connections import OwnConnections, exchange
from lockkit.stores.redis.hosts import Node
from lockkit.stores.redis.layout import SLOTS
from lockkit.stores.redis.settings import Connection, Maker
from lockkit.stores.redis.slots import Slots
from lockkit.stores.redis.subscription import Inbox
from lockkit.stores.redis.wire import RedisWire


class Rotation:
    """Makes connections to one server after the other, for requests that any can answer. It begins
    anywhere, or one server would have the subscriptions of all clients. Silent ones are last."""

    def __init__(self, slots: Slots, make: Maker) -> None:
        self.slots = slots
        self.make = make
        self._turn = count(secrets.randbelow(SLOTS))

    def __call__(self) -> Connection:
        return self.maker()()

    def maker(self) -> Maker:
        nodes = self.slots.nodes
        first = next(self._turn) % len(nodes)
        return self.make.at(*min(nodes[first:] + nodes[:first], key=self.slots.in_turn))


class ManyConnections(CallWire):
    """Connections to each server. An exchange goes to the server of its route."""

    def __init__(self, slots: Slots, make: Maker) -> None:
        self.rotation = Rotation(slots, make)
        self._of: dict[Node, OwnConnections] = {}
        self._known: Sequence[Node] = ()

    def at(self, node: Node) -> OwnConnections:
        if self._known is not self.rotation.slots.nodes:
            self._leave_others()
        found = self._of.get(node)
        if found is None:
            found = self._of.setdefault(node, OwnConnections(self.rotation.make.at(*node)))
        return found

    @property
    def fresh(self) -> Maker:
        return self.rotation.maker()

    def exchange(self, effect: Exchange) -> Any:
        payload, node = effect
        return exchange(self.at(node), payload)  # type: ignore[arg-type]

    def _leave_others(self) -> None:
        """Close the connections to servers that are no longer in the cluster."""
        self._known = self.rotation.slots.nodes
        for node in list(self._of):
            if node not in self._known and (left := self._of.pop(node, None)) is not None:
                left.close()

    def close(self) -> None:
        for connections in list(self._of.values()):
            connections.close()


class ClusterWire(RedisWire):
    def __init__(self, slots: Slots, connections: ManyConnections, inbox: Inbox) -> None:
        super().__init__(connections, inbox)  # type: ignore[arg-type]  # as in the store
        self._slots = slots
        self._nodes = connections

    def exchange(self, effect: Exchange) -> Any:
        return run(self._slots.exchange(effect), self._nodes)

    def _subscribe_over(self, connection: Connection) -> None:
        """Try one server. A waiter that several held up could not ask for its claim meanwhile, and
        would lose its place."""
        with self._slots.noting(node_of(connection)):
            super()._subscribe_over(connection)

    def _resubscribe(self, broken: Connection | None) -> None:
        if broken is not None:
            self._slots.missed(node_of(broken))
        super()._resubscribe(broken)


def node_of(connection: Any) -> Node:
    return Node(connection.host, connection.port)
