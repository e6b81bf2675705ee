"""The asyncio wire: a connection to each node, which all tasks of an event loop share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from lockkit.engine.effects import Exchange, Gather
from lockkit.model.clock import now
from lockkit.model.errors import BackendUnavailable, LockError, OutcomeUnknown
from lockkit.runtime import process
from lockkit.runtime.aio_wires import AsyncLocalWire
from lockkit.stores.redis.failures import anew
from lockkit.stores.redis.line import Line, connected
from lockkit.stores.redis.settings import Maker
from lockkit.stores.redlock.line import DOUBT, MOST_OWED, PAUSE, STALE, packed_at_once
from lockkit.stores.redlock.votes import SILENT
from lockkit.stores.redlock.wire import answer_in


class AsyncRedlockWire(AsyncLocalWire):
    """A lane of a ``Gather`` is a node; a payload is one packed command, or a list of them."""

    def __init__(self, makers: Sequence[Maker], patience: float) -> None:
        self._makers = makers
        self._patience = patience
        self._inherited: list[object] = []
        self._nodes: list[_Node] = []
        process.in_each_process(self._start)

    def _start(self) -> None:
        """A forked child neither uses nor shuts down the sockets of its parent."""
        self._inherited.append(self._nodes)
        self._nodes = [_Node(make, self._patience) for make in self._makers]

    async def gather(self, gather: Gather) -> None:
        await _Round(self._nodes, gather).run()

    async def close(self) -> None:
        await asyncio.gather(*(node.close() for node in self._nodes))
        await asyncio.sleep(0)  # in which the loop closes their sockets


class _Node:
    """The connection to one node."""

    def __init__(self, make: Maker, patience: float) -> None:
        self._make = make
        self._patience = patience
        self._line: Line | None = None
        self._attempt: asyncio.Task[Line] | None = None
        self._since = 0.0  #: when the attempt began
        self._failure: tuple[LockError | None, float] = None, 0.0  #: of the last try, and its end

    def ask(self, payload: bytes | list[bytes]) -> asyncio.Future[Any]:
        line = self._line
        is_silent = line is not None and line.silent_for() > self._patience
        if line is not None and is_silent and line.owes >= MOST_OWED:
            line.abort()
        if line is None or line.is_over:
            return asyncio.ensure_future(self._connect_and_ask(payload))
        asked = line.ask(*packed_at_once(payload))
        if is_silent:
            asked.cancel()  # the request is sent, and nobody waits for its reply
            asked = asyncio.get_running_loop().create_future()
            asked.set_exception(OutcomeUnknown(SILENT))
            self._try_to_connect()
        return asked

    async def _connect_and_ask(self, payload: bytes | list[bytes]) -> Any:
        """If the caller gives up before there is a connection, nothing is asked; the attempt to
        connect goes on."""
        line = self._line
        if line is None or line.is_over:  # it may have been made meanwhile
            line = await self._connect()
        return await line.ask(*packed_at_once(payload))

    async def _connect(self) -> Line:
        """Connect, or wait for the attempt that goes on. Raises at once for a node that has failed
        lately, or takes long: nobody waits for that."""
        failure, ended = self._failure
        self._try_to_connect()
        if failure is not None and now() - ended < DOUBT:
            raise anew(failure)
        if self._attempt is None or now() - self._since > self._patience:
            raise BackendUnavailable("the Redis server does not answer")
        attempt = self._attempt
        await asyncio.wait([attempt])
        if attempt.cancelled():
            raise BackendUnavailable("the client was closed")
        if attempt.exception() is not None:
            raise anew(_as_failure(attempt.exception()))
        return attempt.result()

    def _try_to_connect(self) -> None:
        if self._attempt is None and now() - self._failure[1] > PAUSE:
            self._since = now()
            self._attempt = asyncio.create_task(connected(self._make()), name="lockkit-connect")
            self._attempt.add_done_callback(self._connected)

    def _connected(self, attempt: asyncio.Task[Line]) -> None:
        self._attempt = None
        if attempt.cancelled():
            return
        if attempt.exception() is None:
            self._use(attempt.result())
            self._failure = None, 0.0
        else:
            self._failure = _as_failure(attempt.exception()), now()

    def _use(self, made: Line) -> None:
        """In place of a silent connection, unless that has been heard of meanwhile."""
        before = self._line
        if before is not None and not before.is_over and before.silent_for() <= self._patience:
            made.abort()
            return
        if before is not None:
            before.abort()
        made.patience = STALE
        self._line = made

    async def close(self) -> None:
        attempt = self._attempt
        try:
            if attempt is not None and attempt.get_loop() is asyncio.get_running_loop():
                attempt.cancel()
                await asyncio.wait([attempt])  # it may have connected all the same
            if self._line is not None:
                await self._line.settled()
        finally:  # also if it is cancelled
            self._attempt = None
            line, self._line = self._line, None
            if line is not None:
                line.abort()


def _as_failure(error: BaseException | None) -> LockError:
    if isinstance(error, LockError):
        return error
    failure = BackendUnavailable("the connection could not be made")
    failure.__cause__ = error
    return failure


class _Round:
    """One ``Gather``."""

    def __init__(self, nodes: Sequence[_Node], gather: Gather) -> None:
        self._nodes = nodes
        self._gather = gather
        self._asked: dict[int, asyncio.Future[Any]] = {}  #: by lane
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_over = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._gather.within, self._end)
        try:
            for lane, exchange in enumerate(self._gather.exchanges):
                if exchange is not None:
                    self._start(lane, exchange)
            self._end_if_enough()
            await self._over
            if self._gather.is_last:
                self._asked.clear()  # lanes that still connect ask as soon as they can
        finally:
            self._is_over = True
            timer.cancel()
            for asked in self._asked.values():
                asked.cancel()

    def _start(self, lane: int, exchange: Exchange) -> None:
        asked = self._nodes[lane].ask(exchange.payload)
        self._asked[lane] = asked
        asked.add_done_callback(partial(self._heard, lane))

    def _heard(self, lane: int, asked: asyncio.Future[Any]) -> None:
        """Called by the event loop, which would only log an error: so it is given to the round."""
        if asked.cancelled():
            return
        error = asked.exception()  # also of those that nobody waits for
        if self._is_over:
            return
        del self._asked[lane]
        try:
            following = self._gather.react(lane, error or answer_in(asked.result()))
            if following is not None:
                self._start(lane, following)
        except BaseException as failure:  # noqa: BLE001  raised where the round is waited for
            if not self._over.done():
                self._over.set_exception(failure)
        self._end_if_enough()

    def _end_if_enough(self) -> None:
        if not self._asked or self._gather.enough():
            self._end()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)
