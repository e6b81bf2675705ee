"""An interrupt in a task while a worker thread makes its call: the next call on the same route, and
so on the same connection, waits for that one."""

from __future__ import annotations

import threading

import pytest
from interrupted_stores import MOST
from interrupting import Interrupting, watched

from lockkit.engine.effects import Exchange
from lockkit.runtime.aio_wires import ThreadWire
from lockkit.runtime.wires import Call

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

A_LITTLE = 0.02
"""Seconds. In these the next call would begin, if it did not wait."""


class Calls:
    """The first takes a little; the second tells it that it has begun."""

    def __init__(self) -> None:
        self._next = threading.Event()
        self.were_at_once = False

    def first(self) -> None:
        self.were_at_once = self._next.wait(A_LITTLE)

    def second(self) -> str:
        self._next.set()
        return "made"


async def test_a_route_is_used_by_one_call_at_a_time() -> None:
    wire = ThreadWire(lambda: None)
    with watched():
        for at in range(1, MOST):
            calls = Calls()
            with Interrupting(at) as interrupting:
                await wire.exchange(Exchange(Call(calls.first), at))
            assert await wire.exchange(Exchange(Call(calls.second), at)) == "made"
            await wire.close()
            assert not calls.were_at_once, interrupting.where
            if not interrupting.where:
                break
    assert at > 10
