"""Claims that their owner has entered more than once in this process, without asking the store."""

from __future__ import annotations

import threading

from lockkit import process
from lockkit.clock import now
from lockkit.hold import Hold

__all__ = ["Entries", "Entry"]

Key = tuple[str, str]
"""The name and the entrant."""


class Entry:
    """One claim, and how many leases share it. It is given back with the last of them."""

    __slots__ = ("_entries", "_key", "hold", "leases")

    def __init__(self, entries: Entries, key: Key, hold: Hold) -> None:
        self._entries = entries
        self._key = key
        self.hold = hold
        self.leases = 1
        if hold.on_lost is None:
            hold.on_lost = {}  # before several threads may want to be told

    def is_too_short(self, ttl: float) -> bool:
        """Whether the claim must be extended for a lease of this ttl: it is renewed for less."""
        moment = now()
        if ttl > self.hold.request.ttl:
            return True
        return not self.hold.renewable(moment) and moment + ttl > self.hold.deadline

    def extended(self, ttl: float) -> None:
        """It is renewed for at least so long from now on."""
        if ttl > self.hold.request.ttl:
            self.hold.request = self.hold.request._replace(ttl=ttl)

    def leave(self) -> bool:
        """Whether this was the last lease."""
        return self._entries.leave(self, self._key)


class Entries:
    """What the owners of one client have entered. Thread-safe; a forked child starts with none."""

    def __init__(self) -> None:
        self._forget()
        process.after_fork(self._forget)

    def _forget(self) -> None:
        self._lock = threading.RLock()  # a lease may be collected while its thread is in here
        self._held: dict[Key, Entry] = {}

    def enter(self, key: Key) -> Entry | None:
        """One lease more of what this owner holds, if it does."""
        with self._lock:
            entry = self._held.get(key)
            if entry is None or entry.hold.lost(now()):
                return None
            entry.leases += 1
            return entry

    def inside(self, key: Key) -> bool:
        """Whether this owner holds the name."""
        entry = self._held.get(key)
        return entry is not None and not entry.hold.lost(now())

    def begin(self, key: Key, hold: Hold) -> Entry:
        """The first lease on a claim that the store has just granted."""
        with self._lock:
            entry = self._held[key] = Entry(self, key, hold)
            return entry

    def leave(self, entry: Entry, key: Key) -> bool:
        with self._lock:
            entry.leases -= 1
            if entry.leases == 0 and self._held.get(key) is entry:
                del self._held[key]
            return entry.leases == 0
