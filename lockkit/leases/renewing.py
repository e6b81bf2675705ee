"""What a watchdog talks to: the same store as its client, over sockets that its thread may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from lockkit.engine.effects import Step
from lockkit.runtime import native
from lockkit.runtime.run import run
from lockkit.stores.contract import ProcessLocal
from lockkit.stores.registry import load_store

if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings
    from lockkit.stores.contract import Waited
    from lockkit.stores.wires import Wire

R = TypeVar("R")


class Renewing:
    """The client's store and wire; but a wire of its own, of a store of its own, where the client's
    sockets belong to greenlets. Limit: not over the pool of somebody else's client, such as a
    django-redis cache, which has only those."""

    def __init__(self, store: Waited, wire: Wire, settings: AliasSettings) -> None:
        self.store = store
        self._wire = wire
        self._settings = settings
        self._own: Wire | None = None

    @property
    def is_apart(self) -> bool:
        return native.is_patched() and not isinstance(self.store, ProcessLocal)

    def run(self, step: Step[R]) -> R:
        if self._own is None and self.is_apart:
            self._own = load_store(self._settings).wire()
        return run(step, self._own or self._wire)

    def run_here(self, step: Step[R]) -> R:
        return run(step, self._wire)

    def close(self) -> None:
        """In the thread that has used it."""
        own, self._own = self._own, None
        if own is not None:
            own.close()
