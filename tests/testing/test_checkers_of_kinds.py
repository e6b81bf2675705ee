"""The checker of shared names catches what is wrong, and nothing else."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import pytest
from broken_kinds import (
    BrokenPermit,
    ClientClockSemaphore,
    CountThenAdd,
    FlagThenCount,
)

from lockkit.testing.checkers import Belief, History, Interval
from lockkit.testing.servers import RedisServer

if TYPE_CHECKING:
    import redis

PERMITS = 2
TTL = 60.0


class Semaphore(Protocol):
    def acquire(self) -> BrokenPermit | None: ...


def interval(start: float, end: float, *, shared: bool, owner: str = "x") -> Interval:
    return Interval("a", owner, start, end, shared=shared)


class TestCrowds:
    def test_those_who_may_share_are_no_crowd(self) -> None:
        history = History(interval(0, end, shared=True) for end in (1, 2, 3))
        assert history.crowds() == []
        assert history.crowds(3) == []

    def test_one_too_many_is_found(self) -> None:
        history = History(interval(start, 9, shared=True) for start in (1, 2, 3))
        [crowd] = history.crowds(2)
        assert len(crowd.others) == 2
        assert "came while" in str(crowd)

    def test_who_left_in_time_does_not_count(self) -> None:
        history = History([interval(0, 2, shared=True), interval(0, 1, shared=True)])
        history += [interval(1, 3, shared=True), interval(2, 3, shared=True)]
        assert history.crowds(2) == []

    @pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
    def test_one_who_holds_it_alone_is_alone(self, first: bool, second: bool) -> None:
        history = History([interval(0, 2, shared=first), interval(1, 3, shared=second)])
        assert len(history.crowds()) == 1

    def test_one_after_the_other_is_no_crowd(self) -> None:
        history = History([interval(0, 1, shared=False), interval(1, 2, shared=True)])
        assert history.crowds() == []


def test_a_count_and_a_later_step_are_caught(redis_server: RedisServer) -> None:
    everybody = threading.Barrier(PERMITS + 1)

    def work(client: redis.Redis) -> tuple[Belief, BrokenPermit]:
        semaphore = CountThenAdd(client, "counted", PERMITS, TTL, lambda: everybody.wait(20))
        return hold(semaphore)

    with redis_server.client() as client, ThreadPoolExecutor(PERMITS + 1) as threads:
        history = History()
        for belief, permit in [f.result() for f in [threads.submit(work, client) for _ in "abc"]]:
            history += [belief.end()]
            permit.release()
    assert history.crowds(PERMITS)


@pytest.mark.parametrize("together", [False, True])
def test_a_flag_and_a_later_count_are_caught(redis_server: RedisServer, together: bool) -> None:
    """When a reader and a writer come at once; one after the other they are right."""
    both = threading.Barrier(2)
    with redis_server.client() as client, ThreadPoolExecutor(2) as threads:
        lock = FlagThenCount(client, f"flag:{together}", TTL)
        if together:
            lock.between = lambda: both.wait(20)
        running = [threads.submit(lock.read)]
        if not together:
            running[0].result()
        running.append(threads.submit(lock.write))
        reader, writer = (future.result() for future in running)
        believed = [p for p in (reader, writer) if p is not None]
        beliefs = [Belief("a", "x", p, shared=p is reader) for p in believed]
        history = History(belief.end() for belief in beliefs)
        for permit in believed:
            permit.release()
    assert bool(history.crowds()) is together


@pytest.mark.parametrize("ahead", [0.0, 2 * TTL])
def test_a_clock_that_is_ahead_is_caught(redis_server: RedisServer, ahead: float) -> None:
    """And only that: with equal clocks it is right."""
    with redis_server.client() as client:
        name = f"clocked:{ahead}"
        right = ClientClockSemaphore(client, name, PERMITS, TTL)
        fast = ClientClockSemaphore(client, name, PERMITS, TTL, lambda: time.time() + ahead)
        held = [hold(right) for _ in range(PERMITS)]
        intruder = fast.acquire()
        if intruder is not None:
            held.append((Belief("a", "fast", intruder, shared=True), intruder))
        history = History(belief.end() for belief, _ in held)
        for _, permit in held:
            permit.release()
    assert bool(history.crowds(PERMITS)) is bool(ahead)


def hold(semaphore: Semaphore) -> tuple[Belief, BrokenPermit]:
    permit = semaphore.acquire()
    assert permit is not None
    return Belief("a", "x", permit, shared=True), permit
