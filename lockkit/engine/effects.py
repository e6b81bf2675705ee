"""Effects: all that a step can ask for. See ``stores.contract`` and ``runtime.run``.

A step is a generator. It yields effects, is sent the outcome of each, and returns its result. An
error of the store, an interrupt or a cancellation is thrown in at the ``yield``. So what is sent
and how a reply is read is written once, for threads and for tasks.
"""

from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

from lockkit.model.types import Request

R = TypeVar("R")


class Exchange(NamedTuple):
    """One request and its reply. Exchanges on one route are applied in the order sent, also after
    one that was cancelled. Without a route, they are applied in any order."""

    payload: Any  #: what the store and its wire agree on
    route: Hashable = None


class Gather(NamedTuple):
    """Exchanges in several lanes at once. It is over when no lane is under way, when ``enough()``
    is true, or after ``within`` seconds. Replies that are still to come are not waited for."""

    exchanges: Sequence[Exchange | None]  #: the first of each lane
    react: Callable[[int, Any], Exchange | None]
    """Gets a lane and its reply, or the error that came instead; returns the lane's next."""
    enough: Callable[[], bool]
    within: float
    is_last: bool = False  #: lanes still connecting at the end send theirs when they are connected


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
    """Wait for the signal, for ``seconds`` at most."""

    signal: Signal
    seconds: float


class Listen(NamedTuple):
    """Put messages of the store into this inbox from now on, until the wire is closed."""

    inbox: Any


class Later(NamedTuple):
    """Release this claim in the background. Try again until the store has heard of it, or the claim
    has expired: both its ttl and ``until`` have passed."""

    request: Request
    until: float = 0.0


class Made:
    """An exchange that was made before its step began: an attempt, or a release."""

    __slots__ = ("is_taken", "outcome", "sent")

    def __init__(self, sent: float, outcome: Any) -> None:
        self.sent = sent  #: of the local clock
        self.outcome = outcome  #: the store's answer, or an error; None: the step asks by itself
        self.is_taken = False  #: the step takes care of the outcome

    def result(self) -> Any:
        """The outcome, once: from then on, the step asks by itself."""
        outcome, self.outcome = self.outcome, None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


Effect = Exchange | Gather | Park | Listen | Later
Step = Generator[Effect, Any, R]


def at_once(value: R) -> Step[R]:
    """A step that asks for nothing."""
    return value
    yield  # type: ignore[unreachable]  # which makes it a generator
