"""Wires that any store can use: for stores in this process, and for drivers that block.

A payload is a call: ``Call(function, lane)``. For tasks, each call runs in a worker thread. Each
lane has threads of its own. So if a store is slow, hundreds of claims that ask again and again do
not hold up releases and renewals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from lockkit.engine.effects import Exchange, Listen, Park, Signal, Step
from lockkit.runtime import native

R = TypeVar("R")


class Lane(IntEnum):
    """Which threads make a call, if it is made for a task."""

    ASKING = 0
    ENDING = 1
    RENEWING = 2


THREADS = {Lane.ASKING: 4, Lane.ENDING: 2, Lane.RENEWING: 1}


TURN_SECONDS = 10.0
"""How long a call waits for the calls of others before it: about as long as one may take."""


class Call(NamedTuple):
    """A payload: a function that may block, but not for long."""

    function: Callable[[], Any]
    lane: Lane = Lane.ASKING


def call(function: Callable[[], R], lane: Lane = Lane.ASKING, route: Hashable = None) -> Step[R]:
    """The step of one call."""
    reply: R = yield Exchange(Call(function, lane), route)
    return reply


def park(signal: Signal, seconds: float) -> None:
    """Sleep in this thread until the signal is set, for ``seconds`` at most."""
    wake = native.Wake(threading.Lock)
    signal.wake = wake.set
    if not signal.is_set:
        wake.wait(max(seconds, 0.0))


class CallWire:
    """Makes calls in the thread that asks."""

    def __init__(self, close: Callable[[], object] = lambda: None) -> None:
        """``close``: closes what the calls have opened."""
        self._close = close

    def exchange(self, exchange: Exchange) -> Any:
        return exchange.payload.function()

    def park(self, effect: Park) -> None:
        park(effect.signal, effect.seconds)

    def listen(self, effect: Listen) -> None:
        """Nothing to do: signals are set within this process."""

    def close(self) -> None:
        self._close()
