"""The values that pass between clients, flows and backends.

Times are seconds (float) at every interface of lockkit, and integer microseconds inside stores.
They are named tuples: immutable, a third of the cost of a frozen dataclass to make, and without the
import of ``dataclasses``, which takes longer than all of lockkit.
"""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum
from typing import Final, NamedTuple

__all__ = [
    "UNSET",
    "Busy",
    "Capabilities",
    "Claim",
    "Claimed",
    "Entry",
    "Gone",
    "Grant",
    "Kind",
    "LeaseState",
    "LockInfo",
    "LockState",
    "Mode",
    "Owner",
    "Release",
    "Renewal",
    "Request",
    "Unset",
    "Waiting",
    "alive_for",
    "drift",
    "is_placed",
]


class Unset(Enum):
    """The type of UNSET: 'not given', which is not the same as None."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET

_SEPARATOR = "\x1f"
LONGEST_PID = 10  # digits; what is read may be anything


class Owner(NamedTuple):
    """Who holds or waits, for people to read. It proves nothing: the token does."""

    host: str
    pid: int
    thread: str
    label: str = ""
    space: str = ""  #: the boot, pid and time namespaces within which a pid means something
    started: str = ""  #: when the process did: another may get its pid

    def __str__(self) -> str:
        return f"{self.host}:{self.pid} {self.label}".rstrip()

    def encode(self) -> str:
        pid = str(self.pid)
        return _SEPARATOR.join((self.host, pid, self.thread, self.label, self.space, self.started))

    @classmethod
    def decode(cls, text: str) -> Owner:
        host, pid, thread, label, space, started = [*text.split(_SEPARATOR, 5), *[""] * 5][:6]
        number = int(pid) if pid.isdecimal() and len(pid) <= LONGEST_PID else 0
        return cls(host, number, thread, label, space, started)


class Mode(IntEnum):
    """What an acquire may do when the lock is busy."""

    TRY = 0  #: nothing
    ENQUEUE = 1  #: join the queue
    POLL = 2  #: ask again for a token that is in the queue; never joins it


class Kind(StrEnum):
    """What a name is used as. It is one kind at a time."""

    MUTEX = "mutex"
    SEMAPHORE = "semaphore"
    RW = "reader-writer"
    REENTRANT = "reentrant"

    def described(self, permits: int) -> str:
        """For people: ``a semaphore of 3``."""
        if self is Kind.SEMAPHORE:
            return f"a semaphore of {permits}"
        return f"a {self.value}" if self is Kind.MUTEX else f"a {self.value} lock"


class LeaseState(StrEnum):
    """What its holder knows of a lease."""

    HELD = "held"
    UNKNOWN = "unknown"  #: its last renewal failed; its deadline has not passed
    LOST = "lost"  #: it can no longer be relied on. Final; also what was released


class Claim(NamedTuple):
    """What is asked of a name."""

    kind: Kind = Kind.MUTEX
    permits: int = 0  #: how many may share the name; 0: no limit of its own
    shared: bool = False  #: it goes together with other shared ones; else it excludes all
    owner: str = ""  #: who may enter again; nobody named: the thread or the task
    fair: bool = True  #: it waits for its turn; else it takes what is free ahead of those who wait


class Request(NamedTuple):
    """One claim on one name, as a backend sees it. ``token`` proves it and must not be shown."""

    name: str
    token: str
    ttl: float  #: seconds the lease lives without renewal
    owner: str  #: an encoded Owner
    mode: Mode = Mode.TRY
    max_queue: int | None = None  #: refuse to join a queue of this length
    max_hold: float | None = None  #: seconds the holder means to renew it at most
    unsure: bool = False  #: an earlier request with this token got no reply
    number: int = 0  #: of an extension: once a later one is done, it is not done any more
    kind: Kind = Kind.MUTEX  #: this and what follows: see Claim
    permits: int = 0
    shared: bool = False
    entrant: str = ""  #: who may enter again what it holds; printable, without spaces
    fair: bool = True

    def __repr__(self) -> str:
        return f"Request(name={self.name!r}, mode={self.mode.name}, ttl={self.ttl:g})"


class Grant(NamedTuple):
    """The claim is ours for ``left`` more seconds of the store's clock."""

    token: str
    fence: int
    left: float

    def __repr__(self) -> str:
        return f"Grant(fence={self.fence}, left={self.left:.3f})"


