"""A network that fails on command: a TCP proxy between a client and a store.

>>> with RedisServer() as server, FaultProxy("127.0.0.1", server.port) as proxy:  # doctest: +SKIP
...     locks = lockkit.connect(f"redis://127.0.0.1:{proxy.port}/0")
...     fault = proxy.drop_replies(matching=b"EVALSHA")
...     locks.lock("stock:42").acquire()      # the store granted it; the client never heard of it
...     fault.happened.wait(5)

A *request* is the data of one read from the client's socket, and a *reply* is the data of one read
from the store's socket. If a client sends and then waits, a request is one command or one pipeline.
A command of more than 64 KiB counts as several.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

from lockkit.testing._link import Fault, Link, connect, reset

__all__ = ["Fault"]

HOST = "127.0.0.1"
CHUNK = 65536
Target = tuple[str, int | None]
JOIN_SECONDS = 10.0


class FaultProxy:
    """Forwards to a store until told otherwise. start() and stop(), or ``with``.

    Without ``target_port``, ``target_host`` is the path of a unix socket. ``on_request`` and
    ``on_reply`` see the bytes before they are forwarded, in the connection's thread. All methods
    may be called from any thread.
    """

    def __init__(
        self,
        target_host: str,
        target_port: int | None = None,
        *,
        on_request: Callable[[bytes], None] | None = None,
        on_reply: Callable[[bytes], None] | None = None,
    ) -> None:
        self.target = (target_host, target_port)
        self.port = 0
        self.latency = 0.0
        """Seconds by which every request and every reply is delayed."""
        self.requests = 0
        self.connections = 0
        """The number of connections that were accepted so far."""
        self._on_request, self._on_reply = on_request or _ignore, on_reply or _ignore
        self._lock = threading.Lock()
        self._links: set[Link] = set()
        self._drops: list[Fault] = []
        self._delays: list[Fault] = []
        self._faults: list[Fault] = []
        self._silent = self._refusing = False
        self._stopped = threading.Event()
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        self._stopped.clear()
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._acceptor = _thread(self._accept, self._listener, self.target)
        return self

    def stop(self) -> None:
        """Close everything and wait for the threads."""
        with self._lock:
            self._stopped.set()
        if self._listener is not None:
            # shutdown() wakes the thread in accept(); close() alone would leave it there.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        links = self._open_links()
        for link in links:
            link.cut()
        for fault in self._faults:
            fault.release()
        for thread in [self._acceptor, *(t for link in links for t in link.threads)]:
            if thread is not None:
                thread.join(JOIN_SECONDS)

    def cut(self) -> None:
        """Reset every connection (RST). New ones are served: see refuse()."""
        for link in self._open_links():
            link.cut()

    def refuse(self, refusing: bool = True) -> None:
        """Reset new connections at once, as if nothing listened; open ones stay."""
        self._refusing = refusing

    def half_open(self, silent: bool = True) -> None:
        """Swallow both directions of old and new connections; nobody is told.

        The data are lost: half_open(False) ends the connections that were silent.
        """
        with self._lock:
            self._silent = silent
            swallowed = [] if silent else [link for link in self._links if link.swallowed]
        for link in swallowed:
            link.cut()

    def lose_store(self, *, matching: bytes = b"") -> int:
        """Close the store's side of the connections whose last request matches. Their clients are
        not told, and what they send is swallowed. Returns how many there were."""
        lost = [link for link in self._open_links() if matching in link.request]
        for link in lost:
            link.lose_store()
        return len(lost)

    def drop_replies(self, n: int = 1, *, matching: bytes = b"", then_any: bool = False) -> Fault:
        """Forward the next n matching requests, drop the store's replies, reset the client.

        Without ``matching``, the greeting of a new connection (HELLO, AUTH) counts as a request.
        ``then_any``: only the first needs to match.
        """
        return self._order(self._drops, n, matching, then_any=then_any)

    def delay_requests(self, n: int = 1, *, matching: bytes = b"") -> Fault:
        """Hold the next n matching requests until release(), even when the client has gone."""
        return self._order(self._delays, n, matching)

    def _order(
        self, orders: list[Fault], n: int, matching: bytes, *, then_any: bool = False
    ) -> Fault:
        fault = Fault(matching, n, then_any=then_any)
        with self._lock:
            orders.append(fault)
            self._faults.append(fault)
        return fault

    def _open_links(self) -> list[Link]:
        with self._lock:
            return list(self._links)

    def _accept(self, listener: socket.socket, target: Target) -> None:
        while not self._stopped.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            self._serve(client, target)

    def _serve(self, client: socket.socket, target: Target) -> None:
        try:
            if self._refusing:
                raise ConnectionRefusedError
            store = connect(*target)
        except OSError:
            reset(client)
            client.close()
            return
        link = Link(client, store)
        with self._lock:  # stop() sees the link with its threads, or sets _stopped before this
            self._links.add(link)
            link.threads = (_thread(self._carry_requests, link), _thread(self._carry_replies, link))
            if self._stopped.is_set():
                link.cut()

    def _carry_requests(self, link: Link) -> None:
        with contextlib.suppress(OSError):
            while data := link.client.recv(CHUNK):
                with self._lock:  # before forwarding: once a client has its reply, it is counted
                    self.requests += 1
                self._on_request(data)
                link.request = data
                if self._swallows(link):
                    continue
                self._pause()
                self._hold(link, data)
                with self._lock:
                    link.drop = link.drop or _take(self._drops, data)
                link.store.sendall(data)
        self._forget(link.store, link)

    def _carry_replies(self, link: Link) -> None:
        with contextlib.suppress(OSError):
            while data := link.store.recv(CHUNK):
                self._on_reply(data)
                if self._swallows(link):
                    continue
                dropped = link.answered()
                if dropped:
                    break
                self._pause()
                link.client.sendall(data)
        self._forget(link.client, link)

    def _swallows(self, link: Link) -> bool:
        with self._lock:
            link.swallowed = link.swallowed or self._silent
        return link.swallowed

    def _pause(self) -> None:
        if self.latency > 0:
            self._stopped.wait(self.latency)

    def _hold(self, link: Link, data: bytes) -> None:
        with self._lock:
            fault = _take(self._delays, data)
        if fault is not None:
            fault.arrived.set()
            fault.wait_for_release()
            link.delayed = fault

    def _forget(self, other: socket.socket, link: Link) -> None:
        """One direction ended: pass that on, and close both after the second."""
        if not (link.store_lost and other is link.client):
            with contextlib.suppress(OSError):
                other.shutdown(socket.SHUT_WR)
        with self._lock:
            link.ended += 1
            if link.ended < 2:
                return
            self._links.discard(link)
        link.client.close()
        link.store.close()


def _take(orders: list[Fault], data: bytes) -> Fault | None:
    for fault in orders:
        if fault.matching in data:
            fault.left -= 1
            if fault.then_any:
                fault.matching = b""
            if fault.left <= 0:
                orders.remove(fault)
            return fault
    return None


def _thread(work: Callable[..., None], *subjects: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=subjects, daemon=True, name="fault-proxy")
    thread.start()
    return thread


def _ignore(_: bytes) -> None: ...
