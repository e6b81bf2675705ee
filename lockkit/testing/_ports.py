"""Ports for servers, of which no other process that runs tests gets the same."""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket
import tempfile
from pathlib import Path

__all__ = ["HOST", "free_port"]

HOST = "127.0.0.1"
# Below the ports from which the kernel serves outgoing connections: none of these can take the
# port while its server restarts.
PORTS = range(15_000, 32_000)
_reserved: set[int] = set()


def free_port() -> int:
    """A TCP port on which nothing listens, and which no outgoing connection is given.

    Other processes of this user get others from this function, until this process ends.
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
    """A server binds its port only when it starts: until then, and while it restarts, nothing else
    tells the tests that run beside these that it is taken."""
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
    """A file with a lock for each port. It stays open: closed, all of them are given back."""
    path = Path(tempfile.gettempdir(), f"lockkit-ports-{os.geteuid()}")
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
