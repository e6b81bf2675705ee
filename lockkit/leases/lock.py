"""The part of clients and locks that the blocking and the asyncio API share: all but waiting."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from lockkit.engine import holding, waiting
from lockkit.engine.effects import Made, Step
from lockkit.leases.blocks import giving_up
from lockkit.leases.lease import BaseLease
from lockkit.leases.reentry import Entries, Entry
from lockkit.model.checks import check_on_lost, check_timeout, check_ttl
from lockkit.model.clock import now
from lockkit.model.errors import AcquireTimeout, BackendError, ConfigurationError
from lockkit.model.types import UNSET, Granted, Kind, Mode, Request, Terms, Unset, Usage
from lockkit.runtime import entrants, process
from lockkit.runtime.hold import Hold
from lockkit.runtime.process import new_token
from lockkit.stores.contract import Direct, Reentrant, Waited

if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings
    from lockkit.runtime.aio_watchdog import AsyncWatchdog
    from lockkit.runtime.watchdog import Watchdog
    from lockkit.stores.contract import Store

AnyLease = TypeVar("AnyLease", bound=BaseLease)

MUTEX, TRY, ENQUEUE = Kind.MUTEX, Mode.TRY, Mode.ENQUEUE  # once: looking them up is slow
NEW = tuple.__new__

REMEMBERED_NAMES = 1024

REENTERED = {Kind.RW, Kind.REENTRANT}
"""Kinds whose holder may enter again."""


class BaseClient(ABC, Generic[AnyLease]):
    """A client's settings, the check of each call's options, and hold times, for Retry-After."""

    _watchdog: Watchdog | AsyncWatchdog
    _awaits: ClassVar[bool] = False  #: whether ``on_lost`` may be a coroutine function

    def __init__(self, store: Store, settings: AliasSettings) -> None:
        self.settings = settings
        self.store = store
        self._queue = store if isinstance(store, Waited) else _behind_a_queue(store)
        self._direct = store if isinstance(store, Direct) else None
        self._entries = Entries()
        self._held_for: dict[str, float] = {}
        self._makers: dict[Hashable, Any] = {}
        """Results of ``_maker`` that are used again, by a key that their user chooses."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.settings.alias!r} at {self.settings.shown_location}>"

    @abstractmethod
    def _lease(self, hold: Hold, entry: Entry | None = None) -> AnyLease:
        """Make a lease of this client's API, blocking or asyncio."""

    @abstractmethod
    def _maker(self, kind: str) -> Callable[..., Any]:
        """A function that makes locks from a checked name and a label."""

    def _mutex(self, name: str, label: str) -> Any:
        """``lock(name, label=label)``, but neither is checked."""
        make = self._makers.get(Kind.MUTEX)
        if make is None:
            make = self._makers[Kind.MUTEX] = self._maker("mutex")
        return make(name, label)

    def retry_after(self, name: str) -> int:
        """Whole seconds (1 to 60) after which to try again, estimated from recent hold times."""
        return min(max(math.ceil(self._held_for.get(name, 0.0)), 1), 60)

    def note_hold(self, name: str, seconds: float) -> None:
        """Remember a hold time, as a moving average. If there are too many names, forget all."""
        held = self._held_for
        before = held.get(name)
        if before is None and len(held) >= REMEMBERED_NAMES:
            held.clear()
        held[name] = seconds if before is None else (3 * before + seconds) / 4

    def _terms(self, usage: Usage, options: Mapping[str, Any]) -> Terms:
        settings = self.settings
        ttl, timeout = options.get("ttl", UNSET), options.get("timeout", UNSET)
        return Terms(
            usage,
            settings.ttl if ttl is UNSET else check_ttl("ttl", ttl),
            settings.acquire_timeout if timeout is UNSET else check_timeout("timeout", timeout),
            check_on_lost(options.get("on_lost"), is_awaited=self._awaits),
        )


def _behind_a_queue(store: Store) -> Waited:
    from lockkit.stores.fair import FairQueue  # few stores need it

    return FairQueue(store)


