"""Clients that belong to an event loop: made when the loop first asks, closed when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

from lockkit.runtime import process

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient

C = TypeVar("C", bound="AsyncLockClient")
_Clients = dict[str, tuple[C, AsyncGenerator[None, None]]]


class PerLoop(Generic[C]):
    """``clients["default"]``: one client per key and running event loop. Thread-safe.

    The client is closed when its loop ends. That may be the short loop of ``asyncio.run``, or the
    loop in which a WSGI server runs one async view.
    """

    def __init__(self, make: Callable[[str], C]) -> None:
        self._make = make
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Clients[C]] = WeakKeyDictionary()
        process.in_each_process(self._renew_mutex)

    def _renew_mutex(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may ask while its thread has it

    def __getitem__(self, key: str) -> C:
        """Raises RuntimeError if no event loop is running, and everything that ``make`` raises."""
        loop = _running_loop()
        with self._mutex:
            clients = self._loops.get(loop) or self._begin(loop)
        if key not in clients:
            client = self._make(key)
            made = client, self._closed_with_its_loop(client, key)
            clients.setdefault(key, made)  # a signal handler may be first
        return clients[key][0]

    def _begin(self, loop: asyncio.AbstractEventLoop) -> _Clients[C]:
        """Begin with a loop, and forget the closed ones, which their clients would keep alive."""
        for other in list(self._loops):
            if other.is_closed():
                self._loops.pop(other, None)  # a signal handler may have forgotten it
        return self._loops.setdefault(loop, {})

    def clear(self) -> None:
        """Forget all clients. Each loop closes its own."""
        with self._mutex:
            self._loops.clear()

    def _closed_with_its_loop(self, client: C, key: str) -> AsyncGenerator[None, None]:
        """An async generator that has begun, and closes the client at its end.

        The running loop ends it when the loop shuts down, or when nothing refers to the generator
        any more. asyncio has no other hook for a loop's end.
        """
        keeper = self._closing(client, key)
        with suppress(StopIteration):  # raised when it reaches its yield
            keeper.__anext__().send(None)
        return keeper

    async def _closing(self, client: C, key: str) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            with self._mutex:
                clients = self._loops.get(asyncio.get_running_loop(), {})
                if key in clients and clients[key][0] is client:
                    del clients[key]
            await client.close()


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "no running event loop: an async client belongs to a loop, so ask for it inside a "
            "coroutine, or use a blocking client"
        ) from None
