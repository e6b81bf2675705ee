"""A store: a few steps, each atomic in the store. Its traits, what it can do, are base classes.

To write one: subclass Store and the traits that it keeps, and subclass
``lockkit.testing.conformance.StoreConformance`` in your tests. docs/writing-a-store.md has a
complete example, and the rules. A step does not loop, retry or wait long: ``engine`` does that, for
all stores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
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

UNUSED = ", where nobody has ever locked"
"""The end of what ``Store.database`` says of a file that is missing or empty."""


class Store(ABC):
    """Base class of all stores. Names are valid lock names; the store adds the key prefix.

    Errors: BackendUnavailable when the request was certainly not applied, OutcomeUnknown when it
    was sent and no reply came.
    """

    most: int | None = None  #: how many claims this process can have at once; None: any number

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: AliasSettings) -> Store:
        """Make one; no I/O. Unknown options raise ConfigurationError."""

    def for_asyncio(self) -> Store:
        """The store for asyncio clients. Default: this one, so that blocking and asyncio clients
        share what it keeps in this process. A Sessioned store makes another one: a client that is
        closed must not end the leases of the other."""
        return self

    @abstractmethod
    def wire(self) -> Wire:
        """Make the wire for threads; no I/O."""

    @abstractmethod
    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        """Make the wire for the tasks of one event loop; no I/O.

        ``is_shared``: it is for a client beside a blocking one, so it leaves open what both use."""

    @abstractmethod
    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        """One attempt, which does not wait."""

    @abstractmethod
    def release(self, request: Request) -> Step[Release]:
        """Give back what this token has: the claim; if ``queued``, also its place in the queue; if
        ``unsure``, also what an acquire that is still under way may get."""

    @abstractmethod
    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        """Set the time left of each claim that is not over to its ttl, in a few round trips.

        An extension with a smaller number than the claim's last one changes nothing: its answer
        is the time left. An unreadable record is an error in its own answer, and in no other.
        """

    def renew(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        """Like ``extend``, for the watchdog, which soon retries a failure. So do not wait for
        anything that delays the other leases. Default: ``extend``."""
        return self.extend(requests)

    def withdraw(self, request: Request) -> Step[Release]:
        """Like ``release``, for the watchdog: see ``renew``. Default: ``release``."""
        return self.release(request)

    def ended(self, name: str, fence: int | None) -> Step[LockInfo | None]:
        """The last words of the lease with this fence. Default: none are kept."""
        return at_once(None)

    def check(self) -> Step[None]:
        """One cheap request; raises BackendError when the store is down. Default: none."""
        return at_once(None)

    def health(self) -> Step[list[Finding]]:
        """Dangers to locks in the store's configuration. Raises BackendError."""
        return at_once([])

    def server_of(self, name: str) -> Hashable:
        """The one of its servers that has this name, as far as is known; no I/O. Default: None."""
        return None

    def database(self) -> str:
        """Which database it is, for people, if LOCATION does not say so; no I/O."""
        return ""

    def is_within_process(self) -> bool:
        """Whether it excludes only within this process; no I/O. Default: if it is ProcessLocal."""
        return isinstance(self, ProcessLocal)

    def is_relative(self) -> bool:
        """Whether another working directory leads to another store; no I/O. Default: False."""
        return False

    def prefixes(self) -> Step[Mapping[str, bool | None] | None]:
        """The other key prefixes with which clients have locked here. For each: whether it has
        anything now; None if the server refuses to tell. Writes nothing. Default: None, unknown."""
        return at_once(None)

    def ddl(self) -> str:
        """The SQL that makes its tables, for those who make them by hand; no I/O. Default: none."""
        return ""

    def create_table(self) -> None:  # noqa: B027  most need none
        """Make its tables, if they are missing. Blocks. Raises BackendError. Default: nothing."""

    def records(self) -> Records | None:
        """Records beside the locks, if this store can keep any; no I/O."""
        return None


class Waited(Store):
    """Claims can wait. When the name becomes free, one of them is woken, in any order."""

    @abstractmethod
    def wait(self, request: Request, seconds: float, busy: Busy) -> Step[Grant | None]:
        """Wait for a grant by message, for ``seconds`` at most. None: ask again.

        ``busy`` is the last answer; a message counts only if it is for that ticket. The ``left`` of
        a grant by message counts from the moment at which the request with that answer was sent.
        """

    def listen(self, request: Request) -> Step[bool]:
        """Called before a claim waits. True: the last attempt did not join the queue, and the next
        one will, so ask again. Default: False, the claim has joined already."""
        return at_once(False)


