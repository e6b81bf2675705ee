"""Which server of a Redis Cluster has a key: a step between the store and its wire.

The keys of a bucket share a hash tag, and so a slot. A request goes to the server that has the
slot. If that one answers MOVED, ASK, TRYAGAIN or CLUSTERDOWN, or cannot be reached, the request was
not applied, and goes where it should.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from lockkit.engine.effects import Exchange, Park, Signal, Step
from lockkit.model.clock import now
from lockkit.model.errors import BackendError, BackendUnavailable, LockError, OutcomeUnknown
from lockkit.stores.redis.failures import message_of
from lockkit.stores.redis.hosts import Node, Remap, remapped, text_of
from lockkit.stores.redis.layout import SLOTS, slot_of
from lockkit.stores.redis.protocol import pack

ASKING = pack(b"ASKING")
WITHOUT_KEY = frozenset({b"SCRIPT", b"PING", b"INFO", b"CONFIG", b"WAIT", b"CLUSTER"})

REDIRECTIONS = 8
PAUSE, PATIENCE = 0.01, 2.0
"""Seconds while a slot moves: the first pause between two tries, and all pauses together."""

LOOK_SECONDS = 3.0
"""Seconds after which no server that was silent before is asked which of them has which slots. By
default it takes two or three of them."""

AT_ONCE = "at once"
"""The route of a request that is not retried while its slot moves."""


def slot_of_command(packed: bytes) -> int | None:
    """The slot of its first key; None if it has none."""
    parts = packed.split(b"\r\n", 9)
    if parts[2] in WITHOUT_KEY:
        return None
    return slot_of(parts[8] if parts[2] == b"EVALSHA" else parts[4])


class Elsewhere(NamedTuple):
    """Where a request goes instead."""

    node: Node
    asking: bool = False
    later: bool = False


class Slots:
    """What a client knows about its cluster. All threads of a client share it."""

    def __init__(self, seeds: Sequence[Node], remap: Remap | None) -> None:
        self._seeds = tuple(seeds)
        self._remap = remap
        self._owners: list[Node | None] = [None] * SLOTS
        self._silent: dict[Node, float] = {}  #: when each of them was last asked in vain
        self.masters: tuple[Node, ...] = ()
        self.nodes: tuple[Node, ...] = self._seeds  #: all that may be asked
        self.identity = ""
        self.is_stale = True

    def exchange(self, effect: Exchange) -> Step[Any]:
        """Perform it at the server that is its route, or else at the one that has its key."""
        payload, route = effect
        if isinstance(route, Node):
            return (yield effect)
        patience = 0.0 if route == AT_ONCE else PATIENCE
        if isinstance(payload, bytes):
            return (yield from self._send(slot_of_command(payload), payload, patience))
        return (yield from self._send_each(payload, patience))

    def _send_each(self, payload: Sequence[bytes], patience: float) -> Step[list[Any]]:
        """Send the requests slot by slot. Those without a key go with those of each slot."""
        slots = [slot_of_command(packed) for packed in payload]
        wanted: list[int | None] = [slot for slot in dict.fromkeys(slots) if slot is not None]
        replies: list[Any] = [None] * len(payload)
        is_begun = False
        for slot in wanted or [None]:
            places = [i for i, found in enumerate(slots) if found in (slot, None)]
            try:
                found = yield from self._send(slot, [payload[i] for i in places], patience)
            except BackendUnavailable as error:
                if not is_begun:
                    raise
                raise OutcomeUnknown(str(error)) from error.__cause__
            is_begun = True
            for place, reply in zip(places, found, strict=True):
                replies[place] = reply
        return replies

    def _send(self, slot: int | None, payload: Any, patience: float) -> Step[Any]:
        way, hops, waited = Elsewhere((yield from self.owner(slot))), 0, 0.0
        while True:
            try:
                reply = yield from _at(way.node, payload, asking=way.asking)
                self._silent.pop(way.node, None)
                return reply
            except LockError as error:
                way = yield from self._elsewhere(error, slot, way)
                hops += not way.later
                if (way.later and waited >= patience) or hops > REDIRECTIONS:
                    raise
            if way.later:
                pause = max(PAUSE, waited / 10)
                waited += pause
                yield Park(Signal(), pause)

    def _elsewhere(self, error: LockError, slot: int | None, way: Elsewhere) -> Step[Elsewhere]:
        """Where the request is to go instead; raises the error if there is nowhere."""
        cause, node = error.__cause__, way.node
        if isinstance(cause, ResponseError):
            code, _, rest = message_of(cause).partition(" ")
            if code == "MOVED" and slot is not None:
                owner = self._owners[slot] = self._named(rest, node)
                self.is_stale = True  # others may have moved, too: the next request looks
                return Elsewhere(owner)
            if code == "ASK":
                return Elsewhere(self._named(rest, node), asking=True)
            if code == "TRYAGAIN":
                return way._replace(later=True)  # its owner would say ASK again
            if code != "CLUSTERDOWN":  # that may be true for this server alone
                raise error
        elif isinstance(error, BackendUnavailable):
            self.missed(node)
        else:
            raise error
        yield from self.look(node)
        owner = yield from self.owner(slot)
        if owner == node:
            raise error
        return Elsewhere(owner)

    def _named(self, text: str, node: Node) -> Node:
        """The server in ``3999 host:port``. Without a host, it is on the same host as the server
        that replied with this text."""
        host, _, port = text.partition(" ")[2].rpartition(":")
        if not host or host == "?":
            return Node(node.host, int(port))
        return remapped(Node(host.strip("[]"), int(port)), self._remap)

    def owner(self, slot: int | None) -> Step[Node]:
        """The server that has the slot, as far as is known; for None, any server. A slot that had
        none when a server was asked may have one by now."""
        if self.is_stale or self.known_owner(slot) is None:
            yield from self.look()
        found = self.known_owner(slot)
        if found is None:
            raise BackendUnavailable("no server of the cluster has this slot")
        return found

    def known_owner(self, slot: int | None) -> Node | None:
        if slot is not None:
            return self._owners[slot]
        up = [node for node in self.masters if node not in self._silent]
        return next(iter(up or self.masters), None)

    @contextmanager
    def noting(self, node: Node) -> Iterator[None]:
        """Note whether this server answers to what is asked of it in the block."""
        try:
            yield
        except BackendError:
            self.missed(node)
            raise
        self._silent.pop(node, None)

    def missed(self, node: Node) -> None:
        """Note that it has not answered."""
        self._silent[node] = now()

    def in_turn(self, node: Node) -> float:
        """The greater, the later it is asked what all can answer: the silent ones in their turn."""
        return self._silent.get(node, 0.0)

    @property
    def are_silent(self) -> bool:
        """Whether none of the servers has answered when it was last looked at."""
        return self._silent.keys() >= set(self.nodes)

    def look(self, doubted: Node | None = None) -> Step[None]:
        """Ask one of the servers which of them has which slots: first those that have answered, the
        one in doubt after the others; then the silent ones, each in its turn. Of these, the next
        look asks some more if LOOK_SECONDS are over."""
        until, silent = now() + LOOK_SECONDS, dict(self._silent)
        failed: BackendError = BackendUnavailable("the cluster has no server")
        known = dict.fromkeys(chain(self.masters, self.nodes, self._seeds))
        for node in sorted(known, key=lambda node: (silent.get(node, 0.0), node == doubted)):
            try:
                reply = yield Exchange(pack(b"CLUSTER", b"SLOTS"), node)
            except BackendError as error:
                self.missed(node)
                failed = error
                if node in silent and now() >= until:
                    break
                continue
            self._silent.pop(node, None)
            if not reply:  # it has left the cluster, or was never in it
                failed = BackendUnavailable(f"{node.host}:{node.port} is in no cluster with slots")
                continue
            self._learn(reply, node)
            return
        raise failed

    def _learn(self, reply: Any, asked: Node) -> None:
        owners: list[Node | None] = [None] * SLOTS
        masters: dict[Node, None] = {}
        nodes: dict[Node, None] = {}
        names: set[str] = set()
        for first, last, *servers in reply:
            found = [self._served(server, asked) for server in servers]
            names.update(text_of(server[2]) for server in servers)
            nodes.update(dict.fromkeys(found))
            masters[found[0]] = None
            owners[first : last + 1] = [found[0]] * (last + 1 - first)
        self.masters, self.nodes = tuple(masters), tuple(nodes)
        self._owners, self.identity = owners, min(names, default="")
        self.is_stale = False

    def _served(self, server: Any, asked: Node) -> Node:
        host = text_of(server[0] or b"")
        if not host or host == "?":
            return Node(asked.host, server[1])
        return remapped(Node(host, server[1]), self._remap)


def _at(node: Node, payload: Any, *, asking: bool) -> Step[Any]:
    if not asking:
        return (yield Exchange(payload, node))
    several = [payload] if isinstance(payload, bytes) else payload
    allowed: list[bytes] = []
    for packed in several:
        if slot_of_command(packed) is not None:
            allowed.append(ASKING)  # for the next request alone
        allowed.append(packed)
    replies = yield Exchange(allowed, node)
    kept = [reply for packed, reply in zip(allowed, replies, strict=True) if packed is not ASKING]
    return kept[0] if isinstance(payload, bytes) else kept
