"""Limits how many requests wait at one time: each keeps a worker, thread or connection busy."""

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
        """Take a place until the block ends. False if there is none."""
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
