"""``memory://``: locks within this process. For tests, and for threads of one process.

Every client of plain ``memory://`` has a store of its own; all clients of ``memory://some-name``
with one key prefix and one class share theirs, as they would share a server.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from lockkit.engine import grant
from lockkit.engine.effects import Park, Signal, Step, at_once
from lockkit.engine.last_words import SLOTS, Words, infos_of, last_words, words_info
from lockkit.model.clock import now
from lockkit.model.errors import ConfigurationError
from lockkit.model.settings import AliasSettings
from lockkit.model.types import Busy, Gone, Grant, LockInfo, Page, Release, Renewal, Request
from lockkit.runtime import native, process
from lockkit.runtime.wires import CallWire
from lockkit.stores.contract import (
    Buried,
    Fenced,
    Listed,
    ProcessLocal,
    Pushed,
    Reentrant,
    Shared,
    reject_unknown_options,
)
from lockkit.stores.wires import AsyncWire

T = TypeVar("T")

_EPOCH = time.time() - now()
"""Seconds to add to the monotonic clock for wall-clock time, on which other stores base fences."""


class MemoryStore(Pushed, Fenced, Shared, Reentrant, Buried, Listed, ProcessLocal):
    """The grant rule over a dict, under one mutex. A forked child starts with no locks."""

    def __init__(self) -> None:
        process.in_each_process(self._forget)

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> MemoryStore:
        reject_unknown_options(settings, ())
        store = settings.location.partition("://")[2]
        if "?" in store:
            raise ConfigurationError(
                f"{settings.place} must be 'memory://' or 'memory://name', without a query"
            )
        if not store:
            return cls()
        return _shared.named((cls, store, settings.key_prefix))

    def wire(self) -> CallWire:
        return CallWire()

    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        from lockkit.runtime.aio_wires import AsyncLocalWire

        return AsyncLocalWire()

    def prefixes(self) -> Step[dict[str, bool]]:
        return at_once(_shared.beside(self))

    @property
    def has_locks(self) -> bool:
        moment = _now()
        with self._mutex:
            return any(True for n, s in self._states.items() for _ in infos_of(n, s, moment))

    def _forget(self) -> None:
        self._mutex = native.mutex()
        self._states: OrderedDict[str, grant.State] = OrderedDict()
        self._parked: dict[str, Signal] = {}
        self._words: OrderedDict[str, Words] = OrderedDict()
        self._fence = 0

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        return at_once(self._step(request.name, lambda s, t: grant.acquire(s, request, t)))

    def release(self, request: Request) -> Step[Release]:
        return at_once(self._step(request.name, lambda s, t: grant.release(s, request, t)))

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        return at_once([self._extend(request) for request in requests])

    def _extend(self, request: Request) -> Renewal:
        return self._step(request.name, lambda s, t: grant.extend(s, request, t))

    def wait(self, request: Request, seconds: float, busy: Busy) -> Step[Grant | None]:
        """Wait until another step grants this claim. The waiter then asks for it."""
        with self._mutex:
            state = self._states.get(request.name)
            if state is None or not any(w.token == request.token for w in state.queue):
                return None
            signal = self._parked.setdefault(request.token, Signal())
        try:
            yield Park(signal, seconds)
        finally:
            self._parked.pop(request.token, None)
        return None

    def page(self, name: str | None, cursor: object = None) -> Step[Page]:
        with self._mutex:
            moment = _now()
            names = list(self._states) if name is None else [name]
            infos = [
                info
                for n in names
                if n in self._states
                for info in infos_of(n, self._states[n], moment)
            ]
        return at_once(Page(infos))

    def break_(self, name: str, fence: int, by: str = "") -> Step[bool]:
        return at_once(self._step(name, lambda s, t: grant.break_(s, fence, t, by)))

    def last_words(self, name: str | None = None) -> Step[list[LockInfo]]:
        with self._mutex:
            moment = _now()
            self._sweep(moment, len(self._states))
            found = [self._words.get(name)] if name is not None else list(self._words.values())
        infos = (words_info(words, moment) for words in found if words is not None)
        return at_once([info for info in infos if info is not None])

    def _step(self, name: str, rule: Callable[[grant.State, int], grant.Outcome[T]]) -> T:
        native.refuse_return(self._mutex)
        with self._mutex:
            state = self._states.get(name)
            moment = _now()
            if state is None:
                self._sweep(moment)
                state = self._states[name] = grant.State(fence=self._fence)
            outcome = rule(state, moment)
            self._fence = max(self._fence, state.fence)
            if state.prune(moment):
                del self._states[name]
            self._note(name, state)
            parked = [self._parked.get(handoff.token) for handoff in outcome.handoffs]
        for signal in parked:
            if signal is not None:
                signal.set()
        return outcome.reply

    def _sweep(self, moment: int, most: int = 2) -> None:
        """Clean up the names that were not looked at for longest: two for each new name. Otherwise
        an abandoned name that nobody asks for again would stay for ever."""
        for _ in range(min(most, len(self._states))):
            name, state = next(iter(self._states.items()))
            if state.sweep(moment):
                del self._states[name]
            else:  # not taken out and put back: an interrupt in between would lose it
                self._states.move_to_end(name)
            self._note(name, state)

    def _note(self, name: str, state: grant.State) -> None:
        """Keep the last words of its lost leases, for the last SLOTS names."""
        for words in last_words(name, state):
            self._words.pop(name, None)
            self._words[name] = words
            if len(self._words) > SLOTS:
                self._words.popitem(last=False)


class _Shared:
    """The stores that have a name. Each is kept as long as somebody uses it."""

    def __init__(self) -> None:
        self._stores = weakref.WeakValueDictionary[
            tuple[type[MemoryStore], str, str], MemoryStore
        ]()
        process.in_each_process(self._renew_mutex)

    def _renew_mutex(self) -> None:
        self._mutex = native.mutex()

    def named(self, name: tuple[type[MemoryStore], str, str]) -> MemoryStore:
        with self._mutex:
            store = self._stores.get(name)
            if store is None:
                store = self._stores[name] = name[0]()
            return store

    def beside(self, store: MemoryStore) -> dict[str, bool]:
        """The other prefixes in use under the same name, and whether each has locks."""
        with self._mutex:
            known = dict(self._stores)
        mine = {key[:2] for key, found in known.items() if found is store}
        return {
            key[2]: found.has_locks
            for key, found in known.items()
            if key[:2] in mine and found is not store and found._fence  # has been used
        }


_shared = _Shared()


def _now() -> int:
    return int((now() + _EPOCH) * grant.SECOND)
