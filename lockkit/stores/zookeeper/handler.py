"""The handler of kazoo: one thread for each session. No other thread runs kazoo's code.

kazoo's own handler has two more threads, which run callbacks. lockkit's callbacks only set signals,
so the thread of the connection runs them. It also makes the calls of kazoo that other threads need:
if they called kazoo themselves, an interrupt could be swallowed there, or leave a lock or a request
half done.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from lockkit.model.clock import now
from lockkit.model.errors import ConfigurationError
from lockkit.model.log import log_error


class AsyncResult:
    """The answer to one request: kazoo's AsyncResult, for a single thread."""

    def __init__(self) -> None:
        self._value: Any = None
        self.exception: Exception | None = None
        self._is_set = False
        self._links: list[Callable[[AsyncResult], object]] = []

    @property
    def said(self) -> Any:
        """The value or the error."""
        return self._value if self.exception is None else self.exception

    def set(self, value: Any = None) -> None:
        self._value = value
        self._settle()

    def set_exception(self, exception: Exception) -> None:
        self.exception = exception
        self._settle()

    def get(self) -> Any:
        """For the links of kazoo, which are called once it is set."""
        if self.exception is not None:
            raise self.exception
        return self._value

    def rawlink(self, link: Callable[[AsyncResult], object]) -> None:
        self._links.append(link)
        if self._is_set:
            link(self)

    def _settle(self) -> None:
        self._is_set = True
        for link in self._links:
            link(self)


class Bell:
    """Replaces both ends of the pipe in which kazoo has a byte for each request.

    A pipe takes a few hundred bytes. Here the thread that writes them is the one that reads them,
    so at a full pipe it would wait for itself. This pipe has one byte at most, and a counter.
    """

    def __init__(self, read: socket.socket, write: socket.socket) -> None:
        self._read, self._write = read, write
        self._bytes = 0
        self._mutex = threading.RLock()  # the thread that stops kazoo writes as well
        self.fileno = read.fileno

    def send(self, data: bytes) -> int:
        with self._mutex:
            if not self._bytes:
                self._write.send(b"\0")
            self._bytes += len(data)
        return len(data)

    def recv(self, size: int) -> bytes:
        with self._mutex:
            found, self._bytes = self._bytes, max(self._bytes - size, 0)
            if found and not self._bytes:
                self._read.recv(1)
        return bytes(found - self._bytes)

    def close(self) -> None:
        self._read.close()
        self._write.close()


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """The handler of one session."""

    def __init__(self, connect_timeout: float, tls: Callable[[], ssl.SSLContext | None]) -> None:
        super().__init__()
        self._connect_timeout = connect_timeout
        self._hello = self._first_hello = connect_timeout / 2
        self._is_connecting = False
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._errands: deque[Callable[[], object]] = deque()
        self._waking, self._wake = socket.socketpair()
        for end in (self._waking, self._wake):
            end.setblocking(False)
        self.has_ended = False  #: the thread of the connection has ended; it never starts again
        self.on_end: Callable[[], object] = list
        self.peer = ""  #: the name of the host that is connected to
        self.reason: BaseException | None = None  #: why the last try to connect failed

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Wait only a short time for a server's first reply. A server that is starting takes a
        connection but answers nothing, so the next server is tried soon. Or the server may just be
        slow, so each further try has more time."""
        self._is_connecting = True
        try:
            yield
        except self.timeout_exception:
            self._hello *= 2
            raise
        else:
            self._hello, self.reason = self._first_hello, None
        finally:
            self._is_connecting = False

    def run(self, errand: Callable[[], object]) -> None:
        """Have the thread of the connection call this, as soon as there is a connection."""
        self._errands.append(errand)
        if self.has_ended:
            self._run_errands()
        with contextlib.suppress(OSError):  # it has been woken often enough, or is over
            self._wake.send(b"\0")

    def select(self, *files_and_timeout: Any) -> Any:
        readers, writers, errors, timeout = files_and_timeout
        if self._is_connecting:
            return super().select(readers, writers, errors, min(timeout, self._hello))
        if buffered := [file for file in readers if _has_more(file)]:
            return buffered, [], []
        until = now() + timeout
        while True:
            left = max(until - now(), 0.0)
            ready = super().select([*readers, self._waking], writers, errors, left)
            if self._waking not in ready[0]:
                return ready
            ready[0].remove(self._waking)
            self._run_errands()
            if any(ready) or now() >= until:  # however many errands come
                return ready

    def _run_errands(self) -> None:
        with contextlib.suppress(OSError):
            self._waking.recv(4096)
        while self._errands:
            try:
                self._errands.popleft()()
            except Exception:  # noqa: BLE001  it must not end the session
                log_error("a request to ZooKeeper failed")

    def spawn(self, task: Callable[[], object]) -> threading.Thread:
        """Start the thread of the connection. If a defect ends it, another session is made."""

        def work() -> None:
            try:
                task()
            except Exception:  # noqa: BLE001  nobody waits for it
                log_error("a session in ZooKeeper has ended")
            self.has_ended = True
            self._run_errands()
            self.on_end()

        thread = threading.Thread(target=work, name="lockkit-zookeeper-session", daemon=True)
        thread.start()
        return thread

    def async_result(self) -> AsyncResult:
        return AsyncResult()

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def create_connection(
        self, address: tuple[str, int], timeout: float, **_: object
    ) -> socket.socket:
        """Wait for ``connect_timeout`` at most, whatever the session's timeout: the next server is
        tried soon."""
        try:
            made = socket.create_connection(address, min(timeout, self._connect_timeout))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made = _wrapped(made, self._tls, self.peer)
        except OSError as error:
            self.reason = error
            raise
        self._sockets = [*self._sockets[:2], made]
        return made

    def create_socket_pair(self) -> tuple[Bell, Bell]:
        self._sockets = list(socket.socketpair())
        bell = Bell(*self._sockets)
        return bell, bell

    def close(self) -> None:
        self._waking.close()
        self._wake.close()

    def let_go(self) -> None:
        """Called in a forked child: close the parent's sockets here, and tell nobody."""
        for inherited in (*self._sockets, self._waking, self._wake):
            with contextlib.suppress(OSError, ValueError):  # it may be closed already
                socket.socket(fileno=inherited.detach()).close()


def logger_of_kazoo() -> logging.Logger:
    """A logger for kazoo that drops all but errors: kazoo's debug messages contain credentials, and
    it warns at each try to connect."""
    logger = logging.getLogger("lockkit.zookeeper")
    if not logger.filters:
        logger.addFilter(lambda record: record.levelno >= logging.ERROR)
    return logger


def _wrapped(
    plain: socket.socket, tls: Callable[[], ssl.SSLContext | None], host: str
) -> socket.socket:
    try:
        context = tls()
        return context.wrap_socket(plain, server_hostname=host) if context else plain
    except BaseException as error:
        plain.close()
        if isinstance(error, ConfigurationError):  # a file is missing, while it is replaced
            raise OSError(0, str(error)) from error
        raise


def _has_more(file: Any) -> bool:
    """Whether a TLS socket has read more than it was asked for: ``select`` does not tell that."""
    return isinstance(file, ssl.SSLSocket) and file.pending() > 0
