"""``redis+cluster://h1,h2,h3``: locks in a Redis Cluster.

Each bucket of names is kept by one server, with the promises of ``redis://``. If that server is
lost, so are the locks that it had not replicated; fencing tokens go on growing. A waiter that died
is skipped only once its last sign of life has run out: no server knows who listens at the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, cast
from urllib.parse import parse_qsl

import redis
import redis.asyncio

from lockkit.engine.effects import Exchange, Step
from lockkit.model.errors import (
    BackendUnavailable,
    ConfigurationError,
    DamagedRecord,
    LockError,
)
from lockkit.model.settings import AliasSettings
from lockkit.model.types import Finding, Page, Release, Renewal, Request
from lockkit.stores.redis.cluster_wire import ClusterWire, ManyConnections
from lockkit.stores.redis.failures import is_of_one
from lockkit.stores.redis.hosts import Hosts, Node, read_hosts
from lockkit.stores.redis.layout import bucket_of, slot_of
from lockkit.stores.redis.listing import Position
from lockkit.stores.redis.protocol import ALL_BUCKETS, Command, Protocol, pack
from lockkit.stores.redis.records import RedisRecords
from lockkit.stores.redis.scripts import look
from lockkit.stores.redis.settings import maker
from lockkit.stores.redis.slots import AT_ONCE, Slots, slot_of_command
from lockkit.stores.redis.store import RedisStore
from lockkit.stores.wires import AsyncWire

PORT = 6379
EXAMPLE = "redis+cluster://user:password@host1:6379,host2,host3"


def cluster_of(settings: AliasSettings) -> Hosts:
    """Raises ConfigurationError."""
    hosts = read_hosts(settings, PORT, EXAMPLE)
    said = dict(parse_qsl(hosts.one.location.partition("?")[2])).get("db", "0")
    if hosts.path not in ((), ("0",)) or settings.options.get("db") or said != "0":
        raise ConfigurationError(f"{settings.place}: a Redis Cluster has no database but 0")
    return hosts


class ClusterStore(RedisStore):
    """``redis+cluster://`` and ``rediss+cluster://``."""

    _slots: Slots
    _connections: ManyConnections  # type: ignore[assignment]  # exchanges are its own

    @classmethod
    def _speaking(cls, settings: AliasSettings) -> Self:
        return cls(settings, Protocol(settings.key_prefix, publish="publish_anywhere"))

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> Self:
        hosts = cluster_of(cls._for_driver(settings))
        store = cls._speaking(settings)
        store._slots = Slots(hosts.nodes, hosts.remap)
        store._connections = ManyConnections(store._slots, maker(hosts.one, redis.ConnectionPool))
        return store

    def wire(self) -> ClusterWire:
        return ClusterWire(self._slots, self._connections, self.inbox)

    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        from lockkit.stores.redis.aio_cluster_wire import AsyncClusterWire

        hosts = cluster_of(self._for_driver(self._settings))
        made = maker(hosts.one, redis.asyncio.ConnectionPool)
        return AsyncClusterWire(self._slots, made, self.inbox)

    def renew(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        """While the slot of one lease moves, the others are renewed."""
        return _directed(self.extend(requests), AT_ONCE)

    def server_of(self, name: str) -> Node | None:
        return self._slots.known_owner(slot_of(self._protocol.keys.bucket(bucket_of(name))))

    def withdraw(self, request: Request) -> Step[Release]:
        return _directed(self.release(request), AT_ONCE)

    def _extended(self, commands: Sequence[Command]) -> Step[list[Any]]:
        """One by one: a server that fails says nothing about the others, and is asked once."""
        replies: list[Any] = []
        down: dict[Node | None, LockError] = {}
        for command in commands:
            owner = self._slots.known_owner(slot_of_command(command.packed))
            try:
                replies.append(down.get(owner) or (yield from self._confirmed([command]))[0])
            except LockError as error:
                if owner and not is_of_one(error):  # also if only its replica is slow
                    down[owner] = error
                replies.append(error)
        if commands and all(isinstance(reply, LockError) for reply in replies):
            raise replies[0]
        return replies

    def page(self, name: str | None, cursor: Position | None = None) -> Step[Page]:
        """A server that is down is asked once; the error of its buckets comes after all the
        others. A cluster of which no server answers is asked once."""
        at = cursor or Position()
        if name is not None or at.bucket not in ALL_BUCKETS:
            return (yield from super().page(name, cursor))
        slot = slot_of(self._protocol.keys.bucket(at.bucket))
        if self._slots.known_owner(slot) in at.down:
            return Page([], at.next_bucket())
        try:
            return (yield from super().page(name, cursor))
        except BackendUnavailable as error:
            if self._slots.are_silent:
                raise
            owner = self._slots.known_owner(slot)
            down = at.down if owner is None else at.down | {owner}
            return Page([], at._replace(down=down).next_bucket(error))

    def records(self) -> ClusterRecords:
        return ClusterRecords(self)

    def check(self) -> Step[None]:
        said = yield from look(pack(b"CLUSTER", b"INFO"))
        if b"cluster_state:ok" not in said:
            raise BackendUnavailable("the cluster is down: not all of its slots are served")

    def of_each(self, ask: Callable[[], Step[list[Finding]]]) -> Step[list[Finding]]:
        """The findings of all servers, each once."""
        yield from self._slots.look()
        found: dict[Finding, None] = {}
        for node in self._slots.masters:
            found.update(dict.fromkeys((yield from _directed(ask(), node))))
        return list(found)

    def server(self) -> Step[str | None]:
        """An identity of the cluster, which all of its servers know."""
        yield from self._slots.look()
        return self._slots.identity


class ClusterRecords(RedisRecords):
    """A server that is down is asked once for the records that run."""

    _store: ClusterStore

    def _in_use(self) -> Step[tuple[list[int], BackendUnavailable | None]]:
        slots = self._store._slots
        found: list[int] = []
        down: dict[Node | None, BackendUnavailable] = {}
        for bucket in ALL_BUCKETS:
            key = self._keys.running(bucket)
            if slots.known_owner(slot_of(key)) in down:
                continue
            try:
                count = yield from look(pack(b"ZCARD", key))
            except DamagedRecord:
                count = 1
            except BackendUnavailable as error:
                if slots.are_silent:
                    raise
                down[slots.known_owner(slot_of(key))] = error
                continue
            found += [bucket] * bool(count)
        return found, next(iter(down.values()), None)


def _directed(step: Step[Any], route: Node | str) -> Step[Any]:
    """The same step, with this route for each of its exchanges."""
    reply, error = None, None
    while True:
        try:
            effect = step.send(reply) if error is None else step.throw(error)
        except StopIteration as end:
            return end.value
        try:
            reply = yield Exchange(cast(Exchange, effect).payload, route)
            error = None
        except BaseException as failure:  # noqa: BLE001  the step handles it
            error = failure
