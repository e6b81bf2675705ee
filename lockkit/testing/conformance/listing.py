"""What operators see of a store, and release there."""

from __future__ import annotations

import os

import pytest

from lockkit.model.clock import now
from lockkit.model.errors import (
    LeaseLost,
)
from lockkit.model.types import LockState
from lockkit.stores.contract import Listed, Queued, Sessioned
from lockkit.testing.blocking import AnyClient
from lockkit.testing.conformance.base import (
    SLACK,
    TTL,
    Connect,
    Spawn,
    at_least_once,
    eventually,
    held,
    needs,
    queued,
)
from lockkit.testing.conformance.choice import Without
from lockkit.testing.conformance.leases import RENEWED


@needs(Listed)
class ListingTests:
    def test_break_compares_the_fence(self, client: AnyClient, other: AnyClient, name: str) -> None:
        lease = client.lock(name).acquire()
        assert [info.fence for info in other.holders(name)] == [lease.fencing_token]
        assert other.break_(name, fence=lease.fencing_token - 1) is False
        lease.extend()
        assert other.break_(name, fence=lease.fencing_token) is True
        assert other.break_(name, fence=lease.fencing_token) is False
        with pytest.raises(LeaseLost):
            lease.extend()
        assert lease.lost
        assert lease.release() is False

    def test_a_renewal_tells_the_holder_that_it_was_broken(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        """Before its deadline."""

        def told() -> bool:
            lease = client.lock(name, ttl=RENEWED).acquire()
            deadline = now() + lease.remaining()
            assert other.break_(name, fence=lease.fencing_token)
            eventually(lambda: lease.lost)
            assert lease.release() is False
            return now() < deadline

        at_least_once(told)

    @needs(Queued)
    def test_break_grants_the_next_waiter(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        lease = client.lock(name, ttl=30).acquire()
        waiting = spawn(other.lock(name).acquire)
        queued(client, name, 1)
        assert client.break_(name, fence=lease.fencing_token)
        with waiting.result() as taken:
            assert taken.fencing_token > lease.fencing_token
            assert lease.release() is False
            taken.check()

    def test_break_of_nothing(self, client: AnyClient, name: str) -> None:
        assert client.break_(name, fence=1) is False
        assert client.inspect(name) is None

    def test_inspect_tells_what_is_held(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        assert other.inspect(name) is None
        with client.lock(name, ttl=30, label="nightly").acquire() as lease:
            info = other.inspect(name)
            assert info is not None
            assert (info.name, info.state) == (name, LockState.HELD)
            assert info.fence == lease.fencing_token
            assert info.owner is not None
            assert (info.owner.pid, info.owner.label) == (os.getpid(), "nightly")
            assert info.ttl == pytest.approx(30)
            assert info.left is not None and 20 < info.left <= 30
            assert info.age is not None and 0 <= info.age < SLACK
            assert info.renewed is not None and 0 <= info.renewed < SLACK
            assert info.max_hold == pytest.approx(600)
            assert (info.waiters, info.waiters_alive) == (0, 0)
            assert lease.token not in repr(info)
        assert other.inspect(name) is None

    def test_holders_lists_every_name_once(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        names = {f"{name}:{number}" for number in range(150)}
        leases = [client.lock(n, ttl=30).acquire() for n in names]
        seen = [info.name for info in other.holders() if info.name.startswith(name)]
        assert sorted(seen) == sorted(names)
        for lease in leases:
            assert lease.release()
        assert not [info for info in other.holders() if info.name.startswith(name)]

    @needs(Without(Sessioned))
    def test_an_abandoned_lease_is_shown_until_somebody_clears_it(
        self, connect: Connect, other: AnyClient, name: str
    ) -> None:
        lease = connect(max_hold=0, ttl=TTL).lock(name).acquire()
        eventually(lambda: not held(other, name))
        info = other.inspect(name)
        assert info is not None
        assert info.state is LockState.ABANDONED
        assert info.left is not None and info.left <= 0
        assert name in [found.name for found in other.holders()]
        assert other.break_(name, fence=lease.fencing_token)
        assert other.inspect(name) is None
        assert lease.release() is False
