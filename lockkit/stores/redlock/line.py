"""The blocking connections to a node, and how they are made."""

from __future__ import annotations

import ssl
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from lockkit.model.clock import now
from lockkit.model.errors import BackendUnavailable, LockError
from lockkit.runtime import native, process
from lockkit.stores.redis.connections import connect
from lockkit.stores.redis.failures import anew
from lockkit.stores.redis.resp import ALONE, Replies
from lockkit.stores.redis.settings import Connection, Maker

MISSING: Final = object()
"""The rest of the replies has not come yet."""

STALE = 10.0
"""Seconds of silence after which a connection is given up. Until then it is used, because a request
that takes a vote back must arrive after the request for that vote. Meanwhile another one is tried:
if the node answers there, it is not the node that is silent."""

MOST_OWED = 100
"""The most replies that a silent node may owe: more requests might not fit into a socket."""

PAUSE = 0.1
"""Seconds after which a node that could not be connected to is tried again."""

DOUBT = 2.0
"""Seconds after such a failure for which nobody waits for the next try."""


def packed_at_once(payload: bytes | list[bytes]) -> tuple[bytes, int]:
    """The bytes to send, and the number of replies to them."""
    if isinstance(payload, bytes):
        return payload, ALONE
    return b"".join(payload), len(payload)


class Line:
    """A connection that redis-py has made. Replies that nobody waits for any more are skipped.

    Its methods raise OSError when it has broken, or ValueError when no Redis is at the other end.
    """

    def __init__(self, connection: Connection, era: int) -> None:
        self._connection = connection
        self.era = era  #: how often the connections to its node had been closed before
        self._socket = connection._sock
        self._socket.setblocking(False)
        self._patience: float = connection.socket_timeout
        self._replies = Replies()
        self._owed = 0  #: replies to come
        self._wanted = 0  #: of these, the last ones, which somebody waits for
        self._heard: list[Any] = []
        self._is_list = False
        self._since = now()  #: since when it owes something and has said nothing

    def fileno(self) -> int:
        number: int = self._socket.fileno()
        return number

    def is_usable(self) -> bool:
        """Reads what has come meanwhile, and so notices if the server has closed it."""
        try:
            while self._read():
                pass
        except (OSError, ValueError):
            return False
        return not self._owed or (now() - self._since < STALE and self._owed < MOST_OWED)

    def is_lost(self, made: float) -> bool:
        """Whether it is silent while its node talks: a newer connection was made at this moment."""
        return self.is_silent and self._since < made

    @property
    def is_silent(self) -> bool:
        """Whether it has owed a reply for so long that nobody should wait for it."""
        return self._owed > 0 and now() - self._since > self._patience

    def ask(self, payload: bytes | list[bytes]) -> None:
        packed, count = packed_at_once(payload)
        if not self._owed:
            self._since = now()
        self._is_list, count = count != ALONE, max(count, 1)
        self._owed += count
        self._wanted, self._heard = count, []
        self._socket.sendall(packed)

    def hear(self) -> Any:
        """The reply, or a list if the request was one; MISSING if it has not come yet."""
        self._read()
        if self._wanted:
            return MISSING
        return self._heard if self._is_list else self._heard[0]

    def give_up(self) -> None:
        """Called when nobody waits any more."""
        self._wanted = 0

    def close(self) -> None:
        self._connection.disconnect()

    def _read(self) -> bool:
        """Read what has come. Returns whether there was anything."""
        try:
            data = self._socket.recv(65536)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        if not data:
            raise ConnectionError("closed by the server")
        for reply in self._replies.feed(data):
            if self._owed == self._wanted:
                self._wanted -= 1
                self._heard.append(reply)
            self._owed -= 1
            self._since = now()
        return True


class Attempt:
    """An attempt to connect to a node, in a thread of its own. Several may wait for it."""

    def __init__(self, connect_to: Callable[[], None], before: Attempt | None) -> None:
        self._connect_to = connect_to
        self._expected = None if before is None else before.failure_of_late(DOUBT)
        self._since = now()
        self._over: float | None = None
        self._failure: LockError | None = None
        self._told: list[Callable[[], None]] = []

    def start(self) -> None:
        try:
            native.start(self._run, (), "lockkit-connect", shares=True)
        except RuntimeError:  # the interpreter exits, or there are too many threads
            self._run()

    @property
    def is_over(self) -> bool:
        return self._over is not None

    def is_recent(self) -> bool:
        """Whether it goes on, or has failed so recently that another attempt would fail as well."""
        return self._over is None or self.failure_of_late(PAUSE) is not None

    def failure_of_late(self, seconds: float) -> LockError | None:
        """Why it failed, if that was less than so many seconds ago."""
        is_late = self._over is not None and now() - self._over < seconds
        return self._failure if is_late else None

    def error(self, patience: float) -> LockError | None:
        """Why nobody should wait for this connection: the attempt takes long or has failed, or the
        one before it has failed lately. None: wait for it."""
        if self._over is None and now() - self._since > patience:
            return BackendUnavailable("the Redis server does not answer")
        error = self._failure if self.is_over else self._expected
        return error and anew(error)

    def end(self) -> None:
        """Called when it is over. Without a failure, the next attempt may begin at once."""
        self._over = now()
        for listener in self._told:
            listener()

    def tell(self, listener: Callable[[], None]) -> None:
        """Call the listener when it is over."""
        self._told.append(listener)
        if self._over is not None:
            listener()

    def _run(self) -> None:
        try:
            self._connect_to()
        except LockError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001  nobody else hears of it
            self._failure = BackendUnavailable("the connection could not be made")
            self._failure.__cause__ = error
        finally:
            self.end()


class Lines:
    """The connections to one node: as many as were ever used at the same time."""

    def __init__(self, make: Maker) -> None:
        self._make = make
        process.in_each_process(self._forget)

    def _forget(self) -> None:
        self._idle = deque[Line]()
        self._mutex = threading.RLock()
        self._attempt: Attempt | None = None
        self._closed = 0  #: how often
        self._made = 0.0  #: when the node last answered on a new connection

    def take(self) -> Line | None:
        """An idle connection that works; None if there is none."""
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return None
            if not line.is_usable():
                self.discard(line)
            elif line.is_lost(self._made):
                line.close()
            else:
                return line

    def give(self, line: Line) -> None:
        self._idle.append(line)
        if line.era != self._closed:  # meanwhile, while this one was in use or being made
            self._close_idle()

    def discard(self, line: Line) -> None:
        """Close a connection that broke; and the idle ones, which have probably broken as well."""
        line.close()
        self._close_idle()

    def say(self, payload: bytes | list[bytes]) -> None:
        """Send this if there is a connection. Nobody waits for the reply."""
        line = self.take()
        if line is None:
            return
        try:
            line.ask(payload)
            line.give_up()
        except Exception:  # noqa: BLE001  others are still to be told
            line.close()
        else:
            self.give(line)

    def attempt(self) -> Attempt:
        """The attempt to connect that goes on or has failed just now; else a new one."""
        made = None
        try:
            with self._mutex:
                attempt = self._attempt
                if attempt is not None and attempt.is_recent():
                    return attempt
                closed = self._closed
                made = self._attempt = Attempt(lambda: self._connect(closed), attempt)
            made.start()
        except BaseException:  # interrupted: its thread may never begin
            if made is not None:
                made.end()
            raise
        return made

    def close(self) -> None:
        self._closed += 1
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def _connect(self, closed: int) -> None:
        connection = self._make()
        try:
            connect(connection)
            line = Line(connection, closed)
        except BaseException:
            connection.disconnect()
            raise
        self._made = now()
        self.give(line)
