"""Tests of stores that lack a trait. Each refuses what the trait is for; or it promises less, and a
test shows what can happen then."""

from __future__ import annotations

from typing import ClassVar

import pytest

from lockkit.model.errors import UnsupportedCapability
from lockkit.model.types import Busy, Grant, Mode
from lockkit.stores.contract import Buried, Fenced, Listed, Reentrant, Sessioned, Shared, Waited
from lockkit.testing.blocking import AnyClient, AnyLease
from lockkit.testing.conformance.base import Connect, held, nothing_left
from lockkit.testing.conformance.choice import Without, needs
from lockkit.testing.conformance.steps import claim, granted


class AbsentTests:
    brief: ClassVar[float]

    @needs(Without(Fenced))
    def test_nothing_stops_a_holder_that_was_paused(
        self, connect: Connect, other: AnyClient, name: str
    ) -> None:
        """Another holds the name, and a resource cannot tell the two apart by fencing tokens."""
        paused = connect(max_hold=0, ttl=self.brief).lock(name).acquire()
        with other.lock(name).acquire() as lease:
            for each in (paused, lease):
                with pytest.raises(UnsupportedCapability):
                    fence_of(each)
            assert paused.lost
        assert paused.release() is False

    @needs(Without(Shared))
    def test_kinds_that_share_a_name_are_refused(self, client: AnyClient, name: str) -> None:
        with pytest.raises(UnsupportedCapability):
            client.semaphore(name, 2).acquire()
        with pytest.raises(UnsupportedCapability):
            client.rwlock(name).read().acquire()
        nothing_left(client, name)

    @needs(Without(Listed))
    def test_nothing_is_listed(self, client: AnyClient, name: str) -> None:
        with client.lock(name).acquire():
            with pytest.raises(UnsupportedCapability):
                list(client.holders())
            with pytest.raises(UnsupportedCapability):
                client.inspect(name)

    @needs(Without(Sessioned))
    def test_a_lease_outlives_its_connection(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        lease = client.lock(name).acquire()
        client.close()
        assert held(other, name)
        assert lease.release()
        nothing_left(other, name)

    @needs(Without(Reentrant))
    def test_an_owner_does_not_enter_from_elsewhere(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        with pytest.raises(UnsupportedCapability):
            client.lock(name, reentrant=True, owner="job-17").acquire()
        with client.lock(name, reentrant=True).acquire():
            assert other.lock(name, reentrant=True).try_acquire() is None
        nothing_left(client, name)

    @needs(Without(Waited))
    def test_another_process_may_pass_those_who_wait(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        """The claim that waits has no place in the store."""
        holder, waiter = claim(name), claim(name, Mode.ENQUEUE)
        granted(other, holder)
        assert isinstance(client.perform(client.store.acquire(waiter)), Busy)
        other.perform(other.store.release(holder))
        granted(other, passing := claim(name))
        client.perform(client.store.release(waiter._replace(queued=True)))
        other.perform(other.store.release(passing))
        nothing_left(client, name)

    @needs(Without(Buried))
    def test_an_acquire_delayed_past_its_withdraw_has_the_name(
        self, client: AnyClient, name: str
    ) -> None:
        """For one TTL at most: nobody renews it."""
        request = claim(name, ttl=self.brief)
        client.perform(client.store.release(request._replace(queued=True)))
        assert isinstance(client.perform(client.store.acquire(request)), Grant)
        client.lock(name).acquire().release()


def fence_of(lease: AnyLease) -> int:
    return lease.fencing_token
