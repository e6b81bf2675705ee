"""A real backend that tells what happens at the instant of a grant and of a release."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from lockkit.model.types import Busy, Gone, Grant, Release, Request
from lockkit.stores.memory import MemoryBackend

Observer = Callable[[str, str], None]
"""Called with ("grant" or "release", the name)."""


class SpyBackend(MemoryBackend):
    observers: ClassVar[list[Observer]] = []

    def acquire(self, request: Request) -> Grant | Busy | Gone:
        answer = super().acquire(request)
        if isinstance(answer, Grant):
            self._tell("grant", request.name)
        return answer

    def release(self, request: Request) -> Release:
        self._tell("release", request.name)
        return super().release(request)

    def _tell(self, event: str, name: str) -> None:
        for observer in self.observers:
            observer(event, name)
