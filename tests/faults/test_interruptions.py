"""Interrupted twice, refused for good, or answered with a stray: nothing stays in the store."""

from __future__ import annotations

import pytest

from lockkit.engine import flow
from lockkit.engine.flow import Abandon, Attempt, Free, Reply, Withdraw
from lockkit.model.errors import LayoutMismatch, OutcomeUnknown
from lockkit.model.types import Gone, Mode, Release, Request
from lockkit.runtime.hold import Hold

REQUEST = Request("stock:42", "first", 10.0, "owner", Mode.ENQUEUE)


def reply(value: object) -> Reply:
    return Reply(value, 100.0, 100.001)


def test_interrupted_again_while_it_withdraws() -> None:
    """An impatient user: the watchdog withdraws."""
    steps = flow.acquire(REQUEST, 5.0, lambda: "second")
    next(steps)
    assert isinstance(steps.throw(KeyboardInterrupt), Withdraw)
    last = steps.throw(KeyboardInterrupt)
    assert isinstance(last, Abandon)
    assert last.request.unsure
    with pytest.raises(KeyboardInterrupt):
        steps.send(reply(None))


def test_interrupted_while_it_releases() -> None:
    steps = flow.release(Hold(REQUEST, 7, 110.0, 100.0))
    assert isinstance(next(steps), Free)
    assert isinstance(steps.throw(KeyboardInterrupt), Abandon)
    with pytest.raises(KeyboardInterrupt):
        steps.send(reply(None))


def test_a_flow_that_is_dropped_just_ends() -> None:
    for steps in (
        flow.acquire(REQUEST, 5.0, lambda: "second"),
        flow.release(Hold(REQUEST, 7, 110.0, 100.0)),
    ):
        next(steps)
        steps.close()


def test_nothing_is_written_to_a_store_of_another_layout() -> None:
    """Also no tombstone: what it would mean there only the other release knows."""
    steps = flow.acquire(REQUEST, 5.0, lambda: "second")
    next(steps)
    with pytest.raises(LayoutMismatch):
        steps.throw(LayoutMismatch("another layout"))


def test_a_token_in_doubt_is_withdrawn_before_another_is_drawn() -> None:
    """A copy of its request may still arrive, and would take the name from its own sender."""
    steps = flow.acquire(REQUEST, 5.0, lambda: "second")
    next(steps)
    again = steps.send(reply(OutcomeUnknown("no reply")))
    assert isinstance(again, Attempt)
    stray = steps.send(reply(Gone()))
    assert isinstance(stray, Withdraw)
    assert (stray.request.token, stray.request.unsure) == ("first", True)
    anew = steps.send(reply(None))
    assert isinstance(anew, Attempt)
    assert (anew.request.token, anew.request.unsure) == ("second", False)


def test_a_lease_known_to_be_lost_was_not_released_by_a_request_without_reply() -> None:
    hold = Hold(REQUEST, 7, 110.0, 100.0)
    hold.lose()
    steps = flow.release(hold)
    next(steps)
    steps.send(reply(OutcomeUnknown("no reply")))
    with pytest.raises(StopIteration) as end:
        steps.send(reply(Release.ABSENT))
    assert end.value.value is False
