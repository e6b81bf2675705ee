"""What is held, by whom, what is stuck and why.

A name is stuck when an operator should look at it. ``stuck`` judges one snapshot of one name; it
asks the store nothing, and changes nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import NamedTuple

from lockkit import process
from lockkit.clock import now as local_clock
from lockkit.state import SECOND, State
from lockkit.types import LockInfo, LockState, Owner

__all__ = ["Stuck", "infos_of", "stuck", "stuck_reason"]

MISSED_RENEWALS = 2 / 3
"""Leases are renewed after a third of what is left: past this part of it, two were missed."""

PATIENCE = 1.0
"""Seconds a renewal may be late, on a busy machine, before it counts as missed."""


class Stuck(NamedTuple):
    """Why an operator should look at a name."""

    code: str
    """``abandoned``, ``no-ttl``, ``process-gone``, ``max-hold``, ``older-than``,
    ``renewals-missed``, ``queue-dead`` or ``orphan``. Stable: for programs."""

    reason: str
    """For people."""


def stuck(info: LockInfo, older_than: float | None = None) -> Stuck | None:
    """Why an operator should look at this name; None when all is well.

    older_than: seconds after which any hold counts as stuck; None: only past its own maximum.
    Limit: a paused or hung holder is seen only by the renewals it misses, after two thirds of its
    TTL; a watchdog that renews for a worker that hangs is seen only at the maximum hold.
    """
    return next(_reasons(info, older_than), None)


def stuck_reason(info: LockInfo, older_than: float | None = None) -> str | None:
    """``stuck``, in words only."""
    found = stuck(info, older_than)
    return found and found.reason


def infos_of(name: str, state: State, now: int) -> Iterator[LockInfo]:
    """The state of a name, for people: each who holds it, or those who only wait.

    ``now`` is the store's clock in microseconds.
    """
    waiters, alive = len(state.queue), sum(w.alive > now for w in state.queue)
    if waiters and not state.holders:
        yield LockInfo(
            name,
            LockState.QUEUED,
            waiters=waiters,
            waiters_alive=alive,
            kind=state.kind,
            permits=state.permits,
        )
    for holder in state.holders:
        yield LockInfo(
            name=name,
            state=LockState.HELD if holder.until > now else LockState.ABANDONED,
            owner=Owner.decode(holder.owner),
            fence=holder.fence,
            age=(now - holder.granted) / SECOND,
            left=(holder.until - now) / SECOND,
            renewed=(now - holder.renewed) / SECOND,
            ttl=holder.ttl / SECOND,
            max_hold=None if holder.max_hold is None else holder.max_hold / SECOND,
            waiters=waiters,
            waiters_alive=alive,
            kind=state.kind,
            permits=state.permits,
            shared=holder.shared,
        )


def _reasons(info: LockInfo, older_than: float | None) -> Iterator[Stuck]:
    """The most telling first."""
    if info.state is LockState.QUEUED:
        if not info.waiters_alive:
            yield Stuck("queue-dead", "nobody in the queue is alive")
    elif info.state is LockState.ORPHAN:
        yield Stuck("orphan", "the order was begun and its end is not known: locks resolve")
    elif info.state is LockState.ABANDONED:
        yield Stuck("abandoned", _abandoned(info))
    else:
        yield from _reasons_of_holder(info, older_than)


def _reasons_of_holder(info: LockInfo, older_than: float | None) -> Iterator[Stuck]:
    if info.left is None:
        yield Stuck("no-ttl", "no TTL")
    if info.owner is not None and _gone(info.owner):
        yield Stuck("process-gone", "the holder's process is gone")
    if _older(info, info.max_hold):
        yield Stuck("max-hold", f"held longer than its maximum of {info.max_hold:g}s")
    if _older(info, older_than):
        yield Stuck("older-than", f"held longer than {older_than:g}s")
    if _renewals_missed(info):
        yield Stuck("renewals-missed", f"not renewed for {info.renewed:.0f}s")


def _abandoned(info: LockInfo) -> str:
    since = "" if info.left is None else f" {-info.left:.0f}s ago"
    return f"the lease expired{since} and was not released"


def _older(info: LockInfo, seconds: float | None) -> bool:
    return seconds is not None and info.age is not None and info.age > seconds


def _renewals_missed(info: LockInfo) -> bool:
    """Judged by what the last renewal asked for, which need not be the lock's TTL: a holder may
    extend by more, and is then renewed less often."""
    if info.renewed is None or info.left is None:
        return False
    span = info.renewed + info.left
    return info.renewed > span * MISSED_RENEWALS + PATIENCE


def _gone(owner: Owner) -> bool:
    """Whether the holder was a process of this host that is gone.

    A pid of another machine, boot or container says nothing here, even if its host name is ours.
    """
    if owner.host != process.host() or owner.space != process.space() or owner.pid <= 0:
        return False
    return _process_gone(owner.pid, int(local_clock()))


@functools.lru_cache(maxsize=256)
def _process_gone(pid: int, _second: int) -> bool:
    """Asked once a second per process, however many leases it has. A zombie holds nothing."""
    if os.name != "posix":
        return False  # os.kill is not a question there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return _zombie(pid)


def _zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split(None, 1)[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return False
