"""A queue for a store that has none: fair within the process, and jittered polls between processes.

Only the first in a process's queue asks the store, so a process costs the store one waiter per
name. Nothing is promised between processes: which of their first waiters asks next is chance.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence

from lockkit.engine.effects import Park, Signal, Step
from lockkit.engine.times import alive_for
from lockkit.model.clock import now
from lockkit.model.errors import UnsupportedCapability
from lockkit.model.settings import AliasSettings
from lockkit.model.types import Busy, Gone, Grant, LockInfo, Mode, Release, Renewal, Request
from lockkit.runtime import native, process
from lockkit.stores.contract import Store, Waited
from lockkit.stores.wires import AsyncWire, Wire

POLL = 0.01
"""Seconds, more or less, between the polls of the first in the queue."""


class _Waiter:
    def __init__(self, token: str) -> None:
        self.token = token
        self.signal = Signal()
        self.alive = 0.0  #: it counts until then: an interrupted waiter may stay in the queue
        self.asks = False  #: the store was asked, and may have granted it or still do so


class FairQueue(Waited):
    """A store whose claims go through a queue of this process first."""

    def __init__(self, store: Store) -> None:
        self._store = store
        process.in_each_process(self._forget)

    def _forget(self) -> None:
        self._mutex = native.mutex()
        self._queues: dict[str, list[_Waiter]] = {}

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> Store:  # noqa: ARG003
        raise UnsupportedCapability("a queue is made over a store, and not from settings")

    def wire(self) -> Wire:
        return self._store.wire()

    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        return self._store.async_wire(is_shared=is_shared)

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        native.refuse_return(self._mutex)
        ahead, waiter = self._place(request)
        busy = Busy()
        if not ahead:
            reply = yield from self._ask(request, waiter)
            if not isinstance(reply, Busy):
                return reply
            busy = reply
        if request.mode is Mode.TRY:
            return busy._replace(ahead=ahead)
        if waiter is None:
            if request.mode is Mode.POLL:
                return Gone()
            joined = self._join(request)
            if joined is None:
                return busy._replace(full=True)
            ahead = joined
        return busy._replace(ticket=1, ahead=ahead)

    def _ask(self, request: Request, waiter: _Waiter | None) -> Step[Grant | Busy | Gone]:
        if waiter is not None:
            waiter.asks = True
        reply = yield from self._store.acquire(request)
        if not isinstance(reply, Busy):
            self._leave(request)
        elif waiter is not None:
            waiter.asks = False
        return reply

    def wait(self, request: Request, seconds: float, busy: Busy) -> Step[Grant | None]:
        with self._mutex:
            queue = self._alive(request.name)
            mine = next((w for w in queue if w.token == request.token), None)
            if mine is None:
                return None
            mine.signal.is_set = False
            is_first = queue[0] is mine
        pause = min(seconds, POLL * random.uniform(0.5, 1.5)) if is_first else seconds
        yield Park(mine.signal, pause)
        return None

    def release(self, request: Request) -> Step[Release]:
        return self._give_back(request, self._store.release)

    def withdraw(self, request: Request) -> Step[Release]:
        return self._give_back(request, self._store.withdraw)

    def _give_back(
        self, request: Request, give: Callable[[Request], Step[Release]]
    ) -> Step[Release]:
        native.refuse_return(self._mutex)
        waiter = self._leave(request)
        if waiter is not None and not request.unsure:
            if not waiter.asks:
                return Release.ABSENT  # it was only a place in our own queue
            request = request._replace(unsure=True)  # its acquire may still be under way
        try:
            return (yield from give(request))
        finally:
            self._wake_first(request.name)

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        return self._store.extend(requests)

    def renew(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        return self._store.renew(requests)

    def ended(self, name: str, fence: int | None) -> Step[LockInfo | None]:
        return self._store.ended(name, fence)

    def server_of(self, name: str) -> Hashable:
        return self._store.server_of(name)

    def _alive(self, name: str) -> list[_Waiter]:
        moment = now()
        queue = [waiter for waiter in self._queues.get(name, ()) if waiter.alive > moment]
        if queue:
            self._queues[name] = queue
        else:
            self._queues.pop(name, None)
        return queue

    def _place(self, request: Request) -> tuple[int, _Waiter | None]:
        """How many waiters are ahead of the request, and its own waiter if it waits already."""
        with self._mutex:
            queue = self._alive(request.name)
            for ahead, waiter in enumerate(queue):
                if waiter.token == request.token:
                    waiter.alive = now() + alive_for(request.ttl)
                    return ahead, waiter
            return len(queue), None

    def _join(self, request: Request) -> int | None:
        """Join the queue. Returns how many waiters are ahead; None: the queue is full. Others may
        have joined since ``_place`` was called."""
        waiter = _Waiter(request.token)
        waiter.alive = now() + alive_for(request.ttl)
        with self._mutex:
            queue = self._alive(request.name)
            if request.max_queue is not None and len(queue) >= request.max_queue:
                return None
            self._queues[request.name] = [*queue, waiter]
            return len(queue)

    def _leave(self, request: Request) -> _Waiter | None:
        """Leave the queue; returns its waiter, if it was there."""
        with self._mutex:
            queue = self._queues.get(request.name, [])
            found = [waiter for waiter in queue if waiter.token == request.token]
            for waiter in found:
                queue.remove(waiter)
        if found:
            self._wake_first(request.name)
        return found[0] if found else None

    def _wake_first(self, name: str) -> None:
        with self._mutex:
            first = next(iter(self._alive(name)), None)
        if first is not None:
            first.signal.set()
