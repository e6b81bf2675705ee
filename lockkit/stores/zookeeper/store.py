"""The steps of the ZooKeeper store: what is asked, and how the answers are read.

The recipe is that of ZooKeeper's documentation, "Locks", with the identity of each claim in the
name of its node, so that a node whose creation got no reply is found again.
"""

from __future__ import annotations

from collections.abc import Sequence

from kazoo.exceptions import NoNodeError

from lockkit.engine.effects import Park, Step
from lockkit.model.clock import now
from lockkit.model.errors import BackendError
from lockkit.model.settings import AliasSettings
from lockkit.model.types import Busy, Gone, Grant, Mode, Release, Renewal, Request
from lockkit.stores.contract import Buried, Capped, Durable, Fenced, Pushed, ServerClock, Sessioned
from lockkit.stores.zookeeper.failures import SessionEnded, refused, told
from lockkit.stores.zookeeper.nodes import Znode, guid_of
from lockkit.stores.zookeeper.queue import ZooKeeperQueue, ask_of
from lockkit.stores.zookeeper.record import encoded
from lockkit.stores.zookeeper.requests import ask, watch, write
from lockkit.stores.zookeeper.settings import Configuration
from lockkit.stores.zookeeper.wire import AsyncZooKeeperWire, ZooKeeperWire

PATIENCE = 0.1
"""Part of its ttl for which an extension waits for a connection. If none comes, it fails soon."""


class ZooKeeperStore(
    ZooKeeperQueue, Pushed, Fenced, Buried, Durable, ServerClock, Sessioned, Capped
):
    """Locks in an ensemble of ZooKeeper servers. See the package for guarantee and limits."""

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> ZooKeeperStore:
        return cls(Configuration(settings))

    def for_asyncio(self) -> ZooKeeperStore:
        """Another store, because a client's sessions end with the client."""
        return type(self)(self._configuration)

    def wire(self) -> ZooKeeperWire:
        return ZooKeeperWire(self._configuration, self._nodes)

    def async_wire(self, *, is_shared: bool = False) -> AsyncZooKeeperWire:
        return AsyncZooKeeperWire(self._configuration, self._nodes)

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        node = self._node(request)
        if node is not None and node.is_over:
            return Gone()
        if node is None or not node.path:
            is_doubtful = request.unsure or node is not None
            node = (yield from self.find(request)) if is_doubtful else None
        if node is not None:
            return (yield from self.look(request, node))
        if request.mode is Mode.POLL:
            return Gone()
        return (yield from self.enter(request))

    def wait(self, request: Request, seconds: float, busy: Busy) -> Step[Grant | None]:
        """Wait until the claim before this one has ended."""
        node = self._node(request)
        if node is None or node.is_over or not node.before:
            return None
        if not node.is_watching:
            watched = node.wait_for(node.before)
            if not watched.is_set_up:
                (answer,) = yield from ask_of(node, watch(watched))
                watched.answered(told(answer, NoNodeError))
        if node.is_watching and node.signal is not None and not node.is_over:
            yield Park(node.signal, seconds)
        return None

    def release(self, request: Request) -> Step[Release]:
        node = self._node(request)
        if node is not None and node.session is not None and node.session.is_over:
            self._bury(request)
            return Release.ABSENT  # after close(): to ask for more would open a session anew
        if node is None or not (node.path or node.is_over):
            node = yield from self.find(request)
        if node is None or node.is_over:
            self._bury(request)
            return (yield from self.how_it_ended(request.name, guid_of(request.token)))
        in_time = node.is_granted and now() < node.until
        if (yield from self.leave(node)):
            node.is_over = True
            return (yield from self.how_it_ended(request.name, node.guid))
        self._nodes.forget(request.token)
        self._bury(request)
        return Release.RELEASED if in_time else Release.ABSENT

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        """One write for each claim. The writes of one session are sent at once."""
        start = now()
        renewals = [Renewal(None)] * len(requests)
        sessions: dict[int, list[tuple[int, Request, Znode]]] = {}
        for index, request in enumerate(requests):
            node = self._held(request)
            if node is None or not self._nodes.keep(node, start + request.ttl, request.number):
                continue
            if request.number < node.number:
                renewals[index] = Renewal(node.ends - start)
            else:
                sessions.setdefault(node.route, []).append((index, request, node))
        failures = []
        for batch in sessions.values():
            try:
                told_each = yield from self._extend(batch, start)
            except BackendError as error:
                failures.append(error)
                told_each = [Renewal(0.0, error)] * len(batch)
            for (index, *_), renewal in zip(batch, told_each, strict=True):
                renewals[index] = renewal
        if failures and len(failures) == len(sessions):
            raise failures[0]
        return renewals

    def _extend(self, batch: list[tuple[int, Request, Znode]], start: float) -> Step[list[Renewal]]:
        sent = now()
        for _, request, node in batch:
            node.tell_ttl(request.ttl)
        route, shortest = batch[0][2].route, min(request.ttl for _, request, _ in batch)
        writes = [write(node.path, encoded(node.data)) for *_, node in batch]
        patience = min(self._configuration.connect_timeout, shortest * PATIENCE)
        try:
            session, answers, _ = yield from ask(route, *writes, patience=patience)
        except SessionEnded:
            session, answers = None, [NoNodeError()] * len(batch)
        end = session.ends(sent) if session is not None else 0.0
        renewals = []
        for (_, request, node), answer in zip(batch, answers, strict=True):
            if isinstance(answer, NoNodeError) or node.session is not session:
                node.is_over = True
                renewals.append(Renewal(None))
            elif isinstance(answer, Exception):  # somebody has changed its ACL, say
                renewals.append(Renewal(None, refused(answer)))
            else:
                node.ends = min(start + request.ttl, end)
                renewals.append(Renewal(None if node.is_over else node.ends - start))
        return renewals

    def _node(self, request: Request) -> Znode | None:
        """The node of this token, if it is known and for this name: a token belongs to one name."""
        node = self._nodes.get(request.token)
        return node if node is not None and node.folder == self.folder(request.name) else None

    def _held(self, request: Request) -> Znode | None:
        node = self._node(request)
        if node is None or node.is_over or not node.is_granted or node.until <= now():
            return None
        return node

    def _bury(self, request: Request) -> None:
        """Have a later acquire with this token get nothing. Those that were under way are over: the
        session has applied them before the requests that were made just now."""
        if request.unsure or (request.queued and self._nodes.get(request.token) is None):
            node = Znode(self.folder(request.name), request, None)
            node.is_over = True
            self._nodes.add(node)
