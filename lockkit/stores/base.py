"""What a backend is: single atomic steps over one store. It does not loop, retry or wait long.

To write one: subclass Backend, implement the steps, declare honest capabilities, and subclass
``lockkit.testing.conformance.BackendConformance`` in your tests.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lockkit.model.types import (
    Busy,
    Capabilities,
    Claimed,
    Entry,
    Gone,
    Grant,
    LockInfo,
    Release,
    Renewal,
    Request,
)

if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings

__all__ = ["AsyncBackend", "AsyncRecords", "Backend", "Danger", "Records"]

POLL_LEAST = 0.0005
POLL_STEP = 0.005
POLL_LONG = 0.05
POLL_MOST = 0.1  # well below half of alive_for's least


class Danger(NamedTuple):
    """Of a store's configuration: a word for it, a sentence, and what to do."""

    identifier: str
    text: str
    remedy: str


class Backend(ABC):
    """One store. Every method may be called from any thread.

    Errors: BackendUnavailable when the request was certainly not applied, OutcomeUnknown when it
    was sent and no reply came. Names are valid lock names; the backend adds the key prefix.
    """

    capabilities: Capabilities = Capabilities()

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: AliasSettings) -> Backend:
        """Make one; no I/O. Unknown options raise ConfigurationError."""

    @classmethod
    def async_from_settings(cls, settings: AliasSettings) -> AsyncBackend:
        """The native async twin, if the driver has one; else the steps run in worker threads."""
        from lockkit.stores.offload import OffloadedBackend

        return OffloadedBackend(cls.from_settings(settings))

    def async_twin(self, settings: AliasSettings) -> AsyncBackend:
        """The native async twin, or this very backend in worker threads: so both have one store,
        also where nobody else could open it, as that of ``memory://``. No I/O."""
        from lockkit.stores.offload import OffloadedBackend

        made: Any = type(self).async_from_settings
        if made.__func__ is Backend.async_from_settings.__func__:  # type: ignore[attr-defined]
            return OffloadedBackend(self, is_shared=True)
        return type(self).async_from_settings(settings)

    @abstractmethod
    def acquire(self, request: Request) -> Grant | Busy | Gone:
        """One attempt. Same token twice: the same grant, with what is left of it."""

    @abstractmethod
    def release(self, request: Request) -> Release:
        """Give the claim back and hand it to the head of the queue."""

    @abstractmethod
    def withdraw(self, request: Request) -> None:
        """Leave the queue or give back a racing grant; finding nothing or unsure: a tombstone."""

    @abstractmethod
    def extend(self, requests: Sequence[Request]) -> list[Renewal]:
        """Set what is left of each to its ttl, in one or few round trips.

        Not after one of the same claim with a greater number: of such a one say what is left.
        What is unreadable in one's place is an error in its answer, and in no other.
        """

    def wait(self, request: Request, seconds: float, busy: Busy) -> Grant | None:
        """Wait for a grant by message, at most so long; None: ask again. Default: sleep.

        ``busy`` is the last answer; a message counts only for its ticket. The ``left`` of a grant
        by message counts from the moment at which the request with that answer was sent.
        """
        time.sleep(self.pause(seconds, busy.ahead, busy.age))
        return None

    def pause(self, seconds: float, ahead: int, age: float | None = None) -> float:
        """How long a waiter of a store without messages sleeps: the head of the queue shortest.

        A twentieth of the time for which the holder has held it: so the wait is at most that much
        longer than it had to be, and a long one costs few requests.
        """
        step = POLL_STEP if age is None else min(max(age / 20, POLL_LEAST), POLL_LONG)
        return min(seconds, min(step * (1 + ahead), POLL_MOST) * random.uniform(0.5, 1.0))

    @abstractmethod
    def holders(self, name: str | None = None) -> Iterator[LockInfo]:
        """All names that are held, abandoned or queued for, or just the one; in no order.

        It writes nothing. A name whose record cannot be read is ``damaged``; what another release
        wrote is raised after all the others.
        """

    @abstractmethod
    def break_(self, name: str, fence: int, by: str = "") -> bool:
        """An operator's release of exactly the holder with this fence. ``by``: who, and why."""

    def last_words(self, name: str | None = None) -> Iterator[LockInfo]:
        """Of leases that were not released in the last day, at most a thousand; or of one name.
        Default: none are kept."""
        return iter(())

    def repair(self, name: str) -> bool:
        """Delete what is kept of a name, in one step with the proof that it cannot be read.

        False: it can be read, so nothing was done. Default: nothing is ever damaged there.
        """
        return False

    def ended(self, name: str, fence: int) -> LockInfo | None:
        """The last words of the lease with this fence, if it has any."""
        return next((info for info in self.last_words(name) if info.fence == fence), None)

    @abstractmethod
    def close(self) -> None:
        """Close what is open. Idempotent; the backend may be used again and then reconnects."""

    def records(self) -> Records | None:
        """Records beside the locks, if this store can keep any; no I/O."""
        return None

    def database(self) -> str:
        """Which one of the store's it is, for people, where LOCATION does not say it; no I/O."""
        return ""

    def prefixes(self) -> dict[str, bool]:
        """The other key prefixes that clients have locked with there, and whether something of
        theirs is kept now. Looks only. Default: not known."""
        return {}

    def check(self) -> None:
        """One cheap request; raises BackendError when the store is down."""
        for _ in self.holders("lockkit-check"):
            pass

    def health(self) -> Iterator[Danger]:
        """Dangers of the store's configuration to locks. Does I/O; raises BackendError."""
        return iter(())


