"""A real store that tells what happens at the instant of a grant and of a release."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from lockkit.engine.effects import Step
from lockkit.model.types import Busy, Gone, Grant, Release, Request
from lockkit.stores.memory import MemoryStore

Observer = Callable[[str, str], None]
"""Called with ("grant" or "release", the name)."""


class SpyBackend(MemoryStore):
    observers: ClassVar[list[Observer]] = []

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        answer = yield from super().acquire(request)
        if isinstance(answer, Grant):
            self._tell("grant", request.name)
        return answer

    def release(self, request: Request) -> Step[Release]:
        self._tell("release", request.name)
        return super().release(request)

    def _tell(self, event: str, name: str) -> None:
        for observer in self.observers:
            observer(event, name)
