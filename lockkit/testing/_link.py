"""One connection through the fault proxy, and its possible faults."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading

NO_ADDRESS = struct.pack("H14x", socket.AF_UNSPEC)
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds: close() sends RST


class Fault:
    """One fault, for the next ``left`` requests that contain ``matching``. With ``then_any``, only
    the first of them needs to contain it."""

    def __init__(self, matching: bytes, left: int, *, then_any: bool = False) -> None:
        self.matching = matching
        self.left = left
        self.then_any = then_any
        self.happened = threading.Event()
        """Set when the store has answered the last of the requests, so it has applied them all."""
        self.arrived = threading.Event()
        """Set when the first of the requests has reached the proxy."""
        self._released = threading.Event()

    def release(self) -> None:
        """Let held requests go on to the store."""
        self._released.set()

    def wait_for_release(self) -> None:
        self._released.wait()

    def answered(self) -> None:
        self.arrived.set()
        if self.left <= 0:
            self.happened.set()


class Link:
    """The connection of one client, and the proxy's connection to the store for it."""

    def __init__(self, client: socket.socket, store: socket.socket) -> None:
        self.client = client
        self.store = store
        no_delay(client)
        self.threads: tuple[threading.Thread, ...] = ()
        self.drop: Fault | None = None
        self.delayed: Fault | None = None
        self.request = b""
        self.swallowed = False
        self.store_lost = False
        self.ended = 0

    def answered(self) -> bool:
        """Note that the store has replied. Return whether to drop the reply."""
        if self.drop is not None:
            self.cut()
        for fault in (self.delayed, self.drop):
            if fault is not None:
                fault.answered()
        self.delayed = None
        return self.drop is not None

    def lose_store(self) -> None:
        """Close the store's side; the client is not told."""
        self.swallowed = self.store_lost = True
        with contextlib.suppress(OSError):
            self.store.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Reset the client, close the store's side; both threads then end and close the rest."""
        reset(self.client)
        with contextlib.suppress(OSError):
            self.store.shutdown(socket.SHUT_RDWR)


def connect(host: str, port: int | None) -> socket.socket:
    if port is not None:
        connection = socket.create_connection((host, port))
        no_delay(connection)
        return connection
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(host)
    return connection


def no_delay(connection: socket.socket) -> None:
    """Send each message at once, even if the one before it is not acknowledged yet."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def reset(connection: socket.socket) -> None:
    """Send RST now, and wake the threads that are blocked in this socket.

    Only connect() to no address does both: close() waits for those threads, shutdown()
    does not reset, and Python's own connect() takes no such address.
    """
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    ctypes.CDLL(None).connect(connection.fileno(), NO_ADDRESS, len(NO_ADDRESS))
