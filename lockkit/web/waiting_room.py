"""Limits how many requests wait at one time: each keeps a worker, thread or connection busy."""

from __future__ import annotations

import threading
import weakref

from lockkit.runtime import process


class WaitingRoom:
    """The places of one process. A forked child begins with an empty room."""

    def __init__(self) -> None:
        process.in_each_process(self._empty)

    def _empty(self) -> None:
        self.mutex = threading.RLock()  # a signal handler may enter while its thread has it
        self.taken: set[weakref.ref[Place]] = set()

    def place(self, limit: int | None) -> Place:
        """``limit``: how many may wait; None: any number."""
        return Place(self, limit)


class Place:
    """A place until the ``with`` block ends, which gets False if the room is full. If an interrupt
    skips ``__exit__``, the place is free once nobody refers to this object."""

    __slots__ = ("__weakref__", "_limit", "_mark", "_room", "_taken")

    def __init__(self, room: WaitingRoom, limit: int | None) -> None:
        self._room = room
        self._limit = limit
        self._taken = room.taken
        self._mark = weakref.ref(self, room.taken.discard)

    def __enter__(self) -> bool:
        with self._room.mutex:
            if self._limit is not None and len(self._taken) >= self._limit:
                return False
            self._taken.add(self._mark)
            return True

    def __exit__(self, *_: object) -> None:
        self._taken.discard(self._mark)
