"""How long a lease and a waiter count as alive."""

from __future__ import annotations

from lockkit.model.types import Grant, Granted, Request


def drift(ttl: float) -> float:
    """Seconds by which the holder gives up before the store (Redlock's rule: 1 % + 2 ms)."""
    return ttl / 100 + 0.002


def before_drift(left: float) -> float:
    """The ttl of which ``left`` seconds can be relied on."""
    return (left + 0.002) / 0.99


def granted(request: Request, grant: Grant, sent: float, now: float) -> Granted | None:
    """The grant in the local clock. None: the reply took longer than the lease lasts."""
    deadline = sent + grant.left - drift(grant.left)
    if deadline <= now:
        return None
    return tuple.__new__(Granted, (request, grant.fence, deadline, now, grant.left >= request.ttl))


def alive_for(ttl: float) -> float:
    """Seconds a waiter counts as alive after its last request; it asks twice in that time.

    A dead waiter at the head of the queue delays the others by at most this long, except in
    ZooKeeper: if its process is dead or stopped, its node lives until the end of its session.
    """
    return min(max(ttl / 3, 0.5), 3.0)
