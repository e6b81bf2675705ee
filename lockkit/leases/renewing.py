"""What a watchdog talks to: the same store as its client, over sockets that its thread may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockkit.runtime import native
from lockkit.stores.registry import load_backend

if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings
    from lockkit.stores.base import Backend

__all__ = ["RenewingBackend"]


class RenewingBackend:
    """The backend that a watchdog uses: its client's, but one of its own where that client's
    sockets belong to greenlets. Limit: not over the pool of somebody else's client, such as a
    django-redis cache, which has only those."""

    def __init__(self, backend: Backend, settings: AliasSettings) -> None:
        self._backend = backend
        self._settings = settings
        self._own: Backend | None = None

    def get(self) -> Backend:
        if (
            self._own is None
            and native.is_patched()
            and not self._backend.capabilities.process_local
        ):
            self._own = load_backend(self._settings)
        return self._own or self._backend

    def close(self) -> None:
        """In the thread that has used it."""
        own, self._own = self._own, None
        if own is not None:
            own.close()
