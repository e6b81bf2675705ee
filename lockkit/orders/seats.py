"""How many duplicates may wait at one time: each of them holds a thread or a connection."""

from __future__ import annotations

import threading

from lockkit.runtime import process

__all__ = ["Seats"]


class Seats:
    """A counter per process. A forked child begins with an empty room: those who wait stayed in
    the parent."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._empty()
        process.after_fork(self._empty)

    def _empty(self) -> None:
        self._taken = 0
        self._mutex = threading.Lock()
        self._room = object()

    def take(self) -> object | None:
        """A seat, to be left; None: all are taken."""
        with self._mutex:
            if self._taken >= self._most:
                return None
            self._taken += 1
            return self._room

    def leave(self, seat: object) -> None:
        """Leaving one that was taken before a fork changes nothing."""
        with self._mutex:
            if seat is self._room:
                self._taken -= 1