class AsyncBackend(ABC):
    """The async twin of Backend: the same steps, awaited. One event loop each."""

    capabilities: Capabilities = Capabilities()

    @abstractmethod
    async def acquire(self, request: Request) -> Grant | Busy | Gone: ...

    @abstractmethod
    async def release(self, request: Request) -> Release: ...

    @abstractmethod
    async def withdraw(self, request: Request) -> None: ...

    @abstractmethod
    async def extend(self, requests: Sequence[Request]) -> list[Renewal]: ...

    @abstractmethod
    async def wait(self, request: Request, seconds: float, busy: Busy) -> Grant | None: ...

    @abstractmethod
    def holders(self, name: str | None = None) -> AsyncIterator[LockInfo]: ...

    @abstractmethod
    async def break_(self, name: str, fence: int, by: str = "") -> bool: ...

    async def last_words(self, name: str) -> list[LockInfo]:
        return []

    async def ended(self, name: str, fence: int) -> LockInfo | None:
        return next((info for info in await self.last_words(name) if info.fence == fence), None)

    @abstractmethod
    async def close(self) -> None: ...

    def records(self) -> AsyncRecords | None:
        return None


class Records(Protocol):
    """Records beside locks, each under the name of its lock, and for ``ttl`` seconds.

    ``fence`` is the fencing token of the lock's lease. Every step but ``read`` and ``orphans`` is
    atomic with what it asks of the lock, and repeating it after a lost reply does no harm.
    Errors as of ``Backend``.
    """

    def read(self, name: str) -> Entry | None: ...

    def claim(
        self, name: str, fence: int, payload: bytes, ttl: float, *, running: bool, replaces: bool
    ) -> Claimed:
        """Write, while the lease is held. ``replaces``: over one left running by an older one."""

    def finish(self, name: str, fence: int, payload: bytes, ttl: float) -> bool:
        """Write the end over the record with this fence, if it is still there."""

    def drop(self, name: str, fence: int) -> bool:
        """Forget the running record with this fence."""

    def resolve(
        self, name: str, fence: int, payload: bytes, ttl: float, *, by: str = "", owner: str = ""
    ) -> bool:
        """An operator's end for the orphan with this fence; no payload: forget it. ``by``: who and
        why, for the last words of the name, with the owner."""

    def mark(self, name: str) -> None:
        """Have the record listed from now on: it has ended, and cannot be read."""

    def repair(self, name: str, is_damaged: Callable[[Entry], bool]) -> bool:
        """Delete the record of this name if it is damaged, and nobody holds its lock."""

    def orphans(self, name: str | None = None) -> Iterator[tuple[str, Entry]]:
        """What is running while nobody holds its lock, and what was marked; or what has this name,
        also if it has ended."""

    def health(self) -> Iterator[Danger]:
        """Dangers of the store's configuration to records. Errors as of ``Backend.health``."""

    def capacity(self) -> Iterator[Danger]:
        """Dangers of records to other locks on the same server."""

    def server(self) -> str | None:
        """What tells the server from any other; None: it is not known."""


class AsyncRecords(Protocol):
    """The twin of Records, of which only requests have need: operators are synchronous."""

    async def read(self, name: str) -> Entry | None: ...

    async def claim(
        self, name: str, fence: int, payload: bytes, ttl: float, *, running: bool, replaces: bool
    ) -> Claimed: ...

    async def finish(self, name: str, fence: int, payload: bytes, ttl: float) -> bool: ...

    async def drop(self, name: str, fence: int) -> bool: ...

    async def mark(self, name: str) -> None: ...


def reject_unknown_options(settings: AliasSettings, known: Sequence[str]) -> dict[str, Any]:
    """The options, or a ConfigurationError that names the first one this backend does not have."""
    from lockkit.model.values import unknown_key

    for key in settings.options:
        if key not in known:
            raise unknown_key(f"OPTIONS of the lock alias {settings.alias!r}", key, known)
    return dict(settings.options)
