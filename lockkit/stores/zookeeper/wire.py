"""The wires: for threads, and for the tasks of an event loop. Neither needs a thread of its own
for a request: the session's thread sets the signal on which the caller sleeps."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo.exceptions import OperationTimeoutError

from lockkit.engine.effects import Exchange, Park, Step
from lockkit.model.clock import now
from lockkit.model.errors import ConfigurationError, OutcomeUnknown, UnsupportedCapability
from lockkit.runtime import native, process
from lockkit.runtime.aio_run import arun
from lockkit.runtime.aio_wires import AsyncLocalWire
from lockkit.runtime.run import run
from lockkit.runtime.wires import CallWire
from lockkit.stores.zookeeper.failures import SessionEnded, cannot_begin, lost
from lockkit.stores.zookeeper.nodes import Znodes
from lockkit.stores.zookeeper.requests import Answers, Reply
from lockkit.stores.zookeeper.session import Session
from lockkit.stores.zookeeper.settings import Configuration, refuse_longer

MAX_SESSIONS = 8

CLOSE_SECONDS = 2.0
"""Seconds that ``close`` waits at most: a server that is down must not delay the end of a program.
"""


class CommonWire:
    """The common part of both wires. A payload is a batch of requests.

    They have a session for each timeout in milliseconds, made when it is needed.
    """

    def __init__(self, configuration: Configuration, nodes: Znodes) -> None:
        if native.is_patched():
            raise UnsupportedCapability(
                f"{configuration.title}: under gevent, kazoo's thread would be a "
                "greenlet, and its session would end while others compute. Use Redis there"
            )
        self._configuration = configuration
        self._nodes = nodes
        self._tell: Callable[[], object] = list
        self._forget()
        process.after_fork(self._in_child)

    def _forget(self) -> None:
        self._making = threading.RLock()
        self._sessions: dict[int, Session] = {}

    def _in_child(self) -> None:
        for session in self._sessions.values():
            session.let_go()
        self._forget()

    def when_in_doubt(self, tell: Callable[[], object]) -> None:
        self._tell = tell

    def _doubt(self) -> None:
        self._tell()

    def _exchanging(self, exchange: Exchange) -> Step[Reply]:
        (requests, patience, only, is_claim), route = exchange
        session = only or self._of(route, is_claim=is_claim)  # type: ignore[arg-type]  # a number
        # Only for a given session: of a new one that has failed, ``failure`` says why, below.
        if only is not None and session.is_over:
            raise SessionEnded("the session in ZooKeeper is over")
        until = now() + (self._configuration.connect_timeout if patience is None else patience)
        while not session.is_open:  # a connection may break as soon as it is made
            if session.is_over or (left := until - now()) <= 0:
                raise session.failure()
            session.begin()
            yield from session.opening(left)
        answers = session.send(requests)
        yield Park(answers, self._configuration.request_timeout)
        return Reply(session, said(answers), answers.ended)

    def _closing(self) -> Step[None]:
        until = now() + CLOSE_SECONDS
        ended = []
        with self._making:  # one that is made meanwhile would never be stopped
            while self._sessions:  # if interrupted, the next call finds the session again
                milliseconds, session = next(iter(self._sessions.items()))
                ended.append(session.stop())
                self._sessions.pop(milliseconds, None)
        for signal in ended:
            yield Park(signal, until - now())

    def _of(self, milliseconds: int, *, is_claim: bool = True) -> Session:
        """The session with this timeout. If there is none, and no claim asks, any other session
        will do: so a release is never refused because there are too many sessions."""
        if not is_claim and milliseconds not in self._sessions:
            milliseconds = next(iter(tuple(self._sessions)), self._configuration.route)
        session = self._sessions.get(milliseconds)
        if session is None or session.is_over:
            with self._making:
                session = self._sessions.get(milliseconds)
                if session is None or session.is_over:
                    session = self._make(milliseconds)
        return session

    def _make(self, milliseconds: int) -> Session:
        refuse_longer(milliseconds)
        if len(self._sessions) >= MAX_SESSIONS and milliseconds not in self._sessions:
            raise ConfigurationError(
                f"locks of {self._configuration.title} have more than {MAX_SESSIONS} "
                "different ttls; in ZooKeeper each of them is a session of its own"
            )
        changed = partial(_changed, weakref.ref(self), self._nodes)
        try:
            session = Session(self._configuration, milliseconds, changed)
        except OSError as error:  # the process has too many open files
            raise cannot_begin(error) from error
        before = self._sessions.get(milliseconds)
        if before is not None:
            self._nodes.end_with(before)
            before.stop()
        self._sessions[milliseconds] = session
        return session

    def __del__(self) -> None:
        """End the sessions, which nobody can reach any more: they would go on for ever. Not at the
        end of the program, which ends them anyway: a thread that is started then never runs, but
        is waited for."""
        if sys.is_finalizing():
            return
        for session in getattr(self, "_sessions", {}).values():
            session.stop()


def _changed(wire: weakref.ref[CommonWire], nodes: Znodes, session: Session, is_over: bool) -> None:
    """Called by a session, which keeps no client alive."""
    if is_over:
        nodes.end_with(session)
    if (found := wire()) is not None:
        found._doubt()


class ZooKeeperWire(CommonWire, CallWire):
    """For threads."""

    def exchange(self, exchange: Exchange) -> Reply:
        return run(self._exchanging(exchange), self)

    def close(self) -> None:
        run(self._closing(), self)


class AsyncZooKeeperWire(CommonWire, AsyncLocalWire):
    """For the tasks of one event loop."""

    _loop: asyncio.AbstractEventLoop | None = None

    def _doubt(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell)

    async def exchange(self, exchange: Exchange) -> Reply:
        self._loop = asyncio.get_running_loop()
        return await arun(self._exchanging(exchange), self)

    async def close(self) -> None:
        await arun(self._closing(), self)

    def without_loop(self) -> ZooKeeperWire:
        """A wire for threads over the same sessions, which end when it is closed."""
        made = ZooKeeperWire(self._configuration, self._nodes)
        made._sessions = self._sessions
        return made


def said(answers: Answers) -> list[Any]:
    """The answers: values, and errors of the server. Raises OutcomeUnknown if one did not come."""
    if not answers.is_set:
        error = OutcomeUnknown("ZooKeeper did not reply in time")
        raise error from OperationTimeoutError()
    for answer in answers.said:
        if isinstance(answer, Exception) and (failure := lost(answer)) is not None:
            raise failure from answer
    return answers.said
