"""``on_lost``: a lease's holder is told that it is lost, as soon as that can be known.

By the deadline, also while the store hangs; or before, when the store says that the claim is gone.
In a thread of its own, so that neither a store that hangs delays the notice, nor a slow callback
the renewals.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from lockkit.model.clock import now
from lockkit.model.log import log
from lockkit.runtime.background import Background
from lockkit.runtime.hold import Hold
from lockkit.runtime.schedule import Deadlines


class BaseNotices(ABC):
    """Tells the holders of one client. Here is what threads and event loops do alike."""

    _deadlines: Deadlines
    _wake: Any  #: wakes what looks at the deadlines; None: nothing does

    @abstractmethod
    def _hurry(self) -> None:
        """Look at the deadlines at once."""

    @abstractmethod
    def stop(self) -> None:
        """Tell nobody any more. Notices that have begun go on."""

    def watch(self, hold: Hold) -> None:
        """Tell its holder when it is lost; at once, if it is."""
        if self._deadlines.add(hold) or self._wake is None:
            self._hurry()

    def unwatch(self, hold: Hold) -> None:
        self._deadlines.discard(hold)

    def look_at(self, holds: Sequence[Hold]) -> None:
        """The store has been asked about these: tell whose are gone."""
        for hold in holds:
            if hold.dead and hold.on_lost:
                self.watch(hold)


class Notices(Background, BaseNotices):
    """Tells them in a thread, which starts with the first that wants to be told."""

    thread_name = "lockkit-on-lost"

    def _reset(self) -> None:
        super()._reset()
        self._deadlines = Deadlines()

    def stop(self) -> None:
        self._deadlines.clear()
        self._end()

    def work(self) -> float:
        """Tell those that have lost; returns the seconds until the next may have."""
        for hold in self._deadlines.take_lost(now()):
            for _ in said(hold):
                pass
        moment = now()
        return self._deadlines.sleep_until(moment) - moment


def said(hold: Hold, ends: tuple[type[BaseException], ...] = ()) -> Iterator[object]:
    """Call each callback once; yields what they return. An error is logged: nobody waits for it.

    Those of ``ends`` are raised. The next call goes on with the callbacks that are left.
    """
    waiting = hold.on_lost or {}
    for who in list(waiting):
        tell = waiting.pop(who, None)
        if tell is None:
            continue  # it has just left
        try:
            returned = tell()
        except ends:
            raise
        except BaseException:  # noqa: BLE001  of the user's, who has no caller here: also sys.exit
            log.exception("on_lost of %r failed", hold.name)
        else:
            yield returned
