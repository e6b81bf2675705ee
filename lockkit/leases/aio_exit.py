"""The exit of an interpreter with asyncio leases: no loop runs any more that could release them.

So that is done by a blocking backend of the same settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockkit.engine import holding
from lockkit.model.clock import now
from lockkit.model.errors import BackendError
from lockkit.model.log import log
from lockkit.runtime import process
from lockkit.runtime.aio_watchdog import AsyncWatchdog
from lockkit.runtime.hold import Hold
from lockkit.runtime.run import run
from lockkit.stores.registry import load_store

if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings


class AtExit:
    """Releases what the tasks of one client still hold. Limits: not in ``memory://``, which ends
    with the process; and not what a client held that was closed, as by the end of its loop."""

    def __init__(self, settings: AliasSettings, watchdog: AsyncWatchdog) -> None:
        self._settings = settings
        self._watchdog = watchdog
        self._holds: list[Hold] = []
        process.at_exit(self._begin, self._finish)

    def _begin(self) -> None:
        self._holds = self._watchdog.give_up()

    def _finish(self, until: float) -> None:
        """A store that does not answer to one will not answer to the next: the rest expires."""
        if not self._holds:
            return
        store = load_store(self._settings)
        wire = store.wire()
        for hold in self._holds:
            if now() > until:
                return
            try:
                run(holding.release(store, hold), wire)
            except BackendError as error:
                log.warning("release of %r not confirmed: %s", hold.name, error)
                return
