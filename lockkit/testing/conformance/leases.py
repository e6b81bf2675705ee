"""The life of a lease: granted, renewed, extended, broken, lost, released."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import ClassVar

import pytest

from lockkit.model.clock import now
from lockkit.model.errors import (
    AcquireTimeout,
    ConfigurationError,
    LeaseLost,
    LockHeld,
)
from lockkit.stores.contract import Fenced, Listed
from lockkit.testing.blocking import AnyClient, AnyLease
from lockkit.testing.conformance.base import (
    ROOMY,
    SLACK,
    Connect,
    at_least_once,
    eventually,
    held,
    lasts,
    needs,
    nothing_left,
)

RENEWED = 3.0
"""Seconds: the TTL of leases whose renewal a test waits for. It is so long that a renewal after a
third of it comes in time despite short stalls."""


class LeaseTests:
    brief: ClassVar[float]

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

    @needs(Fenced)
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
        if isinstance(client.store, Listed):
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

    @needs(Listed)
    def test_it_is_renewed_while_it_is_held(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        at_least_once(lambda: _renewed(client, other, name))

    def test_max_hold_ends_renewal(self, connect: Connect, other: AnyClient, name: str) -> None:
        client, before = connect(max_hold=self.brief, ttl=self.brief), now()
        hung, started = client.lock(name).acquire(), now()
        taken = other.lock(name).acquire()
        assert now() - before > self.brief * 0.9
        assert now() - started < 2 * self.brief + SLACK
        assert hung.lost
        assert is_later(other, taken, hung)
        assert hung.release() is False
        assert taken.release()

    def test_an_expired_lease_is_lost_before_another_is_granted(
        self, connect: Connect, other: AnyClient, name: str
    ) -> None:
        lease = connect(max_hold=0, ttl=self.brief).lock(name).acquire()
        started = now()
        taken = other.lock(name).acquire()
        assert lease.lost
        assert lease.remaining() == 0
        with pytest.raises(LeaseLost):
            lease.check()
        assert now() - started < self.brief + SLACK
        assert is_later(other, taken, lease)
        assert lease.release() is False
        assert held(other, name)
        assert taken.release()

    def test_lost_is_final_also_when_nobody_has_taken_the_name(
        self, connect: Connect, name: str
    ) -> None:
        client = connect(max_hold=0, ttl=self.brief)
        lease = client.lock(name).acquire()
        eventually(lambda: lease.lost)
        with pytest.raises(LeaseLost):
            lease.extend(30)
        assert lease.lost
        assert lease.release() is False

    def test_extend_sets_what_is_left(self, connect: Connect, name: str) -> None:
        client = connect(max_hold=0)
        with client.lock(name, ttl=30).acquire() as lease:
            lease.extend(200)
            assert lasts(client, lease.remaining(), 200)
            lease.extend(20)
            assert lasts(client, lease.remaining(), 20)
            lease.extend()
            assert lasts(client, lease.remaining(), 30)

    def test_extend_refuses_nonsense(self, client: AnyClient, name: str) -> None:
        with client.lock(name, ttl=30).acquire() as lease:
            for ttl in (0, -1, float("nan"), float("inf")):
                with pytest.raises(ConfigurationError):
                    lease.extend(ttl)
            assert lasts(client, lease.remaining(), 30)

    def test_a_released_lease_is_not_extended(self, client: AnyClient, name: str) -> None:
        lease = client.lock(name).acquire()
        lease.release()
        with pytest.raises(LeaseLost):
            lease.extend(30)
        nothing_left(client, name)

    def test_leaving_with_releases(self, client: AnyClient, name: str) -> None:
        with client.lock(name).acquire() as lease:
            assert held(client, name)
        assert lease.released
        nothing_left(client, name)

    def test_leaving_with_a_lost_lease_raises(self, connect: Connect, name: str) -> None:
        lease = connect(max_hold=0, ttl=self.brief).lock(name).acquire()
        with pytest.raises(LeaseLost) as caught, lease:
            eventually(lambda: lease.lost)
        assert caught.value.name == name

    def test_a_lost_lease_never_masks_the_error_of_the_body(
        self, connect: Connect, name: str
    ) -> None:
        lease = connect(max_hold=0, ttl=self.brief).lock(name).acquire()
        with pytest.raises(ZeroDivisionError), lease:
            _fail(eventually(lambda: lease.lost))

    def test_a_lease_released_in_the_body_is_no_error(self, client: AnyClient, name: str) -> None:
        with client.lock(name).acquire() as lease:
            assert lease.release()
        nothing_left(client, name)

    @needs(Listed)
    def test_a_closed_client_may_be_used_again(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        client.close()
        client.close()
        at_least_once(lambda: _renewed(client, other, name))
        client.close()
        nothing_left(client, name)


def is_renewed(client: AnyClient, name: str) -> bool:
    """Whether the holder of the name has renewed its lease since it was granted."""
    info = client.inspect(name)
    if info is None or info.age is None or info.renewed is None:
        return False
    return info.age - info.renewed > RENEWED / 6


def is_later(client: AnyClient, later: AnyLease, earlier: AnyLease) -> bool:
    """Whether the first lease has the greater fence, if the store has fences at all."""
    fenced = isinstance(client.store, Fenced)
    return not fenced or later.fencing_token > earlier.fencing_token


def _fail(lost: bool) -> None:
    assert lost
    raise ZeroDivisionError


def _renewed(client: AnyClient, other: AnyClient, name: str) -> bool:
    """Whether a lease is renewed before it is lost, and then lasts longer than its first TTL."""
    lease = client.lock(name, ttl=RENEWED).acquire()
    granted = now()
    eventually(lambda: lease.lost or is_renewed(other, name))
    eventually(lambda: lease.lost or now() + lease.remaining() > granted + RENEWED)
    return lease.release()
