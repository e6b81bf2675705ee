"""Ports for servers. No two processes that run tests get the same one."""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket
import threading

HOST = "127.0.0.1"
# Below the ports that the kernel gives to outgoing connections, so none of those can take a port
# while its server restarts.
PORTS = range(15_000, 32_000)
_reserved: set[int] = set()
_reserving = threading.Lock()


def free_port() -> int:
    """A TCP port on which nothing listens, and which no outgoing connection is given.

    Until this process ends, no other process of this user gets it from this function.
    """
    for port in random.SystemRandom().sample(PORTS, 200):
        if not _reserve(port):
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


def _reserve(port: int) -> bool:
    """Whether this process now has the port. A server binds its port only when it starts. Before
    that, and while it restarts, only this reservation keeps other test runs from the port."""
    with _reserving:  # the locks of a file keep no other thread of this process away
        if port in _reserved:
            return False
        try:
            fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        _reserved.add(port)
        return True


@functools.cache
def _reservations() -> int:
    """A file with a lock for each port, the same one for every TMPDIR. It stays open: closing it
    would give all of them back."""
    path = f"/tmp/lockkit-ports-{os.geteuid()}"
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
