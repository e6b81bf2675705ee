"""A thread that works, sleeps until it has work again, and keeps nothing alive meanwhile.

It is a daemon, started when it is first needed, and ends with its owner. A forked child starts
without it.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod

from lockkit import process
from lockkit.log import log

__all__ = ["Background"]

LONGEST_SLEEP = 60.0


class Background(ABC):
    """Calls ``work`` in a thread of its own, after so many seconds as the last call returned."""

    thread_name = "lockkit"

    def __init__(self) -> None:
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._wake = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def work(self) -> float:
        """One pass; returns the seconds until the next."""

    def _hurry(self) -> None:
        """Have it work at once; start the thread if there is none."""
        with self._starting:
            if self._thread is None:
                self._start()
            self._wake.set()

    def _end(self) -> None:
        """End the thread, after the pass it is in."""
        with self._starting:
            self._thread = None
            self._wake.set()

    def _start(self) -> None:
        self._wake = threading.Event()
        self._thread = threading.Thread(
            target=_work,
            args=(weakref.ref(self), self._wake),
            name=self.thread_name,
            daemon=True,
        )
        try:
            self._thread.start()
        except BaseException:  # no more threads: the next lease tries again
            self._thread = None
            raise

    def __del__(self) -> None:
        self._wake.set()


def _work(reference: weakref.ref[Background], wake: threading.Event) -> None:
    """The thread: it keeps no owner alive while it sleeps."""
    this = threading.current_thread()
    while True:
        owner = reference()
        if owner is None or owner._thread is not this:
            return
        wake.clear()
        try:
            pause = owner.work()
        except Exception:  # noqa: BLE001  a defect must not end the work: say it, go on
            log.exception("%s failed; it goes on", this.name)
            pause = 1.0
        del owner
        wake.wait(min(max(pause, 0.0), LONGEST_SLEEP))
