"""The queue of a name: how a claim joins it, becomes the first, and leaves."""

from __future__ import annotations

from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError

from lockkit.engine.effects import Step
from lockkit.engine.times import alive_for
from lockkit.model.clock import now
from lockkit.model.errors import BackendUnavailable, OutcomeUnknown
from lockkit.model.types import Busy, Gone, Grant, Mode, Request
from lockkit.stores.zookeeper.failures import SessionEnded, reason, refused, told
from lockkit.stores.zookeeper.listing import ZooKeeperListing
from lockkit.stores.zookeeper.nodes import Znode, Znodes, guid_of, in_order, is_numbered, route_of
from lockkit.stores.zookeeper.record import encoded, holder_of
from lockkit.stores.zookeeper.requests import (
    Ask,
    ask,
    begin,
    children,
    create_container,
    delete,
    join,
    read,
    stat,
    sync,
    watch,
    write,
)
from lockkit.stores.zookeeper.session import Session
from lockkit.stores.zookeeper.settings import Configuration

TRIES = 5
"""The most tries to join: a name's folder comes and goes with its claims, perhaps in between."""

EXHAUSTED = (
    "ZooKeeper has no number left for another claim on this name: it had 2**31 since the name was "
    "last free. It counts anew once nobody holds it and nobody waits for it"
)

FIRST = "0000000000"
"""The number of the first node of a folder."""


