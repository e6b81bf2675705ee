"""Effects: what a step can ask its runner to do.

A step is a generator. It yields effects, is sent the outcome of each, and returns its result. An
error of the store, an interrupt or a cancellation is thrown in at the ``yield``. So the code that
sends requests and reads replies is written once, for threads and for tasks. ``stores.contract``
lists the steps of a store. ``runtime.run`` and ``runtime.aio_run`` perform effects.

An error refers to the frames that it was raised in, and these to the frames of their callers. If
one of them refers to the error, too, all that the callers' frames refer to stays until the garbage
collector finds it. So no variable keeps an error that was raised where the variable is.
"""

from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

from lockkit.model.types import Request

R = TypeVar("R")


class Exchange(NamedTuple):
    """One request and its reply. Exchanges on the same route are applied in the order in which they
    are sent, even if one is cancelled. Without a route, they are applied in any order."""

    payload: Any  #: the request, in a form on which the store and its wire agree
    route: Hashable = None


class Gather(NamedTuple):
    """Exchanges in several lanes at once: a lane is one of the store's servers. It ends when no
    lane is under way, when ``enough()`` is true, or after ``within`` seconds. It does not wait for
    replies that are still to come then."""

    exchanges: Sequence[Exchange | None]  #: the first of each lane
    react: Callable[[int, Any], Exchange | None]
    """Takes the number of a lane and its reply, or the error that came instead. Returns the next
    exchange of this lane; None: there is none."""
    enough: Callable[[], bool]
    within: float
    is_last: bool = False
    """True: a lane that is still connecting at the end sends its exchange when it has connected."""


class Signal:
    """Set by any thread; waited for by one thread or task at a time.

    It needs no mutex: the setter writes ``is_set`` before it reads ``wake``, the waiter writes
    ``wake`` before it reads ``is_set``. So one of them sees what the other has written.
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
    """Release this claim in the background. Repeat that until it succeeds, or until the claim has
    expired by itself: its ttl has passed, and so has the moment ``until``."""

    request: Request
    until: float = 0.0


class Made:
    """An exchange (an acquire or a release) that the client made before it began the step, which is
    quicker. The step goes on with its outcome."""

    __slots__ = ("is_taken", "outcome", "sent")

    def __init__(self, sent: float, outcome: Any) -> None:
        self.sent = sent  #: when, by the local clock
        self.outcome = outcome  #: the store's answer, or an error; None: the step asks the store
        self.is_taken = False  #: the step is now responsible for the outcome

    def result(self) -> Any:
        """Return or raise the outcome, once. After that, it is None."""
        if isinstance(self.outcome, BaseException):
            raise self._taken()
        return self._taken()

    def _taken(self) -> Any:
        outcome, self.outcome = self.outcome, None
        return outcome


Effect = Exchange | Gather | Park | Listen | Later
Step = Generator[Effect, Any, R]


def at_once(value: R) -> Step[R]:
    """A step that asks for nothing, and returns this value."""
    return value
    yield  # type: ignore[unreachable]  # makes this function a generator
