"""The claims of this process in the store, by their tokens."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo.exceptions import NoAuthError

from lockkit.engine.effects import Signal
from lockkit.model.clock import now
from lockkit.model.log import log
from lockkit.model.types import Gone, Request
from lockkit.runtime import native
from lockkit.runtime.background import Background
from lockkit.stores.zookeeper.failures import UNNAMED, UNSENT_OR_UNHEARD
from lockkit.stores.zookeeper.handler import AsyncResult
from lockkit.stores.zookeeper.record import data_of
from lockkit.stores.zookeeper.requests import children, delete
from lockkit.stores.zookeeper.session import Session
from lockkit.stores.zookeeper.settings import milliseconds

NUMBER = 10
"""Digits that ZooKeeper puts behind the name of a sequential node."""

LAST_NUMBER = 2**31 - 1
"""The server's counter ends here: after that, many nodes get this number, or a negative one."""


AGAIN_SECONDS = 1.0
"""Seconds after which a node is deleted again, if the reply was an error that kazoo does not know,
such as that of an overloaded server."""


class Watch:
    """Tells the claim behind a node when that node ends. kazoo keeps it until then."""

    __slots__ = ("_among", "is_over", "is_set_up", "path", "signal")

    def __init__(self, among: dict[str, Watch], path: str) -> None:
        self._among = among
        self.path = path
        self.signal = Signal()  #: of the claim that waits for it; those before it have left
        self.is_set_up = False
        self.is_over = False
        among[path] = self

    def __call__(self, _event: object = None) -> None:
        self._among.pop(self.path, None)
        self.is_over = True
        self.signal.set()

    def answered(self, answer: Any) -> None:
        if isinstance(answer, Exception):  # it is gone
            self()
        self.is_set_up = True


class Znode:
    """One claim: what is known of its node."""

    def __init__(self, folder: str, request: Request, session: Session | None) -> None:
        self.folder = folder
        self.token = request.token
        self.guid = guid_of(request.token)
        self.session = session
        self.route = route_of(request)
        self.data = data_of(request)
        self.until = now() + request.ttl  #: by the local clock; past it the node is deleted
        self.path = ""  #: empty: not known
        self.zxid = 0  #: of the transaction that made it
        self.before = ""  #: the path of the one before it
        self.first = ""  #: the path of the first, when the queue was last read
        self.ahead = 0  #: how many wait before it
        self.holder = ""  #: as the last reply told it
        self.watch: Watch | None = None
        self.signal: Signal | None = None
        self.is_granted = False
        self.is_over = False  #: it was in the store, and is not there any more
        self.heard = 0  #: how often its session had ended when the last answer was asked for
        self.ends = 0.0  #: it is granted until then
        self.number = 0  #: of its last extension

    def placed(self, path: str, zxid: int) -> None:
        """Note that the node was in the store when the store replied."""
        self.path, self.zxid, self.is_over = path, zxid, False
        if self.has_ended:  # asked last: the line above may have overwritten it
            self.is_over = True

    def tell_ttl(self, asked: float) -> None:
        """Put the ttl into the node's data, for people; at most the session's timeout, because a
        claim ends when its session has been silent for so long."""
        most = math.inf if self.session is None else round(self.session.timeout, 3)
        self.data["ttl"] = min(asked, most)

    def end(self) -> Gone:
        self.is_over = True
        return Gone()

    def watch_of(self, path: str) -> Watch:
        """The watch of a path. There is one for each path, however often it is waited for."""
        assert self.session is not None
        return self.session.watches.get(path) or Watch(self.session.watches, path)

    def wait_for(self, path: str) -> Watch:
        """The watch of the node just before it. It tells nobody else from now on."""
        self.watch, self.signal = self.watch_of(path), Signal()
        self.watch.signal = self.signal
        return self.watch

    def firsts(self) -> list[str]:
        """The path of the first, if only it can tell that the holder has left."""
        return [self.first] if self.ahead and not self.is_granted else []

    @property
    def has_ended(self) -> bool:
        """Whether its session has ended since the last answer was asked for."""
        assert self.session is not None
        return self.session.is_over or self.session.ended != self.heard

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def is_watching(self) -> bool:
        """Whether it will hear of the end of the one before it."""
        watch = self.watch
        return (
            watch is not None
            and watch.path == self.before
            and watch.is_set_up
            and not watch.is_over
            and watch.signal is self.signal
        )


