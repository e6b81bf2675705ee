"""The time that several acquires have together."""

from __future__ import annotations

from lockkit.model.clock import now


class Budget:
    """One deadline for all of them. ``timeout`` in seconds; None: there is none."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._start = now()

    def left(self) -> float | None:
        return None if self._timeout is None else max(self._timeout - self.waited, 0.0)

    @property
    def waited(self) -> float:
        return now() - self._start
