"""Reentrant locks: their owner enters again, and nobody else does."""

from __future__ import annotations

import pytest

from lockkit.model.errors import ConfigurationError, KindMismatch
from lockkit.model.types import Kind
from lockkit.stores.contract import Listed, Queued, Reentrant
from lockkit.testing.blocking import AnyClient, AnyLock, Api
from lockkit.testing.checkers import fence_of
from lockkit.testing.conformance.base import (
    PROCESSES,
    ROOMY,
    Agents,
    Spawn,
    needs,
    nothing_left,
    queued,
)
from lockkit.testing.conformance.exclusion import each_was_alone, history_of

OWNER = "job-17"
WORKERS = 4
CYCLES = 40


@needs(Reentrant)
class ReentryTests:
    def test_an_owner_enters_again_and_leaves_as_often(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        mine = job(client, name)
        outer = mine.acquire()
        inner = mine.acquire(0)
        assert fence_of(inner) == fence_of(outer)
        assert not inner.shared
        assert other.lock(name, reentrant=True, owner="job-18").try_acquire() is None
        assert outer.release()
        assert other.lock(name, reentrant=True, owner="job-18").try_acquire() is None
        inner.check()
        assert inner.release()
        nothing_left(client, name)

    def test_an_owner_enters_from_elsewhere(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        """A token of its own, under the same fence: each is given back by itself."""
        outer = job(client, name).acquire()
        elsewhere = job(other, name).acquire(0)
        assert fence_of(elsewhere) == fence_of(outer)
        assert elsewhere.token != outer.token
        if isinstance(client.store, Listed):
            assert sum(1 for _ in client.holders(name)) == 2
        assert outer.release()
        assert not outer.release()
        assert client.lock(name, reentrant=True, owner="job-18").try_acquire() is None
        assert elsewhere.release()
        nothing_left(client, name)

    @needs(PROCESSES)
    def test_an_owner_enters_from_another_process(
        self, client: AnyClient, agents: Agents, api: Api, name: str
    ) -> None:
        (agent,) = agents(1)
        with job(client, name).acquire() as lease:
            order = {"handle": name, "api": api, "name": name, "timeout": 20.0}
            reply = agent.call("acquire", owner=OWNER, **order)
            assert reply["fence"] == fence_of(lease)
        assert client.lock(name, reentrant=True, owner="job-18").try_acquire() is None
        assert agent.call("release", handle=name)
        nothing_left(client, name)

    @needs(Queued, Listed)
    def test_those_who_wait_come_after_the_last_of_them(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        mine = job(client, name)
        outer = mine.acquire()
        waiting = spawn(other.lock(name, reentrant=True, owner="job-18").acquire)
        queued(client, name, 1)
        inner, elsewhere = mine.acquire(0), job(other, name).acquire(0)
        assert outer.release() and inner.release()
        queued(client, name, 1)
        assert elsewhere.release()
        follower = waiting.result()
        assert follower.fencing_token > outer.fencing_token
        assert follower.release()
        nothing_left(client, name)

    def test_a_longer_ttl_extends_what_is_left(self, client: AnyClient, name: str) -> None:
        with job(client, name).acquire():
            inner = client.lock(name, ttl=4 * ROOMY, reentrant=True, owner=OWNER).acquire(0)
            if isinstance(client.store, Listed):
                info = client.inspect(name)
                assert info is not None
                assert info.left is not None and info.left > 3 * ROOMY
            assert inner.remaining() > 3 * ROOMY
            assert inner.release()
        nothing_left(client, name)

    @needs(Listed)
    def test_an_operator_breaks_all_of_them(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        outer, elsewhere = job(client, name).acquire(), job(other, name).acquire(0)
        assert {i.kind for i in client.holders(name)} == {Kind.REENTRANT}
        assert other.break_(name, fence=outer.fencing_token)
        nothing_left(client, name)
        assert not outer.release()
        assert not elsewhere.release()

    def test_it_is_a_kind_of_its_own(self, client: AnyClient, other: AnyClient, name: str) -> None:
        with job(client, name).acquire(), pytest.raises(KindMismatch, match="a reentrant lock"):
            other.lock(name).acquire(0)
        with client.lock(name).acquire(), pytest.raises(KindMismatch, match="a mutex"):
            job(other, name).acquire(0)
        nothing_left(client, name)

    def test_an_owner_is_for_what_can_be_entered_again(self, client: AnyClient, name: str) -> None:
        with pytest.raises(ConfigurationError, match="reentrant=True"):
            client.lock(name, owner=OWNER)

    @needs(PROCESSES)
    def test_processes_exclude_one_another(self, agents: Agents, api: Api, name: str) -> None:
        running = [
            agent.share(api=api, name=name, uses=["reentrant"], cycles=CYCLES)
            for agent in agents(WORKERS)
        ]
        each_was_alone(history_of(running), WORKERS * CYCLES)


def job(client: AnyClient, name: str) -> AnyLock:
    return client.lock(name, reentrant=True, owner=OWNER)
