"""Interrupted twice, refused for good, or answered with a stray: nothing stays in the store."""

from __future__ import annotations

from typing import Any

import pytest
from asking import AskingStore, Attempt, Free, Withdraw

from lockkit.engine import holding, waiting
from lockkit.engine.effects import Later
from lockkit.model.errors import LayoutMismatch, OutcomeUnknown
from lockkit.model.types import Gone, Granted, Mode, Release, Request
from lockkit.runtime.hold import Hold

STORE: Any = AskingStore()
REQUEST = Request("stock:42", "first", 10.0, "owner", Mode.ENQUEUE)


def acquiring() -> Any:
    return waiting.acquire(STORE, REQUEST, 5.0, lambda: "second", lambda: 100.0)


def releasing(hold: Hold | None = None) -> Any:
    hold = hold or Hold(Granted(REQUEST, 7, 110.0, 100.0))
    return holding.release(STORE, hold, lambda: 100.0)


def test_interrupted_again_while_it_withdraws() -> None:
    """An impatient user: the watchdog withdraws."""
    steps = acquiring()
    next(steps)
    assert isinstance(steps.throw(KeyboardInterrupt), Withdraw)
    last = steps.throw(KeyboardInterrupt)
    assert isinstance(last, Later)
    assert last.request.unsure
    with pytest.raises(KeyboardInterrupt):
        steps.send(None)


def test_interrupted_while_it_releases() -> None:
    steps = releasing()
    assert isinstance(next(steps), Free)
    assert isinstance(steps.throw(KeyboardInterrupt), Later)
    with pytest.raises(KeyboardInterrupt):
        steps.send(None)


def test_a_flow_that_is_dropped_just_ends() -> None:
    for steps in (
        acquiring(),
        releasing(),
    ):
        next(steps)
        steps.close()


def test_nothing_is_written_to_a_store_of_another_layout() -> None:
    """Also no tombstone: what it would mean there only the other release knows."""
    steps = acquiring()
    next(steps)
    with pytest.raises(LayoutMismatch):
        steps.throw(LayoutMismatch("another layout"))


def test_a_token_in_doubt_is_withdrawn_before_another_is_drawn() -> None:
    """A copy of its request may still arrive, and would take the name from its own sender."""
    steps = acquiring()
    next(steps)
    again = steps.throw(OutcomeUnknown("no reply"))
    assert isinstance(again, Attempt)
    stray = steps.send(Gone())
    assert isinstance(stray, Withdraw)
    assert (stray.request.token, stray.request.unsure) == ("first", True)
    anew = steps.send(None)
    assert isinstance(anew, Attempt)
    assert (anew.request.token, anew.request.unsure) == ("second", False)


def test_a_lease_known_to_be_lost_was_not_released_by_a_request_without_reply() -> None:
    hold = Hold(Granted(REQUEST, 7, 110.0, 100.0))
    hold.lose()
    steps = releasing(hold)
    next(steps)
    steps.throw(OutcomeUnknown("no reply"))
    with pytest.raises(StopIteration) as end:
        steps.send(Release.ABSENT)
    assert end.value.value is False
