"""Says whether a name is stuck and why, and whether its lease is safe to break.

A name is stuck if an operator should look at it. ``stuck`` judges one snapshot of one name. It
does not ask the store, and changes nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from lockkit.engine.times import reached_max_hold
from lockkit.model.clock import now as local_clock
from lockkit.model.types import REPAIRED, LockInfo, LockState, Owner
from lockkit.runtime import process

MISSED_RENEWALS = 2 / 3
"""A lease is renewed after each third of its time. Once this part of it has passed without a
renewal, two were missed."""

PATIENCE = 1.0
"""Seconds a renewal or a takeover may be late on a busy machine before it counts as missed."""

WAITING_MOST = 600.0
"""Seconds after which a waiter starves by default. If the holder's maximum is longer, that counts
instead."""


class Stuck(NamedTuple):
    """Why an operator should look at a name."""

    code: str
    """``abandoned``, ``no-ttl``, ``process-gone``, ``max-hold``, ``older-than``, ``starving``,
    ``queue-grows``, ``renewals-missed``, ``queue-dead``, ``damaged`` or ``orphan``.
    Stable: for programs."""

    reason: str
    """For people."""


class Process(StrEnum):
    """The state of a holder's process, as far as it is known."""

    RUNNING = "running"
    STOPPED = "stopped"  #: by a signal or a debugger; it may go on later
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
    """Why an operator should look at this name; None if all is well.

    older_than: seconds after which any lease counts as stuck; None: only past its own maximum.
    waiting_longer_than: seconds after which a waiter starves; None: ten minutes, or the holder's
    maximum if that is longer.
    Limit: a paused or hung holder shows only by the renewals that it misses, after two thirds of
    its TTL. A worker that hangs while its watchdog renews shows only at the maximum.
    """
    return next(_reasons(info, older_than, waiting_longer_than), None)


RESOLVED = "resolved it as "
"""The last words of an order begin like this if an operator has resolved it."""


def remark(info: LockInfo) -> str | None:
    """How an unreleased lease ended, as far as that is known; None for any other lease."""
    if info.state not in (LockState.ABANDONED, LockState.LOST):
        return None
    since = max(0.0, -(info.left or 0.0))
    if info.broken_by.startswith((RESOLVED, REPAIRED)):
        did, _, by = info.broken_by.partition(": ")
        return f"an operator {did} {since:.0f}s ago: {by}"
    if info.broken_by:
        return f"an operator released it {since:.0f}s ago: {info.broken_by}"
    return f"the lease expired {since:.0f}s ago and was not released: {_cause(info)}"


def process_of(owner: Owner | None) -> Process:
    """The state of the process, as far as it is known. A pid of another machine, boot or container
    has no meaning here, even if its host name is that of this machine."""
    if owner is None or owner.pid <= 0:
        return Process.UNKNOWN
    if not process.is_here(owner):
        return Process.ELSEWHERE
    return _process(owner, int(local_clock()))


def safe_to_break(info: LockInfo) -> Safety:
    """Whether no process is left that would go on as if it held the name.

    Limit: a statement that a process sent before it died may still be carried out. Only a fencing
    token that the resource compares stops it, and stops a holder that is alive.
    """
    if info.state is not LockState.HELD:
        return Safety(None, "there is nothing to break: nobody holds it")
    return _SAFETY[process_of(info.owner)]


_SAFETY = {
    Process.GONE: Safety(True, "safe, its process is gone"),
    Process.RUNNING: Safety(
        False, "not safe, its process is running on this host: only a fence stops it"
    ),
    Process.STOPPED: Safety(
        False, "not safe, its process is stopped and may go on: only a fence stops it"
    ),
    Process.ELSEWHERE: Safety(
        None, "not known, its process is on another host or in another container"
    ),
    Process.UNKNOWN: Safety(None, "not known, because nothing is known of its process"),
}


