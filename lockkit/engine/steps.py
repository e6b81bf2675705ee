"""What a flow asks its driver to do, and what the driver tells it: see ``flow``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lockkit.model.errors import OutcomeUnknown
from lockkit.model.types import Busy, Request

__all__ = [
    "METHODS",
    "Abandon",
    "Attempt",
    "Extend",
    "Free",
    "Granted",
    "Reply",
    "Step",
    "Wait",
    "Withdraw",
    "broke_off",
]


class Attempt(NamedTuple):
    """Ask the store for the claim. Reply: Grant, Busy, Gone or a BackendError."""

    request: Request


class Wait(NamedTuple):
    """Wait for a message, at most so many seconds. Reply: Grant, None or a BackendError."""

    request: Request
    seconds: float
    busy: Busy


class Withdraw(NamedTuple):
    """Leave the queue or give the grant back. Reply: None or a BackendError."""

    request: Request


class Abandon(NamedTuple):
    """Have the watchdog withdraw, later and until it succeeds. Reply: None."""

    request: Request


class Free(NamedTuple):
    """Release. Reply: Release or a BackendError."""

    request: Request


class Extend(NamedTuple):
    """Extend many. Reply: a Renewal each, or a BackendError."""

    requests: Sequence[Request]


class Why(NamedTuple):
    """How a lease ended. Reply: its last words, None, or a BackendError."""

    name: str
    fence: int


Step = Attempt | Wait | Withdraw | Abandon | Free | Extend | Why

METHODS: dict[type[Step], str] = {
    Attempt: "acquire",
    Wait: "wait",
    Withdraw: "withdraw",
    Free: "release",
    Extend: "extend",
    Why: "ended",
}
"""The backend's method for a step; the fields of the step are its arguments."""


class Reply(NamedTuple):
    """What came of a step; the local clock before it was sent, and after."""

    value: Any
    sent: float
    now: float


class Granted(NamedTuple):
    """The end of a successful acquire."""

    request: Request
    fence: int
    deadline: float  #: of the local clock; past it the lease is lost
    now: float
    whole: bool = True  #: granted for its whole ttl


RETRY_WITHIN = 0.5
"""Seconds: a request that failed faster than this broke off (the connection was stale, the server
restarted) and is tried once more at once; a slower one timed out, and the caller hears of it."""


def broke_off(reply: Reply) -> bool:
    """Whether the request may be tried again at once: its connection ended without a reply."""
    return isinstance(reply.value, OutcomeUnknown) and reply.now - reply.sent < RETRY_WITHIN
