"""The requests to a session. Each is one request of ZooKeeper's protocol: kazoo's helpers, which
send several, are not used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.exceptions import SessionExpiredError

from lockkit.engine.effects import Exchange, Signal, Step
from lockkit.stores.zookeeper import containers
from lockkit.stores.zookeeper.handler import AsyncResult

if TYPE_CHECKING:
    from lockkit.stores.zookeeper.nodes import Watch
    from lockkit.stores.zookeeper.session import Session

Ask = Callable[["Session"], AsyncResult]


class Batch(NamedTuple):
    """Requests that are sent at once; their answers come in the same order."""

    requests: Sequence[Ask]
    patience: float | None = None  #: seconds to wait for a session; None: as configured
    session: Session | None = None  #: the only one that may be asked; None: see ``ask``
    is_claim: bool = False


class Reply(NamedTuple):
    session: Session
    answers: list[Any]  #: an error of the server's is one of them
    ended: int  #: how often the session had ended when they were asked for


class Answers(Signal):
    """The answers to requests that were sent at once: values, and errors."""

    __slots__ = ("_missing", "ended", "said")

    def __init__(self, number: int, ended: int) -> None:
        super().__init__()
        self.said: list[Any] = [None] * number
        self.ended = ended  #: how often the session had ended by then
        self._missing = number

    def ask(self, session: Session, requests: Sequence[Ask]) -> None:
        """Called in the session's thread. Nothing is asked of a session that came later."""
        if session.ended != self.ended:
            self.said = [SessionExpiredError()] * len(requests)
            self.set()
            return
        for place, request in enumerate(requests):
            request(session).rawlink(partial(self._hear, place))

    def _hear(self, place: int, answer: AsyncResult) -> None:
        self.said[place] = answer.said
        self._missing -= 1
        if not self._missing:
            self.set()


def ask(
    route: int,
    *requests: Ask,
    patience: float | None = None,
    session: Session | None = None,
    is_claim: bool = False,
) -> Step[Reply]:
    """``route``: the timeout of the session to ask, in milliseconds. If there is no such session,
    one is made for a claim; for all else, any other session is asked. ``session``: ask only this
    one."""
    reply: Reply = yield Exchange(Batch(requests, patience, session, is_claim), route)
    return reply


def create(path: str) -> Ask:
    return lambda session: session.kazoo.create_async(path, acl=session.acl)


def create_container(path: str) -> Ask:
    return lambda session: _call(session, containers.create_container(path, session.acl))


def join(path: str, data: bytes) -> Ask:
    """Make an ephemeral node whose number follows the path. The answer: its path and stat."""
    return lambda session: session.kazoo.create_async(
        path, data, acl=session.acl, ephemeral=True, sequence=True, include_data=True
    )


def begin(folder: str, path: str, data: bytes) -> Ask:
    """Make a container, and such a node in it; all or nothing."""
    return lambda session: _call(session, containers.begin(folder, path, data, session.acl))


def break_node(path: str, mark: str, data: bytes, *, is_new: bool) -> Ask:
    """Delete a node, and leave a mark that says so; all or nothing."""

    def ask(session: Session) -> AsyncResult:
        both = session.kazoo.transaction()
        if is_new:
            both.create(mark, data, acl=session.acl)
        else:
            both.set_data(mark, data)
        both.delete(path)
        return both.commit_async()  # type: ignore[no-any-return]

    return ask


def children(path: str) -> Ask:
    return lambda session: session.kazoo.get_children_async(path)


def stat(path: str) -> Ask:
    return lambda session: session.kazoo.exists_async(path)


def watch(watch: Watch) -> Ask:
    """Hear of the end of a node, by a watch for its children: it has none, and such a watch tells
    nothing of new data. If the node is gone, nothing is watched."""
    return lambda session: session.kazoo.get_children_async(watch.path, watch)


def read(path: str) -> Ask:
    """Data and stat."""
    return lambda session: session.kazoo.get_async(path)


def write(path: str, data: bytes) -> Ask:
    return lambda session: session.kazoo.set_async(path, data)


def delete(path: str) -> Ask:
    return lambda session: session.kazoo.delete_async(path)


def sync(path: str) -> Ask:
    """Make sure that later reads are as new as the leader's data."""
    return lambda session: session.kazoo.sync_async(path)


def _call(session: Session, request: object) -> AsyncResult:
    """Send a request that is not one of kazoo's."""
    answer: AsyncResult = session.kazoo.handler.async_result()
    session.kazoo._call(request, answer)
    return answer
