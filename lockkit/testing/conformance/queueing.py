"""Waiting: in what order waiters are granted, and that none is left in the queue."""

from __future__ import annotations

import pytest

from lockkit.engine.times import alive_for
from lockkit.model.clock import now
from lockkit.model.errors import AcquireTimeout, LockHeld, TooManyWaiters
from lockkit.model.types import Busy, Mode
from lockkit.stores.contract import Fenced, Listed, Queued, Sessioned
from lockkit.testing.blocking import AnyClient, AnyLease, Api
from lockkit.testing.conformance.base import (
    PROCESSES,
    PROMPT,
    SLACK,
    TTL,
    Agents,
    Connect,
    Spawn,
    at_least_once,
    each_time,
    eventually,
    held,
    needs,
    nothing_left,
    queued,
)
from lockkit.testing.conformance.steps import claim, granted

WAITERS = 10
ORDERS = 3
HANDOFFS = 12


@needs(Queued, Listed, Fenced)
class QueueTests:
    def test_waiters_are_granted_in_the_order_they_came(
        self, connect: Connect, name: str, spawn: Spawn
    ) -> None:
        clients = [connect(), connect()]

        def wait(number: int, granted: list[tuple[int, int]]) -> None:
            with clients[number % 2].lock(name).acquire() as lease:
                granted.append((number, lease.fencing_token))

        def in_order() -> bool:
            granted: list[tuple[int, int]] = []
            with clients[0].lock(name).acquire():
                waiting = []
                for number in range(WAITERS):
                    waiting.append(spawn(wait, number, granted))
                    queued(clients[0], name, number + 1)
            for future in waiting:
                future.result()
            nothing_left(clients[0], name)
            assert [fence for _, fence in granted] == sorted(fence for _, fence in granted)
            return [number for number, _ in granted] == list(range(WAITERS))

        each_time(in_order, ORDERS)

    @needs(PROCESSES)
    def test_processes_are_granted_in_the_order_they_came(
        self, client: AnyClient, agents: Agents, api: Api, name: str
    ) -> None:
        crew = agents(3)

        def in_order() -> bool:
            with client.lock(name).acquire():
                waiting = []
                for number in range(WAITERS):
                    waiting.append(crew[number % 3].send("visit", api=api, name=name))
                    queued(client, name, number + 1)
            visits = [future.result() for future in waiting]
            by_time = sorted(visits, key=lambda visit: visit["at"])
            assert by_time == sorted(visits, key=lambda visit: visit["fence"])
            return by_time == visits

        each_time(in_order, ORDERS)

    def test_a_waiter_gets_the_lock_as_soon_as_it_is_released(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        def promptly() -> bool:
            lease = client.lock(name).acquire()
            waiting = spawn(take, other, name)
            queued(client, name, 1)
            released = now()
            assert lease.release()
            taken, at = waiting.result()
            taken.release()
            return at - released < PROMPT

        at_least_once(promptly)

    def test_nobody_passes_those_who_wait(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        """A release grants the first waiter: there is no moment at which another could come."""

        def passed() -> bool:
            lease = client.lock(name).acquire()
            waiting = spawn(other.lock(name).acquire)
            queued(client, name, 1)
            assert lease.release()
            early = client.lock(name).try_acquire()
            if early is not None:
                early.release()
            waiting.result().release()
            return early is not None

        each_time(lambda: not passed(), HANDOFFS)

    @pytest.mark.parametrize("fair", [True, False])
    def test_what_has_expired_is_taken_ahead_of_a_waiter_only_by_the_unfair(
        self, client: AnyClient, other: AnyClient, name: str, fair: bool
    ) -> None:
        """The waiter is alive, at the head of the queue, and has not asked since the expiry.

        A lease that ends with its session is handed on in that same step."""
        is_found = not fair and not isinstance(client.store, Sessioned)

        def as_it_should() -> bool:
            holder = claim(name, ttl=TTL)
            waiter = claim(name, Mode.ENQUEUE)
            granted(other, holder)
            in_time = isinstance(other.perform(other.store.acquire(waiter)), Busy)
            eventually(lambda: not in_time or not held(client, name))
            lease = client.lock(name, fair=fair).try_acquire()
            if lease is not None:
                assert lease.release()
            other.perform(other.store.release(waiter._replace(queued=True)))
            other.perform(other.store.release(holder))
            nothing_left(client, name)
            return in_time and (lease is not None) is is_found

        at_least_once(as_it_should)

    def test_who_is_not_fair_is_woken_all_the_same(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        lease = client.lock(name).acquire()
        assert other.lock(name, fair=False).try_acquire() is None
        waiting = spawn(other.lock(name, fair=False).acquire)
        queued(client, name, 1)
        assert lease.release()
        follower = waiting.result()
        assert follower.fencing_token > lease.fencing_token
        assert follower.release()
        nothing_left(client, name)

    def test_a_waiter_stays_in_the_queue_however_long_it_takes(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        with client.lock(name).acquire():
            waiting = spawn(other.lock(name, timeout=None, ttl=TTL).acquire)
            queued(client, name, 1)
            started = now()
            eventually(lambda: now() - started > 1.5 * alive_for(TTL))
            eventually(lambda: _alive(client, name) == 1)
            queued(client, name, 1)
        waiting.result().release()

    def test_a_waiter_that_times_out_leaves_the_queue(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        with client.lock(name, ttl=30).acquire():
            for _ in range(WAITERS):
                with pytest.raises(AcquireTimeout):
                    other.lock(name).acquire(timeout=0.01)
            queued(client, name, 0)
        nothing_left(client, name)

    def test_the_queue_has_an_end(
        self, connect: Connect, client: AnyClient, name: str, spawn: Spawn
    ) -> None:
        crowded = connect(max_queue=2)
        with client.lock(name, ttl=30).acquire():
            waiting = [spawn(crowded.lock(name).acquire)]
            queued(client, name, 1)
            waiting.append(spawn(crowded.lock(name).acquire))
            queued(client, name, 2)
            started = now()
            with pytest.raises(TooManyWaiters) as caught:
                crowded.lock(name).acquire()
            assert now() - started < SLACK
            assert caught.value.name == name
            queued(client, name, 2)
        for future in waiting:
            assert future.result().release()
        nothing_left(client, name)

    def test_no_queue_at_all(self, connect: Connect, client: AnyClient, name: str) -> None:
        with client.lock(name).acquire(), pytest.raises(TooManyWaiters):
            connect(max_queue=0).lock(name).acquire()
        nothing_left(client, name)

    def test_a_try_is_no_waiter(self, connect: Connect, client: AnyClient, name: str) -> None:
        with client.lock(name).acquire(), pytest.raises(LockHeld):
            connect(max_queue=0).lock(name).acquire(timeout=0)
        nothing_left(client, name)

    def test_takeover_at_expiry(
        self, connect: Connect, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        """One of several waiters gets it as soon as the holder has expired."""
        hung = connect(max_hold=0, ttl=TTL)

        def promptly() -> bool:
            leases = [hung.lock(f"{name}:{number}").acquire() for number in range(3)]
            started = now()
            waiting = [spawn(_take_over, other, f"{name}:{number % 3}") for number in range(9)]
            moments = [future.result() for future in waiting]
            assert all(lease.lost for lease in leases)
            assert not any(lease.release() for lease in leases)
            assert not any(held(other, f"{name}:{number}") for number in range(3))
            return max(moments) - started < TTL + PROMPT

        at_least_once(promptly)


def take(client: AnyClient, name: str) -> tuple[AnyLease, float]:
    """A lease, and when it was granted."""
    lease = client.lock(name).acquire()
    return lease, now()


def _alive(client: AnyClient, name: str) -> int:
    info = client.inspect(name)
    return info.waiters_alive if info else 0


def _take_over(client: AnyClient, name: str) -> float:
    with client.lock(name).acquire():
        return now()
