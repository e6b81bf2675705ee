"""Semaphores: a name has no more leases than permits, and each lease expires by itself."""

from __future__ import annotations

from concurrent.futures import as_completed
from typing import ClassVar

import pytest

from lockkit.model.errors import AcquireTimeout, ConfigurationError, KindMismatch
from lockkit.model.types import Kind, LockState, Request
from lockkit.stores.contract import Listed, Queued, Shared
from lockkit.testing.blocking import AnyClient, AnyLease, Api
from lockkit.testing.conformance.base import (
    PROCESSES,
    ROOMY,
    TTL,
    Agents,
    Connect,
    Spawn,
    at_least_once,
    eventually,
    needs,
    nothing_left,
    queued,
)
from lockkit.testing.conformance.exclusion import history_of
from lockkit.testing.conformance.steps import claim, granted

PERMITS = 3
WORKERS = 5
CYCLES = 40


@needs(Shared)
class SemaphoreTests:
    brief: ClassVar[float]

    def test_so_many_have_a_permit_and_no_more(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        leases = take_all(client, name)
        assert other.semaphore(name, PERMITS).try_acquire() is None
        assert leases.pop(1).release()
        again = other.semaphore(name, PERMITS).try_acquire()
        assert again is not None
        for lease in (again, *leases):
            assert lease.shared
            assert lease.release()
        nothing_left(client, name)

    def test_a_permit_expires_by_itself(
        self, client: AnyClient, connect: Connect, name: str
    ) -> None:
        kept = [client.semaphore(name, PERMITS).acquire() for _ in range(PERMITS - 1)]
        hung = connect(max_hold=0, ttl=self.brief).semaphore(name, PERMITS).acquire()
        follower = client.semaphore(name, PERMITS).acquire()
        assert hung.lost
        assert not hung.release()
        assert all(lease.release() for lease in (follower, *kept))
        nothing_left(client, name)

    @needs(Queued, Listed)
    def test_those_who_wait_for_permits_get_them_in_order(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        def in_order() -> bool:
            leases = take_all(client, name)
            waiting = []
            for number in range(PERMITS + 1):
                waiting.append(spawn(other.semaphore(name, PERMITS).acquire))
                queued(client, name, number + 1)
            assert all(lease.release() for lease in leases)
            granted = as_completed(waiting)
            first = [next(granted) for _ in range(PERMITS)]
            early = waiting[PERMITS].done()
            assert all(future.result().release() for future in first)
            last = next(granted).result()
            fences = [future.result().fencing_token for future in waiting]
            assert last.release()
            nothing_left(client, name)
            return not early and fences == sorted(fences)

        at_least_once(in_order)

    def test_one_who_gives_up_leaves_permits_to_the_others(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        leases = take_all(client, name)
        with pytest.raises(AcquireTimeout):
            other.semaphore(name, PERMITS).acquire(timeout=0.01)
        assert all(lease.release() for lease in leases)
        nothing_left(client, name)

    def test_a_name_is_one_kind_at_a_time(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        with client.semaphore(name, PERMITS).acquire():
            for timeout in (0, 20):
                with pytest.raises(KindMismatch, match=f"a semaphore of {PERMITS}") as caught:
                    other.lock(name).acquire(timeout)
                assert repr(name) in str(caught.value)
                assert caught.value.name == name
        with client.lock(name).acquire(), pytest.raises(KindMismatch, match="a mutex"):
            other.semaphore(name, PERMITS).acquire(0)
        client.semaphore(name, PERMITS + 1).acquire().release()
        nothing_left(client, name)

    def test_of_several_numbers_of_permits_the_smallest_applies(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        """The smallest of the holders' and the claim's. So one release of a program can replace
        another."""
        old, new = client.semaphore(name, PERMITS), other.semaphore(name, PERMITS + 2)
        leases = [new.acquire(0) for _ in range(PERMITS)]
        assert old.try_acquire() is None
        leases.append(new.acquire(0))
        assert leases.pop(0).release()
        assert old.try_acquire() is None
        assert leases.pop(0).release()
        first = old.acquire(0)
        assert new.try_acquire() is None
        if isinstance(client.store, Listed):
            assert {info.permits for info in client.holders(name)} == {PERMITS, PERMITS + 2}
        assert first.release()
        leases += [new.acquire(0) for _ in range(3)]
        assert new.try_acquire() is None
        assert all(lease.release() for lease in leases)
        nothing_left(client, name)

    @needs(Queued, Listed)
    def test_those_of_another_number_of_permits_wait_in_turn(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        with client.semaphore(name, PERMITS).acquire():
            leases = take_all(client, name, PERMITS - 1)
            waiting = spawn(other.semaphore(name, PERMITS + 2).acquire)
            queued(client, name, 1)
            assert all(lease.release() for lease in leases)
            assert waiting.result().release()
        nothing_left(client, name)

    @needs(Listed)
    def test_what_a_semaphore_has_left_behind_is_no_other_kind(
        self, client: AnyClient, connect: Connect, name: str
    ) -> None:
        """Its permits have expired, and nobody has taken them."""
        hung = connect(max_hold=0, ttl=TTL)
        permit = hung.semaphore(name, PERMITS).acquire()
        eventually(lambda: all(i.state is not LockState.HELD for i in client.holders(name)))
        with client.lock(name).acquire(), pytest.raises(KindMismatch):
            client.semaphore(name, PERMITS).acquire(0)
        mutex = hung.lock(name).acquire()
        eventually(lambda: all(i.state is not LockState.HELD for i in client.holders(name)))
        again = take_all(client, name)
        assert client.semaphore(name, PERMITS).try_acquire() is None
        assert not permit.release() and not mutex.release()
        assert all(lease.release() for lease in again)
        nothing_left(client, name)

    @needs(Listed)
    def test_each_permit_is_listed_and_can_be_broken(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        leases = take_all(client, name)
        infos = list(other.holders(name))
        assert [info.fence for info in infos] == [lease.fencing_token for lease in leases]
        assert {(i.kind, i.permits, i.state) for i in infos} == {
            (Kind.SEMAPHORE, PERMITS, LockState.HELD)
        }
        assert sum(info.name == name for info in other.holders()) == PERMITS
        assert other.break_(name, fence=leases[1].fencing_token)
        assert not other.break_(name, fence=leases[1].fencing_token)
        assert [lease.release() for lease in leases] == [True, False, True]
        nothing_left(client, name)

    def test_permits_and_locks_are_extended_together(self, client: AnyClient, name: str) -> None:
        requests = [permit(name), claim(f"{name}:mutex"), permit(name), permit(name)]
        for request in requests[:3]:
            granted(client, request)
        renewals = client.perform(
            client.store.extend([r._replace(ttl=60.0, number=1) for r in requests])
        )
        assert [bool(renewal.left) for renewal in renewals] == [True, True, True, False]
        shorter = client.perform(
            client.store.extend([r._replace(ttl=40.0, number=2) for r in requests[:1]])
        )
        assert shorter[0].left is not None
        if isinstance(client.store, Listed):
            lefts = [info.left for info in client.holders(name)]
            assert [round(left or 0, -1) for left in lefts] == [40.0, 60.0]
        for request in requests[:3]:
            client.perform(client.store.release(request))
        nothing_left(client, name)

    def test_the_same_token_gets_the_same_permit(self, client: AnyClient, name: str) -> None:
        request = permit(name)
        fences = {granted(client, request).fence for _ in range(3)}
        assert len(fences) == 1
        others = take_all(client, name, PERMITS - 1)
        client.perform(client.store.release(request))
        assert all(lease.release() for lease in others)
        nothing_left(client, name)

    def test_permits_are_a_number(self, client: AnyClient, name: str) -> None:
        for permits in (0, -1, 1.5, True, "3", None):
            with pytest.raises(ConfigurationError, match="permits is"):
                client.semaphore(name, permits)  # type: ignore[arg-type]

    @needs(PROCESSES)
    def test_processes_share_a_semaphore(self, agents: Agents, api: Api, name: str) -> None:
        running = [
            agent.share(api=api, name=name, uses=["semaphore:2"], cycles=CYCLES)
            for agent in agents(WORKERS)
        ]
        history = history_of(running)
        assert not [str(crowd) for crowd in history.crowds(2)]
        assert len(history.intervals) == WORKERS * CYCLES


def take_all(client: AnyClient, name: str, number: int = PERMITS) -> list[AnyLease]:
    """Every permit there is."""
    return [client.semaphore(name, PERMITS, ttl=ROOMY).acquire(0) for _ in range(number)]


def permit(name: str) -> Request:
    return claim(name)._replace(kind=Kind.SEMAPHORE, permits=PERMITS, shared=True)