class Direct(Waited):
    """An attempt and a release are one exchange each. If it succeeds, the client needs no step.

    That is quicker, but users can do nothing more with it, so it is not among ``TRAITS``.
    """

    @abstractmethod
    def asked(self, request: Request) -> Exchange | None:
        """The exchange of an attempt. None: this one needs several, so use ``acquire``."""

    def answered(self, request: Request, reply: Any) -> Grant | Busy | Gone | None:
        """The answer in the reply; None: ``acquire`` goes on. Default: the reply itself."""
        answer: Grant | Busy | Gone = reply
        return answer

    @abstractmethod
    def returned(self, request: Request) -> Exchange | None:
        """The exchange of a release of a lease. None: it needs several, so use ``release``."""

    def taken_back(self, request: Request, reply: Any) -> Release:
        """The answer in the reply. Default: the reply itself."""
        answer: Release = reply
        return answer

    def unanswered(self, request: Request, error: BaseException) -> BaseException | None:
        """Called when the exchange fails with this error. Returns the one that the step raises;
        None: the step asks the store again."""
        return error


class Queued(Waited):
    """Claims wait in a queue of the store, and are granted in the order in which they joined it."""


class Pushed(Queued):
    """Waiters are woken by messages, and need not poll."""


class Fenced(Store):
    """Grants carry a fencing token that grows strictly per name."""


class Shared(Store):
    """Several claims may hold one name: semaphores, reader-writer locks. Such a store is Waited."""


class Reentrant(Store):
    """An owner may enter again from any process. Without this trait: only within one client."""


class Buried(Store):
    """A release that is ``unsure`` leaves a tombstone, which refuses the token. Without this trait,
    an acquire that arrives after the release holds the name for one TTL."""


class Durable(Store):
    """Leases survive a restart of the store."""


class ServerClock(Store):
    """One clock, the server's, decides for all hosts."""


class Sessioned(Store):
    """Leases end with a connection, and never later than one TTL after it fell silent."""


class Capped(Store):
    """Leases may be granted for less than the requested ttl, and are then renewed more often."""


class ProcessLocal(Store):
    """Excludes only within this process."""


class HostLocal(Store):
    """Excludes only on this host."""


class Listed(Store):
    """Operators see what is held, and can release it by its fence: such a store is Fenced, too."""

    @abstractmethod
    def page(self, name: str | None, cursor: Any = None) -> Step[Page]:
        """Some of the names that are held, abandoned or queued for, or just this one.

        It writes nothing. If a record that the steps need cannot be read, its name is listed as
        ``damaged``. If another version of lockkit wrote it, LayoutMismatch is raised at the end.
        """

    @abstractmethod
    def break_(self, name: str, fence: int, by: str = "") -> Step[bool]:
        """An operator releases the holder with this fence, and no other. ``by``: who, and why.
        False: there is no such holder any more."""

    def last_words(self, name: str | None = None) -> Step[list[LockInfo]]:
        """The last words of leases that ended without a release in the last day, and of repairs: of
        a thousand names at most, or those of one name. Default: none are kept."""
        return at_once([])

    def ended(self, name: str, fence: int | None) -> Step[LockInfo | None]:
        words = yield from self.last_words(name)
        return next((info for info in words if info.fence == fence), None)

    def repair(self, name: str, by: str = "", shown: LockInfo | None = None) -> Step[bool]:
        """Delete the record of a name if it cannot be read. Check and deletion are atomic. ``by``:
        who, and why, for the last words of the name. ``shown``: what the operator has seen, for a
        store that can repair more. False, the default: it can be read."""
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


def traits_of(store: Store | type[Store]) -> frozenset[type[Store]]:
    """The traits that a store declares."""
    kind = store if isinstance(store, type) else type(store)
    return frozenset(trait for trait in TRAITS if issubclass(kind, trait))


def reject_unknown_options(settings: AliasSettings, known: Sequence[str]) -> dict[str, Any]:
    """The options, or a ConfigurationError that names the first one this store does not have."""
    for key in settings.options:
        if key not in known:
            raise unknown_key(f"OPTIONS of {settings.title}", key, known)
    return dict(settings.options)
