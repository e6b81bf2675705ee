"""Several claimants over the store in memory, and a network that does what it likes.

Requests are lost, delayed and repeated, replies are lost, claimants are cancelled, leases expire
and are broken. There is one clock, the store's as well, so a claimant that believes it holds the
name must hold it there, alone or among as many as may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import combinations, count
from typing import Any, ClassVar
from unittest import mock

from asking import Asked, AskingStore, Attempt, Extend, Free, Wait, Why, Withdraw
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lockkit.engine import holding, waiting
from lockkit.engine.effects import Later
from lockkit.engine.grant import SECOND, State
from lockkit.model.errors import (
    AcquireTimeout,
    BackendError,
    BackendUnavailable,
    LeaseLost,
    OutcomeUnknown,
    UpgradeRefused,
)
from lockkit.model.types import Grant, Granted, Kind, Mode, Request
from lockkit.runtime.hold import Hold
from lockkit.runtime.run import run
from lockkit.stores import memory

STORE: Any = AskingStore()
NAME = "stock:42"
TTL = 6.0
CLAIMANTS = st.integers(0, 3)


class Claimant:
    """One thread: the flow it is in, or what it holds."""

    def __init__(self) -> None:
        self.flow: Generator[Any, Any, Any] | None = None
        self.step: Asked | None = None
        self.hold: Any = None

    @property
    def is_idle(self) -> bool:
        return self.flow is None and self.hold is None

    @property
    def holds(self) -> bool:
        return self.flow is None and self.hold is not None

    @property
    def asks(self) -> bool:
        """It waits for a reply of the store."""
        return self.flow is not None and not self.waits

    @property
    def waits(self) -> bool:
        return isinstance(self.step, Wait)

    @property
    def is_busy(self) -> bool:
        return self.flow is not None


def some(what: str) -> Any:
    """A rule that gets, instead of a number, one of the claimants to which it applies."""

    def decorate(act: Callable[..., None]) -> Callable[..., None]:
        def applied(self: FlowMachine, who: int, **arguments: Any) -> None:
            them = [one for one in self.claimants if getattr(one, what)]
            act(self, them[who % len(them)], **arguments)

        applied.__name__ = act.__name__
        return precondition(lambda self: any(getattr(one, what) for one in self.claimants))(applied)

    return decorate


class FlowMachine(RuleBasedStateMachine):
    claims: ClassVar[list[dict[str, Any]]] = [{}]
    """What the claimants ask for, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.store = memory.MemoryStore()
        self.clock = mock.patch.object(memory, "_now", self._moment)
        self.clock.start()
        self.claimants = [Claimant() for _ in range(4)]
        self.tokens = (f"token-{number}" for number in count())
        self.late: list[Asked] = []  #: requests that are still under way
        self.abandoned: list[Request] = []  #: for the watchdog
        self.messages: dict[str, Grant] = {}
        self.fences: list[int] = []

    # The store

    def clock_now(self) -> float:
        return self.now

    def _moment(self) -> int:
        return round(self.now * SECOND)

    @property
    def state(self) -> State:
        return self.store._states.get(NAME, State())

    def applied(self, step: Asked) -> Any:
        """What the store replies. Each waiter that it grants the name meanwhile gets a message. A
        waiter for a store that sends none asks again, as after a lost message."""
        waiting = {waiter.token for waiter in self.state.queue}
        try:
            return self._applied(step)
        finally:
            for holder in self.state.holders:
                if holder.token in waiting:
                    left = holder.until / SECOND - self.now
                    self.messages[holder.token] = Grant(holder.token, holder.fence, left)

    def _applied(self, step: Asked) -> Any:
        if isinstance(step, Attempt):
            return self.perform(self.store.acquire(step.request))
        if isinstance(step, (Free, Withdraw)):
            return self.perform(self.store.release(step.request))
        if isinstance(step, Why):
            return None
        assert isinstance(step, Extend)
        return self.perform(self.store.extend(step.requests))

    def perform(self, step: Any) -> Any:
        return run(step, self.store.wire())

    # The claimants

    def begin(self, one: Claimant, steps: Generator[Any, Any, Any]) -> None:
        one.flow = steps
        self.go_on(one, lambda: next(steps))

    def go_on(self, one: Claimant, action: Any) -> None:
        try:
            one.step = action()
            while isinstance(one.step, Later):
                self.abandoned.append(one.step.request)
                assert one.flow is not None
                one.step = one.flow.send(None)
        except StopIteration as end:
            one.flow = one.step = None
            if isinstance(end.value, Granted):
                one.hold = Hold(end.value)
                self.fences.append(one.hold.fence)
        except (AcquireTimeout, LeaseLost, BackendError, UpgradeRefused, asyncio.CancelledError):
            one.flow = one.step = None

    def reply(self, one: Claimant, value: object, seconds: float = 0.001) -> None:
        self.now += seconds
        steps = one.flow
        assert steps is not None
        if isinstance(value, Exception):
            self.go_on(one, lambda: steps.throw(value))
        else:
            self.go_on(one, lambda: steps.send(value))

    @rule(who=CLAIMANTS, timeout=st.sampled_from([0, 4.0, None]))
    @some("is_idle")
    def acquires(self, one: Claimant, timeout: float | None) -> None:
        self._acquires(one, timeout)

    def _acquires(self, one: Claimant, timeout: float | None) -> None:
        who = self.claimants.index(one)
        mode = Mode.TRY if timeout == 0 else Mode.ENQUEUE
        request = Request(NAME, next(self.tokens), TTL, f"owner-{who}", mode)
        request = request._replace(**self.claims[who % len(self.claims)])
        self.begin(
            one,
            waiting.acquire(STORE, request, timeout, lambda: next(self.tokens), self.clock_now),
        )

    @rule(who=CLAIMANTS)
    @some("is_idle")
    def gets(self, one: Claimant) -> None:
        """Or is told to wait. Otherwise so much goes wrong that several are seldom there."""
        self._acquires(one, None)
        self._arrives(one, 1, 0.001)

    @rule(who=CLAIMANTS, ttl=st.sampled_from([1.0, TTL, 20.0]))
    @some("holds")
    def extends(self, one: Claimant, ttl: float) -> None:
        self.begin(one, holding.extend(STORE, one.hold, ttl, self.clock_now))

    @rule(who=CLAIMANTS)
    @some("holds")
    def releases(self, one: Claimant) -> None:
        hold, one.hold = one.hold, None
        steps = holding.release(STORE, hold, self.clock_now)
        hold.lose()
        self.begin(one, steps)

    @rule(who=CLAIMANTS)
    @some("is_busy")
    def is_cancelled(self, one: Claimant) -> None:
        self._cancel(one)

    def _cancel(self, one: Claimant) -> None:
        if one.asks:
            self.late.append(one.step)  # type: ignore[arg-type]
        steps = one.flow
        assert steps is not None
        self.go_on(one, lambda: steps.throw(asyncio.CancelledError()))

    # The network

    @rule(who=CLAIMANTS, times=st.integers(1, 2), seconds=st.sampled_from([0.001, 0.3, 7.0]))
    @some("asks")
    def arrives(self, one: Claimant, times: int, seconds: float) -> None:
        self._arrives(one, times, seconds)

    def _arrives(self, one: Claimant, times: int, seconds: float) -> None:
        assert one.step is not None
        try:
            values = [self.applied(one.step) for _ in range(times)]
        except UpgradeRefused as refusal:
            self.refuse(one, refusal)
        else:
            self.reply(one, values[-1], seconds)

    def refuse(self, one: Claimant, refusal: UpgradeRefused) -> None:
        """What is no failure of the store ends a step, as an interruption does."""
        steps = one.flow
        assert steps is not None
        self.go_on(one, lambda: steps.throw(refusal))

    @rule(who=CLAIMANTS, arrived=st.booleans(), seconds=st.sampled_from([0.001, 2.0]))
    @some("asks")
    def has_no_reply(self, one: Claimant, arrived: bool, seconds: float) -> None:
        assert one.step is not None
        if arrived:
            with suppress(UpgradeRefused):
                self.applied(one.step)
        else:
            self.late.append(one.step)
        self.reply(one, OutcomeUnknown("no reply"), seconds)

    @rule(who=CLAIMANTS)
    @some("asks")
    def is_refused(self, one: Claimant) -> None:
        self.reply(one, BackendUnavailable("nobody there"))

    @rule(who=CLAIMANTS, heard=st.booleans())
    @some("waits")
    def ends_waiting(self, one: Claimant, heard: bool) -> None:
        assert isinstance(one.step, Wait)
        message = self.messages.pop(one.step.request.token, None) if heard else None
        self.reply(one, message, 0.001 if message else one.step.seconds)

    @precondition(lambda self: self.late)
    @rule(index=st.integers(0, 20))
    def arrives_late(self, index: int) -> None:
        with suppress(UpgradeRefused):
            self.applied(self.late.pop(index % len(self.late)))

    @precondition(lambda self: self.abandoned)
    @rule()
    def is_withdrawn_by_the_watchdog(self) -> None:
        self.applied(Free(self.abandoned.pop()))

    @rule(seconds=st.sampled_from([0.1, 1.5, 7.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def an_operator_breaks_it(self) -> None:
        holder = self.state.live(self._moment())
        if holder is not None:
            self.perform(self.store.break_(NAME, holder.fence))
            broken = [t for t, granted in self.messages.items() if granted.fence == holder.fence]
            for token in broken:
                del self.messages[token]  # as below
            for one in self.claimants:
                if one.hold is not None and one.hold.fence == holder.fence:
                    one.hold.lose()  # it was told: until its next renewal it could not know

    # What must be true

    @invariant()
    def nobody_believes_what_is_not_so(self) -> None:
        live = {h.token for h in self.state.holders if h.until > self._moment()}
        believed = [
            one.hold.request
            for one in self.claimants
            if one.hold is not None and not one.hold.lost(self.now)
        ]
        assert live.issuperset(request.token for request in believed)
        for one, other in combinations(believed, 2):
            assert (one.shared and other.shared) or one.entrant == other.entrant != ""
        if believed and believed[0].permits:
            assert len(believed) <= believed[0].permits

    @invariant()
    def fences_grow(self) -> None:
        """If several may hold a name, they learn of their fences in any order."""
        if self.claims == [{}]:
            assert self.fences == sorted(set(self.fences))

    def teardown(self) -> None:
        try:
            self.ends_well()
        finally:
            self.clock.stop()

    def ends_well(self) -> None:
        """Whatever happened, the name is free once all has arrived and been withdrawn."""
        for one in self.claimants:
            while one.flow is not None:
                if isinstance(one.step, Wait):
                    self.reply(one, None, one.step.seconds + 0.001)
                    self._cancel(one)
                else:
                    self._arrives(one, 1, 0.001)
            if one.hold is not None:
                self.begin(one, holding.release(STORE, one.hold, self.clock_now))
                one.hold = None
                self._arrives(one, 1, 0.001)
        for step in self.late:
            with suppress(UpgradeRefused):
                self.applied(step)
        for request in self.abandoned:
            self.applied(Free(request))
        last = Request(NAME, "last", TTL, "owner")
        assert isinstance(self.applied(Attempt(last)), Grant)


class SemaphoreMachine(FlowMachine):
    claims: ClassVar = [{"kind": Kind.SEMAPHORE, "permits": 2, "shared": True}]


class ReaderWriterMachine(FlowMachine):
    claims: ClassVar = [
        {"kind": Kind.RW, "shared": True, "entrant": "one"},
        {"kind": Kind.RW, "entrant": "two"},
        {"kind": Kind.RW, "shared": True},
        {"kind": Kind.RW, "entrant": "one", "fair": False},
    ]


class ReentrantMachine(FlowMachine):
    claims: ClassVar = [{"kind": Kind.REENTRANT, "entrant": entrant} for entrant in ("one", "two")]


LIMITS = settings(max_examples=60, stateful_step_count=60, deadline=None)

TestFlowMachine = FlowMachine.TestCase
TestSemaphoreMachine = SemaphoreMachine.TestCase
TestReaderWriterMachine = ReaderWriterMachine.TestCase
TestReentrantMachine = ReentrantMachine.TestCase
TestFlowMachine.settings = LIMITS
TestSemaphoreMachine.settings = settings(LIMITS, max_examples=25)
TestReaderWriterMachine.settings = settings(LIMITS, max_examples=25)
TestReentrantMachine.settings = settings(LIMITS, max_examples=25)
