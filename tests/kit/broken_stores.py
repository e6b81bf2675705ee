"""Stores with few traits: some that are right, and some that are wrong on purpose, which the
conformance suite must catch. Never use them for anything else."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from lockkit.engine.effects import Step, at_once
from lockkit.model.clock import now
from lockkit.model.settings import AliasSettings
from lockkit.model.types import Busy, Gone, Grant, Kind, Mode, Release, Renewal, Request
from lockkit.runtime.aio_wires import AsyncLocalWire
from lockkit.runtime.wires import CallWire, call
from lockkit.stores.contract import Buried, Durable, ProcessLocal, Shared, Store, Waited
from lockkit.stores.memory import MemoryStore
from lockkit.stores.wires import AsyncWire, Wire


@dataclass
class Claim:
    token: str
    until: float
    number: int = 0  #: of its last extension

    @property
    def left(self) -> float:
        return self.until - now()


class Local(ProcessLocal, Store):
    """One store of each class, in the memory of this process."""

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> Store:
        return _stores.setdefault(cls, cls())

    def wire(self) -> CallWire:
        return CallWire()

    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        return AsyncLocalWire()


_stores: dict[type[Store], Store] = {}


class Bare(Local):
    """Right, and without a trait."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.claims: dict[str, Claim] = {}

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        with self.mutex:
            claim = self.claims.get(request.name)
            if claim is None or claim.left <= 0:
                claim = Claim(request.token, now() + request.ttl)
                self.claims[request.name] = claim
            return at_once(self.answer(claim, request))

    def answer(self, claim: Claim, request: Request) -> Grant | Busy:
        if claim.token != request.token:
            return Busy(left=claim.left)
        return Grant(claim.token, None, claim.left)

    def release(self, request: Request) -> Step[Release]:
        with self.mutex:
            claim = self.owned(request)
            if claim is not None:
                del self.claims[request.name]
        return at_once(Release.ABSENT if claim is None else Release.RELEASED)

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        return at_once([self.extended(request) for request in requests])

    def extended(self, request: Request) -> Renewal:
        with self.mutex:
            claim = self.owned(request)
            if claim is not None and request.number >= claim.number:
                claim.until, claim.number = now() + request.ttl, request.number
            return Renewal(claim and claim.left)

    def owned(self, request: Request) -> Claim | None:
        """The caller's claim, if it has not expired."""
        claim = self.claims.get(request.name)
        return claim if claim and claim.token == request.token and claim.left > 0 else None


class Reviving(Bare):
    """Extends and releases what has expired."""

    def owned(self, request: Request) -> Claim | None:
        claim = self.claims.get(request.name)
        return claim if claim and claim.token == request.token else None


class TakingBack(Bare):
    """Extends what its caller once had, even if somebody else has it by now."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[tuple[str, str]] = set()

    def answer(self, claim: Claim, request: Request) -> Grant | Busy:
        reply = super().answer(claim, request)
        if isinstance(reply, Grant):
            self.known.add((request.name, request.token))
        return reply

    def extended(self, request: Request) -> Renewal:
        taken = self.claims.get(request.name)
        if taken and (request.name, request.token) in self.known:
            taken.token, taken.until = request.token, max(taken.until, now() + 0.001)
        return super().extended(request)


class Promising(Bare):
    """Tells a token that asks again that it has its whole TTL, and does not extend its claim."""

    def answer(self, claim: Claim, request: Request) -> Grant | Busy:
        reply = super().answer(claim, request)
        return reply._replace(left=request.ttl) if isinstance(reply, Grant) else reply


class Holding(Bare):
    """Holds its mutex while it waits for its wire."""

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        with self.mutex:
            yield from call(lambda: None)
            return (yield from super().acquire(request))


class Unlocking(Bare):
    """Grants it to everybody."""

    def answer(self, claim: Claim, request: Request) -> Grant | Busy:
        return Grant(request.token, None, claim.left)


class Lasting(Durable, Bare):
    """Says that it survives what nothing in this process survives."""


class Counting(Shared, Buried, Waited, Local):
    """Right. It has semaphores and reader-writer locks, no fences, and shows nothing."""

    def __init__(self) -> None:
        self.memory = MemoryStore()

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        reply = yield from self.memory.acquire(request)
        return reply._replace(fence=None) if isinstance(reply, Grant) else reply

    def wait(self, request: Request, seconds: float, busy: Busy) -> Step[Grant | None]:
        return self.memory.wait(request, seconds, busy)

    def release(self, request: Request) -> Step[Release]:
        return self.memory.release(request)

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        return self.memory.extend(requests)


class OneTooMany(Counting):
    """Grants one permit more than there are, if there are several."""

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        return super().acquire(request._replace(permits=request.permits + (request.permits > 1)))


class ReadingApart(Counting):
    """Counts readers apart from the writers, who do not see them."""

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        return super().acquire(apart(request))

    def release(self, request: Request) -> Step[Release]:
        return super().release(apart(request))

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        return super().extend([*map(apart, requests)])


def apart(request: Request) -> Request:
    reads = request.kind is Kind.RW and request.shared
    return request._replace(name=f"{request.name}:readers") if reads else request


class OverRedis(Buried, Store):
    """Right. It asks a Redis, as RedisStore does, and has none of its other traits."""

    def __init__(self, redis: Store) -> None:
        self.redis = redis

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> Store:
        from lockkit.stores.redis import RedisStore

        return cls(RedisStore.from_settings(settings))

    def wire(self) -> Wire:
        return self.redis.wire()

    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        return self.redis.async_wire(is_shared=is_shared)

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        reply = yield from self.redis.acquire(request._replace(mode=Mode.TRY))
        return reply._replace(fence=None) if isinstance(reply, Grant) else reply

    def release(self, request: Request) -> Step[Release]:
        return self.redis.release(request)

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        return self.redis.extend(requests)
