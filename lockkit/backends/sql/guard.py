"""Ends a step that a server which hangs would hold up for ever: libpq has no socket time-out.

One thread per process, which sleeps while no step is under way. It shuts the connection's socket
down, so that the driver fails as when the server had gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from itertools import count

from lockkit import process
from lockkit.clock import now

__all__ = ["limited"]

STEP_SECONDS = 5.0
TICK = 0.5
"""Seconds by which a step may be ended late."""


class Guard:
    """The steps under way, and the thread that looks after them."""

    def __init__(self) -> None:
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count()
        self._steps: dict[int, tuple[float, int]] = {}  #: number: (deadline, socket)
        self._idle = threading.Event()
        self._idle.set()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def limited(self, descriptor: int) -> Iterator[None]:
        """Shut this socket down if the block takes longer than STEP_SECONDS."""
        number = next(self._numbers)
        self._steps[number] = (now() + STEP_SECONDS, descriptor)
        if self._idle.is_set():
            self._hurry()
        try:
            yield
        finally:
            with self._lock:  # once the step is over, the number may be another socket's
                self._steps.pop(number, None)

    def _hurry(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="lockkit-guard", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def _work(self) -> None:
        while True:
            self._idle.set()  # before the look, so that a step which comes now wakes us
            if not self._steps:
                self._wake.wait()
            self._idle.clear()
            self._wake.clear()
            threading.Event().wait(TICK)
            with self._lock:
                self._end_overdue(now())

    def _end_overdue(self, moment: float) -> None:
        for number, (deadline, descriptor) in list(self._steps.items()):
            if deadline <= moment:
                del self._steps[number]
                _shut_down(descriptor)


def _shut_down(descriptor: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RDWR)


limited = Guard().limited
