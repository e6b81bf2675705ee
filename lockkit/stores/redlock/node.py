"""The steps of one node: a key for each name, as in every client of the plain protocol.

The value begins with the holder's token. A tombstone beside the key stops an acquire that comes too
late. Scripts are sent whole, so a node that was restarted, or is slow, needs no second request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files

from lockkit.engine.effects import Exchange, Step
from lockkit.model.errors import BackendUnavailable
from lockkit.model.types import Request
from lockkit.stores.redis.layout import encoded
from lockkit.stores.redis.protocol import pack

BURIED = b"60000"
"""Milliseconds for which a tombstone stays: longer than a request lingers in a network."""

FOR_GOOD = 2**53
"""The stamp of a release that buries every acquire with the token, earlier or later."""


class NodeRequests:
    """The requests to the nodes: each node gets the same."""

    def __init__(self, prefix: str, restart_delay: float) -> None:
        self._prefix = prefix.encode()
        # The server's uptime is in whole seconds, and may be a second more than has passed.
        self._delay = b"%d" % (restart_delay and math.ceil(restart_delay) + 1)
        self._acquire, self._release, self._extend = map(_script, ("acquire", "release", "extend"))

    def acquire(self, request: Request, stamp: int) -> Step[int]:
        """Ask for a vote. The answer: the ms that are left; 0: this acquire is buried; -1: somebody
        else has the name. Raises BackendUnavailable while a node that was restarted does not vote.
        """
        arguments = request.token.encode(), _ms(request.ttl), b"%d" % stamp, self._delay
        reply: int = yield _eval(self._acquire, self._keys(request), arguments)
        if reply < -1:
            raise BackendUnavailable(
                f"it was started lately and votes in {-1 - reply} s (restart_delay)"
            )
        return reply

    def release(self, request: Request, stamp: int, *, unsure: bool) -> Step[int]:
        """Take the vote back. The answer: 1 if it was there, else 0. If it was not there, or if
        ``unsure``, each acquire with this stamp or an earlier one is buried."""
        arguments = request.token.encode(), b"%d" % stamp, b"%d" % unsure, BURIED
        reply: int = yield _eval(self._release, self._keys(request), arguments)
        return reply

    def extend(self, requests: Sequence[Request]) -> Step[list[int]]:
        """Extend. The answer: the ms that each lease has left; 0: this node does not have it."""
        keys = [self._key(request) for request in requests]
        arguments = list[bytes]()
        for request in requests:
            arguments += request.token.encode(), _ms(request.ttl), b"%d" % request.number
        reply: list[int] = yield _eval(self._extend, keys, arguments)
        return reply

    def _keys(self, request: Request) -> tuple[bytes, bytes]:
        key = self._key(request)
        return key, b"%b:gone:%b" % (key, request.token.encode())

    def _key(self, request: Request) -> bytes:
        return self._prefix + encoded(request.name)


def _script(name: str) -> bytes:
    folder = files("lockkit.stores.redlock") / "lua"
    source = b"".join((folder / f"{part}.lua").read_bytes() for part in ("vote", name))
    return b"\n".join(line for line in source.splitlines() if not line.startswith(b"--"))


def _eval(script: bytes, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Exchange:
    return Exchange(pack(b"EVAL", script, b"%d" % len(keys), *keys, *arguments))


def _ms(seconds: float) -> bytes:
    return b"%d" % math.ceil(seconds * 1000)
