"""Other kinds of locks that are wrong on purpose, which ``History.crowds`` must catch."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockkit.engine.times import drift
from lockkit.model.clock import now

if TYPE_CHECKING:
    import redis

__all__ = ["ClientClockSemaphore", "CountThenAdd", "FlagThenCount"]


class BrokenPermit:
    """The lease of a broken lock."""

    fencing_token = 0

    def __init__(self, sent: float, ttl: float, release: Callable[[], object]) -> None:
        self._deadline = sent + ttl - drift(ttl)
        self.release = release

    def remaining(self) -> float:
        return max(0.0, self._deadline - now())


class CountThenAdd:
    """Counts the permits that are out, then takes one: two steps, and others come ``between`` them.

    It is right only as long as nobody comes.
    """

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        permits: int,
        ttl: float,
        between: Callable[[], object] = lambda: None,
    ) -> None:
        self.redis = client
        self.name = name
        self.permits = permits
        self.ttl = ttl
        self.between = between

    def acquire(self) -> BrokenPermit | None:
        """A permit, or None if all are out."""
        sent, token = now(), secrets.token_hex(16)
        if self.redis.zcard(self.name) >= self.permits:
            return None
        self.between()
        self.redis.zadd(self.name, {token: sent})
        return BrokenPermit(sent, self.ttl, lambda: self.redis.zrem(self.name, token))


class ClientClockSemaphore:
    """The one in textbooks: a sorted set by the clients' own clocks. A client whose clock is ahead
    expires the permits of the others."""

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        permits: int,
        ttl: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.redis = client
        self.name = name
        self.permits = permits
        self.ttl = ttl
        self.wall = wall

    def acquire(self) -> BrokenPermit | None:
        """A permit, or None if all are out."""
        sent, moment, token = now(), self.wall(), secrets.token_hex(16)
        steps = self.redis.pipeline(transaction=True)
        steps.zremrangebyscore(self.name, "-inf", moment - self.ttl)
        steps.zadd(self.name, {token: moment})
        steps.zrank(self.name, token)
        if steps.execute()[-1] >= self.permits:
            self.redis.zrem(self.name, token)
            return None
        return BrokenPermit(sent, self.ttl, lambda: self.redis.zrem(self.name, token))


class FlagThenCount:
    """A reader looks for a writer and counts itself; a writer looks for readers and raises a flag:
    two steps each, and others come ``between`` them."""

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        ttl: float,
        between: Callable[[], object] = lambda: None,
    ) -> None:
        self.redis = client
        self.flag, self.readers = f"{name}:flag", f"{name}:readers"
        self.ttl = ttl
        self.between = between

    def read(self) -> BrokenPermit | None:
        sent = now()
        if self.redis.exists(self.flag):
            return None
        self.between()
        self.redis.incr(self.readers)
        return BrokenPermit(sent, self.ttl, lambda: self.redis.decr(self.readers))

    def write(self) -> BrokenPermit | None:
        sent = now()
        if self.redis.exists(self.flag) or int(self.redis.get(self.readers) or 0):
            return None
        self.between()
        self.redis.set(self.flag, 1)
        return BrokenPermit(sent, self.ttl, lambda: self.redis.delete(self.flag))
