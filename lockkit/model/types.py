"""The values that pass between clients, steps and stores.

Times are seconds (float) at every interface of lockkit, and integer microseconds inside stores.
The values are named tuples. They are immutable, and made in a third of the time that a frozen
dataclass takes. They do not need ``dataclasses``, which takes longer to import than all of lockkit.
Annotations are not strings here: ``typing`` would have to compile those, which would take a quarter
of the import time.
"""

from collections.abc import Callable
from enum import Enum, IntEnum, StrEnum
from typing import Any, Final, NamedTuple, Self

from lockkit.model.errors import LockError


class Unset(Enum):
    """The type of UNSET: 'not given', which is not the same as None."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET

_SEPARATOR = "\x1f"
LONGEST_PID = 10  # digits; an owner that is read from a store may be any text


class Owner(NamedTuple):
    """The holder or waiter, for people to read. It proves nothing: the token does."""

    host: str
    pid: int
    thread: str
    label: str = ""
    space: str = ""  #: the boot and the namespaces within which the pid means something
    started: str = ""  #: when the process started: a later process may have the same pid

    def __str__(self) -> str:
        return f"{self.host}:{self.pid} {self.label}".rstrip()

    def encode(self) -> str:
        pid = str(self.pid)
        return _SEPARATOR.join((self.host, pid, self.thread, self.label, self.space, self.started))

    @classmethod
    def decode(cls, text: str) -> Self:
        host, pid, thread, label, space, started = [*text.split(_SEPARATOR, 5), *[""] * 5][:6]
        number = int(pid) if pid.isdecimal() and len(pid) <= LONGEST_PID else 0
        return cls(host, number, thread, label, space, started)


class Mode(IntEnum):
    """What an acquire may do if the lock is busy."""

    TRY = 0  #: nothing
    ENQUEUE = 1  #: join the queue
    POLL = 2  #: ask again for a token that is in the queue, without joining it


class Kind(StrEnum):
    """How a name is used. A name is one kind at a time."""

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
    """The state of a lease, as far as its holder knows."""

    HELD = "held"
    UNKNOWN = "unknown"  #: its last renewal failed, but its deadline has not passed
    LOST = "lost"  #: it can no longer be relied on, or was released. Final


class Usage(NamedTuple):
    """The way in which a name is requested."""

    kind: Kind = Kind.MUTEX
    permits: int = 0  #: how many may share the name; 0: it sets no limit
    shared: bool = False  #: compatible with other shared claims; otherwise it excludes all
    owner: str = ""  #: the text whose users may enter again; empty: the thread or the task
    fair: bool = True  #: waits for its turn; otherwise takes a free name ahead of the waiters


class Request(NamedTuple):
    """One claim on one name, as a store sees it. ``token`` proves it; never show it."""

    name: str
    token: str
    ttl: float  #: seconds the lease lives without renewal
    owner: str  #: an encoded Owner
    mode: Mode = Mode.TRY
    max_queue: int | None = None  #: refuse to join a queue of this length
    max_hold: float | None = None  #: for how many seconds the holder renews it at most
    unsure: bool = False  #: an earlier request with this token got no reply
    number: int = 0  #: of an extension: the store ignores one that comes after a larger number
    kind: Kind = Kind.MUTEX  #: for this and the following fields see Usage
    permits: int = 0
    shared: bool = False
    entrant: str = ""  #: the key of those that may enter again; printable, without spaces
    fair: bool = True
    queued: bool = False  #: in a release: the token may have only a place in the queue

    def __repr__(self) -> str:
        return f"Request(name={self.name!r}, mode={self.mode.name}, ttl={self.ttl:g})"


class Terms(NamedTuple):
    """The checked options of a lock, for any name."""

    usage: Usage
    ttl: float
    timeout: float | None
    on_lost: Callable[[Any], object] | None = None


class Grant(NamedTuple):
    """The claim is granted for ``left`` more seconds of the store's clock."""

    token: str
    fence: int | None  #: None: the store has none
    left: float

    def __repr__(self) -> str:
        return f"Grant(fence={self.fence}, left={self.left:.3f})"


class Granted(NamedTuple):
    """The result of a successful acquire."""

    request: Request
    fence: int | None
    deadline: float  #: of the local clock; past it the lease is lost
    now: float  #: of the local clock: when the grant was received
    whole: bool = True  #: granted for its whole ttl


