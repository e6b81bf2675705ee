"""What performs the effects of a store's steps: see ``engine.effects``."""

from __future__ import annotations

from typing import Any, Protocol

from lockkit.engine.effects import Exchange, Gather, Listen, Park


class Wire(Protocol):
    """Performs effects with blocking calls, from any thread."""

    def exchange(self, exchange: Exchange) -> Any:
        """The reply. Raises BackendUnavailable or OutcomeUnknown."""

    def park(self, park: Park) -> None: ...

    def listen(self, listen: Listen) -> None: ...

    def close(self) -> None:
        """Close what is open. Still usable: reconnects on demand."""


class AsyncWire(Protocol):
    """Performs effects in the tasks of one event loop."""

    async def exchange(self, exchange: Exchange) -> Any: ...

    async def park(self, park: Park) -> None: ...

    async def listen(self, listen: Listen) -> None: ...

    async def close(self) -> None: ...


class GatheringWire(Wire, Protocol):
    """For a store whose steps ask for a ``Gather``. The others need not know of it."""

    def gather(self, gather: Gather) -> None: ...


class AsyncGatheringWire(AsyncWire, Protocol):
    async def gather(self, gather: Gather) -> None: ...
