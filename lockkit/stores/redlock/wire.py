"""The blocking wire: all nodes are asked at once, by the thread that asks.

A connection that still owes a reply goes on being used: its next user skips that reply first. If a
node has no connection, or only a silent one, a thread of its own connects to it, because no request
waits for one node.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from redis.exceptions import ResponseError

from lockkit.engine.effects import Exchange, Gather
from lockkit.model.clock import now
from lockkit.model.errors import OutcomeUnknown
from lockkit.runtime.wires import CallWire
from lockkit.stores.redis.failures import from_reply, lost_on_the_way
from lockkit.stores.redis.settings import Maker
from lockkit.stores.redlock.line import MISSING, Attempt, Line, Lines
from lockkit.stores.redlock.votes import SILENT


class RedlockWire(CallWire):
    """A lane of a ``Gather`` is a node; a payload is one packed command, or a list of them."""

    def __init__(self, makers: Sequence[Maker], patience: float) -> None:
        self._nodes = [Lines(make) for make in makers]
        self._patience = patience

    def gather(self, gather: Gather) -> None:
        _Round(self._nodes, gather, self._patience).run()

    def close(self) -> None:
        for node in self._nodes:
            node.close()


class _Round:
    """One ``Gather``."""

    def __init__(self, nodes: Sequence[Lines], gather: Gather, patience: float) -> None:
        self._nodes = nodes
        self._gather = gather
        self._patience = patience
        self._ends = now() + gather.within
        self._poll = select.poll()
        self._lines: dict[int, tuple[int, Line]] = {}  #: by descriptor: the lane, and its line
        self._unconnected: dict[int, tuple[Attempt, Exchange]] = {}  #: by lane
        self._bell: _Bell | None = None

    def run(self) -> None:
        try:
            self._begin()
            is_over = False
            while self._goes_on() and not is_over:
                is_over = now() >= self._ends  # what came while this process was paused counts
                for descriptor, _ in self._poll.poll(max(self._ends - now(), 0) * 1000):
                    self._look(descriptor)
        except BaseException:  # interrupted: nobody knows what was sent, or what has been read
            for _, line in self._lines.values():
                line.close()
            raise
        finally:
            if self._bell is not None:
                self._bell.close()
        self._leave()

    def _leave(self) -> None:
        for lane, line in self._lines.values():
            line.give_up()
            self._nodes[lane].give(line)
        if self._gather.is_last:
            for lane, (attempt, exchange) in self._unconnected.items():
                attempt.tell(partial(self._nodes[lane].say, exchange.payload))

    def _begin(self) -> None:
        for lane, exchange in enumerate(self._gather.exchanges):
            if exchange is not None:
                self._start(lane, exchange)

    def _goes_on(self) -> bool:
        return bool(self._lines or self._unconnected) and not self._gather.enough()

    def _start(self, lane: int, exchange: Exchange) -> None:
        line = self._nodes[lane].take()
        if line is None:
            self._connect(lane, exchange)
            return
        self._lines[line.fileno()] = lane, line
        is_silent = line.is_silent
        try:
            line.ask(exchange.payload)
        except OSError as error:
            self._broke(line.fileno(), error)
            return
        if is_silent:
            del self._lines[line.fileno()]
            line.give_up()
            self._nodes[lane].give(line)
            self._nodes[lane].attempt()
            self._heard(lane, OutcomeUnknown(SILENT))
        else:
            self._poll.register(line, select.POLLIN)

    def _connect(self, lane: int, exchange: Exchange) -> None:
        attempt = self._nodes[lane].attempt()
        error = attempt.error(self._patience)
        if error is not None:
            self._heard(lane, error)
            return
        self._unconnected[lane] = attempt, exchange
        if self._bell is None:
            self._bell = _Bell()
            self._poll.register(self._bell.socket, select.POLLIN)
        attempt.tell(self._bell.ring)

    def _look(self, descriptor: int) -> None:
        if descriptor not in self._lines:
            self._look_at_attempts()
            return
        lane, line = self._lines[descriptor]
        try:
            reply = line.hear()
        except (OSError, ValueError) as error:
            self._poll.unregister(descriptor)
            self._broke(descriptor, error)
            return
        if reply is not MISSING:
            self._poll.unregister(descriptor)
            del self._lines[descriptor]
            self._nodes[lane].give(line)
            self._heard(lane, answer_in(reply))

    def _look_at_attempts(self) -> None:
        if self._bell is not None:
            self._bell.hush()
        for lane, (attempt, exchange) in list(self._unconnected.items()):
            if attempt.is_over:
                del self._unconnected[lane]
                self._start(lane, exchange)

    def _broke(self, descriptor: int, error: Exception) -> None:
        lane, line = self._lines.pop(descriptor)
        self._nodes[lane].discard(line)
        lost = lost_on_the_way(error)
        lost.__cause__ = error
        self._heard(lane, lost)

    def _heard(self, lane: int, reply: Any) -> None:
        following = self._gather.react(lane, reply)
        if following is not None:
            self._start(lane, following)


class _Bell:
    """Wakes a thread that polls: other threads ring it."""

    def __init__(self) -> None:
        self.socket, self._rope = socket.socketpair()
        self.socket.setblocking(False)
        self._rope.setblocking(False)

    def ring(self) -> None:
        with suppress(OSError):  # closed, or rung often enough
            self._rope.send(b"!")

    def hush(self) -> None:
        with suppress(OSError):
            self.socket.recv(64)

    def close(self) -> None:
        self.socket.close()
        self._rope.close()


def answer_in(reply: Any) -> Any:
    """The reply, or lockkit's error for its first error reply."""
    for each in reply if isinstance(reply, list) else [reply]:
        if isinstance(each, ResponseError):
            error = from_reply(each)
            error.__cause__ = each
            return error
    return reply