class Znodes(Background):
    """A thread deletes nodes that nobody extends or asks for in time: sessions would keep them."""

    thread_name = "lockkit-zookeeper"

    def _reset(self) -> None:
        super()._reset()
        self._nodes: dict[str, Znode] = {}
        self._lock = native.mutex()
        self._wake_at = math.inf

    def get(self, token: str) -> Znode | None:
        return self._nodes.get(token)

    def add(self, node: Znode) -> None:
        with self._lock:
            self._nodes[node.token] = node
        self.keep(node, node.until)

    def keep(self, node: Znode, until: float, number: int = 0) -> bool:
        """Keep the node until then, unless an extension with a greater number has set another time.
        False: it is no longer kept but being deleted, so nothing may rely on it."""
        with self._lock:
            if self._nodes.get(node.token) is not node:
                return False
            if number >= node.number:
                node.number, node.until = number, until
            is_sooner = node.until < self._wake_at
        if is_sooner:
            self._hurry()
        return True

    def forget(self, token: str) -> None:
        with self._lock:
            self._nodes.pop(token, None)

    def end_with(self, session: Session) -> None:
        """Called when everything that this session has made is gone."""
        for node in list(self._nodes.values()):
            if node.session is session:
                node.is_over = True
                if node.signal is not None:
                    node.signal.set()

    def work(self) -> float:
        moment = now()
        with self._lock:
            for token, node in list(self._nodes.items()):
                if node.until <= moment:
                    self._nodes.pop(token, None)
                    if node.session is not None and not node.is_over:
                        sweep(node.session, node.folder, node.guid, partial(self._again, node))
            self._wake_at = min((node.until for node in self._nodes.values()), default=math.inf)
            return self._wake_at - moment

    def _again(self, node: Znode) -> None:
        """Delete the node in a while. ``get`` does not find it, as nothing may rely on it."""
        node.until = now() + AGAIN_SECONDS
        with self._lock:
            self._nodes[f"again {node.token}"] = node
            is_sooner = node.until < self._wake_at
        if is_sooner:
            self._hurry()


def sweep(session: Session, folder: str, guid: str, again: Callable[[], object]) -> None:
    """Delete a claim's node, and the folder if that is empty then, without waiting for the reply.
    If the connection breaks meanwhile, try again over the next one: the session would keep the
    node. ``again`` is called after an error that kazoo does not know. If the server refuses, as
    after a change of the password, the session is ended, because only that deletes the node."""

    def listed(answer: AsyncResult) -> None:
        if isinstance(answer.said, list):
            nodes = [delete(f"{folder}/{n}")(session) for n in answer.said if n.startswith(guid)]
            delete(folder)(session).rawlink(partial(deleted, nodes))  # it is answered last
        else:
            deleted([answer], answer)

    def deleted(asked: list[AsyncResult], last: AsyncResult) -> None:
        for answer in asked:
            _end_if_refused(session, folder, answer)
        errors = [answer.exception for answer in (*asked, last)]
        if any(isinstance(error, UNSENT_OR_UNHEARD) for error in errors):
            sweep(session, folder, guid, again)
        elif any(isinstance(error, UNNAMED) for error in errors):
            again()

    session.run(lambda: children(folder)(session).rawlink(listed))


def _end_if_refused(session: Session, folder: str, answer: AsyncResult) -> None:
    if isinstance(answer.exception, NoAuthError) and not session.is_over:
        log.warning("ZooKeeper refuses to delete a claim in %r: its session is ended", folder)
        session.stop()


def guid_of(token: str) -> str:
    """The beginning of a node's name: a hash, because everybody may read the names of nodes, and
    nobody may read tokens."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


def route_of(request: Request) -> int:
    """The route of a claim: the milliseconds of its ttl, which are the timeout of its session."""
    return milliseconds(request.ttl)


def is_numbered(path: str) -> bool:
    """Whether its number tells who came before whom."""
    number = path.rpartition("/")[2][33:]
    return number.isdecimal() and int(number) < LAST_NUMBER


def in_order(names: Any) -> list[str]:
    """The nodes that are claims, in the order in which they came. Empty without a folder."""
    if isinstance(names, Exception):
        return []
    claims = [n for n in names if n[32:33] == "-" and n[33:].isdecimal() and len(n) == 33 + NUMBER]
    return sorted(claims, key=lambda name: name[33:])
