"""What is held, by whom, what is stuck and why.

A name is stuck when an operator should look at it; ``stuck_reason`` says why, in words.
"""

from __future__ import annotations

import os

from lockkit import process
from lockkit.grant import SECOND, State
from lockkit.types import LockInfo, LockState, Owner

__all__ = ["info_of", "stuck_reason"]

MISSED_RENEWALS = 2 / 3
"""Leases are renewed every third of their TTL: past this part of it, two were missed."""


def info_of(name: str, state: State, now: int) -> LockInfo | None:
    """The state of a name, for people; None when there is nothing to tell."""
    holder = state.holders[0] if state.holders else None
    alive = sum(w.alive > now for w in state.queue)
    if holder is None:
        if not state.queue:
            return None
        return LockInfo(name, LockState.QUEUED, waiters=len(state.queue), waiters_alive=alive)
    return LockInfo(
        name=name,
        state=LockState.HELD if holder.until > now else LockState.ABANDONED,
        owner=Owner.decode(holder.owner),
        fence=holder.fence,
        age=(now - holder.granted) / SECOND,
        left=(holder.until - now) / SECOND,
        renewed=(now - holder.renewed) / SECOND,
        ttl=holder.ttl / SECOND,
        max_hold=None if holder.max_hold is None else holder.max_hold / SECOND,
        waiters=len(state.queue),
        waiters_alive=alive,
    )


def stuck_reason(info: LockInfo, older_than: float | None = None) -> str | None:
    """Why an operator should look at this name; None when all is well."""
    if info.state is LockState.QUEUED:
        return None if info.waiters_alive else "nobody in the queue is alive"
    if info.state is LockState.ABANDONED:
        return "the lease expired and was not released"
    if info.left is None:
        return "no TTL"
    if info.owner is not None and _dead(info.owner):
        return "the holder's process is gone"
    if info.max_hold is not None and info.age is not None and info.age > info.max_hold:
        return f"held longer than its {info.max_hold:g} s"
    if older_than is not None and info.age is not None and info.age > older_than:
        return f"held longer than {older_than:g} s"
    if info.ttl and info.renewed is not None and info.renewed > info.ttl * MISSED_RENEWALS + 1:
        return "two renewals were missed"
    return None


def _dead(owner: Owner) -> bool:
    """Whether the holder was a process of this host that is gone."""
    if owner.host != process.host() or owner.pid <= 0:
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
