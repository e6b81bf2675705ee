"""One connection of an event loop: requests out, and replies in, in one order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import Any

from redis.exceptions import RedisError, ResponseError

from lockkit.model.clock import now
from lockkit.model.errors import ConfigurationError, OutcomeUnknown
from lockkit.runtime import native
from lockkit.stores.redis.failures import check_role, not_connected
from lockkit.stores.redis.resp import ALONE, Replies
from lockkit.stores.redis.settings import Connection, is_managed

BUFFER = 65536

SETTLED_WITHIN = 1.0
"""Seconds that a close waits for the replies to what was sent."""

JUST_NOW = 0.01
"""Seconds since the last reply: no server restarts within that."""

BROKEN = "the connection to the Redis server broke before its reply"


OF_ANOTHER_LOOP = (
    "an asyncio client belongs to the event loop that it was used in first, and its connection "
    "does: make a client in each loop"
)


class Line(asyncio.BufferedProtocol):
    """One connection that redis-py has made: requests out, replies in, in one order.

    It owns the buffer. A transport would make one of 256 KiB for each read, which takes as long as
    the read itself.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transport: Any = connection._writer.transport
        self.patience: float = connection.socket_timeout  #: for a reply
        self._poll = native.poll(self._transport.get_extra_info("socket").fileno())
        self._buffer = memoryview(bytearray(BUFFER))
        self._replies = Replies()
        self._owed: deque[tuple[asyncio.Future[Any], int, float]] = deque()
        self._several: list[Any] = []  #: replies so far to the first request
        self._unsent: list[bytes] = []  #: requests, until the loop's next turn
        self._made = now()
        self._heard = 0.0  #: when the last reply came
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self.hear: Callable[[Any], None] | None = None  #: takes replies that nobody asked for
        self.on_end: Callable[[], None] | None = None
        self._transport.set_protocol(self)

    @property
    def is_over(self) -> bool:
        return self._is_over or self._transport.is_closing() or self._loop.is_closed()

    def has_ended(self) -> bool:
        """Look whether the server has closed it, which the loop may not have noticed yet. A request
        that is sent then gets no reply, and nobody can tell whether it was applied."""
        if self._owed or now() - self._heard < JUST_NOW or not self._poll(0):
            return False
        self.abort()
        return True

    def ask(self, packed: bytes, replies: int) -> asyncio.Future[Any]:
        """The reply; a list, if their number is not ALONE.

        While a reply is owed, the requests of one turn of the loop go out together: a system call
        for each would cost as much as all the rest.
        """
        if asyncio.get_running_loop() is not self._loop:  # it would mix up the replies
            raise ConfigurationError(OF_ANOTHER_LOOP)
        future = self._loop.create_future()
        if self._is_over:  # it ended after this task was woken: nobody would look for its reply
            future.set_exception(OutcomeUnknown(BROKEN))
            return future
        try:
            self._owed.append((future, replies, now()))
            if self._timer is None:
                self._timer = self._loop.call_later(self.patience, self._look)
            if len(self._owed) == 1:
                self._transport.write(packed)
            else:
                if not self._unsent:
                    self._loop.call_soon(self._send)
                self._unsent.append(packed)
        except BaseException:  # interrupted: it may be owed and not sent. Later replies would
            self.abort()  # then be taken for its own
            raise
        return future

    def _send(self) -> None:
        try:
            unsent, self._unsent = self._unsent, []
            if not self._is_over:
                self._transport.write(b"".join(unsent))
        except BaseException:  # as in ``ask``
            self.abort()
            raise

    @property
    def is_used(self) -> bool:
        """Whether somebody waits for a reply, or may be about to send its first request."""
        is_new = not self._heard and now() - self._made < self.patience
        return bool(self._owed) or (is_new and not self._is_over)

    @property
    def owes(self) -> int:
        return len(self._owed)

    def silent_for(self) -> float:
        """Seconds for which a reply is owed and none has come."""
        return now() - max(self._owed[0][2], self._heard) if self._owed else 0.0

    def say(self, packed: bytes) -> None:
        """Send a request whose answer goes to ``hear``."""
        self._transport.write(packed)

    async def settled(self) -> None:
        """Wait a moment for the answers that are still owed, so that none is cut short."""
        end = now() + SETTLED_WITHIN
        while self._owed and not self._is_over and now() < end:  # noqa: ASYNC110  replies pass by
            await asyncio.sleep(0.001)

    def abort(self) -> None:
        with suppress(RuntimeError):  # its event loop has ended, and closes nothing any more
            self._transport.abort()
        self._over("the connection to the Redis server was closed", ConnectionError("closed"))

    def get_buffer(self, _: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        try:
            for reply in self._replies.feed(bytes(self._buffer[:size])):
                self._take(reply)
        except (ValueError, ConnectionError):  # ``hear`` raises the latter
            self.abort()
        except (
            BaseException
        ):  # interrupted: a reply may be lost, and the next would be taken for it
            self.abort()
            raise

    def connection_lost(self, error: Exception | None) -> None:
        self._over(BROKEN, error or ConnectionError("closed by the server"))

    def _take(self, reply: Any) -> None:
        self._heard = now()
        if not self._owed:
            if self.hear is not None:
                self.hear(reply)
            return
        future, count, _ = self._owed[0]
        if count != ALONE:
            self._several.append(reply)
            if len(self._several) < count:
                return
            reply, self._several = self._several, []
        self._owed.popleft()
        if not future.done():  # else its task was cancelled
            future.set_result(reply)

    def _look(self) -> None:
        """End it if the server owes a reply and has been silent for too long. While the loop was
        blocked, nobody listened: that is not the server's silence."""
        late = self._loop.time() - self._timer.when() if self._timer else 0.0
        self._timer = None
        if not self._owed:
            return
        left = self.patience - self.silent_for()
        if late > self.patience / 10:
            left = self.patience
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._transport.abort()
            self._over("the Redis server did not reply in time", TimeoutError())

    def _over(self, text: str, cause: Exception) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        while self._owed:
            future, *_ = self._owed.popleft()
            if not future.done():
                error = OutcomeUnknown(text)
                error.__cause__ = cause
                with suppress(RuntimeError):  # its event loop has ended
                    future.set_exception(error)
        _forget_stream(self._connection)
        if self.on_end is not None:
            self.on_end()


async def connected(connection: Connection) -> Line:
    """Raises BackendUnavailable or StoreRefused."""
    connection.redis_connect_func = partial(_greet, connection.redis_connect_func)
    try:
        await connection.connect()
        return Line(connection)
    except (RedisError, OSError) as error:
        _abort(connection)
        raise not_connected(error, dict(connection.repr_pieces())) from error
    except BaseException:  # cancelled: nobody else knows of it
        _abort(connection)
        raise


async def _greet(theirs: Callable[[Connection], Any] | None, connection: Connection) -> None:
    """Greet as redis-py does, but send it in one piece. ``theirs``: the function that the user of a
    client has put in place of redis-py's.

    ``writelines`` of a transport that the other side has just closed leaves its file descriptor
    with the event loop, on CPython 3.12 and 3.13 (gh-136234): the next connection that gets the
    same number then never hears that it is connected.
    """
    transport = connection._writer.transport
    connection._writer.writelines = partial(_write_joined, transport)
    if theirs is None:
        await connection.on_connect()
    elif isawaitable(greeted := theirs(connection)):
        await greeted
    if is_managed(connection):
        await connection.send_command("ROLE", check_health=False)
        with suppress(ResponseError):
            check_role(await connection.read_response(disable_decoding=True))
    elif connection.password is None:  # see _ask_whether_known in ``connections``
        await connection.send_command("PING", check_health=False)
        with suppress(ResponseError):
            await connection.read_response(disable_decoding=True)


def _write_joined(transport: asyncio.WriteTransport, pieces: Sequence[bytes]) -> None:
    transport.write(b"".join(pieces))


def _abort(connection: Connection) -> None:
    """Close it at once. Over TLS, redis-py would wait for the server, which may be silent."""
    if connection._writer is not None:
        connection._writer.transport.abort()
    _forget_stream(connection)


def _forget_stream(connection: Connection) -> None:
    """redis-py warns if a connection with a stream is garbage-collected."""
    connection._writer = connection._reader = None