class ZooKeeperQueue(ZooKeeperListing):
    """The steps of one node."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self._nodes = Znodes()

    def find(self, request: Request) -> Step[Znode | None]:
        """The node of an acquire that broke off; None if there is none. The server may not have
        heard of it yet, so it has to ask the leader first. A node of another session is deleted."""
        folder, guid = self.folder(request.name), guid_of(request.token)
        both = sync(folder), children(folder)
        session, (synced, names), _ = yield from ask(route_of(request), *both)
        told(synced, NoNodeError)
        mine = next((n for n in in_order(told(names, NoNodeError)) if n.startswith(guid)), None)
        if mine is None:
            return None
        node = self._intend(request, session)
        (seen,) = yield from ask_of(node, stat(f"{folder}/{mine}"))
        if told(seen) is None:
            return None
        node.path, node.zxid = f"{folder}/{mine}", seen.czxid
        if session.has_made(seen):
            return node
        yield from self.leave(node)  # nobody here knows when it would end by itself
        return None

    def enter(self, request: Request) -> Step[Grant | Busy | Gone]:
        """Join the queue. A mere try makes no node if somebody is there; and it asks the leader who
        that is, so that it does not name a holder that has left."""
        folder, route = self.folder(request.name), route_of(request)
        session, (names,), _ = yield from ask(route, children(folder), is_claim=True)
        queue, holder = in_order(told(names, NoNodeError)), ""
        if queue and request.mode is Mode.TRY:  # it may have ended, as other servers know
            again = sync(folder), children(folder), read(f"{folder}/{queue[0]}")
            session, (_, names, first), _ = yield from ask(route, *again, is_claim=True)
            queue, holder = in_order(told(names, NoNodeError)), holder_of(first)
        is_full = _is_full(request, len(queue))
        if queue and (request.mode is Mode.TRY or is_full):
            return Busy(ahead=len(queue) - 1, full=is_full, holder=holder)
        node = self._intend(request, session)
        try:
            return (yield from self._make(request, node, names))
        except BackendUnavailable:
            if not node.path:  # nothing was made that would have to be deleted
                self._nodes.forget(request.token)
            raise

    def look(self, request: Request, node: Znode) -> Step[Grant | Busy | Gone]:
        """Ask again for a claim whose node is known."""
        start = now()
        if node.is_watching or (node.is_granted and node.ends > start):
            seen, *first = yield from ask_of(node, stat(node.path), *map(stat, node.firsts()))
            if told(seen) is None or node.has_ended:
                return node.end()
            if node.is_granted:
                return Grant(request.token, self.fence(node.zxid), node.ends - start)
            if not first or told(first[0]) is not None:
                return (yield from self._wait_for(request, node))
        if node.ahead:
            (names,) = yield from ask_of(node, children(node.folder))
            return (yield from self._place(request, node, told(names, NoNodeError)))
        return (yield from self._confirm(request, node, start))

    def leave(self, node: Znode) -> Step[bool]:
        """Delete it, and the folder if that is then empty; returns whether it was gone already."""
        try:
            gone, _ = yield from ask_of(node, delete(node.path), delete(node.folder))
        except SessionEnded:
            return True
        return isinstance(told(gone, NoNodeError), NoNodeError)

    def _intend(self, request: Request, session: Session) -> Znode:
        """Note that there may be a node from now on: if nobody asks for it again, it is deleted."""
        node = Znode(self.folder(request.name), request, session)
        self._nodes.add(node)
        return node

    def _make(self, request: Request, node: Znode, names: Any) -> Step[Grant | Busy | Gone]:
        made = (yield from self._begin(request, node)) if isinstance(names, NoNodeError) else None
        if made is not None:
            return made
        queue = in_order(names)
        for number in range(TRIES):
            made = yield from self._join(request, node, queue, remake=number > 0)
            if made is not None:
                return made
        raise BackendUnavailable("the folder of the name in ZooKeeper keeps coming and going")

    def _begin(self, request: Request, node: Znode) -> Step[Grant | Busy | Gone | None]:
        """Make the folder, and the first node in it. None: the folder is there already."""
        sent = now()
        path = f"{node.folder}/{node.guid}-"
        both = begin(node.folder, path, encoded(node.data)), stat(path + FIRST)
        made, seen = yield from ask_of(node, *both)
        failure = reason(told(made))
        if isinstance(failure, NodeExistsError):
            return None
        if isinstance(failure, NoNodeError):
            yield from self.make(node.folder.rpartition("/")[0], node.route)
            return (yield from self._begin(request, node))
        if failure is not None:
            raise refused(failure)
        if seen is None or isinstance(seen, Exception):
            why = "the session has just ended" if seen is None else str(refused(seen))
            raise OutcomeUnknown(why)
        node.placed(path + FIRST, seen.czxid)
        return (yield from self._grant(request, node, sent, sent))

    def _join(
        self, request: Request, node: Znode, queue: list[str], *, remake: bool
    ) -> Step[Grant | Busy | Gone | None]:
        """Make the last node in the folder, and watch the one before. None: the folder is gone.
        ``remake``: make the folder just before; it may be gone again."""
        node.data["granted"] = None
        asked = [join(f"{node.folder}/{node.guid}-", encoded(node.data)), children(node.folder)]
        watched = node.watch_of(f"{node.folder}/{queue[-1]}") if queue else None
        if watched is not None:
            asked += read(f"{node.folder}/{queue[0]}"), watch(watched)
        before = [create_container(node.folder)] if remake else []
        answers = yield from ask_of(node, *before, *asked)
        made, names, *others = answers[len(before) :]
        if isinstance(told(made, NoNodeError), NoNodeError):
            return None
        path, seen = made
        node.placed(path, seen.czxid)
        if not is_numbered(path):
            yield from self.leave(node)
            self._nodes.forget(request.token)
            raise BackendUnavailable(EXHAUSTED)
        try:
            if watched is not None:
                watched.answered(told(others.pop(), NoNodeError))
            return (yield from self._place(request, node, told(names), holder_of(*others)))
        except BackendUnavailable as error:  # the node is there, so something was applied
            raise OutcomeUnknown(str(error)) from error

    def _place(
        self, request: Request, node: Znode, names: Any, holder: str = ""
    ) -> Step[Grant | Busy | Gone]:
        """Granted, waiting or refused: the nodes before ours decide."""
        queue = in_order(names)
        if node.name not in queue:
            return node.end()
        place = queue.index(node.name)
        node.ahead = max(place - 1, 0)
        if not place:
            return (yield from self._confirm(request, node, now()))
        is_full = _is_full(request, place)
        if request.mode is Mode.TRY or is_full:
            yield from self.leave(node)
            self._nodes.forget(request.token)
            return Busy(ahead=node.ahead, full=is_full, holder=holder)
        first = f"{node.folder}/{queue[0]}"
        if not holder and node.first != first:
            (seen,) = yield from ask_of(node, read(first))
            holder = holder_of(seen)
        node.before, node.holder = f"{node.folder}/{queue[place - 1]}", holder or node.holder
        node.first = first
        return (yield from self._wait_for(request, node))

    def _wait_for(self, request: Request, node: Znode) -> Step[Busy | Gone]:
        if not self._nodes.keep(node, now() + alive_for(request.ttl)):
            return (yield from self._give_up(node))
        return Busy(ticket=node.zxid, ahead=node.ahead, holder=node.holder)

    def _confirm(self, request: Request, node: Znode, start: float) -> Step[Grant | Busy | Gone]:
        """The node should be the first now. A write proves that its session lives, because a
        majority of the servers has to apply it."""
        sent, node.data["granted"] = now(), 0
        self._nodes.keep(node, sent + request.ttl)  # or it might be deleted while it asks
        both = children(node.folder), write(node.path, encoded(node.data))
        names, seen = yield from ask_of(node, *both)
        if isinstance(told(seen, NoNodeError), NoNodeError):
            return node.end()
        queue = in_order(told(names))
        if queue[:1] != [node.name]:
            return (yield from self._place(request, node, names))
        node.data["granted"] = seen.mtime
        return (yield from self._grant(request, node, sent, start))

    def _grant(
        self, request: Request, node: Znode, sent: float, start: float
    ) -> Step[Grant | Gone]:
        assert node.session is not None
        if not self._nodes.keep(node, now() + request.ttl):
            return (yield from self._give_up(node))
        node.is_granted = True
        node.ends = min(start + request.ttl, node.session.ends(sent))
        # Asked last: if the session ended while this thread was paused, ``ends`` may be that of the
        # session which took its place.
        if node.has_ended:
            return node.end()
        return Grant(request.token, self.fence(node.zxid), node.ends - start)

    def _give_up(self, node: Znode) -> Step[Gone]:
        """The reply came too late: the node is being deleted. Delete it once more, because it may
        have been made after that."""
        yield from self.leave(node)
        return node.end()


def ask_of(node: Znode, *requests: Ask) -> Step[list[Any]]:
    """Ask in the session of this node, and in no other."""
    try:
        reply = yield from ask(node.route, *requests, session=node.session)
    except SessionEnded:
        node.is_over = True
        raise
    except OutcomeUnknown:
        node.is_over = False  # the next session of the client may have made it
        raise
    node.heard = reply.ended
    return reply.answers


def _is_full(request: Request, ahead: int) -> bool:
    if request.mode is Mode.TRY:  # it would not wait
        return False
    return request.max_queue is not None and ahead > request.max_queue
