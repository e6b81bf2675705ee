"""Reentrant locks: claims that their owner enters again in this client without a request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from lockkit.model.clock import now
from lockkit.runtime import process
from lockkit.runtime.hold import Hold

L = TypeVar("L")

Key = tuple[str, str]
"""The name, and the key of those that may enter: see ``runtime.entrants``."""


class Entry:
    """One claim that several leases may share. The release of the last one gives it back.

    They are not counted, because an interrupt could come between a lease and its count.
    """

    __slots__ = ("hold", "is_left", "key")

    def __init__(self, key: Key, hold: Hold) -> None:
        self.key = key
        self.hold = hold
        self.is_left = False  #: the last lease has set this: no other may give the claim back
        if hold.on_lost is None:
            hold.on_lost = {}  # now, before several threads add to it

    def is_too_short(self, ttl: float) -> bool:
        """Whether the claim must be extended for a lease of this ttl. Not if it ends later anyway:
        an extension would shorten it."""
        moment = now()
        renewed = ttl <= self.hold.ttl and self.hold.renewable(moment)
        return not renewed and moment + ttl > self.hold.deadline


def takers(leases: Iterable[object]) -> set[str]:
    """The keys of the threads and tasks that have taken these leases, but for those that no order
    and no COMMIT keeps: what is entered again by them could be free before the COMMIT."""
    return {getattr(lease, "_taker", "") for lease in leases if not hasattr(lease, "_is_free")}


class Entries:
    """The reentrant claims of one client. Thread-safe; a forked child starts with none."""

    def __init__(self) -> None:
        process.in_each_process(self._forget)

    def _forget(self) -> None:
        self._lock = threading.RLock()  # a lease may be collected, and leave, in here
        self._held: dict[Key, Entry] = {}

    def enter(self, key: Key, make: Callable[[Entry], L]) -> L | None:
        """One more lease on the name; None if this owner does not hold it."""
        with self._lock:
            return make(self._held[key]) if self.inside(key) else None

    def inside(self, key: Key) -> bool:
        """Whether this owner holds the name."""
        entry = self._held.get(key)
        return entry is not None and entry.hold.used and not entry.hold.lost(now())

    def is_by(self, key: Key, taker: str) -> bool:
        """Whether this owner holds the name, by a lease that this thread or task has taken."""
        entry = self._held.get(key) if self.inside(key) else None
        return entry is not None and taker in takers(entry.hold.leases())

    def begin(self, key: Key, hold: Hold) -> Entry:
        """Note a claim that the store has just granted, for its first lease."""
        with self._lock:
            entry = self._held[key] = Entry(key, hold)
            return entry

    def leave(self, entry: Entry) -> bool:
        """Called by a lease that is being released. Returns whether it was the last one."""
        with self._lock:
            if entry.is_left or entry.hold.used:
                return False
            entry.is_left = True
            if self._held.get(entry.key) is entry:
                del self._held[entry.key]
            return True
