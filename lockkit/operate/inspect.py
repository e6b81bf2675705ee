"""What is held, by whom, what is stuck and why; and whether it is safe to break.

A name is stuck when an operator should look at it. ``stuck`` judges one snapshot of one name; it
asks the store nothing, and changes nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from lockkit.model.clock import now as local_clock
from lockkit.model.types import LockInfo, LockState, Owner
from lockkit.runtime import process

__all__ = [
    "Growth",
    "Process",
    "Safety",
    "Stuck",
    "process_of",
    "remark",
    "safe_to_break",
    "stuck",
    "stuck_reason",
]

MISSED_RENEWALS = 2 / 3
"""Leases are renewed after a third of what is left: past this part of it, two were missed."""

PATIENCE = 1.0
"""Seconds a renewal or a takeover may be late, on a busy machine, before it counts as missed."""

WAITING_MOST = 600.0
"""Seconds after which a waiter starves, if its operator does not say; or the holder's maximum."""


class Stuck(NamedTuple):
    """Why an operator should look at a name."""

    code: str
    """``abandoned``, ``no-ttl``, ``process-gone``, ``max-hold``, ``older-than``, ``starving``,
    ``queue-grows``, ``renewals-missed``, ``queue-dead``, ``damaged`` or ``orphan``.
    Stable: for programs."""

    reason: str
    """For people."""


class Process(StrEnum):
    """What is known of a holder's process."""

    RUNNING = "running"
    STOPPED = "stopped"  #: by a signal or a debugger; it may go on
    GONE = "gone"
    ELSEWHERE = (
        "elsewhere"  #: on another host, in another container, or before a restart of the host
    )
    UNKNOWN = "unknown"


class Safety(NamedTuple):
    """Whether an operator may release a lease without stopping its holder first."""

    safe: bool | None  #: None: it is not known, or there is nothing to release
    why: str


def stuck(
    info: LockInfo, older_than: float | None = None, waiting_longer_than: float | None = None
) -> Stuck | None:
    """Why an operator should look at this name; None when all is well.

    older_than: seconds after which any hold counts as stuck; None: only past its own maximum.
    waiting_longer_than: seconds after which a waiter starves; None: ten minutes, or the holder's
    maximum if that is longer.
    Limit: a paused or hung holder is seen only by the renewals it misses, after two thirds of its
    TTL; a watchdog that renews for a worker that hangs is seen only at the maximum hold.
    """
    return next(_reasons(info, older_than, waiting_longer_than), None)


def stuck_reason(info: LockInfo, older_than: float | None = None) -> str | None:
    """``stuck``, in words only."""
    found = stuck(info, older_than)
    return found and found.reason


def remark(info: LockInfo) -> str | None:
    """What is known of how a lease ended that was not released; None for any other."""
    if info.state not in (LockState.ABANDONED, LockState.LOST):
        return None
    since = max(0.0, -(info.left or 0.0))
    if info.broken_by:
        return f"an operator released it {since:.0f}s ago: {info.broken_by}"
    return f"the lease expired {since:.0f}s ago and was not released: {_cause(info)}"


def process_of(owner: Owner | None) -> Process:
    """What is known of the process. A pid of another machine, boot or container says nothing
    here, even if its host name is ours."""
    if owner is None or owner.pid <= 0:
        return Process.UNKNOWN
    if owner.host != process.host() or owner.space != process.space():
        return Process.ELSEWHERE
    return _process(owner, int(local_clock()))


def safe_to_break(info: LockInfo) -> Safety:
    """Whether nobody is left who would go on as if it held the name.

    Limit: a statement that a dead process has already sent may still be done. Only a fencing token
    that the resource compares stops it, as it does a holder that is not dead.
    """
    if info.state is not LockState.HELD:
        return Safety(None, "there is nothing to break: nobody holds it")
    found = process_of(info.owner)
    return Safety(_SAFE.get(found), _WHY[found])


_SAFE = {Process.GONE: True, Process.RUNNING: False, Process.STOPPED: False}

_WHY = {
    Process.GONE: "safe, its process is gone",
    Process.RUNNING: "not safe, its process is running on this host: only a fence stops it",
    Process.STOPPED: "not safe, its process is stopped, and may go on: only a fence stops it",
    Process.ELSEWHERE: "not known, its process is on another host or in another container",
    Process.UNKNOWN: "not known, nor is its process",
}


