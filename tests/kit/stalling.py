"""A client that sends the beginning of its body, and then nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

HEAD = """POST {path} HTTP/1.1\r
Host: localhost\r
Authorization: stalled\r
Idempotency-Key: stalled\r
Content-Type: application/json\r
Content-Length: 100\r
Expect: 100-continue\r
{more}\r
"""


@contextmanager
def stalled(port: int, path: str, more: str = "") -> Iterator[None]:
    """One byte of a hundred is sent; the server says that it is about to read the others.

    ``more``: lines of the head.
    """
    with socket.create_connection(("127.0.0.1", port), 60) as client:
        client.sendall(HEAD.format(path=path, more=more).encode())
        assert client.recv(100).startswith(b"HTTP/1.1 100")
        client.sendall(b"{")
        yield