class Busy(NamedTuple):
    """The claim is not granted."""

    ticket: int = 0  #: of its enqueueing; 0: it is not in the queue
    ahead: int = 0  #: waiters ahead of it
    left: float | None = None  #: seconds until the holder expires; None: unknown or never
    holder: str = ""  #: encoded Owner of the holder, if known
    full: bool = False  #: MAX_QUEUE is reached
    age: float | None = None  #: seconds since the holder's grant, if known
    sessions: int = 0  #: how many this process has, if all are in use: it did not ask the store


class Gone(NamedTuple):
    """The store does not know this token, or refuses it from now on: draw a new one."""


class Renewal(NamedTuple):
    """The answer to one extend: the seconds left, or None if the lease is not held any more.

    ``error``: the record cannot be read or written now, so it is not known whether the lease is
    extended or lost. The other leases of the same batch have answers of their own.
    """

    left: float | None
    error: LockError | None = None


class Release(IntEnum):
    """The answer to a release."""

    ABSENT = 0  #: the lease was not there, or had expired
    RELEASED = 1
    BROKEN = 2  #: an operator released it before


class LockState(StrEnum):
    """The STATE column of ``locks``."""

    HELD = "held"
    ABANDONED = "abandoned"  #: the lease expired, and nobody released or took it
    LOST = "lost"  #: the last words of a lease that was not released and is gone
    QUEUED = "queued"  #: nobody holds it, but somebody is in the queue
    DAMAGED = "damaged"  #: its record cannot be read, so it may be held
    ORPHAN = "orphan"  #: an order was begun, nobody holds its lock, and its end is not known


REPAIRED = "repaired its record: "
"""The last words of a name begin like this if an operator has repaired its record, so that nothing
is known of a holder."""


class ClaimReply(IntEnum):
    """The answer to ``Records.claim``."""

    NOT_HELD = -1  #: nothing was written, because the lease is not held any more
    TAKEN = 0  #: nothing was written, because there is another record
    WRITTEN = 1


class StoredRecord(NamedTuple):
    """A record beside a lock: opaque bytes, and the lease under which they were written."""

    payload: bytes
    fence: int
    running: bool  #: claimed, but neither finished nor dropped
    left: float  #: seconds until it expires

    def __repr__(self) -> str:
        return f"StoredRecord(fence={self.fence}, running={self.running}, left={self.left:.3f})"


class Waiting(NamedTuple):
    """One waiter in a queue."""

    owner: Owner
    since: float  #: seconds it has waited
    alive: bool  #: it has asked the store recently


class LockInfo(NamedTuple):
    """One name as the store sees it at this moment. It contains no token.

    A name that several leases hold has a LockInfo for each; all of them count its waiters.
    """

    name: str
    state: LockState
    owner: Owner | None = None
    fence: int | None = None
    age: float | None = None  #: seconds since the grant
    left: float | None = None  #: seconds until it expires; negative after that; None: never
    renewed: float | None = None  #: seconds since the grant or the last renewal
    ttl: float | None = None  #: seconds
    max_hold: float | None = None  #: for how many seconds the holder renews it at most
    waiters: int = 0
    waiters_alive: int = 0
    kind: Kind = Kind.MUTEX
    permits: int = 0  #: if it is a semaphore: the number that its holder asked for
    shared: bool = False  #: others may hold it at the same time
    queue: tuple[Waiting, ...] = ()  #: the first waiters
    mark: str = ""  #: tells a lease from later ones where it may have no fence and no TTL
    damage: str = ""  #: the part that cannot be read, and the command that repairs it
    broken_by: str = ""  #: in last words: the operator who released or repaired it, and why

    @property
    def waiting(self) -> float | None:
        """Seconds that the first live waiter has waited; at most, if ``queue`` shows none."""
        alive = [each for each in self.queue if each.alive] or self.queue[-1:]
        return alive[0].since if self.waiters_alive and alive else None

    @property
    def used_as(self) -> str:
        """The kind, for people: ``semaphore 3``."""
        return f"{self.kind.value} {self.permits}" if self.permits else self.kind.value


class Page(NamedTuple):
    """Some rows of a listing."""

    infos: list[LockInfo]
    cursor: Any = None  #: where the next page begins; None: this is the last one


class Finding(NamedTuple):
    """A fault or danger in settings, routes or a store: a sentence, and what to do."""

    code: str  #: by which an adapter decides how serious it is
    text: str
    remedy: str
