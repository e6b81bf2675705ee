"""Waiting, step by step: what they ask for when replies are lost, late, or interrupted."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import count
from typing import Any

import pytest
from asking import Asked, AskingStore, Attempt, Extend, Free, Wait, Why, Withdraw

from lockkit.engine import holding, waiting
from lockkit.engine.effects import Later
from lockkit.engine.times import drift
from lockkit.model.errors import (
    AcquireTimeout,
    BackendUnavailable,
    LeaseLost,
    LockHeld,
    OutcomeUnknown,
    TooManyWaiters,
)
from lockkit.model.types import (
    Busy,
    Gone,
    Grant,
    Granted,
    Kind,
    LockInfo,
    LockState,
    Mode,
    Release,
    Renewal,
    Request,
)
from lockkit.runtime.hold import Hold

TTL = 10.0
SLOW = 2.0


STORE: Any = AskingStore()

Step = Asked | Later


class Play:
    """Drives a flow by hand, with a clock of its own."""

    def __init__(
        self, begin: Callable[[Callable[[], float]], Generator[Any, Any, Any]], at: float = 100.0
    ) -> None:
        self.now = at
        self.steps = begin(lambda: self.now)
        self.result: Any = None
        self.step: Step | None = next(self.steps)

    def reply(self, value: object, seconds: float = 0.001) -> Step | None:
        """What the step brought, after so many seconds. Returns the next step, or None."""
        self.now += seconds
        if isinstance(value, Exception):
            return self.interrupt(value)
        return self._go(lambda: self.steps.send(value))

    def interrupt(self, error: BaseException) -> Step | None:
        return self._go(lambda: self.steps.throw(error))

    def _go(self, action: Any) -> Step | None:
        try:
            self.step = action()
        except StopIteration as end:
            self.step, self.result = None, end.value
        return self.step


def acquire(timeout: float | None = 5.0) -> Play:
    tokens = (f"token-{number}" for number in count(2))
    mode = Mode.TRY if timeout == 0 else Mode.ENQUEUE
    request = Request("stock:42", "token-1", TTL, "owner", mode)
    return Play(lambda now: waiting.acquire(STORE, request, timeout, lambda: next(tokens), now))


def hold() -> Hold:
    return Hold(Granted(Request("stock:42", "token-1", TTL, "owner"), 7, 109.0, 100.0))


def token(step: Step | None) -> str:
    assert isinstance(step, (Attempt, Wait, Withdraw, Later, Free))
    return step.request.token


class TestAcquire:
    def test_a_grant_counts_from_when_it_was_asked_for(self) -> None:
        play = acquire()
        assert play.reply(Grant("token-1", 7, TTL), seconds=3.0) is None
        granted: Granted = play.result
        assert granted.deadline == pytest.approx(100.0 + TTL - drift(TTL))
        assert granted.fence == 7

    def test_a_grant_that_took_longer_than_it_lasts_is_asked_for_again(self) -> None:
        play = acquire(timeout=None)
        assert isinstance(play.reply(Grant("token-1", 7, 1.0), seconds=1.0), Attempt)
        play.reply(Gone())
        assert token(play.step) == "token-2"
        play.reply(Grant("token-2", 8, TTL))
        assert play.result.fence == 8

    def test_a_busy_try_is_over_at_once_and_leaves_nothing_to_withdraw(self) -> None:
        with pytest.raises(LockHeld):
            acquire(timeout=0).reply(Busy())

    def test_who_joined_the_queue_only_polls_from_then_on(self) -> None:
        play = acquire()
        wait = play.reply(Busy(ticket=3, left=8.0))
        assert isinstance(wait, Wait)
        assert wait.request.mode is Mode.POLL
        attempt = play.reply(None, seconds=1.0)
        assert isinstance(attempt, Attempt)
        assert attempt.request.mode is Mode.POLL

    def test_who_is_not_known_any_more_joins_again_with_another_token(self) -> None:
        play = acquire()
        play.reply(Busy(ticket=3))
        play.reply(None)
        attempt = play.reply(Gone())
        assert isinstance(attempt, Attempt)
        assert (attempt.request.token, attempt.request.mode) == ("token-2", Mode.ENQUEUE)

    def test_waiting_ends_with_the_timeout(self) -> None:
        play = acquire(timeout=1.0)
        wait = play.reply(Busy(ticket=3, left=8.0))
        assert isinstance(wait, Wait)
        assert wait.seconds <= 1.0
        play.reply(None, seconds=1.0)
        assert isinstance(play.reply(Busy(ticket=3, left=7.0)), Withdraw)
        with pytest.raises(AcquireTimeout) as caught:
            play.reply(None)
        assert caught.value.waited >= 1.0

    def test_waiting_ends_when_the_holder_expires(self) -> None:
        wait = acquire(timeout=None).reply(Busy(ticket=3, left=0.2))
        assert isinstance(wait, Wait)
        assert 0.2 < wait.seconds < 0.25

    def test_a_grant_by_message_counts_from_the_last_no(self) -> None:
        """It cannot be older than the request whose reply said that somebody else has it."""
        play = acquire()
        play.reply(Busy(ticket=3), seconds=0.5)
        play.reply(Grant("token-1", 7, 3.0), seconds=1.0)
        assert play.result.deadline == pytest.approx(100.0 + 3.0 - drift(3.0))

    def test_a_grant_by_message_that_may_be_over_is_asked_about(self) -> None:
        play = acquire()
        play.reply(Busy(ticket=3))
        assert isinstance(play.reply(Grant("token-1", 7, 3.0), seconds=3.0), Attempt)

    def test_a_full_queue(self) -> None:
        with pytest.raises(TooManyWaiters):
            acquire().reply(Busy(full=True))

    def test_a_lost_reply_is_asked_for_once_more_with_the_same_token(self) -> None:
        play = acquire()
        attempt = play.reply(OutcomeUnknown())
        assert isinstance(attempt, Attempt)
        assert (attempt.request.token, attempt.request.unsure) == ("token-1", True)
        assert play.reply(Grant("token-1", 7, TTL)) is None

    def test_a_busy_after_a_lost_reply_leaves_a_tombstone(self) -> None:
        play = acquire(timeout=0)
        play.reply(OutcomeUnknown())
        withdraw = play.reply(Busy())
        assert isinstance(withdraw, Withdraw)
        assert withdraw.request.unsure
        with pytest.raises(LockHeld):
            play.reply(None)

    @pytest.mark.parametrize("second", [OutcomeUnknown, BackendUnavailable])
    def test_two_failures_leave_the_outcome_of_the_first_open(
        self, second: type[Exception]
    ) -> None:
        play = acquire()
        play.reply(OutcomeUnknown("first"))
        assert isinstance(play.reply(second("second")), Later)
        with pytest.raises(OutcomeUnknown, match="first"):
            play.reply(None)

    def test_a_slow_failure_is_not_tried_again(self) -> None:
        play = acquire()
        assert isinstance(play.reply(OutcomeUnknown(), seconds=SLOW), Later)
        with pytest.raises(OutcomeUnknown):
            play.reply(None)

    def test_an_unreachable_store(self) -> None:
        with pytest.raises(BackendUnavailable):
            acquire().reply(BackendUnavailable())

    def test_a_store_that_cannot_be_reached_any_more(self) -> None:
        """Our place in the queue is still there: the watchdog gives it up as soon as it can."""
        play = acquire()
        play.reply(Busy(ticket=3))
        play.reply(None)
        assert isinstance(play.reply(BackendUnavailable()), Later)
        with pytest.raises(BackendUnavailable):
            play.reply(None)

    @pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, ValueError])
    @pytest.mark.parametrize("doing", ["joining", "waiting", "polling"])
    def test_whatever_interrupts_it_withdraws(
        self, interruption: type[BaseException], doing: str
    ) -> None:
        """The withdraw is unsure only if a request that joins may be under way: no poll joins."""
        play = acquire()
        if doing != "joining":
            play.reply(Busy(ticket=3))
        if doing == "polling":
            play.reply(None)
        withdraw = play.interrupt(interruption())
        assert isinstance(withdraw, Withdraw)
        assert withdraw.request.unsure == (doing == "joining")
        with pytest.raises(interruption):
            play.reply(None)

    def test_interrupted_after_a_lost_reply_it_stays_in_doubt(self) -> None:
        play = acquire()
        play.reply(OutcomeUnknown())
        play.reply(Busy(ticket=3))
        withdraw = play.interrupt(KeyboardInterrupt())
        assert isinstance(withdraw, Withdraw)
        assert withdraw.request.unsure

    def test_a_withdraw_that_fails_is_left_to_the_watchdog(self) -> None:
        play = acquire()
        play.interrupt(KeyboardInterrupt())
        assert isinstance(play.reply(BackendUnavailable()), Later)
        with pytest.raises(KeyboardInterrupt):
            play.reply(None)


class TestRelease:
    @pytest.mark.parametrize(
        ("reply", "kept"),
        [(Release.RELEASED, True), (Release.ABSENT, False), (Release.BROKEN, False)],
    )
    def test_says_whether_it_was_still_ours(self, reply: Release, kept: bool) -> None:
        play = Play(lambda now: holding.release(STORE, hold(), now))
        step = play.reply(reply)
        if not kept:
            assert step == Why("stock:42", 7)
            step = play.reply(None)
        assert step is None
        assert play.result is kept

    def test_one_that_was_sent_too_late_was_not_ours_to_the_end(self) -> None:
        play = Play(lambda now: holding.release(STORE, hold(), now), at=109.5)
        play.reply(Release.RELEASED)
        assert play.result is False

    @pytest.mark.parametrize(
        ("second", "kept"),
        [(Release.RELEASED, True), (Release.ABSENT, True), (Release.BROKEN, False)],
    )
    def test_a_lost_reply_was_a_release_if_nothing_is_there_now(
        self, second: Release, kept: bool
    ) -> None:
        play = Play(lambda now: holding.release(STORE, hold(), now))
        assert isinstance(play.reply(OutcomeUnknown()), Free)
        if isinstance(play.reply(second), Why):
            play.reply(None)
        assert play.result is kept

    def test_a_lost_reply_after_the_deadline_proves_nothing(self) -> None:
        play = Play(lambda now: holding.release(STORE, hold(), now), at=109.5)
        play.reply(OutcomeUnknown())
        play.reply(Release.ABSENT)
        assert play.result is False

    @pytest.mark.parametrize("second", [OutcomeUnknown, BackendUnavailable])
    def test_two_failures_are_left_to_the_watchdog(self, second: type[Exception]) -> None:
        play = Play(lambda now: holding.release(STORE, hold(), now))
        play.reply(OutcomeUnknown("first"))
        assert isinstance(play.reply(second("second")), Later)
        with pytest.raises(OutcomeUnknown, match="first"):
            play.reply(None)

    @pytest.mark.parametrize("errors", [[BackendUnavailable()], [OutcomeUnknown()] * 2])
    def test_what_was_extended_is_tried_for_as_long(self, errors: list[Exception]) -> None:
        held = hold()
        held.ask(100 * TTL, 100.0)  # its reply was lost
        play = Play(lambda now: holding.release(STORE, held, now))
        for error in errors:
            step = play.reply(error)
        assert isinstance(step, Later)
        assert step.until >= 100 + 100 * TTL

    def test_so_it_is_if_the_release_is_interrupted(self) -> None:
        held = hold()
        held.ask(100 * TTL, 100.0)
        step = Play(lambda now: holding.release(STORE, held, now)).interrupt(KeyboardInterrupt())
        assert isinstance(step, Later)
        assert step.until >= 100 + 100 * TTL


class TestDowngrade:
    """The same token asks to share what it holds."""

    def downgrade(self) -> tuple[Hold, Play]:
        held = hold()
        held.request = held.request._replace(kind=Kind.RW)
        return held, Play(lambda now: holding.downgrade(STORE, held, now))

    def test_it_polls_and_so_gets_nothing_that_it_has_not(self) -> None:
        held, play = self.downgrade()
        assert isinstance(play.step, Attempt)
        assert play.step.request == held.request._replace(mode=Mode.POLL, shared=True)
        assert play.reply(Grant("token-1", 7, TTL)) is None
        assert held.request.shared
        assert not held.lost(play.now)

    def test_a_lost_reply_is_asked_for_once_more(self) -> None:
        held, play = self.downgrade()
        assert isinstance(play.reply(OutcomeUnknown("cut")), Attempt)
        assert play.reply(Grant("token-1", 7, TTL)) is None
        assert not held.lost(play.now)

    def test_in_doubt_it_counts_as_shared(self) -> None:
        held, play = self.downgrade()
        with pytest.raises(OutcomeUnknown):
            play.reply(OutcomeUnknown("too late"), seconds=SLOW)
        assert held.request.shared
        assert not held.lost(play.now)

    def test_what_is_gone_is_lost(self) -> None:
        held, play = self.downgrade()
        assert isinstance(play.reply(Gone()), Why)
        with pytest.raises(LeaseLost):
            play.reply(None)
        assert held.lost(play.now)


class TestExtend:
    def test_moves_the_deadline_from_when_it_was_sent(self) -> None:
        held = hold()
        play = Play(lambda now: holding.extend(STORE, held, 30.0, now))
        assert isinstance(play.step, Extend)
        (request,) = play.step.requests
        assert request._replace(number=0) == held.request._replace(ttl=30.0)
        play.reply([Renewal(30.0)], seconds=1.0)
        assert held.deadline == pytest.approx(100.0 + 30.0 - drift(30.0))

    def test_of_what_is_gone(self) -> None:
        held = hold()
        play = Play(lambda now: holding.extend(STORE, held, 30.0, now))
        assert play.reply([Renewal(None)]) == Why("stock:42", 7)
        with pytest.raises(LeaseLost, match=r"an operator released it: ann, ticket 7$"):
            play.reply(LockInfo("stock:42", LockState.LOST, broken_by="ann, ticket 7"))
        assert held.lost(100.0)

    @pytest.mark.parametrize("words", [None, BackendUnavailable("it is down")])
    def test_of_what_is_gone_and_nobody_knows_why(self, words: object) -> None:
        play = Play(lambda now: holding.extend(STORE, hold(), 30.0, now))
        play.reply([Renewal(None)])
        with pytest.raises(LeaseLost, match="its store does not have it any more"):
            play.reply(words)

    def test_a_reply_that_comes_after_the_deadline_comes_too_late(self) -> None:
        held = hold()
        with pytest.raises(LeaseLost):
            Play(lambda now: holding.extend(STORE, held, 30.0, now)).reply(
                [Renewal(30.0)], seconds=9.5
            )
        assert held.lost(100.0), "lost is final"

    def test_a_failure_is_unknown_and_not_lost(self) -> None:
        held = hold()
        with pytest.raises(BackendUnavailable):
            Play(lambda now: holding.extend(STORE, held, 30.0, now)).reply(BackendUnavailable())
        assert not held.lost(101.0)
        assert held.lost(109.0)

    def test_a_repeated_request_is_the_same_extension(self) -> None:
        play = Play(lambda now: holding.extend(STORE, hold(), 30.0, now))
        first = play.step
        assert play.reply(OutcomeUnknown()) == first


class TestRenew:
    def test_each_gets_its_own_answer(self) -> None:
        holds = [hold(), hold()]
        Play(lambda now: holding.renew(STORE, holds, now)).reply([Renewal(TTL), Renewal(None)])
        assert [held.lost(101.0) for held in holds] == [False, True]

    def test_a_failure_is_tried_again_ever_sooner_until_the_deadline(self) -> None:
        held = hold()
        pauses = []
        moment = 100.0
        while not held.lost(moment):
            held.renewal_failed(moment, BackendUnavailable())
            pauses.append(held.due - moment)
            moment = held.due
        assert pauses == sorted(pauses, reverse=True)
        assert len(pauses) > 5
        assert moment >= 109.0
