"""What a step asks of the world: the whole of it. See ``stores.contract`` and ``runtime.run``.

A step is a generator. It yields effects, is sent what came of each, and returns its result; an
error of the store, an interrupt and a cancellation are thrown in at the ``yield``. So what is sent
and how a reply is read is written once, for threads and for tasks.
"""

from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

from lockkit.model.types import Request

R = TypeVar("R")


class Exchange(NamedTuple):
    """One request and its reply. The exchanges of one route are applied in the order in which they
    were sent, also after one that was cancelled; those of no route in any."""

    payload: Any  #: what the store and its wire agree on
    route: Hashable = None


class Gather(NamedTuple):
    """Exchanges of several lanes at once. It is over when no lane is under way, as soon as it is
    ``enough``, or after so many seconds; nobody waits for the replies that are still to come."""

    exchanges: Sequence[Exchange | None]  #: the first of each lane
    react: Callable[[int, Any], Exchange | None]
    """Gets a lane and its reply, or the error that came instead; returns the lane's next."""
    enough: Callable[[], bool]
    within: float
    is_last: bool = False  #: lanes that still connect when it is over are told as soon as they can


class Signal:
    """Set by any thread; waited for by one thread or task at a time.

    No mutex: the setter writes ``is_set`` before it reads ``wake``, the waiter writes ``wake``
    before it reads ``is_set``.
    """

    __slots__ = ("is_set", "wake")

    def __init__(self) -> None:
        self.is_set = False
        self.wake: Callable[[], object] | None = None

    def set(self) -> None:
        self.is_set = True
        if (wake := self.wake) is not None:
            wake()


class Park(NamedTuple):
    """Wait for the signal, at most so long."""

    signal: Signal
    seconds: float


class Listen(NamedTuple):
    """Have messages of the store come to this inbox from now on, until the wire is closed."""

    inbox: Any


class Later(NamedTuple):
    """Release this claim in the background, again and again until the store has heard of it, or it
    has expired: after the ttl, and that moment."""

    request: Request
    until: float = 0.0


class Made:
    """An exchange that was made before its step began: an attempt, or a release."""

    __slots__ = ("is_taken", "outcome", "sent")

    def __init__(self, sent: float, outcome: Any) -> None:
        self.sent = sent  #: of the local clock
        self.outcome = outcome  #: what the store says, or an error; None: it is still to be made
        self.is_taken = False  #: the step looks after what came of it

    def result(self) -> Any:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


Effect = Exchange | Gather | Park | Listen | Later
Step = Generator[Effect, Any, R]


def at_once(value: R) -> Step[R]:
    """A step that asks for nothing."""
    return value
    yield  # type: ignore[unreachable]  # which makes it a generator
