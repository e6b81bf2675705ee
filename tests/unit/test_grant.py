"""The grant rule: examples, and a machine that plays arbitrary histories against it."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lockkit.engine import grant
from lockkit.engine.grant import SECOND, Outcome, State
from lockkit.engine.state import GRACE_SECONDS, MOST_SHARED, MOST_TOMBS, TOMB_SECONDS
from lockkit.engine.times import alive_for
from lockkit.model.errors import KindMismatch, UpgradeRefused
from lockkit.model.types import Busy, Gone, Grant, Kind, Mode, Release, Request

TTL = 10.0
MUTEX: dict[str, Any] = {"kind": Kind.MUTEX, "permits": 0, "shared": False}
START = 1_700_000_000 * SECOND


def claim(token: str = "", mode: Mode = Mode.TRY, **changes: Any) -> Request:
    token = token or secrets.token_hex(4)
    return Request("stock:42", token, TTL, "host", mode)._replace(**changes)


def after(seconds: float) -> int:
    return START + round(seconds * SECOND)


class TestAcquire:
    def test_a_free_name_is_granted_for_the_whole_ttl(self) -> None:
        outcome = grant.acquire(State(), claim("a"), START)
        assert outcome.reply == Grant("a", START, TTL)
        assert outcome.changed

    def test_a_fence_grows_also_when_the_clock_stands_still_or_goes_back(self) -> None:
        state = State()
        fences = []
        for moment in (START, START, after(-60), after(1)):
            reply = grant.acquire(state, claim("a"), moment).reply
            assert isinstance(reply, Grant)
            fences.append(reply.fence)
            grant.release(state, claim("a"), moment)
        assert fences == [START, START + 1, START + 2, after(1)]

    def test_the_holder_expires_at_exactly_its_time(self) -> None:
        state = State()
        grant.acquire(state, claim("a"), START)
        assert isinstance(grant.acquire(state, claim("b"), after(TTL) - 1).reply, Busy)
        assert isinstance(grant.acquire(state, claim("b"), after(TTL)).reply, Grant)

    def test_nobody_passes_a_living_waiter(self) -> None:
        state = State()
        grant.acquire(state, claim("a", ttl=1.0), START)
        grant.acquire(state, claim("b", Mode.ENQUEUE), START)
        outcome = grant.acquire(state, claim("c"), after(1))
        assert isinstance(outcome.reply, Busy)
        assert [handoff.token for handoff in outcome.handoffs] == ["b"]

    def test_a_dead_waiter_is_passed(self) -> None:
        state = State()
        grant.acquire(state, claim("a"), START)
        grant.acquire(state, claim("b", Mode.ENQUEUE), START)
        assert isinstance(grant.acquire(state, claim("c"), after(TTL)).reply, Grant)

    def test_an_unclaimed_grant_lasts_as_long_as_its_waiters_sign_of_life(self) -> None:
        state = State()
        grant.acquire(state, claim("a"), START)
        grant.acquire(state, claim("b", Mode.ENQUEUE), START)
        [handoff] = grant.release(state, claim("a"), after(1)).handoffs
        assert handoff.left == pytest.approx(alive_for(TTL) - 1)

    def test_the_queue_counts_only_the_living(self) -> None:
        state = State()
        grant.acquire(state, claim("a", ttl=100.0), START)
        crowd = [grant.acquire(state, claim(mode=Mode.ENQUEUE, max_queue=2), START).reply
                 for _ in range(3)]  # fmt: skip
        assert [isinstance(r, Busy) and r.full for r in crowd] == [False, False, True]
        later = grant.acquire(state, claim(mode=Mode.ENQUEUE, max_queue=2), after(TTL)).reply
        assert isinstance(later, Busy)
        assert not later.full

    def test_a_poll_is_a_sign_of_life_that_is_kept(self) -> None:
        state = State()
        grant.acquire(state, claim("a", ttl=100.0), START)
        grant.acquire(state, claim("b", Mode.ENQUEUE), START)
        alive = alive_for(TTL)
        early = grant.acquire(state, claim("b", Mode.POLL), after(alive * 0.4))
        assert not early.changed  # most polls write nothing
        assert grant.acquire(state, claim("b", Mode.POLL), after(alive * 0.9)).changed
        [handoff] = grant.release(state, claim("a"), after(alive * 1.5)).handoffs
        assert handoff.token == "b"


class TestExtend:
    def test_sets_what_is_left(self) -> None:
        state = State()
        grant.acquire(state, claim("a"), START)
        assert grant.extend(state, claim("a", ttl=3.0), after(1)).reply.left == 3.0
        assert grant.extend(state, claim("a"), after(4) - 1).reply.left == TTL

    def test_what_has_expired_stays_lost_also_when_nobody_has_taken_it(self) -> None:
        state = State()
        grant.acquire(state, claim("a"), START)
        outcome = grant.extend(state, claim("a"), after(TTL))
        assert outcome.reply.left is None
        assert not outcome.changed


class TestRelease:
    def test_of_an_expired_claim_hands_on(self) -> None:
        state = State()
        grant.acquire(state, claim("a", ttl=1.0), START)
        grant.acquire(state, claim("b", Mode.ENQUEUE), START)
        outcome = grant.release(state, claim("a"), after(1))
        assert outcome.reply is Release.ABSENT
        assert [handoff.token for handoff in outcome.handoffs] == ["b"]

    def test_in_doubt_buries_the_token(self) -> None:
        state = State()
        grant.release(state, claim("a", unsure=True), START)
        assert isinstance(grant.acquire(state, claim("a"), START).reply, Gone)


class TestForgetting:
    def test_a_tomb_outlives_any_request_and_no_more(self) -> None:
        state = State()
        grant.withdraw(state, claim("a"), START)
        assert not state.prune(after(TOMB_SECONDS - 1))
        assert isinstance(grant.acquire(state, claim("a"), after(TOMB_SECONDS - 1)).reply, Gone)
        assert state.prune(after(TOMB_SECONDS))

    def test_of_many_tombs_the_newest_are_kept(self) -> None:
        """Each step on the name reads and writes them."""
        state = State()
        for number in range(MOST_TOMBS + 2):
            grant.withdraw(state, claim(f"t{number}"), START + number)
        grant.withdraw(state, claim("t2"), START + MOST_TOMBS + 2)
        assert [*state.tombs] == [f"t{number}" for number in [*range(3, MOST_TOMBS + 2), 2]]
        assert not state.prune(START + MOST_TOMBS + TOMB_SECONDS * SECOND)
        assert [*state.tombs] == [f"t{MOST_TOMBS + 1}", "t2"]

    def test_an_abandoned_claim_is_kept_for_a_while(self) -> None:
        state = State()
        grant.acquire(state, claim("a"), START)
        assert not state.prune(after(TTL + GRACE_SECONDS) - 1)
        assert state.prune(after(TTL + GRACE_SECONDS))


tokens = st.integers(0, 3)


class TestSemaphore:
    """Claims that are shared by up to so many."""

    def test_so_many_hold_it_and_no_more(self) -> None:
        state = State()
        replies = [grant.acquire(state, permit(token), START).reply for token in "abc"]
        assert [isinstance(reply, Grant) for reply in replies] == [True, True, False]

    def test_each_permit_expires_by_itself(self) -> None:
        state = State()
        grant.acquire(state, permit("a", ttl=1.0), START)
        grant.acquire(state, permit("b"), START)
        assert isinstance(grant.acquire(state, permit("c"), after(1)).reply, Grant)
        assert isinstance(grant.acquire(state, permit("d"), after(2)).reply, Busy)
        assert grant.extend(state, permit("b"), after(2)).reply.left == TTL

    def test_a_waiter_hears_when_the_next_permit_expires(self) -> None:
        state = State()
        grant.acquire(state, permit("a"), START)
        grant.acquire(state, permit("b", ttl=2.0), START)
        reply = grant.acquire(state, permit("c", Mode.ENQUEUE), after(1)).reply
        assert isinstance(reply, Busy)
        assert reply.left == 1.0

    def test_one_step_grants_all_there_is_room_for(self) -> None:
        state = State()
        for token in "ab":
            grant.acquire(state, permit(token, ttl=1.0), START)
        for token in "cde":
            grant.acquire(state, permit(token, Mode.ENQUEUE), START)
        handoffs = grant.release(state, permit("a"), after(1)).handoffs
        assert [handoff.token for handoff in handoffs] == ["c", "d"]

    def test_nobody_passes_a_living_waiter(self) -> None:
        state = State()
        for token in "ab":
            grant.acquire(state, permit(token), START)
        grant.acquire(state, permit("c", Mode.ENQUEUE), START)
        grant.release(state, permit("a"), START)
        assert isinstance(grant.acquire(state, permit("d"), START).reply, Busy)

    def test_another_kind_is_refused_while_it_is_in_use(self) -> None:
        state = State()
        grant.acquire(state, permit("a"), START)
        with pytest.raises(KindMismatch, match="in use as a semaphore of 2: use another name, or"):
            grant.acquire(state, permit("b", **MUTEX), after(TTL) - 1)
        assert isinstance(grant.acquire(state, permit("b", **MUTEX), after(TTL)).reply, Grant)

    @pytest.mark.parametrize(("held", "asked"), [(2, 3), (3, 2)])
    def test_of_two_numbers_the_smaller_applies(self, held: int, asked: int) -> None:
        state = State()
        for token in "ab":
            grant.acquire(state, permit(token, permits=held), START)
        assert isinstance(grant.acquire(state, permit("c", permits=asked), START).reply, Busy)
        assert isinstance(grant.acquire(state, permit("c", permits=asked), after(TTL)).reply, Grant)

    def test_no_more_hold_a_name_than_each_step_can_read(self) -> None:
        state = State()
        reader = permit("a", kind=Kind.RW, permits=0)
        holder = grant.acquire(state, reader, START) and state.holders[0]
        state.holders *= MOST_SHARED - 1
        assert isinstance(grant.acquire(state, reader._replace(token="b"), START).reply, Grant)
        assert isinstance(grant.acquire(state, reader._replace(token="c"), START).reply, Busy)
        assert state.holders[0] is holder

    def test_one_step_passes_so_many_of_the_dead_and_the_next_goes_on(self) -> None:
        state = State()
        grant.acquire(state, claim("holder"), START)
        for number in range(grant.PASS_MOST + 1):
            grant.acquire(state, claim(f"dead {number}", Mode.ENQUEUE, ttl=1.0), START)
        later = after(TTL) - 1
        grant.acquire(state, claim("alive", Mode.ENQUEUE), START)
        state.queue[-1].alive = after(TTL)
        state.queue.insert(0, state.queue[0])
        grant.release(state, claim("holder"), later)
        assert not state.holders
        assert isinstance(grant.acquire(state, claim("other"), later).reply, Busy)
        assert [holder.token for holder in state.holders] == ["alive"]

    def test_a_poll_of_another_kind_is_gone(self) -> None:
        state = State()
        grant.acquire(state, permit("a"), START)
        assert isinstance(grant.acquire(state, claim("b", Mode.POLL), START).reply, Gone)

    def test_who_waits_keeps_the_kind(self) -> None:
        state = State()
        grant.acquire(state, permit("a", ttl=1.0, permits=1), START)
        grant.acquire(state, permit("b", Mode.ENQUEUE, permits=1), START)
        with pytest.raises(KindMismatch):
            grant.acquire(state, claim("c"), after(1.5))


class TestHandedOver:
    """A grant by message is short, until its waiter has heard of it."""

    @pytest.fixture
    def state(self) -> State:
        """``b`` waits, and has just been granted."""
        state = State()
        grant.acquire(state, claim("a"), START)
        grant.acquire(state, claim("b", Mode.ENQUEUE), START)
        [handoff] = grant.release(state, claim("a"), START).handoffs
        assert handoff.left == alive_for(TTL)
        return state

    def test_nobody_has_taken_it_so_it_is_extended_late(self, state: State) -> None:
        assert grant.extend(state, claim("b", number=1), after(5)).reply.left == TTL
        assert isinstance(grant.acquire(state, claim("c"), after(5 + TTL) - 1).reply, Busy)
        assert grant.extend(state, claim("b", number=2), after(5 + TTL)).reply.left is None

    def test_nobody_has_taken_it_so_it_is_released_late(self, state: State) -> None:
        assert grant.release(state, claim("b"), after(5)).reply is Release.RELEASED

    @pytest.mark.parametrize("seconds", [1, 5])
    def test_to_ask_for_it_makes_it_whole(self, state: State, seconds: int) -> None:
        outcome = grant.acquire(state, claim("b", Mode.POLL), after(seconds))
        assert isinstance(outcome.reply, Grant) and outcome.reply.left == TTL
        assert outcome.changed
        again = grant.acquire(state, claim("b", Mode.POLL), after(seconds + 1))
        assert isinstance(again.reply, Grant) and again.reply.left == TTL - 1
        assert not again.changed
        assert grant.release(state, claim("b"), after(seconds + TTL)).reply is Release.ABSENT

    def test_somebody_has_taken_it(self, state: State) -> None:
        assert isinstance(grant.acquire(state, claim("c"), after(5)).reply, Grant)
        assert grant.extend(state, claim("b", number=1), after(5)).reply.left is None
        assert grant.release(state, claim("b"), after(5)).reply is Release.ABSENT
        assert isinstance(grant.acquire(state, claim("b", Mode.POLL), after(5)).reply, Gone)

    def test_what_was_extended_once_ends_by_its_time(self, state: State) -> None:
        assert grant.extend(state, claim("b", ttl=1.0, number=1), after(1)).reply.left == 1.0
        assert grant.release(state, claim("b"), after(2)).reply is Release.ABSENT


class TestBarging:
    """Claims that do not wait for their turn."""

    def test_what_is_free_is_taken_ahead_of_those_who_wait(self) -> None:
        state = State()
        grant.acquire(state, claim("a", ttl=1.0), START)
        grant.acquire(state, claim("b", Mode.ENQUEUE), START)
        assert isinstance(grant.acquire(state, claim("c", fair=False), after(1)).reply, Grant)
        assert [waiter.token for waiter in state.queue] == ["b"]
        [handoff] = grant.release(state, claim("c"), after(2)).handoffs
        assert handoff.token == "b"

    def test_what_is_held_is_not(self) -> None:
        state = State()
        grant.acquire(state, claim("a"), START)
        reply = grant.acquire(state, claim("b", Mode.ENQUEUE, fair=False), after(TTL) - 1).reply
        assert isinstance(reply, Busy)
        [handoff] = grant.release(state, claim("a"), after(1)).handoffs
        assert handoff.token == "b", "it is woken like all others"

    def test_who_waits_may_take_it_out_of_turn(self) -> None:
        state = State()
        grant.acquire(state, claim("a", ttl=1.0), START)
        grant.acquire(state, claim("b", Mode.ENQUEUE), START)
        grant.acquire(state, claim("c", Mode.ENQUEUE, fair=False), START)
        outcome = grant.acquire(state, claim("c", Mode.POLL, fair=False), after(1))
        assert isinstance(outcome.reply, Grant)
        assert [waiter.token for waiter in state.queue] == ["b"]

    def test_a_reader_passes_a_writer_that_waits(self) -> None:
        state = State()
        grant.acquire(state, reader("a"), START)
        grant.acquire(state, writer("b", Mode.ENQUEUE), START)
        assert not granted(state, reader("c"))
        assert granted(state, reader("d", fair=False))


class TestReadersAndWriters:
    """Claims that are shared, and exclusive ones, on one name."""

    def test_readers_read_together(self) -> None:
        state = State()
        assert all(granted(state, reader(token)) for token in "abc")
        assert not granted(state, writer("d"))

    def test_a_writer_is_alone(self) -> None:
        state = State()
        assert granted(state, writer("a"))
        assert not granted(state, reader("b"))
        assert not granted(state, writer("c"))

    def test_a_writer_that_waits_is_not_passed(self) -> None:
        state = State()
        assert granted(state, reader("a"))
        grant.acquire(state, writer("b", Mode.ENQUEUE), START)
        assert not granted(state, reader("c"))

    def test_they_are_granted_in_phases(self) -> None:
        state = State()
        grant.acquire(state, writer("a"), START)
        for token, make in (("b", reader), ("c", reader), ("d", writer), ("e", reader)):
            grant.acquire(state, make(token, Mode.ENQUEUE), START)
        phases = []
        for token in ("a", "b", "c", "d"):
            handoffs = grant.release(state, writer(token), START).handoffs
            phases.append("".join(handoff.token for handoff in handoffs))
        assert phases == ["bc", "", "d", "e"]

    def test_a_writer_that_gives_up_lets_the_readers_behind_it_in(self) -> None:
        state = State()
        grant.acquire(state, reader("a"), START)
        grant.acquire(state, writer("b", Mode.ENQUEUE), START)
        grant.acquire(state, reader("c", Mode.ENQUEUE), START)
        handoffs = grant.withdraw(state, writer("b"), START).handoffs
        assert [handoff.token for handoff in handoffs] == ["c"]

    def test_a_reader_that_enters_again_passes_a_writer(self) -> None:
        state = State()
        assert granted(state, reader("a", entrant="me"))
        grant.acquire(state, writer("b", Mode.ENQUEUE), START)
        assert granted(state, reader("c", entrant="me"))
        assert not granted(state, reader("d", entrant="you"))

    def test_a_writer_that_enters_again_has_the_same_fence(self) -> None:
        state = State()
        first = grant.acquire(state, writer("a", entrant="me"), START).reply
        again = grant.acquire(state, writer("b", entrant="me"), after(1)).reply
        read = grant.acquire(state, reader("c", entrant="me"), after(1)).reply
        assert isinstance(first, Grant) and isinstance(again, Grant) and isinstance(read, Grant)
        assert again.fence == first.fence < read.fence
        assert grant.break_(state, first.fence, after(1)).reply
        assert [holder.token for holder in state.holders] == ["c"]

    def test_an_expired_claim_is_not_entered_again(self) -> None:
        state = State()
        grant.acquire(state, writer("a", entrant="me"), START)
        again = grant.acquire(state, writer("b", entrant="me"), after(TTL)).reply
        assert isinstance(again, Grant)
        assert again.fence > START

    def test_a_reader_becomes_no_writer(self) -> None:
        state = State()
        grant.acquire(state, reader("a", entrant="me"), START)
        with pytest.raises(UpgradeRefused, match=r"ask for \.write\(\) first"):
            grant.acquire(state, writer("b", Mode.ENQUEUE, entrant="me"), START)
        grant.release(state, reader("a"), START)
        assert granted(state, writer("b", entrant="me"))

    def test_a_writer_becomes_a_reader_in_one_step(self) -> None:
        state = State()
        grant.acquire(state, writer("a"), START)
        for token, make in (("b", reader), ("c", writer)):
            grant.acquire(state, make(token, Mode.ENQUEUE), START)
        outcome = grant.acquire(state, reader("a", Mode.POLL), after(1))
        assert outcome.reply == Grant("a", START, TTL - 1)
        assert [handoff.token for handoff in outcome.handoffs] == ["b"]
        assert not grant.acquire(state, writer("a"), after(1)).changed, "and never back"
        assert state.holders[0].shared


def granted(state: State, request: Request) -> bool:
    return isinstance(grant.acquire(state, request, START).reply, Grant)


def reader(token: str, mode: Mode = Mode.TRY, **changes: Any) -> Request:
    return claim(token, mode, **{"kind": Kind.RW, "shared": True, **changes})


def writer(token: str, mode: Mode = Mode.TRY, **changes: Any) -> Request:
    return claim(token, mode, **{"kind": Kind.RW, **changes})


def permit(token: str, mode: Mode = Mode.TRY, **changes: Any) -> Request:
    terms = {"kind": Kind.SEMAPHORE, "permits": 2, "shared": True, **changes}
    return claim(token, mode, **terms)


class GrantMachine(RuleBasedStateMachine):
    """Claims come, poll, leave, expire and are broken in any order; requests repeat and stray.

    The store keeps a state only if the outcome says that it changed, as SQL does. What the
    claimants have been told is kept beside it, and judged.
    """

    claims: ClassVar[list[dict[str, Any]]] = [{}]
    """What is asked for; each token one of them, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.now = START
        self.fence = 0
        self.believed: dict[str, int] = {}  # token: until when its holder relies on it
        self.handed: set[str] = set()  # by a message: theirs until somebody else has it
        self.seen: dict[str, int] = {}  # waiting token: when the store last heard of it
        self.tickets: dict[str, int] = {}
        self.ended: set[str] = set()  # withdrawn, released or broken: never granted again
        self.fences: dict[str, int] = {}
        self.downgraded: set[str] = set()

    def step(self, function: Any, *arguments: Any) -> Any:
        before = copy.deepcopy(self.state)
        outcome: Outcome[Any] = function(self.state, *arguments, self.now)
        if not outcome.changed:
            self.state = before
        told = [*outcome.handoffs, outcome.reply]
        for reply in sorted((r for r in told if isinstance(r, Grant)), key=lambda r: r.fence):
            self.granted(reply)
        self.handed |= {reply.token for reply in outcome.handoffs if reply.left < TTL}
        return outcome.reply

    def holds(self, token: str) -> bool:
        return self.believed.get(token, 0) > self.now or token in self.handed

    def claim(self, token: str, mode: Mode = Mode.TRY, **changes: Any) -> Request:
        return claim(token, mode, **self.claims[int(token) % len(self.claims)], **changes)

    def is_shared(self, token: str) -> bool:
        return self.claim(token).shared or token in self.downgraded

    def go_together(self, tokens: Sequence[str]) -> bool:
        """Whether all of these may hold it at once."""
        claims = [self.claim(token) for token in tokens]
        owners = {c.entrant for c in claims}
        if len(claims) < 2 or (len(owners) == 1 and owners != {""}):
            return True
        most = claims[0].permits or len(claims)
        return all(map(self.is_shared, tokens)) and len(claims) <= most

    def granted(self, reply: Grant) -> None:
        """Somebody was told that it holds: was it right to say so?"""
        assert reply.token not in self.ended
        assert reply.left > 0
        believers = {t for t, until in self.believed.items() if until > self.now}
        assert self.go_together([*believers | {reply.token}]), "too many hold it"
        if self.fences.get(reply.token) != reply.fence:
            self.handed &= believers
            if not self.enters_again(reply):
                assert reply.fence > self.fence, "the fence did not grow"
                self.in_order(reply.token)
        self.fence = max(self.fence, reply.fence)
        self.fences[reply.token] = reply.fence
        self.believed[reply.token] = self.now + round(reply.left * SECOND)
        self.seen.pop(reply.token, None)

    def enters_again(self, reply: Grant) -> bool:
        """Its owner has it already, by an equal or a stronger claim; then it has that fence."""
        mine = self.claim(reply.token)
        own = [
            token
            for token, until in self.believed.items()
            if until > self.now and mine.entrant and self.claim(token).entrant == mine.entrant
        ]
        writes = {self.fences[token] for token in own if not self.is_shared(token)}
        assert mine.shared or not own or writes, "a reader became a writer"
        if writes and not mine.shared:
            assert {reply.fence} == writes
        return bool(own)

    def in_order(self, token: str) -> None:
        """Nobody who surely is alive has waited longer, unless it need not be fair."""
        if not self.claim(token).fair:
            return
        mine = self.tickets.get(token)
        for other in self.seen:
            if other != token and self.surely_alive(other):
                assert mine is not None and mine < self.tickets[other], "it passed a waiter"

    def surely_alive(self, token: str) -> bool:
        """A sign of life is written only when half of the one before is used up."""
        heard = self.seen.get(token)
        return heard is not None and self.now - heard < alive_for(TTL) / 2 * SECOND

    def ask(self, token: int, mode: Mode, max_queue: int | None = None) -> None:
        name = str(token)
        try:
            reply = self.step(grant.acquire, self.claim(name, mode, max_queue=max_queue))
        except UpgradeRefused:
            return
        if isinstance(reply, Gone):
            self.seen.pop(name, None)
            assert not self.holds(name)
        elif isinstance(reply, Grant):
            self.handed.discard(name)
        elif isinstance(reply, Busy) and reply.ticket:
            if self.surely_alive(name):
                assert reply.ticket == self.tickets[name], "it lost its place"
            self.tickets[name] = reply.ticket
            self.seen[name] = self.now

    @rule(token=tokens)
    def try_(self, token: int) -> None:
        self.ask(token, Mode.TRY)

    @rule(token=tokens, max_queue=st.sampled_from([None, None, 2]))
    def enqueue(self, token: int, max_queue: int | None) -> None:
        self.ask(token, Mode.ENQUEUE, max_queue)

    @rule(token=tokens)
    def poll(self, token: int) -> None:
        known = str(token) in self.seen or str(token) in self.fences
        self.ask(token, Mode.POLL)
        if not known:
            assert str(token) not in self.seen

    @rule(token=tokens)
    def downgrade(self, token: int) -> None:
        name = str(token)
        if self.claim(name).kind is not Kind.RW:
            return
        held = self.holds(name)
        if held:
            self.downgraded.add(name)
            self.handed.discard(name)
        request = self.claim(name, Mode.POLL)._replace(shared=True)
        if name not in self.seen:
            assert isinstance(self.step(grant.acquire, request), Grant) == held

    @rule(token=tokens, unsure=st.booleans())
    def release(self, token: int, unsure: bool) -> None:
        name = str(token)
        if name in self.seen:
            return  # whoever waits withdraws
        held = self.holds(name)
        self.believed.pop(name, None)
        self.handed.discard(name)
        self.downgraded.discard(name)
        reply = self.step(grant.release, self.claim(name, unsure=unsure))
        assert (reply is Release.RELEASED) == held
        if unsure:
            self.end(name)

    @rule(token=tokens, unsure=st.booleans())
    def withdraw(self, token: int, unsure: bool) -> None:
        name = str(token)
        known = name in self.seen or self.holds(name)
        self.step_withdraw(name, unsure)
        if unsure or not known:
            self.end_if_buried(name)

    def step_withdraw(self, name: str, unsure: bool) -> None:
        self.believed.pop(name, None)
        self.handed.discard(name)
        self.downgraded.discard(name)
        self.seen.pop(name, None)
        self.step(grant.withdraw, self.claim(name, unsure=unsure))

    def end_if_buried(self, name: str) -> None:
        if name in self.state.tombs:
            self.end(name)

    def end(self, name: str) -> None:
        self.ended.add(name)
        self.seen.pop(name, None)

    @rule(token=tokens, ttl=st.sampled_from([0.5, TTL, 60.0]))
    def extend(self, token: int, ttl: float) -> None:
        name = str(token)
        reply = self.step(grant.extend, self.claim(name, ttl=ttl, number=1))
        assert (reply.left is not None) == self.holds(name)
        self.handed.discard(name)
        if reply.left is not None:
            self.believed[name] = self.now + round(reply.left * SECOND)

    @precondition(lambda self: self.fence)
    @rule(token=tokens, stale=st.booleans())
    def break_(self, token: int, stale: bool) -> None:
        fence = self.fences.get(str(token))
        if stale or fence is None:
            assert self.step(grant.break_, self.fence + 1) is False
            return
        there = [h.token for h in self.state.holders if h.fence == fence]
        for broken in there:
            self.believed.pop(broken, None)
            self.handed.discard(broken)
            self.end(broken)
        assert self.step(grant.break_, fence) is bool(there)

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 2.9, 5.0, TTL, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)

    @rule()
    def the_store_tidies_up(self) -> None:
        if self.now - START < (TOMB_SECONDS - 60) * SECOND:
            before = len(self.state.tombs)
            self.state.prune(self.now)
            assert len(self.state.tombs) == before

    @invariant()
    def no_more_hold_it_than_may(self) -> None:
        live = [holder.token for holder in self.state.holders if holder.until > self.now]
        assert self.go_together(live)

    @invariant()
    def tickets_are_in_order(self) -> None:
        tickets = [waiter.ticket for waiter in self.state.queue]
        assert tickets == sorted(set(tickets))

    @invariant()
    def nobody_waits_and_holds(self) -> None:
        waiting = {waiter.token for waiter in self.state.queue}
        assert not waiting & {holder.token for holder in self.state.holders}

    @invariant()
    def what_is_believed_is_so(self) -> None:
        holders = {h.token: h.until for h in self.state.holders}
        for token, until in self.believed.items():
            if until > self.now:
                assert holders.get(token, 0) >= until


