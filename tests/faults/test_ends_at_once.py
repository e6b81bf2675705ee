"""A connection that ends with the last word of its greeting, as when a server is restarted while
its clients connect again."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from lockkit import aio
from lockkit.testing.conformance.base import SOON
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

NAME = "stock:42"


class Greeting(FaultProxy):
    """Greets the first connection itself. The last word goes out with the end, in one piece."""

    def _serve(self, client: socket.socket, target: tuple[str, int | None]) -> None:
        if self.connections > 1:
            super()._serve(client, target)
            return
        with client, suppress(OSError):
            while data := client.recv(4096):
                if b"PING" in data:
                    client.send(b"+PONG\r\n", socket.MSG_MORE)
                    return
                client.sendall(b"+OK\r\n" * data.count(b"CLIENT"))


async def test_whoever_has_waited_for_it_tries_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop hears of the end before it goes on with the task that waited."""
    monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", SOON)
    redis_server.flush()
    with Greeting("127.0.0.1", redis_server.port) as proxy:
        async with aio.connect(f"redis://127.0.0.1:{proxy.port}/0") as locks:
            lease = await asyncio.wait_for(locks.lock(NAME).acquire(), SOON)
            assert await lease.release()
        assert proxy.connections == 2
