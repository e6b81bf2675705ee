"""Wires, which perform the effects of a store's steps: see ``engine.effects``."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from lockkit.engine.effects import Exchange, Listen, Park


class Wire(Protocol):
    """Performs effects with blocking calls, from any thread.

    For a store whose steps yield a ``Gather``, it also has ``gather(effect)``."""

    def exchange(self, exchange: Exchange, /) -> Any:
        """The reply. Raises BackendUnavailable or OutcomeUnknown."""

    def park(self, park: Park, /) -> None: ...

    def listen(self, listen: Listen, /) -> None: ...

    def close(self) -> None:
        """Close what is open. Still usable: reconnects on demand."""


class AsyncWire(Protocol):
    """Performs effects in the tasks of one event loop. As for a Wire, ``gather`` is optional.

    If its connections need no loop, it may have ``without_loop()``, which returns a Wire over them.
    When the interpreter exits, that Wire is used to release what is held. Otherwise another store
    is made for that, and connects.
    """

    async def exchange(self, exchange: Exchange, /) -> Any: ...

    async def park(self, park: Park, /) -> None: ...

    async def listen(self, listen: Listen, /) -> None: ...

    async def close(self) -> None: ...


def tell_doubts(wire: Wire | AsyncWire, doubt: Callable[[], object]) -> None:
    """Have the wire call a bound method when it hears that leases may be over, for example at the
    end of a session. The object of the method is not kept alive.

    Only a wire with ``when_in_doubt(tell)`` does so. An asyncio wire calls ``tell`` in its event
    loop, another one in any thread.
    """
    when_in_doubt = getattr(wire, "when_in_doubt", None)
    if when_in_doubt is None:
        return
    method = weakref.WeakMethod(doubt)

    def tell() -> None:
        if (found := method()) is not None:
            found()

    when_in_doubt(tell)
