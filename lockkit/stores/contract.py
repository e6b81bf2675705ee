"""What a store is: a few steps, each atomic in the store, and what it declares by its base classes.

To write one: subclass Store and the traits that it keeps, and subclass
``lockkit.testing.conformance.StoreConformance`` in your tests. docs/writing-a-store.md has a
complete example. A step does not loop, retry or wait long: ``engine`` does that, for all stores.

The rules, each of which the suite tests for every store:

1. The same token gets the same answer, with what is left of its grant. What was granted by a
   message for less than its ttl becomes whole when its waiter polls. It may count as held past its
   time, until somebody takes the name or it is extended once.
2. ``left`` of a grant counts from before the step's first exchange, and may be less than was asked.
3. BackendUnavailable: nothing of the whole step was applied. Once one exchange of it has changed
   something, or may have, a failure is OutcomeUnknown.
4. ``release`` of a request that is ``unsure`` undoes an acquire that may still be under way.
5. A payload is one request, never a client's compound helper.
6. Exchanges on one route are applied in the order sent, also after one that was cancelled.
7. No mutex is held across a ``yield``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockkit.engine.effects import Exchange, Step, at_once
from lockkit.model.checks import unknown_key
from lockkit.model.types import (
    Busy,
    Finding,
    Gone,
    Grant,
    LockInfo,
    Page,
    Release,
    Renewal,
    Request,
)

if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings
    from lockkit.stores.records import Records
    from lockkit.stores.wires import AsyncWire, Wire


class Store(ABC):
    """What every store can do. Names are valid lock names; the store adds the key prefix.

    Errors: BackendUnavailable when the request was certainly not applied, OutcomeUnknown when it
    was sent and no reply came.
    """

    most: int | None = None  #: claims that its process can have at once; None: any number

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: AliasSettings) -> Store:
        """Make one; no I/O. Unknown options raise ConfigurationError."""

    def for_asyncio(self) -> Store:
        """The one for another wire, of an event loop. Default: this very one, so that both have
        what it keeps in this process."""
        return self

    @abstractmethod
    def wire(self) -> Wire:
        """What performs its exchanges for threads; no I/O."""

    @abstractmethod
    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        """What performs its exchanges for the tasks of one event loop; no I/O.

        ``is_shared``: a blocking client uses this store as well, so nothing of it is closed."""

    @abstractmethod
    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        """One attempt."""

    @abstractmethod
    def release(self, request: Request) -> Step[Release]:
        """Give back whatever this token has: the claim; where ``queued``, also its place in the
        queue; where ``unsure``, also what an acquire that is still under way may get."""

    @abstractmethod
    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        """Set what is left of each to its ttl, in one or few round trips.

        An extension with a smaller number than the claim's last one changes nothing: its answer
        says what is left. An unreadable record is an error in its own answer, and in no other.
        """

    def renew(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        """As ``extend``, by the watchdog, which soon tries again what fails: nothing that delays
        the others is waited for. Default: ``extend``."""
        return self.extend(requests)

    def withdraw(self, request: Request) -> Step[Release]:
        """As ``release``, by the watchdog, like ``renew``. Default: ``release``."""
        return self.release(request)

    def ended(self, name: str, fence: int | None) -> Step[LockInfo | None]:
        """The last words of the lease with this fence. Default: none are kept."""
        return at_once(None)

    def check(self) -> Step[None]:
        """One cheap request; raises BackendError when the store is down. Default: none."""
        return at_once(None)

    def health(self) -> Step[list[Finding]]:
        """Dangers of the store's configuration to locks. Raises BackendError."""
        return at_once([])

    def database(self) -> str:
        """Which one of the store's it is, for people, where LOCATION does not say it; no I/O."""
        return ""

    def prefixes(self) -> Step[Mapping[str, bool | None]]:
        """The other key prefixes that clients have locked with there, and whether something of
        theirs is kept now; None: the store refuses to tell. Looks only. Default: not known."""
        return at_once({})

    def ddl(self) -> str:
        """The SQL that makes its tables, for those who make them by hand; no I/O. Empty: it needs
        none, or makes them itself."""
        return ""

    def create_table(self) -> None:  # noqa: B027  most need none
        """Make its tables, if they are not there. Blocks. Raises BackendError. Default: nothing."""

    def records(self) -> Records | None:
        """Records beside the locks, if this store can keep any; no I/O."""
        return None


