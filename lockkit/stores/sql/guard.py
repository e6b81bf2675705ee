"""Ends a step that a hanging server would hold up for ever: libpq has no socket timeout.

One thread per process looks after all steps, and sleeps while there are none. It shuts a
connection's socket down, so that the driver fails as if the server had gone.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TypeVar

from lockkit.model.clock import now
from lockkit.runtime import native
from lockkit.runtime.background import LONGEST_SLEEP, Background
from lockkit.stores.servers import shut_down

T = TypeVar("T")
Begin = Callable[[int | None], None]

STEP_SECONDS = 5.0
TICK = 0.5
"""Seconds by which a step may be ended late."""


class Guard(Background):
    """The steps under way, and the thread that looks after them."""

    thread_name = "lockkit-guard"

    def _reset(self) -> None:
        super()._reset()
        self._ending = native.mutex()
        self._numbers = count()
        self._steps: dict[int, tuple[float, int]] = {}  #: number: (deadline, socket)
        self._sleeps = True

    def limited(self, descriptor: int, step: Callable[[], T]) -> T:
        """Shut this socket down if the step takes longer than STEP_SECONDS."""

        def begun(begin: Begin) -> T:
            begin(descriptor)
            return step()

        return self.connecting(begun)

    def connecting(self, step: Callable[[Begin], T]) -> T:
        """For a step that makes the socket: it says when the seconds begin, and of which socket.
        None: there is none that is known."""
        number = next(self._numbers)

        def begin(descriptor: int | None) -> None:
            if descriptor is not None:
                self._steps[number] = (now() + STEP_SECONDS, descriptor)
                if self._sleeps:
                    self._hurry()

        try:
            return step(begin)
        finally:
            if self._steps.pop(number, None) is None:
                with self._ending:  # the guard ends it: the caller must not close the socket yet
                    pass

    def work(self) -> float:
        with self._ending:
            self._end_overdue(now())
        self._sleeps = True  # before the look, so that a step which comes now wakes us
        if not self._steps:
            return LONGEST_SLEEP
        self._sleeps = False
        return TICK

    def _end_overdue(self, moment: float) -> None:
        for number, (deadline, descriptor) in list(self._steps.items()):
            if deadline <= moment and self._steps.pop(number, None) is not None:
                shut_down(descriptor)


_guard = Guard()
limited, connecting = _guard.limited, _guard.connecting
