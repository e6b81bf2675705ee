"""Connections to one server: taken, used for one exchange, given back.

redis-py makes and authenticates them; the exchange is done on the connection itself, because the
client's layers above it cost half as much again as the round trip. Nothing is retried here: the
steps do so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import redis
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError

from lockkit.model.errors import LockError
from lockkit.runtime import native, process
from lockkit.stores.redis.failures import (
    all_checked,
    check_role,
    from_reply,
    is_demoted,
    lost_on_the_way,
    not_connected,
)
from lockkit.stores.redis.resp import END, Replies
from lockkit.stores.redis.settings import SOCKET_TIMEOUT, Connection, Maker, is_managed

LINE, CHUNK = 4096, 65536
"""Bytes to read from a socket at once."""


ANY_COMMAND = ("_",) if redis.VERSION < (5, 3) else ()
"""An argument that older releases require when a connection is taken, and ignore."""


class OwnConnections:
    """A stack of idle connections, at most as many as were ever used at the same time."""

    def __init__(self, make: Maker) -> None:
        self.fresh = make
        self._idle: deque[Connection] = deque()
        process.in_each_process(self._forget)

    def _forget(self) -> None:
        """In a forked child: close its copies of the sockets. They stay open in the parent."""
        for inherited in self._idle:
            if inherited._sock is not None:
                inherited._sock.close()
        self._idle = deque()
        self.give: Callable[[Connection], None] = self._idle.append

    def take(self) -> Connection:
        """One that the server has closed is not used: once a release is sent and has no reply,
        nobody can tell whether it was applied, or a restart had lost the lease before."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return self.fresh()
        if connection.lockkit_poll(0):
            self.discard(connection)
        return connection

    def discard(self, connection: Connection) -> None:
        """One failed, so the idle ones are probably stale as well: the next try must not meet
        another of them."""
        connection.disconnect()
        self.close()

    def close(self) -> None:
        while self._idle:
            try:
                self._idle.pop().disconnect()
            except IndexError:
                return


NOT_MADE = RedisError, OSError, ValueError, AttributeError
"""What redis-py raises while it connects: the third for a host that cannot be a name, and, like the
last, if another thread closes the pool meanwhile."""


class PooledConnections:
    """The pool of somebody else's client, such as a django-redis cache."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        self._get = partial(pool.get_connection, *ANY_COMMAND)
        self.fresh = Maker(pool)  #: for the subscription

    def take(self) -> Connection:
        try:
            connection = self._get()
        except LockError:  # of a function of the pool's user
            raise
        except NOT_MADE as error:
            raise not_connected(error, self._pool.connection_kwargs) from error
        if connection.socket_timeout is None:
            _limit(connection, SOCKET_TIMEOUT)
        return connection

    def give(self, connection: Connection) -> None:
        if connection.socket_timeout is None:
            _limit(connection, None)
        self._pool.release(connection)

    def discard(self, connection: Connection) -> None:
        connection.disconnect()
        self._pool.release(connection)

    def close(self) -> None:
        """The pool is not ours to close."""


def _limit(connection: Connection, seconds: float | None) -> None:
    """For a client that waits for ever, which a lock must not do. None: for ever again, because the
    application may send commands on it that block."""
    with suppress(OSError, AttributeError):  # closed meanwhile
        connection._sock.settimeout(seconds)


Connections = OwnConnections | PooledConnections


def connect(connection: Connection) -> Any:
    """The socket of a connection, connected if it was not. Each version of redis-py has another way
    to ask whether it is, which takes a twentieth of the time of an uncontended lock; all have
    ``_sock``."""
    if (sock := connection._sock) is not None:
        return sock
    try:
        connection.connect()
        if is_managed(connection):
            _ask_whether_master(connection)
        elif connection.password is None:  # with one, AUTH has been answered
            _ask_whether_known(connection)
    except LockError:  # the password's function has failed
        connection.disconnect()
        raise
    except NOT_MADE as error:
        connection.disconnect()
        raise not_connected(error, dict(connection.repr_pieces())) from error
    except BaseException:  # interrupted
        connection.disconnect()
        raise
    connection.lockkit_poll = native.poll(connection._sock.fileno())
    return connection._sock


def _ask_whether_known(connection: Connection) -> None:
    """Send a short request first: a server that wants a password replies to it, but may reset the
    connection at a long one without a word."""
    connection.send_command("PING", check_health=False)
    with suppress(ResponseError):  # as for a user who may not ask
        connection.read_response(disable_decoding=True)


def _ask_whether_master(connection: Connection) -> None:
    """Raise MasterUnknown if it is not: Sentinels may not know yet that it was demoted."""
    connection.send_command("ROLE", check_health=False)
    with suppress(ResponseError):
        check_role(connection.read_response(disable_decoding=True))


def exchange(connections: Connections, packed: Any) -> Any:
    """Send one command, or a list of them at once; returns the reply, or a list. Raises lockkit's
    errors, or NoScriptError if the script was not run."""
    is_alone = type(packed) is bytes
    connection = connections.take()
    try:
        socket = connection._sock or connect(connection)
        socket.sendall(packed if is_alone else b"".join(packed))
        text = socket.recv(LINE)
        # As from most scripts.
        is_number = is_alone and text[:1] == b":" and 0 < text.find(END) == len(text) - len(END)
        number = int(text[1:]) if is_number else None
        replies = () if is_number else _replies(connection, text, 1 if is_alone else len(packed))
    except BaseException as error:  # interrupted: a late reply would be taken for another's
        connections.discard(connection)
        translate_io_error(error)
        raise
    connections.give(connection)
    if number is not None:
        return number
    found = all_checked(packed, replies)
    return found[0] if is_alone else found


def whole(replies: Replies, connection: Connection, data: bytes = b"") -> list[Any]:
    """The replies that have come, at least one; ``data`` is their beginning. Raises an OSError."""
    try:
        while not (found := replies.feed(data)):
            sock = connection._sock  # another thread may close a pool, and all its connections
            data = sock.recv(CHUNK) if sock is not None else b""
            if not data:
                raise ConnectionError("closed")
    except ValueError as error:
        raise ConnectionError("not a reply") from error
    return found


def _replies(connection: Connection, data: bytes, count: int) -> list[Any]:
    """Read ``count`` replies, which begin with ``data``. Errors are values."""
    replies = Replies()
    found = whole(replies, connection, data)
    while len(found) < count:
        found += whole(replies, connection)
    if is_demoted(found) or replies.has_more or len(found) > count:  # nobody reads the rest
        connection.disconnect()
    return found[:count]


def translate_io_error(error: BaseException) -> None:
    """Raise the driver's error as lockkit's. Returns if it is an interrupt instead."""
    if isinstance(error, (BusyLoadingError, AuthenticationError)):
        raise from_reply(error) from error
    if isinstance(error, (RedisError, OSError)):
        raise lost_on_the_way(error) from error
