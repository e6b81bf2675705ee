"""Flows of several claimants over one grant rule, and a network that does what it likes.

Requests are lost, delayed and repeated, replies are lost, claimants are cancelled, leases expire
and are broken. There is one clock, so whoever believes to hold the name must be alone with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lockkit import flow, grant
from lockkit.errors import (
    AcquireTimeout,
    BackendError,
    BackendUnavailable,
    LeaseLost,
    OutcomeUnknown,
)
from lockkit.flow import Abandon, Attempt, Extend, Free, Granted, Reply, Wait, Withdraw
from lockkit.grant import Outcome, State
from lockkit.lease import hold_of
from lockkit.types import Grant, Mode, Request

TTL = 6.0
CLAIMANTS = st.integers(0, 3)
SECOND = 1_000_000


class Claimant:
    """One thread: the flow it is in, or what it holds."""

    def __init__(self) -> None:
        self.flow: Generator[flow.Step, Reply, Any] | None = None
        self.step: flow.Step | None = None
        self.sent = 0.0
        self.hold: Any = None


class FlowMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.state = State()
        self.claimants = [Claimant() for _ in range(4)]
        self.tokens = (f"token-{number}" for number in count())
        self.late: list[flow.Step] = []  #: requests that are still under way
        self.abandoned: list[Request] = []  #: for the watchdog
        self.messages: dict[str, Grant] = {}
        self.fences: list[int] = []

    # The store

    def applied(self, step: flow.Step) -> Any:
        now = round(self.now * SECOND)
        outcome: Outcome[Any]
        if isinstance(step, Attempt):
            outcome = grant.acquire(self.state, step.request, now)
        elif isinstance(step, Withdraw):
            outcome = grant.withdraw(self.state, step.request, now)
        elif isinstance(step, Free):
            outcome = grant.release(self.state, step.request, now)
        else:
            assert isinstance(step, Extend)
            outcome = grant.extend(self.state, step.requests[0], now)
        self.messages |= {granted.token: granted for granted in outcome.handoffs}
        return [outcome.reply] if isinstance(step, Extend) else outcome.reply

    # The claimants

    def begin(self, one: Claimant, steps: Generator[flow.Step, Reply, Any]) -> None:
        one.flow = steps
        self.go_on(one, lambda: next(steps))

    def go_on(self, one: Claimant, action: Any) -> None:
        try:
            one.step, one.sent = action(), self.now
            while isinstance(one.step, Abandon):
                self.abandoned.append(one.step.request)
                assert one.flow is not None
                one.step = one.flow.send(Reply(None, self.now, self.now))
        except StopIteration as end:
            one.flow = one.step = None
            if isinstance(end.value, Granted):
                one.hold = hold_of(end.value)
                self.fences.append(one.hold.fence)
        except (AcquireTimeout, LeaseLost, BackendError, asyncio.CancelledError):
            one.flow = one.step = None

    def reply(self, one: Claimant, value: object, seconds: float = 0.001) -> None:
        self.now += seconds
        steps, answer = one.flow, Reply(value, one.sent, self.now)
        assert steps is not None
        self.go_on(one, lambda: steps.send(answer))

    @rule(who=CLAIMANTS, timeout=st.sampled_from([0, 4.0, None]))
    def acquires(self, who: int, timeout: float | None) -> None:
        one = self.claimants[who]
        if one.flow is None and one.hold is None:
            mode = Mode.TRY if timeout == 0 else Mode.ENQUEUE
            request = Request("stock:42", next(self.tokens), TTL, f"owner-{who}", mode)
            self.begin(one, flow.acquire(request, timeout, lambda: next(self.tokens)))

    @rule(who=CLAIMANTS, ttl=st.sampled_from([1.0, TTL, 20.0]))
    def extends(self, who: int, ttl: float) -> None:
        one = self.claimants[who]
        if one.flow is None and one.hold is not None:
            self.begin(one, flow.extend(one.hold, ttl, self.now))

    @rule(who=CLAIMANTS)
    def releases(self, who: int) -> None:
        one = self.claimants[who]
        if one.flow is None and one.hold is not None:
            hold, one.hold = one.hold, None
            steps = flow.release(hold)
            hold.lose()
            self.begin(one, steps)

    @rule(who=CLAIMANTS)
    def is_cancelled(self, who: int) -> None:
        one = self.claimants[who]
        if one.flow is not None:
            if not isinstance(one.step, Wait):
                self.late.append(one.step)  # type: ignore[arg-type]
            steps = one.flow
            self.go_on(one, lambda: steps.throw(asyncio.CancelledError()))

    # The network

    @rule(who=CLAIMANTS, times=st.integers(1, 2), seconds=st.sampled_from([0.001, 0.3, 7.0]))
    def arrives(self, who: int, times: int, seconds: float) -> None:
        one = self.claimants[who]
        if one.step is not None and not isinstance(one.step, Wait):
            values = [self.applied(one.step) for _ in range(times)]
            self.reply(one, values[-1], seconds)

    @rule(who=CLAIMANTS, arrived=st.booleans(), seconds=st.sampled_from([0.001, 2.0]))
    def has_no_reply(self, who: int, arrived: bool, seconds: float) -> None:
        one = self.claimants[who]
        if one.step is not None and not isinstance(one.step, Wait):
            if arrived:
                self.applied(one.step)
            else:
                self.late.append(one.step)
            self.reply(one, OutcomeUnknown("no reply"), seconds)

    @rule(who=CLAIMANTS)
    def is_refused(self, who: int) -> None:
        one = self.claimants[who]
        if one.step is not None and not isinstance(one.step, Wait):
            self.reply(one, BackendUnavailable("nobody there"))

    @rule(who=CLAIMANTS, heard=st.booleans())
    def ends_waiting(self, who: int, heard: bool) -> None:
        one = self.claimants[who]
        if isinstance(one.step, Wait):
            message = self.messages.pop(one.step.request.token, None) if heard else None
            self.reply(one, message, 0.001 if message else one.step.seconds)

    @precondition(lambda self: self.late)
    @rule(index=st.integers(0, 20))
    def arrives_late(self, index: int) -> None:
        self.applied(self.late.pop(index % len(self.late)))

    @precondition(lambda self: self.abandoned)
    @rule()
    def is_withdrawn_by_the_watchdog(self) -> None:
        self.applied(Withdraw(self.abandoned.pop()))

    @rule(seconds=st.sampled_from([0.1, 1.5, 7.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def an_operator_breaks_it(self) -> None:
        holder = self.state.live(round(self.now * SECOND))
        if holder is not None:
            grant.break_(self.state, holder.fence, round(self.now * SECOND))
            for one in self.claimants:
                if one.hold is not None and one.hold.fence == holder.fence:
                    one.hold.lose()  # he was told: until his next renewal he could not know

    # What must be true

    @invariant()
    def nobody_believes_what_is_not_so(self) -> None:
        holder = self.state.live(round(self.now * SECOND))
        for one in self.claimants:
            if one.hold is not None and not one.hold.lost(self.now):
                assert holder is not None
                assert holder.token == one.hold.request.token

    @invariant()
    def fences_grow(self) -> None:
        assert self.fences == sorted(set(self.fences))

    def teardown(self) -> None:
        """Whatever happened, the name is free once all has arrived and been withdrawn."""
        for one in self.claimants:
            while one.flow is not None:
                if isinstance(one.step, Wait):
                    self.reply(one, None, one.step.seconds + 0.001)
                    self.is_cancelled(self.claimants.index(one))
                else:
                    assert one.step is not None
                    self.reply(one, self.applied(one.step))
            if one.hold is not None:
                self.begin(one, flow.release(one.hold))
                one.hold = None
                assert one.step is not None
                self.reply(one, self.applied(one.step))
        for step in self.late:
            self.applied(step)
        for request in self.abandoned:
            self.applied(Withdraw(request))
        last = Request("stock:42", "last", TTL, "owner")
        assert isinstance(self.applied(Attempt(last)), Grant)


TestFlowMachine = FlowMachine.TestCase
TestFlowMachine.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
