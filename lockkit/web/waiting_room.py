"""How many may wait at one time: each of them keeps a worker, a thread or a connection busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lockkit.runtime import process


class WaitingRoom:
    """The places of one process. A forked child begins with an empty room."""

    def __init__(self) -> None:
        self._empty()
        process.after_fork(self._empty)

    def _empty(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: set[object] = set()

    @contextmanager
    def place(self, limit: int | None) -> Iterator[bool]:
        """Whether there is a place for one more; it is kept until the block ends."""
        mine = object()
        with self._mutex:
            placed = limit is None or len(self._waiting) < limit
            if placed:
                self._waiting.add(mine)
        try:
            yield placed
        finally:
            with self._mutex:
                self._waiting.discard(mine)
