"""Reader-writer locks: many read or one writes, in the order in which they came."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, as_completed, wait
from typing import ClassVar

import pytest

from lockkit.model.errors import ConfigurationError, KindMismatch, LeaseLost, UpgradeRefused
from lockkit.model.types import Kind, LockState
from lockkit.stores.contract import Listed, Queued, Shared
from lockkit.testing.blocking import AnyClient, Api
from lockkit.testing.checkers import History, fence_of
from lockkit.testing.conformance.base import (
    PROCESSES,
    SOON,
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
from lockkit.testing.conformance.leases import is_later

WORKERS = 5
CYCLES = 40


@needs(Shared)
class ReaderWriterTests:
    brief: ClassVar[float]

    def test_readers_read_together_and_writers_write_alone(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        mine, others = client.rwlock(name), other.rwlock(name, owner="another")
        with mine.read().acquire() as first, others.read().acquire() as second:
            assert first.shared and second.shared
            assert other.rwlock(name, owner="a third").write().try_acquire() is None
        with mine.write().acquire() as writer:
            assert not writer.shared
            assert others.read().try_acquire() is None
            assert others.write().try_acquire() is None
        nothing_left(client, name)

    @needs(Queued, Listed)
    def test_writers_are_not_starved(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        """A reader that comes after a writer waits behind it, although others are reading."""

        def in_phases() -> bool:
            reading = client.rwlock(name).read().acquire()
            writing = spawn(other.rwlock(name).write().acquire)
            queued(client, name, 1)
            passed = client.rwlock(name, owner="a third").read().try_acquire()
            if passed is not None:
                assert passed.release() and reading.release() and writing.result().release()
                return False
            waiting = []
            for number in range(2):
                waiting.append(spawn(other.rwlock(name).read().acquire))
                queued(client, name, number + 2)
            assert reading.release()
            granted = as_completed([writing, *waiting])
            first = next(granted)
            early = [future.done() for future in waiting]
            assert first.result().release()
            assert all(future.result().release() for future in granted)
            nothing_left(client, name)
            return first is writing and not any(early)

        at_least_once(in_phases)

    @needs(Queued, Listed)
    def test_a_reader_that_enters_again_does_not_wait_behind_a_writer(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        mine = client.rwlock(name, owner="job-17")
        with mine.read().acquire():
            writing = spawn(other.rwlock(name).write().acquire)
            queued(client, name, 1)
            with mine.read().acquire(0), other.rwlock(name, owner="job-17").read().acquire(0):
                assert sum(1 for _ in client.holders(name)) == 3
        assert writing.result().release()
        nothing_left(client, name)

    def test_a_writer_that_enters_again_keeps_its_fence(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        mine = client.rwlock(name, owner="job-17")
        outer = mine.write().acquire()
        inner, reader = mine.write().acquire(0), mine.read().acquire(0)
        assert fence_of(inner) == fence_of(outer)
        assert outer.release()
        assert other.rwlock(name).read().try_acquire() is None
        assert inner.release() and reader.release()
        nothing_left(client, name)

    @pytest.mark.parametrize("timeout", [0, 20])
    def test_an_upgrade_is_refused_at_once(
        self, client: AnyClient, name: str, timeout: float
    ) -> None:
        mine = client.rwlock(name, owner="job-17")
        with mine.read().acquire():
            with pytest.raises(UpgradeRefused) as caught:
                mine.write().acquire(timeout)
            assert repr(name) in str(caught.value)
            assert caught.value.name == name
        with mine.write().acquire(0):
            pass
        nothing_left(client, name)

    def test_a_writer_that_is_downgraded_reads(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        writer = client.rwlock(name).write().acquire()
        writer.downgrade()
        reader = other.rwlock(name, owner="another").read().acquire(0)
        assert other.rwlock(name, owner="a third").write().try_acquire() is None
        assert writer.shared and writer.release() and reader.release()
        nothing_left(client, name)

    @needs(Queued, Listed)
    def test_a_downgrade_lets_readers_in_and_no_writer(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        def in_order() -> bool:
            writer = client.rwlock(name).write().acquire()
            reading = spawn(other.rwlock(name).read().acquire)
            queued(client, name, 1)
            writing = spawn(other.rwlock(name).write().acquire)
            queued(client, name, 2)
            fence = writer.fencing_token
            writer.downgrade()
            writer.downgrade()  # a second time, as after a lost reply
            assert writer.shared and writer.fencing_token == fence
            granted, _ = wait([reading, writing], SOON, FIRST_COMPLETED)
            assert writer.release()
            assert all(each.result().release() for each in as_completed([reading, writing]))
            nothing_left(client, name)
            return granted == {reading}

        at_least_once(in_order)

    @needs(Listed)
    def test_a_lost_writer_cannot_be_downgraded(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        writer = client.rwlock(name).write().acquire()
        assert other.break_(name, fence=writer.fencing_token)
        with pytest.raises(LeaseLost):
            writer.downgrade()
        assert writer.lost
        assert not writer.release()
        nothing_left(client, name)

    def test_nothing_else_can_be_downgraded(self, client: AnyClient, name: str) -> None:
        with client.lock(name).acquire() as lease, pytest.raises(ConfigurationError):
            lease.downgrade()
        nothing_left(client, name)

    def test_a_dead_reader_holds_a_writer_up_until_its_ttl(
        self, client: AnyClient, connect: Connect, name: str
    ) -> None:
        hung = connect(max_hold=0, ttl=self.brief).rwlock(name, owner="hung").read().acquire()
        writer = client.rwlock(name).write().acquire()
        assert hung.lost
        assert is_later(client, writer, hung)
        assert not hung.release()
        assert writer.release()
        nothing_left(client, name)

    @needs(Listed)
    def test_who_reads_and_who_writes_is_listed(self, client: AnyClient, name: str) -> None:
        with client.rwlock(name).write().acquire() as lease:
            found = list(client.holders(name))
            assert [(i.kind, i.shared, i.fence) for i in found] == [
                (Kind.RW, False, lease.fencing_token)
            ]
            lease.downgrade()
            assert [(i.kind, i.shared) for i in client.holders(name)] == [(Kind.RW, True)]
        nothing_left(client, name)

    def test_it_is_no_mutex(self, client: AnyClient, other: AnyClient, name: str) -> None:
        for use in (client.rwlock(name).read(), client.rwlock(name).write()):
            with use.acquire():
                for wrong in (other.lock(name), other.semaphore(name, 2)):
                    with pytest.raises(KindMismatch, match="a reader-writer lock"):
                        wrong.acquire(0)
        nothing_left(client, name)

    @needs(PROCESSES)
    def test_processes_read_together_and_write_alone(
        self, agents: Agents, api: Api, name: str
    ) -> None:
        uses = ["read", "read", "write", "read"]
        running = [
            agent.share(api=api, name=name, uses=uses[turn:] + uses[:turn], cycles=CYCLES)
            for turn, agent in enumerate(agents(WORKERS))
        ]
        history = history_of(running)
        assert not [str(crowd) for crowd in history.crowds()]
        writes = History(i for i in history.intervals if not i.shared)
        assert len(writes.intervals) == WORKERS * CYCLES // 4
        assert not [str(pair) for pair in writes.fences_out_of_order()]

    @needs(Listed)
    def test_what_readers_have_left_behind_is_no_lock(
        self, client: AnyClient, connect: Connect, name: str
    ) -> None:
        hung = connect(max_hold=0, ttl=TTL).rwlock(name).read().acquire()
        eventually(lambda: all(i.state is not LockState.HELD for i in client.holders(name)))
        with client.lock(name).acquire():
            assert not hung.release()
        nothing_left(client, name)