class SemaphoreMachine(GrantMachine):
    claims: ClassVar[list[dict[str, Any]]] = [
        {"kind": Kind.SEMAPHORE, "permits": 2, "shared": True}
    ]


class ReaderWriterMachine(GrantMachine):
    """Two owners, each of whom reads and writes."""

    claims: ClassVar[list[dict[str, Any]]] = [
        {"kind": Kind.RW, "shared": shared, "entrant": entrant}
        for shared in (True, False)
        for entrant in ("one", "two")
    ]


class ReentrantMachine(GrantMachine):
    claims: ClassVar[list[dict[str, Any]]] = [
        {"kind": Kind.REENTRANT, "entrant": entrant} for entrant in ("one", "two")
    ]


class BargingMachine(GrantMachine):
    claims: ClassVar[list[dict[str, Any]]] = [{"fair": False}, {}]


class BargingReaderMachine(GrantMachine):
    claims: ClassVar[list[dict[str, Any]]] = [
        {"kind": Kind.RW, "shared": True, "fair": False},
        {"kind": Kind.RW, "shared": True},
        {"kind": Kind.RW, "fair": False},
        {"kind": Kind.RW},
    ]


PLAYED = settings(max_examples=50, stateful_step_count=50, deadline=None)

TestGrantMachine = GrantMachine.TestCase
TestGrantMachine.settings = PLAYED
TestSemaphoreMachine = SemaphoreMachine.TestCase
TestSemaphoreMachine.settings = PLAYED
TestReaderWriterMachine = ReaderWriterMachine.TestCase
TestReaderWriterMachine.settings = PLAYED
TestReentrantMachine = ReentrantMachine.TestCase
TestReentrantMachine.settings = PLAYED
TestBargingMachine = BargingMachine.TestCase
TestBargingMachine.settings = PLAYED
TestBargingReaderMachine = BargingReaderMachine.TestCase
TestBargingReaderMachine.settings = PLAYED
