"""The life of a lease: granted, renewed, extended, broken, lost, released."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from lockkit.model.clock import now
from lockkit.model.errors import AcquireTimeout, ConfigurationError, LeaseLost, LockHeld
from lockkit.model.types import LockState
from lockkit.testing.blocking import AnyClient
from lockkit.testing.conformance.base import (
    ROOMY,
    SLACK,
    TTL,
    Connect,
    Spawn,
    at_least_once,
    eventually,
    held,
    nothing_left,
    queued,
)

__all__ = ["LeaseTests"]


class LeaseTests:
    def test_a_lease_is_held_until_it_is_released(self, client: AnyClient, name: str) -> None:
        lease = client.lock(name).acquire()
        assert 0 < lease.remaining() <= ROOMY
        lease.check()
        assert held(client, name)
        assert lease.release() is True
        assert lease.lost
        nothing_left(client, name)

    def test_release_is_idempotent(self, client: AnyClient, name: str) -> None:
        lease = client.lock(name).acquire()
        assert [lease.release(), lease.release()] == [True, False]

    def test_tokens_are_long_and_never_repeat(self, client: AnyClient, name: str) -> None:
        tokens = set()
        for _ in range(20):
            with client.lock(name).acquire() as lease:
                tokens.add(lease.token)
        assert len(tokens) == 20
        assert min(map(len, tokens)) >= 32

    def test_fences_grow_with_every_grant(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        fences = []
        for _ in range(20):
            for holder in (client, other):
                with holder.lock(name).acquire() as lease:
                    fences.append(lease.fencing_token)
        assert all(earlier < later for earlier, later in pairwise(fences))
        assert 0 < fences[-1] < 2**63

    def test_busy_at_once(self, client: AnyClient, other: AnyClient, name: str) -> None:
        with client.lock(name, label="POST /orders").acquire():
            assert other.lock(name).try_acquire() is None
            with pytest.raises(LockHeld) as caught:
                other.lock(name, timeout=0).acquire()
        assert caught.value.name == name
        assert caught.value.holder is not None
        assert caught.value.holder.pid == os.getpid()
        assert caught.value.holder.label == "POST /orders"
        nothing_left(client, name)

    def test_busy_for_too_long(self, client: AnyClient, other: AnyClient, name: str) -> None:
        with client.lock(name, ttl=30).acquire():
            started = now()
            with pytest.raises(AcquireTimeout) as caught:
                other.lock(name).acquire(timeout=0.1)
            assert not isinstance(caught.value, LockHeld)
            assert 0.1 <= now() - started < 0.1 + SLACK
            assert caught.value.waited >= 0.1
            assert caught.value.retry_after >= 1
        nothing_left(client, name)

    def test_it_is_renewed_while_it_is_held(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        at_least_once(lambda: _renewed(client, other, name))

    def test_max_hold_ends_renewal(self, connect: Connect, other: AnyClient, name: str) -> None:
        client, before = connect(max_hold=TTL, ttl=TTL), now()
        hung, started = client.lock(name).acquire(), now()
        taken = other.lock(name).acquire()
        assert now() - before > TTL * 0.9
        assert now() - started < 2 * TTL + SLACK
        assert hung.lost
        assert taken.fencing_token > hung.fencing_token
        assert hung.release() is False
        assert taken.release()

    def test_an_expired_lease_is_lost_before_another_is_granted(
        self, connect: Connect, other: AnyClient, name: str
    ) -> None:
        lease = connect(max_hold=0, ttl=TTL).lock(name).acquire()
        started = now()
        taken = other.lock(name).acquire()
        assert lease.lost
        assert lease.remaining() == 0
        with pytest.raises(LeaseLost):
            lease.check()
        assert now() - started < TTL + SLACK
        assert taken.fencing_token > lease.fencing_token
        assert lease.release() is False
        assert held(other, name)
        assert taken.release()

    def test_lost_is_final_also_when_nobody_has_taken_the_name(
        self, connect: Connect, name: str
    ) -> None:
        client = connect(max_hold=0, ttl=TTL)
        lease = client.lock(name).acquire()
        eventually(lambda: lease.lost)
        with pytest.raises(LeaseLost):
            lease.extend(30)
        assert lease.lost
        assert lease.release() is False

    def test_extend_sets_what_is_left(self, connect: Connect, name: str) -> None:
        with connect(max_hold=0).lock(name, ttl=30).acquire() as lease:
            lease.extend(200)
            assert 190 < lease.remaining() <= 200
            lease.extend(20)
            assert 10 < lease.remaining() <= 20
            lease.extend()
            assert 20 < lease.remaining() <= 30

    @pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
    def test_extend_refuses_nonsense(self, client: AnyClient, name: str, ttl: float) -> None:
        with client.lock(name, ttl=30).acquire() as lease:
            with pytest.raises(ConfigurationError):
                lease.extend(ttl)
            assert lease.remaining() > 20

    def test_a_released_lease_is_not_extended(self, client: AnyClient, name: str) -> None:
        lease = client.lock(name).acquire()
        lease.release()
        with pytest.raises(LeaseLost):
            lease.extend(30)
        nothing_left(client, name)

    def test_break_compares_the_fence(self, client: AnyClient, other: AnyClient, name: str) -> None:
        lease = client.lock(name).acquire()
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
        """Long before its deadline."""

        def told() -> bool:
            lease = client.lock(name, ttl=2 * TTL).acquire()
            deadline = now() + lease.remaining()
            assert other.break_(name, fence=lease.fencing_token)
            eventually(lambda: lease.lost)
            assert lease.release() is False
            return now() < deadline

        at_least_once(told)

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

    def test_leaving_with_releases(self, client: AnyClient, name: str) -> None:
        with client.lock(name).acquire() as lease:
            assert held(client, name)
        assert lease.released
        nothing_left(client, name)

    def test_leaving_with_a_lost_lease_raises(self, connect: Connect, name: str) -> None:
        lease = connect(max_hold=0, ttl=TTL).lock(name).acquire()
        with pytest.raises(LeaseLost) as caught, lease:
            eventually(lambda: lease.lost)
        assert caught.value.name == name

    def test_a_lost_lease_never_masks_the_error_of_the_body(
        self, connect: Connect, name: str
    ) -> None:
        lease = connect(max_hold=0, ttl=TTL).lock(name).acquire()
        with pytest.raises(ZeroDivisionError), lease:
            _fail(eventually(lambda: lease.lost))

    def test_a_lease_released_in_the_body_is_no_error(self, client: AnyClient, name: str) -> None:
        with client.lock(name).acquire() as lease:
            assert lease.release()
        nothing_left(client, name)

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

    def test_a_closed_client_may_be_used_again(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        client.close()
        client.close()
        at_least_once(lambda: _renewed(client, other, name))
        client.close()
        nothing_left(client, name)


def _fail(lost: bool) -> None:
    assert lost
    raise ZeroDivisionError


def _renewed(client: AnyClient, other: AnyClient, name: str) -> bool:
    """Whether a lease is still held long after its TTL."""
    lease = client.lock(name, ttl=TTL).acquire()
    eventually(lambda: lease.lost or _age(other, name) > 3 * TTL)
    return lease.release()


def _age(client: AnyClient, name: str) -> float:
    info = client.inspect(name)
    return 0.0 if info is None or info.age is None else info.age
