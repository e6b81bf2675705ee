"""Wires that any store can use: for what is in this process, and for drivers that block.

A payload is a call: ``Call(function, lane)``. For tasks each runs in a worker thread; the lanes
have threads of their own: where each step of a slow store takes its time, hundreds of claims that
ask again and again hold up neither those that release nor what is renewed.
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
    ASKING = 0
    ENDING = 1
    RENEWING = 2


THREADS = {Lane.ASKING: 4, Lane.ENDING: 2, Lane.RENEWING: 1}


TURN_SECONDS = 10.0
"""What a call waits for those of other threads or tasks before it: as long as one can take."""


class Call(NamedTuple):
    """A payload: blocking, and over soon."""

    function: Callable[[], Any]
    lane: Lane = Lane.ASKING


def call(function: Callable[[], R], lane: Lane = Lane.ASKING, route: Hashable = None) -> Step[R]:
    """The step of one call."""
    reply: R = yield Exchange(Call(function, lane), route)
    return reply


def park(signal: Signal, seconds: float) -> None:
    """Sleep in this thread until the signal is set, at most so long."""
    wake = native.Wake(threading.Lock)
    signal.wake = wake.set
    if not signal.is_set:
        wake.wait(max(seconds, 0.0))


class CallWire:
    """Calls in the thread that asks."""

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
