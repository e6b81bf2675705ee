"""How long a lease and a waiter count as alive."""

from __future__ import annotations

from lockkit.model.types import Grant, Granted, Request


def drift(ttl: float) -> float:
    """Seconds by which a lease ends earlier for its holder than in the store, because their clocks
    may differ in speed (Redlock's rule: 1 % + 2 ms)."""
    return ttl / 100 + 0.002


def before_drift(left: float) -> float:
    """The ttl that its holder can rely on for ``left`` seconds: its drift comes on top."""
    return (left + 0.002) / 0.99


def granted(request: Request, grant: Grant, sent: float, now: float) -> Granted | None:
    """The grant, with a deadline of the local clock. ``sent``: when the request was sent. None: the
    lease was over before the reply came."""
    deadline = sent + grant.left - drift(grant.left)
    if deadline <= now:
        return None
    return tuple.__new__(Granted, (request, grant.fence, deadline, now, grant.left >= request.ttl))


def reached_max_hold(lasted: float, ttl: float, max_hold: float) -> bool:
    """Whether a lease that ended ``lasted`` seconds after its grant was renewed for as long as its
    MAX_HOLD allows. Its last renewal then came at most a third of its ttl before that, or a little
    earlier, because renewals may be late. A MAX_HOLD of less than a third allows no renewal."""
    return lasted >= max_hold + ttl * 0.6


def alive_for(ttl: float) -> float:
    """Seconds a waiter counts as alive after its last request; it asks twice in that time.

    A dead waiter at the head of the queue delays the others by at most this long, except in
    ZooKeeper: if its process is dead or stopped, its node lives until the end of its session.
    """
    return min(max(ttl / 3, 0.5), 3.0)
