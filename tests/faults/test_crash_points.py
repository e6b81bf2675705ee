"""Orders with claims, at every step of which the process may die or the store may fail once.

No clock: a lease of a process that died ends when the test says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import pytest
from claiming import order_of, rules
from hypothesis import given, settings
from hypothesis import strategies as st

import lockkit
from lockkit.leases.client import Lease, LockClient
from lockkit.leases.lease import give_back, give_back_async
from lockkit.model.errors import BackendUnavailable, LeaseLost, OutcomeUnknown
from lockkit.orders import (
    DuplicateKeyError,
    Order,
    OrderResponse,
    Orders,
    Proceed,
    Record,
    Refusal,
    Replay,
    adrive,
    drive,
)
from lockkit.orders.decisions import Decision
from lockkit.orders.record import RecordState

T = TypeVar("T")

STEPS = 9
"""More than an order has from its first look to its release."""


@dataclass
class Claims:
    """Records in a dict, which asks the locks as a script in Redis does."""

    locks: LockClient
    rows: dict[str, tuple[Record, int]] = field(default_factory=dict)

    def find(self, key: str, *, fresh: bool) -> Record | None:
        return self.rows[key][0] if key in self.rows else None

    def start(self, record: Record, fence: int, *, replaces: bool) -> None:
        holder = self.locks.inspect(f"order:{record.key}")
        if holder is None or holder.fence != fence:
            raise LeaseLost("not held", name=record.key)
        known, owner = self.rows.get(record.key, (None, fence))
        if known is not None and owner != fence:
            is_orphan = known.state == RecordState.RUNNING and owner < fence
            if not (replaces and is_orphan):
                raise DuplicateKeyError
        self.rows[record.key] = record, fence

    def finish(self, record: Record, fence: int) -> bool:
        is_mine = self.rows.get(record.key, (None, 0))[1] == fence
        if is_mine:
            self.rows[record.key] = record, fence
        return is_mine

    def drop(self, key: str, fence: int) -> bool:
        record, owner = self.rows.get(key, (None, 0))
        is_mine = record is not None and owner == fence and record.state == RecordState.RUNNING
        if is_mine:
            del self.rows[key]
        return is_mine


@dataclass
class Fault:
    """The step at which something happens: before it is done, or after."""

    step: int
    before: bool
    deadly: bool


class Process:
    """One process's way to the stores. Nothing it does counts after its death."""

    def __init__(self, claims: Claims, fault: Fault | None) -> None:
        self.claims = claims
        self._fault = fault
        self._steps = 0
        self.is_dead = False
        self.leases: list[Lease] = []

    def do(self, step: Callable[[], T]) -> T:
        self._steps += 1
        fault = self._fault
        is_now = fault is not None and fault.step == self._steps
        self.is_dead |= is_now and fault is not None and fault.deadly and fault.before
        if self.is_dead or (is_now and fault is not None and fault.before):
            raise BackendUnavailable("gone")
        done = step()
        if is_now and fault is not None:
            self.is_dead = fault.deadly
            raise OutcomeUnknown("gone")
        return done

    def find(self, key: str, *, fresh: bool) -> Record | None:
        return self.do(lambda: self.claims.find(key, fresh=fresh))

    def start(self, record: Record, fence: int, *, replaces: bool) -> None:
        self.do(lambda: self.claims.start(record, fence, replaces=replaces))

    def finish(self, record: Record, fence: int) -> bool:
        return self.do(lambda: self.claims.finish(record, fence))

    def drop(self, key: str, fence: int) -> bool:
        return self.do(lambda: self.claims.drop(key, fence))

    def _mutex(self, name: str, label: str) -> Locking:
        return Locking(self, name, label)

    def end(self) -> None:
        """What it still holds expires."""
        for lease in self.leases:
            self.claims.locks.break_(lease.name, fence=lease.fencing_token)
            with suppress(LeaseLost):
                lease.release()


@dataclass
class Locking:
    """A lock and its lease, by way of a process."""

    process: Process
    name: str
    label: str
    fencing_token: int = 0
    timeout: float = 0
    released: bool = False

    def acquire(self) -> Locking:
        lock = self.process.claims.locks.lock(self.name, label=self.label)
        lease = self.process.do(lambda: self._noted(lock.acquire(self.timeout)))
        self.fencing_token = lease.fencing_token
        return self

    def _noted(self, lease: Lease) -> Lease:
        self.process.leases.append(lease)
        return lease

    def _disown(self) -> None:
        """It is released where it is told so."""

    def release(self) -> bool:
        self.released = self.process.do(self.process.leases[-1].release)
        return self.released


class Awaited:
    """The same for coroutines."""

    def __init__(self, target: Any) -> None:
        vars(self)["_target"] = target

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._target, name, value)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found) or name == "_disown":  # which nobody awaits
            return found

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            answer = found(*args, **kwargs)
            return Awaited(answer) if isinstance(answer, Locking) else answer

        return awaited

    def _mutex(self, name: str, label: str) -> Awaited:
        return Awaited(self._target._mutex(name, label))


