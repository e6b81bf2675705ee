"""Seven locks that are wrong on purpose, which the checkers must catch.

Each is a lock as one finds it in the field, over plain Redis commands, with one defect. A check
that passes all of them is worthless. Never use them for anything else.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from lockkit.engine.times import drift
from lockkit.model.clock import now

if TYPE_CHECKING:
    import redis

__all__ = [
    "BROKEN",
    "BlindDelete",
    "BrokenLock",
    "DeadlineFromReply",
    "FenceReset",
    "MinorityRedlock",
    "NoNX",
    "ResurrectingWatchdog",
    "Subject",
    "SubjectClaim",
    "WallClockDeadline",
]

COMPARE_AND_DELETE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
COMPARE_AND_EXTEND = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
"""
POLL = 0.002


class SubjectClaim(Protocol):
    """A lease of a lock under test. ``renew`` is one pass of its watchdog."""

    @property
    def fencing_token(self) -> int: ...
    def remaining(self) -> float: ...
    def renew(self) -> None: ...
    def release(self) -> object: ...


class Subject(Protocol):
    """A lock under test, as one client has it."""

    def acquire(self, timeout: float) -> SubjectClaim | None: ...


class BrokenLock:
    """The lock without a defect: SET NX PX, compare-and-delete, deadline from the sending.

    Not a lock to use either: its fence comes from a second command, so it is not in the order of
    the grants when a client is slow between the two. ``wall`` is the client's wall clock.
    """

    def __init__(
        self,
        nodes: Sequence[redis.Redis],
        name: str,
        ttl: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.nodes = nodes
        self.redis = nodes[0]
        self.name = name
        self.ttl = ttl
        self.wall = wall

    def acquire(self, timeout: float) -> BrokenClaim | None:
        """Poll until it is granted; None if that takes too long."""
        until = now() + timeout
        while True:
            claim = self.attempt(secrets.token_hex(16))
            if claim is not None or now() >= until:
                return claim
            time.sleep(POLL * random.uniform(0.5, 1.0))

    def attempt(self, token: str) -> BrokenClaim | None:
        sent = now()
        if not self.set(token):
            return None
        return BrokenClaim(self, token, self.fence(), self.deadline(sent))

    def set(self, token: str) -> bool:
        return bool(self.redis.set(self.name, token, nx=True, px=self.milliseconds))

    def fence(self) -> int:
        return self.redis.incr(f"{self.name}:fence")

    def deadline(self, sent: float) -> float:
        """The moment of ``clock`` at which the holder gives up."""
        return sent + self.ttl - drift(self.ttl)

    def clock(self) -> float:
        return now()

    def renew(self, claim: BrokenClaim) -> None:
        if claim.remaining() <= 0:
            return
        sent = now()
        if self.redis.eval(COMPARE_AND_EXTEND, 1, self.name, claim.token, self.milliseconds):
            claim.deadline = self.deadline(sent)

    def release(self, token: str) -> None:
        self.redis.eval(COMPARE_AND_DELETE, 1, self.name, token)

    @property
    def milliseconds(self) -> int:
        return round(self.ttl * 1000)


class BrokenClaim:
    """The lease of a ``BrokenLock``."""

    def __init__(self, lock: BrokenLock, token: str, fence: int, deadline: float) -> None:
        self.lock = lock
        self.token = token
        self.fencing_token = fence
        self.deadline = deadline

    def remaining(self) -> float:
        return max(0.0, self.deadline - self.lock.clock())

    def renew(self) -> None:
        self.lock.renew(self)

    def release(self) -> None:
        self.lock.release(self.token)


class NoNX(BrokenLock):
    """Looks whether the name is free, and takes it in a second step."""

    def set(self, token: str) -> bool:
        if self.redis.exists(self.name):
            return False
        return bool(self.redis.set(self.name, token, px=self.milliseconds))


class BlindDelete(BrokenLock):
    """Releases what is there, even if it belongs to somebody else by now."""

    def release(self, token: str) -> None:
        self.redis.delete(self.name)


class DeadlineFromReply(BrokenLock):
    """Counts its TTL from the reply, when part of it is already over."""

    def deadline(self, sent: float) -> float:
        return now() + self.ttl - drift(self.ttl)


class WallClockDeadline(BrokenLock):
    """Counts its TTL by a clock that can be set back."""

    def deadline(self, sent: float) -> float:
        return self.wall() + self.ttl - drift(self.ttl) - (now() - sent)

    def clock(self) -> float:
        return self.wall()


class FenceReset(BrokenLock):
    """Keeps the fence beside the lock, so the fence is lost with the lock."""

    def release(self, token: str) -> None:
        super().release(token)
        self.redis.delete(f"{self.name}:fence")


class ResurrectingWatchdog(BrokenLock):
    """Renews without asking whose lease it is, and renews expired leases as well."""

    def renew(self, claim: BrokenClaim) -> None:
        sent = now()
        self.redis.set(self.name, claim.token, px=self.milliseconds)
        claim.deadline = self.deadline(sent)


class MinorityRedlock(BrokenLock):
    """Asks three nodes, and is satisfied with one."""

    QUORUM = 1

    def set(self, token: str) -> bool:
        order = random.sample(self.nodes, len(self.nodes))
        granted = [bool(n.set(self.name, token, nx=True, px=self.milliseconds)) for n in order]
        return sum(granted) >= self.QUORUM

    def release(self, token: str) -> None:
        for node in self.nodes:
            node.eval(COMPARE_AND_DELETE, 1, self.name, token)


BROKEN: tuple[type[BrokenLock], ...] = (
    NoNX,
    BlindDelete,
    DeadlineFromReply,
    WallClockDeadline,
    FenceReset,
    ResurrectingWatchdog,
    MinorityRedlock,
)
