"""A thread that works, sleeps until it has work again, and works again.

It is a daemon, started when it is first needed. Its owner, an object, can be collected while the
thread sleeps, and the thread then ends. A forked child starts without it.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod

from lockkit.model.log import log_error
from lockkit.runtime import native, process

LONGEST_SLEEP = 60.0


class NoThread(RuntimeError):
    """There are too many threads, or the interpreter exits. It is not a BackendError, because that
    would say that the store has granted nothing."""


class Background(ABC):
    """Calls ``work`` in a thread of its own, each time after the seconds that it last returned."""

    thread_name = "lockkit"

    def __init__(self) -> None:
        process.in_each_process(self._reset)

    def _reset(self) -> None:
        self._starting = native.mutex()
        self._wake: native.Wake | None = None  #: wakes the thread; None: there is no thread

    @abstractmethod
    def work(self) -> float:
        """One pass; returns the seconds until the next."""

    def ended(self) -> None:  # noqa: B027  most have nothing to do then
        """Called at the end: by the thread, after it was told to end, or by ``__del__``."""

    def _hurry(self) -> None:
        """Have the thread work at once. Start it if there is none."""
        with self._starting:
            if self._wake is not None:
                self._wake.set()
                return
            self._wake = native.Wake()
            try:
                native.start(_work, (weakref.ref(self), self._wake), self.thread_name)
            except BaseException as error:  # none can be started now: the next call tries again
                self._wake = None
                if isinstance(error, RuntimeError):
                    raise NoThread(f"no thread can be started: {error}") from error
                raise

    def _end(self, *, is_gone: bool = False) -> None:
        """End the thread, after the pass it is in. Its owner lives until then."""
        with self._starting:
            wake, self._wake = self._wake, None
        if wake is not None:
            wake.owner = None if is_gone else self
            wake.set()

    def __del__(self) -> None:
        """The thread cannot call ``ended`` when its owner is gone, so this does."""
        self._end(is_gone=True)
        self.ended()


def _work(reference: weakref.ref[Background], wake: native.Wake) -> None:
    """The thread's loop. While it sleeps, it has only a weak reference to its owner."""
    while True:
        owner = reference() if wake.owner is None else wake.owner
        if owner is None:
            return
        if owner._wake is not wake:
            owner.ended()
            return
        try:
            pause = owner.work()
        except Exception:  # noqa: BLE001  a defect must not end the work: log it, go on
            log_error("the thread %s failed; it goes on", owner.thread_name)
            pause = 1.0
        except BaseException:
            with owner._starting:
                if owner._wake is wake:
                    owner._wake = None  # so that the next use starts another
            raise
        del owner
        wake.wait(min(max(pause, 0.0), LONGEST_SLEEP))
