"""The wires: for threads, and for the tasks of an event loop. Neither needs a thread of its own
for a request: the session's thread sets what the asking one sleeps on."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import OperationTimeoutError

from lockkit.engine.effects import Exchange, Listen, Park, Signal
from lockkit.model.clock import now
from lockkit.model.errors import ConfigurationError, OutcomeUnknown, UnsupportedCapability
from lockkit.runtime import native, process
from lockkit.runtime.aio_wires import park_task
from lockkit.runtime.wires import park
from lockkit.stores.zookeeper.failures import lost
from lockkit.stores.zookeeper.nodes import Nodes
from lockkit.stores.zookeeper.requests import Reply
from lockkit.stores.zookeeper.session import Answers, Session
from lockkit.stores.zookeeper.settings import Configuration

MAX_SESSIONS = 8

CLOSE_SECONDS = 2.0
"""A server that is down must not delay the end of a program."""


class Sessions:
    """The sessions of one client, by their timeouts in milliseconds; made when they are needed."""

    def __init__(self, configuration: Configuration, nodes: Nodes) -> None:
        if native.is_patched():
            raise UnsupportedCapability(
                f"the lock alias {configuration.alias!r}: under gevent, kazoo's thread would be a "
                "greenlet, which lets the session end while another one computes. Use Redis there"
            )
        self._configuration = configuration
        self._nodes = nodes
        self._tell: Callable[[], object] = nothing
        self._forget()
        process.after_fork(self._in_child)

    def _forget(self) -> None:
        self._making = threading.Lock()
        self._sessions: dict[int, Session] = {}

    def _in_child(self) -> None:
        for session in self._sessions.values():
            session.let_go()
        self._forget()

    def when_in_doubt(self, tell: Callable[[], object]) -> None:
        self._tell = tell

    def of(self, milliseconds: int) -> Session:
        session = self._sessions.get(milliseconds)
        if session is None or session.is_over:
            with self._making:
                session = self._sessions.get(milliseconds)
                if session is None or session.is_over:
                    session = self._make(milliseconds)
        return session

    def close(self) -> list[Signal]:
        """Signals that are set when all have ended."""
        ended = [session.stop() for session in self._sessions.values()]
        self._forget()
        return ended

    def _make(self, milliseconds: int) -> Session:
        if len(self._sessions) >= MAX_SESSIONS and milliseconds not in self._sessions:
            raise ConfigurationError(
                f"locks of the alias {self._configuration.alias!r} have more than {MAX_SESSIONS} "
                "different ttls; in ZooKeeper each of them is a session of its own"
            )
        changed = _Changed(weakref.ref(self), self._nodes)
        session = Session(self._configuration, milliseconds, changed)
        changed.session = weakref.ref(session)
        before, self._sessions[milliseconds] = self._sessions.get(milliseconds), session
        if before is not None:
            self._nodes.end_with(before)
            before.stop()
        return session

    def tell(self) -> None:
        self._tell()

    def __del__(self) -> None:
        """Nobody can reach it any more: its sessions would go on for ever."""
        for session in getattr(self, "_sessions", {}).values():
            session.stop()


class _Changed:
    """What a session tells. It keeps no client alive."""

    def __init__(self, sessions: weakref.ref[Sessions], nodes: Nodes) -> None:
        self._sessions = sessions
        self._nodes = nodes
        self.session: weakref.ref[Session] | None = None

    def __call__(self, is_over: bool) -> None:
        session = self.session and self.session()
        if is_over and session:
            self._nodes.end_with(session)
        sessions = self._sessions()
        if sessions is not None:
            sessions.tell()


class ZooKeeperWire:
    """For threads. A payload is a batch of requests."""

    def __init__(self, configuration: Configuration, nodes: Nodes) -> None:
        self._sessions = Sessions(configuration, nodes)
        self._timeouts = configuration.connect_timeout, configuration.request_timeout

    def when_in_doubt(self, tell: Callable[[], object]) -> None:
        self._sessions.when_in_doubt(tell)

    def exchange(self, exchange: Exchange) -> Reply:
        (requests, patience), route = exchange
        session = self._sessions.of(route)  # type: ignore[arg-type]  # all of ours are numbers
        if not session.is_open:
            park(session.opening(), self._timeouts[0] if patience is None else patience)
        answers = sent(session, requests)
        park(answers, self._timeouts[1])
        return Reply(session, said(answers))

    def park(self, effect: Park) -> None:
        park(effect.signal, effect.seconds)

    def listen(self, effect: Listen) -> None:
        """Watches come to the session."""

    def close(self) -> None:
        until = now() + CLOSE_SECONDS
        for ended in self._sessions.close():
            park(ended, until - now())


class AsyncZooKeeperWire:
    """For the tasks of one event loop."""

    def __init__(self, configuration: Configuration, nodes: Nodes) -> None:
        self._sessions = Sessions(configuration, nodes)
        self._timeouts = configuration.connect_timeout, configuration.request_timeout
        self._loop: asyncio.AbstractEventLoop | None = None

    def when_in_doubt(self, tell: Callable[[], object]) -> None:
        loop = self._current

        def tell_loop() -> None:
            if (running := loop()) is not None and not running.is_closed():
                running.call_soon_threadsafe(tell)

        self._sessions.when_in_doubt(tell_loop)

    def _current(self) -> asyncio.AbstractEventLoop | None:
        return self._loop

    async def exchange(self, exchange: Exchange) -> Reply:
        (requests, patience), route = exchange
        self._loop = asyncio.get_running_loop()
        session = self._sessions.of(route)  # type: ignore[arg-type]  # as above
        if not session.is_open:
            seconds = self._timeouts[0] if patience is None else patience
            await park_task(session.opening(), seconds)
        answers = sent(session, requests)
        await park_task(answers, self._timeouts[1])
        return Reply(session, said(answers))

    async def park(self, effect: Park) -> None:
        await park_task(effect.signal, effect.seconds)

    async def listen(self, effect: Listen) -> None:
        """As above."""

    async def close(self) -> None:
        until = now() + CLOSE_SECONDS
        for ended in self._sessions.close():
            await park_task(ended, until - now())


def nothing() -> None:
    """Nobody wants to be told."""


def sent(session: Session, requests: Any) -> Answers:
    if not session.is_open:
        raise session.failure()
    return session.send(requests)


def said(answers: Answers) -> list[Any]:
    """Values, and errors of the server's. Raises OutcomeUnknown if one of them did not come."""
    if not answers.is_set:
        error = OutcomeUnknown("ZooKeeper did not reply in time")
        raise error from OperationTimeoutError()
    for answer in answers.said:
        if isinstance(answer, Exception) and (failure := lost(answer)) is not None:
            raise failure from answer
    return answers.said
