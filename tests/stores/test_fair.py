"""The queue of this process, where the store has none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from lockkit.engine.effects import Exchange
from lockkit.model.types import Busy, Mode, Request
from lockkit.stores.fair import FairQueue
from lockkit.testing.conformance.steps import claim


class Held:
    """A store in which somebody else has every name."""

    def acquire(self, request: Request) -> Iterator[Exchange]:
        yield Exchange(request.name)
        return Busy()


def test_the_queue_has_an_end_for_those_who_come_at_once() -> None:
    """All of them find nobody in it, and ask the store."""
    queue: Any = FairQueue(Held())  # type: ignore[arg-type]  # all that it is asked for
    request = claim("n", Mode.ENQUEUE)._replace(max_queue=1)
    steps = [queue.acquire(request._replace(token=token * 32)) for token in "abc"]
    for step in steps:
        assert isinstance(next(step), Exchange)
    replies = [result(step) for step in steps]
    assert [reply.ticket for reply in replies] == [1, 0, 0]
    assert [reply.full for reply in replies] == [False, True, True]


class Apart(Held):
    """On several servers, and with ways of its own for the watchdog."""

    def renew(self, requests: Sequence[Request]) -> Iterator[Exchange]:
        yield Exchange(f"renew {len(requests)}")

    def withdraw(self, request: Request) -> Iterator[Exchange]:
        yield Exchange(f"withdraw {request.name}")

    def server_of(self, name: str) -> str:
        return f"that of {name}"


def test_the_watchdog_reaches_the_store_through_it() -> None:
    queue: Any = FairQueue(Apart())  # type: ignore[arg-type]  # all that it is asked for
    steps = [queue.renew([claim("n")]), queue.withdraw(claim("n"))]
    assert [next(step).payload for step in steps] == ["renew 1", "withdraw n"]
    assert queue.server_of("n") == "that of n"


def result(step: Iterator[Any]) -> Any:
    """Of a step whose exchange has come back."""
    with pytest.raises(StopIteration) as ended:
        next(step)
    return ended.value.value