class Waited(Store):
    """Claims wait in the store, which wakes one of them when the name is free, whichever."""

    @abstractmethod
    def wait(self, request: Request, seconds: float, busy: Busy) -> Step[Grant | None]:
        """Wait for a grant by message, at most so long; None: ask again.

        ``busy`` is the last answer; a message counts only for its ticket. The ``left`` of a grant
        by message counts from the moment at which the request with that answer was sent.
        """

    def listen(self, request: Request) -> Step[bool]:
        """Before it waits: whether a claim that was only tried may join the queue from now on.
        Default: it has done so at once."""
        return at_once(False)


class Direct(Waited):
    """An attempt and a release are an exchange each: those that end well need no step."""

    @abstractmethod
    def asked(self, request: Request) -> Exchange | None:
        """An attempt. None: this one takes more, and is left to ``acquire``."""

    def answered(self, request: Request, reply: Any) -> Grant | Busy | Gone | None:
        """None: ``acquire`` goes on with it. Default: the reply is the answer."""
        answer: Grant | Busy | Gone = reply
        return answer

    @abstractmethod
    def returned(self, request: Request) -> Exchange | None:
        """A release of what is not queued. None: as of ``asked``."""

    def taken_back(self, request: Request, reply: Any) -> Release:
        """Likewise."""
        answer: Release = reply
        return answer

    def unanswered(self, request: Request, error: BaseException) -> BaseException | None:
        """No answer comes. None: nothing was asked, and the step may do so."""
        return error


class Queued(Waited):
    """Claims wait in a queue of the store, and are granted in the order in which they joined it."""


class Pushed(Queued):
    """Its waiters are woken by messages, and need not poll."""


class Fenced(Store):
    """Grants carry a fencing token that grows strictly per name."""


class Shared(Store):
    """Claims that go together: semaphores and reader-writer locks."""


class Reentrant(Store):
    """Their owner may enter again, from any process. Elsewhere: within the process."""


class Buried(Store):
    """A release that is ``unsure`` leaves a tombstone. Elsewhere an acquire that arrives after it
    has the name for one TTL."""


class Durable(Store):
    """Leases survive a restart of the store."""


class ServerClock(Store):
    """One clock, the server's, decides for all hosts."""


class Sessioned(Store):
    """Leases end with a connection, and never later than one TTL after it fell silent."""


class Capped(Store):
    """Its leases last for less than they ask for, and are renewed as often as that needs."""


class ProcessLocal(Store):
    """Excludes only within this process."""


class HostLocal(Store):
    """Excludes only on this host."""


class Listed(Store):
    """Operators see what is held, and can release it."""

    @abstractmethod
    def page(self, name: str | None, cursor: Any = None) -> Step[Page]:
        """Some of the names that are held, abandoned or queued for, or just this one.

        It writes nothing. A name whose record cannot be read is ``damaged``; what another release
        wrote is raised after all the others.
        """

    @abstractmethod
    def break_(self, name: str, fence: int, by: str = "") -> Step[bool]:
        """An operator's release of exactly the holder with this fence. ``by``: who, and why."""

    def last_words(self, name: str | None = None) -> Step[list[LockInfo]]:
        """The words of at most a thousand leases that were not released in the last day; or those
        of one name. Default: none are kept."""
        return at_once([])

    def ended(self, name: str, fence: int | None) -> Step[LockInfo | None]:
        words = yield from self.last_words(name)
        return next((info for info in words if info.fence == fence), None)

    def repair(self, name: str) -> Step[bool]:
        """Delete what is kept of a name, in one step with the proof that it cannot be read.

        False: it can be read, so nothing was done. Default: nothing is ever damaged there.
        """
        return at_once(False)

    def check(self) -> Step[None]:
        yield from self.page("lockkit-check")


TRAITS: tuple[type[Store], ...] = (
    Waited,
    Queued,
    Pushed,
    Fenced,
    Shared,
    Reentrant,
    Buried,
    Listed,
    Durable,
    ServerClock,
    Sessioned,
    Capped,
    ProcessLocal,
    HostLocal,
)


ABLE = (
    "it can be done at memory://, sqlite://, redis://, and, without a mode, at postgresql://, "
    "mysql:// and mariadb://"
)
"""Said of what another store cannot do: stores with all the traits that anything is refused for."""


def traits_of(store: Store | type[Store]) -> frozenset[type[Store]]:
    """What a store declares."""
    kind = store if isinstance(store, type) else type(store)
    return frozenset(trait for trait in TRAITS if issubclass(kind, trait))


def reject_unknown_options(settings: AliasSettings, known: Sequence[str]) -> dict[str, Any]:
    """The options, or a ConfigurationError that names the first one this store does not have."""
    for key in settings.options:
        if key not in known:
            raise unknown_key(f"OPTIONS of the lock alias {settings.alias!r}", key, known)
    return dict(settings.options)
