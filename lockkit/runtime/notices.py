"""``on_lost``: tells the holder of a lease that it is lost, as soon as this process knows.

That is at the deadline, even while the store hangs; or earlier, if the store says that the claim is
gone. Notices have a thread of their own. So a store that hangs does not delay them, and a slow
callback does not delay renewals.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from lockkit.model.clock import now
from lockkit.model.log import log, log_error
from lockkit.runtime.background import Background
from lockkit.runtime.hold import Hold
from lockkit.runtime.schedule import Deadlines


class BaseNotices(ABC):
    """The notices of one client: the part that threads and event loops share."""

    _deadlines: Deadlines
    _wake: Any  #: wakes the thread or loop that looks at deadlines; None: none does now

    @abstractmethod
    def _hurry(self) -> None:
        """Look at the deadlines at once."""

    @abstractmethod
    def stop(self) -> None:
        """Tell nobody any more. Callbacks that have begun go on."""

    def watch(self, hold: Hold) -> None:
        """Tell its holder when it is lost; at once, if it is lost already."""
        if self._deadlines.add(hold) or self._wake is None:
            self._hurry()

    def unwatch(self, hold: Hold) -> None:
        self._deadlines.discard(hold)

    def look_at(self, holds: Sequence[Hold]) -> None:
        """The store was asked about these holds: tell the holders of those that are gone."""
        for hold in holds:
            if hold.dead and hold.on_lost:
                self.watch(hold)


class Notices(Background, BaseNotices):
    """Tells holders in a thread, which starts with the first lease that has ``on_lost``."""

    thread_name = "lockkit-on-lost"

    def _reset(self) -> None:
        super()._reset()
        self._deadlines = Deadlines()

    def stop(self) -> None:
        self._deadlines.clear()
        self._end()

    def work(self) -> float:
        """Tell the holders of lost leases. Returns the seconds until the next lease may be lost."""
        for hold in self._deadlines.lost(now()):
            for returned in said(hold):
                if hasattr(returned, "__await__"):
                    with suppress(Exception):
                        log.error(
                            "on_lost of %r is not awaited: only lockkit.aio can do so", hold.name
                        )
        moment = now()
        return self._deadlines.sleep_until(moment) - moment


def said(hold: Hold, ends: tuple[type[BaseException], ...] = ()) -> Iterator[object]:
    """Call each ``on_lost`` of the hold once, and yield what it returns. Errors are only logged.

    Errors of the types in ``ends`` are raised. Then another call goes on with the callbacks that
    are left.
    """
    waiting = hold.on_lost or {}
    for who in list(waiting):
        tell = waiting.pop(who, None)
        if tell is None:
            continue  # it has just been removed
        try:
            returned = tell()
        except ends:
            raise
        except BaseException:  # noqa: BLE001  the user's code has no caller here: also sys.exit
            log_error("on_lost of %r failed", hold.name)
        else:
            yield returned