class BaseLock(Generic[AnyLease]):
    """The description of a claim."""

    __slots__ = ("_client", "_entered", "_usage", "label", "name", "on_lost", "timeout", "ttl")

    def __init__(
        self, client: BaseClient[AnyLease], terms: Terms, name: str, label: str = ""
    ) -> None:
        self._client = client
        self._entered: dict[int, list[AnyLease]] = {}
        self._usage, self.ttl, self.timeout, self.on_lost = terms
        self.name = name
        self.label = label

    def __repr__(self) -> str:
        kind, permits, *_ = self._usage
        used_as = "" if kind is Kind.MUTEX else f" as {kind.described(permits)}"
        return f"<{type(self).__name__} {self.name!r}{used_as}>"

    def _permitted(self) -> None:
        """For adapters: raise if the lock must not be acquired now."""

    def _acquiring(self, timeout: float | None | Unset) -> Step[AnyLease]:
        """Acquire. If this is interrupted, it leaves no lease and no place in the queue."""
        wait = self.timeout if timeout is UNSET else check_timeout("timeout", timeout)
        self._permitted()
        is_reentrant = self._usage.kind is Kind.REENTRANT
        if is_reentrant and (again := (yield from self._entering_again())):
            return again
        return (yield from self._asking(self._request(self._client, wait), wait))

    def _asking(
        self, request: Request, wait: float | None, first: Made | None = None
    ) -> Step[AnyLease]:
        """Acquire with this request. ``first``: the first attempt, if it was made already."""
        client = self._client
        try:
            granted = yield from waiting.acquire(
                client._queue, request, wait, new_token, first=first
            )
        except AcquireTimeout as refusal:
            refusal.retry_after = client.retry_after(self.name)
            raise
        except (BackendError, ConfigurationError) as error:
            error.about(self.name)
            raise
        try:
            return self._leased(granted)
        except BaseException:  # interrupted, or no thread can be started to renew it
            yield from holding.abandon(client._queue, granted.request)
            raise

    def _leased(self, granted: Granted) -> AnyLease:
        """Make the lease. If this raises, the caller must abandon the claim."""
        client = self._client
        lease = client._lease(Hold(granted))
        try:
            if self.on_lost is not None:
                lease._tell_when_lost(self.on_lost)
            client._watchdog.watch(lease._hold)
            if self._usage.kind is Kind.REENTRANT:
                lease._taker = self._itself()
                lease._entry = client._entries.begin(self._key(), lease._hold)
        except BaseException:
            lease._finish()
            client._watchdog.unwatch(lease._hold)
            raise
        return lease

    def _entering_again(self) -> Step[AnyLease | None]:
        """One more lease on the claim that this owner holds in this client; None: it holds none.
        Most often, no request is sent."""
        client = self._client
        lease = client._entries.enter(self._key(), self._again)
        if lease is None or lease._entry is None:
            return None
        try:
            if lease._entry.is_too_short(self.ttl):
                yield from lease._extending(self.ttl)
            lease._hold.renew_to(self.ttl, now())
            lease._tell_when_lost(self.on_lost)
            client._watchdog.watch(lease._hold)  # ``close`` may have ended the renewal
        except BaseException:  # also if interrupted: nobody has the lease
            lease._disown()
            yield from giving_up(lease)
            raise
        return lease

    def _again(self, entry: Entry) -> AnyLease:
        lease = self._client._lease(entry.hold, entry)
        lease._taker = self._itself()
        return lease

    def _is_inside(self) -> bool:
        """Whether this very thread or task has a lease on this reentrant lock already."""
        if self._usage.kind is not Kind.REENTRANT:
            return False
        return self._client._entries.is_by(self._key(), self._itself())

    def _entrant(self) -> str:
        """The key of those that may enter again: the owner's, or this thread's or task's."""
        process.notice_fork()  # else a forked child would enter what its parent holds
        owner = self._usage.owner
        return entrants.named(owner) if owner else self._itself()

    def _key(self) -> tuple[str, str]:
        return self.name, self._entrant()

    def _kept(self) -> AnyLease | None:
        """The lease that an open transaction already keeps; ``acquire`` returns it again."""
        return None

    def _itself(self) -> str:
        """The key of this thread or task."""
        raise NotImplementedError

    def _owner(self) -> str:
        """This thread or task, for people."""
        raise NotImplementedError

    def _request(self, client: BaseClient[AnyLease], timeout: float | None) -> Request:
        settings = client.settings
        kind, permits, shared, _, fair = self._usage
        entrant = ""
        if kind is not MUTEX:
            if kind is Kind.REENTRANT and not isinstance(client.store, Reentrant):
                kind = MUTEX  # entered again in this process only; the store sees a mutex
            elif kind in REENTERED:
                entrant = self._entrant()
        asked = (
            self.name,
            new_token(),
            self.ttl,
            self._owner(),
            TRY if timeout == 0 else ENQUEUE,
            settings.max_queue,
            settings.max_hold,
            False,
            0,
            kind,
            permits,
            shared,
            entrant,
            fair,
            False,
        )
        return NEW(Request, asked)  # this takes a third of the time of Request(…)