class Growth:
    """How queues change from one look to the next."""

    LOOKS = 3

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}
        self._now: dict[tuple[str, str], tuple[int, int]] = {}

    def judge(self, alias: str, info: LockInfo) -> Stuck | None:
        """Whether the queue has grown from each of the last looks to the next."""
        key, waiters = (alias, info.name), info.waiters_alive
        if not waiters:
            return None
        before, grown = self._seen.get(key, (waiters, 0))
        grown = grown + 1 if waiters > before else 0
        self._now[key] = waiters, grown
        if grown < self.LOOKS:
            return None
        return Stuck("queue-grows", f"its queue grows: {waiters} wait")

    def next_look(self) -> None:
        self._seen, self._now = self._now, {}


def _reasons(
    info: LockInfo, older_than: float | None, waiting_longer_than: float | None
) -> Iterator[Stuck]:
    """The most telling first."""
    if info.state is LockState.QUEUED:
        if not info.waiters_alive:
            yield Stuck("queue-dead", "nobody in the queue is alive")
    elif info.state is LockState.DAMAGED:
        yield Stuck("damaged", info.damage)
    elif info.state is LockState.ORPHAN:
        yield Stuck("orphan", "the order was begun and its end is not known: locks resolve")
    elif info.state is LockState.ABANDONED:
        if info.waiters_alive and info.left is not None and -info.left > PATIENCE:
            yield Stuck("abandoned", f"{remark(info)}; {info.waiters_alive} wait for it")
    elif info.state is LockState.HELD:
        yield from _reasons_of_holder(info, older_than)
    yield from _starving(info, waiting_longer_than)


def _reasons_of_holder(info: LockInfo, older_than: float | None) -> Iterator[Stuck]:
    if info.left is None:
        yield Stuck("no-ttl", "no TTL")
    if process_of(info.owner) is Process.GONE:
        yield Stuck("process-gone", "the holder's process is gone")
    if _older(info, info.max_hold):
        yield Stuck("max-hold", f"held longer than its maximum of {info.max_hold:g}s")
    if _older(info, older_than):
        yield Stuck("older-than", f"held longer than {older_than:g}s")
    if _renewals_missed(info):
        yield Stuck("renewals-missed", f"not renewed for {info.renewed:.0f}s")


def _starving(info: LockInfo, longer_than: float | None) -> Iterator[Stuck]:
    most = max(WAITING_MOST, info.max_hold or 0.0) if longer_than is None else longer_than
    if info.waiting is not None and info.waiting > most:
        yield Stuck("starving", f"the first of {info.waiters_alive} waits for {info.waiting:.0f}s")


def _cause(info: LockInfo) -> str:
    """Why a lease has expired, as far as it can be known afterwards."""
    renewed_to = None if info.age is None or info.left is None else info.age + info.left
    if info.max_hold is not None and renewed_to is not None and renewed_to >= info.max_hold:
        return f"it was renewed up to its maximum of {info.max_hold:g}s"
    return _CAUSES[process_of(info.owner)]


_CAUSES = {
    Process.GONE: "its process is gone, killed or ended",
    Process.STOPPED: "its process is stopped",
    Process.RUNNING: "its process runs, so it was paused, or cut off from the store",
    Process.ELSEWHERE: "its process was on another host or in another container",
    Process.UNKNOWN: "nothing is known of its process",
}


def _older(info: LockInfo, seconds: float | None) -> bool:
    return seconds is not None and info.age is not None and info.age > seconds


def _renewals_missed(info: LockInfo) -> bool:
    """Judged by what the last renewal asked for, which need not be the lock's TTL: a holder may
    extend by more, and is then renewed less often."""
    if info.renewed is None or info.left is None:
        return False
    span = info.renewed + info.left
    return info.renewed > span * MISSED_RENEWALS + PATIENCE


@functools.lru_cache(maxsize=256)
def _process(owner: Owner, _second: int) -> Process:
    """Asked once a second per owner, however many leases it has. A zombie holds nothing."""
    pid = owner.pid
    if process.is_dead(owner):
        return Process.GONE
    if os.name != "posix":
        return Process.UNKNOWN  # os.kill is not a question there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return Process.GONE
    except PermissionError:  # of another user
        return _STATES.get(_state(pid), Process.RUNNING)
    except (OSError, OverflowError):  # it cannot be a pid
        return Process.UNKNOWN
    return _STATES.get(_state(pid), Process.RUNNING)


_STATES = {
    b"Z": Process.GONE,
    b"X": Process.GONE,
    b"T": Process.STOPPED,
    b"t": Process.STOPPED,
}


def _state(pid: int) -> bytes:
    """The letter that the system has for it; empty where it does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split(None, 1)[0]
    except (OSError, IndexError):
        return b""
