"""A PostgreSQL that falls silent when a session has begun: libpq's ``connect_timeout`` is over."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import lockkit
from lockkit.stores.sql import guard
from lockkit.testing.proxy import FaultProxy

STATEMENTS = {b"Q", b"P"}
"""The first bytes of messages with a statement."""


class SilencingProxy(FaultProxy):
    def __init__(self, port: int) -> None:
        super().__init__("127.0.0.1", port, on_request=self._see)
        self._is_awaited = False

    def _see(self, request: bytes) -> None:
        if self._is_awaited and request[:1] in STATEMENTS:
            self.half_open()

    @contextmanager
    def falling_silent(self) -> Iterator[None]:
        """From the next statement on. At the end, the connections that were silent are ended."""
        self._is_awaited = True
        try:
            yield
        finally:
            self._is_awaited = False
            self.half_open(False)


def assert_given_up(client: lockkit.LockClient, proxy: SilencingProxy, *, again: bool) -> None:
    """By a client that connects through the proxy; ``again``: not for the first time."""
    if again:
        client.lock("a").acquire().release()
        proxy.cut()
    with (
        pytest.MonkeyPatch.context() as patch,
        ThreadPoolExecutor() as threads,
        proxy.falling_silent(),
    ):
        patch.setattr(guard, "STEP_SECONDS", 0.5)
        asked = threads.submit(client.lock("a").acquire, 0)
        assert isinstance(asked.exception(20), lockkit.BackendError)
    client.lock("a").acquire().release()
