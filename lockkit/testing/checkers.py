"""Judges of a run of locks. They look only at facts, and do not know how a lock works.

lockkit's own tests run them on locks that are wrong on purpose, and the judges catch them all.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from lockkit.model.clock import now
from lockkit.model.errors import UnsupportedCapability


class Interval(NamedTuple):
    """From ``start`` to ``end`` somebody relied on holding ``name``.

    Times are those of ``lockkit.model.clock.now``, which all processes of one machine share.
    """

    name: str
    owner: str
    start: float
    end: float
    fence: int = 0
    shared: bool = False  #: other shared claims may hold the name at the same time


class Overlap(NamedTuple):
    """Two holders relied on one name at the same time."""

    first: Interval
    second: Interval

    def __str__(self) -> str:
        seconds = min(self.first.end, self.second.end) - self.second.start
        return (
            f"{self.first.name!r}: {self.first.owner} (fence {self.first.fence}) and "
            f"{self.second.owner} (fence {self.second.fence}) overlap by {seconds * 1000:.3f} ms"
        )


class Crowd(NamedTuple):
    """A holder relied on a name while earlier holders left no room for it."""

    last: Interval
    others: tuple[Interval, ...]

    def __str__(self) -> str:
        form = "shared" if self.last.shared else "alone"
        others = ", ".join(f"{i.owner} ({'shared' if i.shared else 'alone'})" for i in self.others)
        return f"{self.last.name!r}: {self.last.owner} ({form}) came while {others} relied on it"


class CheckedLease(Protocol):
    """The members of a lease that the checkers use. ``lockkit.Lease`` has them."""

    @property
    def fencing_token(self) -> int: ...
    def remaining(self) -> float:
        """Seconds for which its holder relies on it; 0 if it does not."""


class Belief:
    """One holder's reliance on its lease: begins now, just after acquire returned."""

    def __init__(self, name: str, owner: str, lease: CheckedLease, *, shared: bool = False) -> None:
        self.name = name
        self.shared = shared
        self.owner = owner
        self.lease = lease
        self.start = self._until = now()
        self.look()

    def look(self) -> bool:
        """Whether the holder still relies on its lease. Notes until when it will."""
        return self._look(now())

    def end(self) -> Interval:
        """Call just before release. A lost lease was relied on until the last known deadline."""
        moment = now()
        end = moment if self._look(moment) else min(moment, self._until)
        return Interval(self.name, self.owner, self.start, end, fence_of(self.lease), self.shared)

    def _look(self, moment: float) -> bool:
        remaining = self.lease.remaining()
        if remaining > 0:
            self._until = moment + remaining
        return remaining > 0


def fence_of(lease: CheckedLease) -> int:
    """The fencing token of a lease; 0 if its store has none."""
    try:
        return lease.fencing_token
    except UnsupportedCapability:
        return 0


class History:
    """The intervals in which a process believed that it held a name. Add others with ``+=``.

    An interval is [acquire returned, min(release called, loss noticed, local deadline)]: both ends
    err on the side of the lock, so an overlap is a proof, never a matter of timing.
    """

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        self.intervals = list(intervals)

    @contextmanager
    def believing(
        self, name: str, owner: str, lease: CheckedLease, *, shared: bool = False
    ) -> Iterator[Belief]:
        """Record the interval of a lease that you just acquired. Release it after the block."""
        belief = Belief(name, owner, lease, shared=shared)
        try:
            yield belief
        finally:
            self.intervals.append(belief.end())

    def __iadd__(self, intervals: Iterable[Interval]) -> Self:
        self.intervals += intervals
        return self

    def overlaps(self) -> list[Overlap]:
        """A pair for each interval that overlaps earlier ones of its name: the one of these that
        ends last, and the interval."""
        found = []
        for intervals in self._by_name():
            last = intervals[0]
            for interval in intervals[1:]:
                if interval.start < last.end:
                    found.append(Overlap(last, interval))
                last = max(last, interval, key=lambda i: i.end)
        return found

    def crowds(self, permits: int = 0) -> list[Crowd]:
        """Every holder that came while others left no room: ``overlaps`` for shared names.
        ``permits``: how many may share a name (0: any number)."""
        found = []
        for intervals in self._by_name():
            holding: list[Interval] = []
            for interval in intervals:
                holding = [other for other in holding if other.end > interval.start]
                shared = interval.shared and all(other.shared for other in holding)
                if holding and not (shared and (not permits or len(holding) < permits)):
                    found.append(Crowd(interval, tuple(holding)))
                holding.append(interval)
        return found

    def fences_out_of_order(self) -> list[Overlap]:
        """Each pair of successive grants of one name whose second token is not the greater one."""
        return [
            Overlap(first, second)
            for intervals in self._by_name()
            for first, second in pairwise(intervals)
            if second.fence and second.fence <= first.fence
        ]

    def _by_name(self) -> list[list[Interval]]:
        names: defaultdict[str, list[Interval]] = defaultdict(list)
        for interval in sorted(self.intervals, key=lambda i: i.start):
            names[interval.name].append(interval)
        return list(names.values())


class Counter:
    """An unfenced counter in a file. It loses updates only if exclusion fails.

    ``gap``: seconds between reading and writing. With 0 it only offers the processor to others.
    """

    SIZE = 20

    def __init__(self, path: str | Path, *, gap: float = 0.0) -> None:
        self.path = Path(path)
        self.gap = gap
        if not self.path.exists():
            self.path.write_bytes(b"0".zfill(self.SIZE))

    @property
    def value(self) -> int:
        return int(self.path.read_bytes())

    def increment(self) -> int:
        """Read, wait, write. Returns the new value."""
        file = os.open(self.path, os.O_RDWR)
        try:
            value = int(os.pread(file, self.SIZE, 0)) + 1
            time.sleep(self.gap)
            os.pwrite(file, str(value).encode().zfill(self.SIZE), 0)
        finally:
            os.close(file)
        return value


class FencedRegister:
    """A resource that accepts a write only if its fence is greater than all before it.

    It is an SQLite file, which processes share. It accepts no stale write, whichever process was
    paused. If fencing tokens grow as they should, it refuses no fresh write.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with closing(self._open()) as database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS register "
                "(number INTEGER PRIMARY KEY, fence INTEGER NOT NULL, writer TEXT NOT NULL)"
            )

    def write(self, fence: int, writer: str) -> bool:
        """Write, if the fence is greater than all before it. Returns whether it was accepted."""
        with closing(self._open()) as database:
            changed = database.execute(
                "INSERT INTO register (fence, writer) SELECT ?, ? WHERE NOT EXISTS "
                "(SELECT 1 FROM register WHERE fence >= ?)",
                (fence, writer, fence),
            ).rowcount
        return changed == 1

    def writes(self) -> list[tuple[int, str]]:
        """(fence, writer) of every accepted write, in order."""
        with closing(self._open()) as database:
            return list(database.execute("SELECT fence, writer FROM register ORDER BY number"))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30, isolation_level=None)