class Growth:
    """How queues change from one look to the next."""

    LOOKS = 3

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}
        self._now: dict[tuple[str, str], tuple[int, int]] = {}

    def judge(self, alias: str, info: LockInfo) -> Stuck | None:
        """Stuck, if the queue has grown at each of the last ``LOOKS`` looks."""
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
    """The reasons, the most important one first."""
    if info.state is LockState.QUEUED:
        if not info.waiters_alive:
            yield Stuck("queue-dead", "nobody in the queue is alive")
    elif info.state is LockState.DAMAGED:
        yield Stuck("damaged", info.damage)
    elif info.state is LockState.ORPHAN:
        why = "the order was started and its outcome is unknown: use `locks resolve`"
        yield Stuck("orphan", why)
    elif info.state is LockState.ABANDONED:
        if info.waiters_alive and info.left is not None and -info.left > PATIENCE:
            wait = "1 waits" if info.waiters_alive == 1 else f"{info.waiters_alive} wait"
            yield Stuck("abandoned", f"{remark(info)}; {wait} for it")
    elif info.state is LockState.HELD:
        yield from _reasons_of_holder(info, older_than)
    yield from _starving(info, waiting_longer_than)


def _reasons_of_holder(info: LockInfo, older_than: float | None) -> Iterator[Stuck]:
    if info.left is None:
        yield Stuck("no-ttl", "no TTL")
    if process_of(info.owner) is Process.GONE:
        yield Stuck("process-gone", "the holder's process is gone")
    is_renewed = info.max_hold != 0
    if is_renewed and _older(info, info.max_hold):
        yield Stuck("max-hold", f"held longer than its maximum of {info.max_hold:g}s")
    if _older(info, older_than):
        yield Stuck("older-than", f"held longer than {older_than:g}s")
    if is_renewed and _renewals_missed(info):
        yield Stuck("renewals-missed", f"not renewed for {info.renewed:.0f}s")


def _starving(info: LockInfo, longer_than: float | None) -> Iterator[Stuck]:
    most = max(WAITING_MOST, info.max_hold or 0.0) if longer_than is None else longer_than
    if info.waiting is not None and info.waiting > most:
        alive = info.waiters_alive
        first = f"the first of {alive} waiters" if alive > 1 else "its waiter"
        yield Stuck("starving", f"{first} has been waiting for {info.waiting:.0f}s")


def _cause(info: LockInfo) -> str:
    """Why a lease expired, as far as that can be known afterwards."""
    lasted = (info.age or 0.0) + (info.left or 0.0)
    if info.max_hold and reached_max_hold(lasted, info.ttl or 0.0, info.max_hold):
        return f"it was renewed up to its maximum of {info.max_hold:g}s"
    found = process_of(info.owner)
    if info.max_hold == 0 and found is Process.RUNNING:
        return "its process is running, and was not to renew it"
    return _CAUSES[found]


_CAUSES = {
    Process.GONE: "its process has ended or was killed",
    Process.STOPPED: "its process is stopped",
    Process.RUNNING: "its process is running, but did not renew it: it was paused or cut off from "
    "the store, or the lease was dropped",
    Process.ELSEWHERE: "its process was on another host or in another container",
    Process.UNKNOWN: "nothing is known of its process",
}


def _older(info: LockInfo, seconds: float | None) -> bool:
    return seconds is not None and info.age is not None and info.age > seconds


def _renewals_missed(info: LockInfo) -> bool:
    """Judged by the time that the last renewal asked for, not by the lock's TTL: a holder may
    extend its lease by more, and then renews less often."""
    if info.renewed is None or info.left is None:
        return False
    span = info.renewed + info.left
    return info.renewed > span * MISSED_RENEWALS + PATIENCE


@functools.lru_cache(maxsize=256)
def _process(owner: Owner, _second: int) -> Process:
    """Cached for one second for each owner, because it may have many leases. A zombie is UNKNOWN:
    its other threads or its children may go on, as under ``locks run``."""
    if process.is_dead(owner):
        return Process.GONE
    try:
        os.kill(owner.pid, 0)
    except PermissionError:
        pass  # the process of another user
    except (OSError, OverflowError):  # not a valid pid, or its machine is not known
        return Process.UNKNOWN
    state, *_ = process.status(owner.pid) or [b""]
    return _STATES.get(state, Process.RUNNING)


_STATES = {
    b"X": Process.GONE,
    b"Z": Process.UNKNOWN,
    b"T": Process.STOPPED,
    b"t": Process.STOPPED,
}