@dataclass
class Shop:
    """Where orders take effect, and what their clients were told."""

    orders: Orders
    claims: Claims
    run: Callable[[Shop, Process, Order, str], Any]
    effects: int = 0
    announced: int = 0  #: runs of an orphan
    told: list[bytes] = field(default_factory=list)

    def request(self, fault: Fault | None, view: str) -> Any:
        process = Process(self.claims, fault)
        order = order_of(self.orders)
        try:
            answer = self.run(self, process, order, view)
        finally:
            process.end()
        if process.is_dead:
            return None
        if isinstance(answer, bytes):
            self.told.append(answer)
        elif isinstance(answer, Replay):
            self.told.append(answer.snapshot.body)
        return answer

    def view(self, decision: Proceed, view: str) -> tuple[OrderResponse, bool]:
        """The response, and whether it was made of an exception."""
        self.announced += decision.orphan
        if view == "refuses":
            return OrderResponse(503, [], b""), False
        self.effects += 1
        status = 500 if view == "fails" else 201
        return OrderResponse(status, [], b"%d" % self.effects), view == "fails"


def run(shop: Shop, process: Process, order: Order, view: str) -> Any:
    store, locks = cast("Any", process), cast("Any", process)
    decision: Decision = drive(shop.orders.admit(order), store, locks)
    if not isinstance(decision, Proceed):
        return decision
    response, failed = shop.view(decision, view)
    refusal = drive(shop.orders.settle(decision, response, failed=failed), store, locks)
    give_back(decision.lease)
    return refusal or (response.body if response.status == 201 else response)


def run_awaited(shop: Shop, process: Process, order: Order, view: str) -> Any:
    async def running() -> Any:
        store, locks = cast("Any", Awaited(process)), cast("Any", Awaited(process))
        decision: Decision = await adrive(shop.orders.admit(order), store, locks)
        if not isinstance(decision, Proceed):
            return decision
        response, failed = shop.view(decision, view)
        settling = shop.orders.settle(decision, response, failed=failed)
        refusal = await adrive(settling, store, locks)
        await give_back_async(decision.lease)
        return refusal or (response.body if response.status == 201 else response)

    return asyncio.run(running())


RUNNERS = pytest.mark.parametrize("runner", [run, run_awaited], ids=["sync", "async"])
faults = st.none() | st.builds(Fault, st.integers(1, STEPS), st.booleans(), st.booleans())
views = st.sampled_from(["sells", "sells", "refuses", "fails"])
histories = st.lists(st.tuples(faults, views), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def locks() -> Iterator[LockClient]:
    client = lockkit.connect("memory://", ttl=3600)
    yield client
    client.close()


def check(shop: Shop, history: list[tuple[Fault | None, str]]) -> None:
    """Play it; then a client that goes on trying, without faults."""
    for fault, view in history:
        shop.request(fault, view)
        held = [info for info in shop.claims.locks.holders() if info.fence is not None]
        assert not held, "nothing is left locked"
    for _ in range(2):
        answer = shop.request(None, "sells")
        assert isinstance(answer, (bytes, Replay)) or answer.code == "order-orphaned"
    assert len(set(shop.told)) <= 1, "every client sees the same bytes"
    assert shop.effects <= 1 + shop.announced, "what ran again was announced as an orphan"


@RUNNERS
@given(history=histories)
@settings(max_examples=150, deadline=None)
def test_blocked_orphans_never_run_again(runner: Any, history: Any, locks: LockClient) -> None:
    shop = Shop(rules(), Claims(locks), runner)
    check(shop, history)
    assert shop.effects <= 1


@RUNNERS
@given(history=histories)
@settings(max_examples=100, deadline=None)
def test_orphans_run_again_if_the_settings_say_so(
    runner: Any, history: Any, locks: LockClient
) -> None:
    shop = Shop(rules(ORPHANS="retry"), Claims(locks), runner)
    for fault, view in history:
        shop.request(fault, view)
    last = shop.request(None, "sells")
    assert isinstance(last, (bytes, Replay)), "it never ends in an orphan"
    assert shop.effects <= 1 + shop.announced


@RUNNERS
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, STEPS))
def test_a_death_at_each_step(step: int, before: bool, runner: Any, locks: LockClient) -> None:
    """Which one it was decides what the next try finds: nothing, an orphan, or the response."""
    shop = Shop(rules(), Claims(locks), runner)
    first = shop.request(Fault(step, before, deadly=True), "sells")
    second = shop.request(None, "sells")
    claimed = step > 2 or (step, before) == (2, False)
    finished = step > 3 or (step, before) == (3, False)
    if not claimed:
        assert (first, second) == (None, b"1")
    elif not finished:
        assert (first, shop.effects) == (None, int(step > 2))
        assert isinstance(second, Refusal)
        assert second.code == "order-orphaned"
    else:
        assert isinstance(second, Replay)
        assert (second.snapshot.body, shop.effects) == (b"1", 1)


@RUNNERS
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_claim_that_fails_once_leaves_no_orphan(
    before: bool, runner: Any, locks: LockClient
) -> None:
    shop = Shop(rules(), Claims(locks), runner)
    refused = shop.request(Fault(2, before, deadly=False), "sells")
    assert isinstance(refused, Refusal)
    assert (refused.status, shop.effects) == (503, 0)
    assert shop.request(None, "sells") == b"1"
