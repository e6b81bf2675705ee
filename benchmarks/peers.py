"""The locks that are compared, behind one small interface."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

__all__ = ["PEERS", "Peer", "make"]

TTL = 30


class Peer(Protocol):
    """One lock on one name, used by one process."""

    def acquire(self) -> None: ...

    def release(self) -> None: ...


class Lockkit:
    """With all that it does by default: owner, listing, fencing token, watchdog, FIFO queue."""

    def __init__(self, url: str, name: str) -> None:
        import lockkit

        self._lock = lockkit.connect(url).lock(name, ttl=TTL, timeout=60)
        self._lease: Any = None

    def acquire(self) -> None:
        self._lease = self._lock.acquire()

    def release(self) -> None:
        self._lease.release()


class RedisPy:
    """redis-py's own Lock: a token and a TTL; polls every 0.1 s."""

    def __init__(self, url: str, name: str) -> None:
        import redis

        client = redis.Redis.from_url(url, protocol=2)
        self._lock = client.lock(f"redis-py:{name}", timeout=TTL, blocking_timeout=60)

    def acquire(self) -> None:
        if not self._lock.acquire():
            raise TimeoutError

    def release(self) -> None:
        self._lock.release()


class PythonRedisLock:
    """python-redis-lock: waits by BLPOP."""

    def __init__(self, url: str, name: str) -> None:
        import redis
        import redis_lock  # type: ignore[import-untyped]  # it ships no types

        self._client = redis.Redis.from_url(url, protocol=2, socket_timeout=None)
        self._lock = redis_lock.Lock(self._client, f"python-redis-lock:{name}", expire=TTL)

    def acquire(self) -> None:
        if not self._lock.acquire(timeout=25):
            raise TimeoutError

    def release(self) -> None:
        self._lock.release()


class RawSocket:
    """The floor of any lock on Redis: SET NX PX and DEL on a bare socket, unsafe and unfair."""

    def __init__(self, url: str, name: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._name = f"raw:{name}".encode()

    def _say(self, *parts: bytes) -> bytes:
        body = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
        self._socket.sendall(b"*%d\r\n%b" % (len(parts), body))
        return self._socket.recv(4096)

    def acquire(self) -> None:
        token = secrets.token_hex(16).encode()
        self._say(b"SET", self._name, token, b"NX", b"PX", b"30000")

    def release(self) -> None:
        self._say(b"DEL", self._name)


PEERS: dict[str, Callable[[str, str], Peer]] = {
    "lockkit": Lockkit,
    "redis-py": RedisPy,
    "python-redis-lock": PythonRedisLock,
    "raw socket": RawSocket,
}


def make(peer: str, url: str, name: str) -> Peer:
    return PEERS[peer](url, name)