class Busy(NamedTuple):
    """The claim is not ours."""

    ticket: int = 0  #: of our enqueueing; 0: not in the queue
    ahead: int = 0  #: waiters ahead of us
    left: float | None = None  #: seconds until the holder expires; None: unknown or never
    holder: str = ""  #: encoded Owner of the holder, if known
    full: bool = False  #: MAX_QUEUE reached
    age: float | None = None  #: seconds since the holder's grant, if known


class Gone(NamedTuple):
    """The store does not know this token (any more): draw a new one."""


class Renewal(NamedTuple):
    """The answer to one extend: seconds left, or None when the lease is not ours any more.

    ``error``: the store keeps something unreadable in its place, so it is neither. Others of the
    same batch have their own answers.
    """

    left: float | None
    error: Exception | None = None


def is_placed(reply: object) -> bool:
    """Whether the store that replied so to a claim knows its token now."""
    return isinstance(reply, Grant) or (isinstance(reply, Busy) and reply.ticket > 0)


class Release(IntEnum):
    """The answer to a release."""

    ABSENT = 0  #: it was not there, or had expired
    RELEASED = 1
    BROKEN = 2  #: an operator released it before us


class LockState(StrEnum):
    """What ``locks`` shows in its STATE column."""

    HELD = "held"
    ABANDONED = "abandoned"  #: the lease expired and nobody released or took it
    LOST = "lost"  #: its last words: the lease was not released, and is no longer kept
    QUEUED = "queued"  #: nobody holds it, somebody is in the queue
    DAMAGED = "damaged"  #: what is kept of it cannot be read, so it may be held
    ORPHAN = "orphan"  #: an order was begun, nobody holds its lock, and its end is not known


class Claimed(IntEnum):
    """The answer to a claim."""

    NOT_HELD = -1  #: the lease is not held any more; nothing was written
    TAKEN = 0  #: there is another record; nothing was written
    WRITTEN = 1


class Entry(NamedTuple):
    """A record beside a lock: opaque bytes, and the lease they were written under."""

    payload: bytes
    fence: int
    running: bool  #: claimed, and neither finished nor dropped
    left: float  #: seconds until it expires


class Waiting(NamedTuple):
    """One in a queue."""

    owner: Owner
    since: float  #: seconds it has waited
    alive: bool  #: it was heard of lately


class LockInfo(NamedTuple):
    """One name as the store sees it at this moment. Holds no token.

    A name that several hold has one of these for each; those who wait are counted in all of them.
    """

    name: str
    state: LockState
    owner: Owner | None = None
    fence: int | None = None
    age: float | None = None  #: seconds since the grant
    left: float | None = None  #: seconds until it expires; negative: since; None: it never does
    renewed: float | None = None  #: seconds since the grant or the last renewal
    ttl: float | None = None  #: seconds
    max_hold: float | None = None  #: seconds the holder means to renew it at most
    waiters: int = 0
    waiters_alive: int = 0
    kind: Kind = Kind.MUTEX
    permits: int = 0  #: of a semaphore: how many its holder asked for
    shared: bool = False  #: others may hold it at the same time
    queue: tuple[Waiting, ...] = ()  #: those who are first in it
    damage: str = ""  #: what cannot be read, and what repairs it
    broken_by: str = ""  #: of last words: the operator who released it, and why

    @property
    def waiting(self) -> float | None:
        """Seconds for which the first of the live waiters has waited."""
        return next((each.since for each in self.queue if each.alive), None)

    @property
    def used_as(self) -> str:
        """The kind, for people: ``semaphore 3``."""
        return f"{self.kind.value} {self.permits}" if self.permits else self.kind.value


class Capabilities(NamedTuple):
    """What a backend promises. The conformance suite tests what is claimed here."""

    fencing: bool = True  #: fencing tokens that grow strictly per name
    fifo: bool = True  #: grants in the order of enqueueing
    push: bool = False  #: a waiter is woken by a message and need not poll
    server_clock: bool = True  #: a store shared by hosts decides by one clock
    durable: bool = False  #: leases survive a restart of the store
    process_local: bool = False  #: excludes only within this process
    host_local: bool = False  #: excludes only on this host
    shared: bool = True  #: claims that go together: semaphores, reader-writer locks
    reentrant: bool = True  #: locks that their owner may enter again


def drift(ttl: float) -> float:
    """Seconds by which the holder gives up before the store does (Redlock's rule: 1 % + 2 ms)."""
    return ttl / 100 + 0.002


def alive_for(ttl: float) -> float:
    """Seconds a waiter counts as alive after it was last heard of; it refreshes twice as often.

    A dead waiter at the head of the queue delays the others by at most this long.
    """
    return min(max(ttl / 3, 0.5), 3.0)
