"""A store that restarts, forgets its scripts, slows down or hangs."""

from __future__ import annotations

import time
from functools import partial

import pytest

from lockkit.model.errors import BackendError, LeaseLost
from lockkit.model.types import LeaseState
from lockkit.stores.contract import Listed, Queued
from lockkit.testing.blocking import AnyClient, AnyLease
from lockkit.testing.conformance.base import (
    INJECTIONS,
    TTL,
    Connect,
    Spawn,
    at_least_once,
    eventually,
    held,
    needs,
    nothing_left,
    waits,
)
from lockkit.testing.conformance.choice import Without
from lockkit.testing.conformance.leases import RENEWED, is_later, is_renewed
from lockkit.testing.targets import Proxied, ScriptedTarget, ServerTarget, SessionTarget


@needs(ServerTarget)
class OutageTests:
    """Only for stores with a server of their own."""

    @needs(ScriptedTarget)
    def test_forgotten_scripts_are_loaded_again(
        self, client: AnyClient, other: AnyClient, store: ScriptedTarget, name: str
    ) -> None:
        for _ in range(INJECTIONS):
            store.forget_scripts()
            lease = client.lock(name).acquire()
            store.forget_scripts()
            assert other.lock(name).try_acquire() is None
            store.forget_scripts()
            lease.extend(5)
            store.forget_scripts()
            assert held(other, name)
            store.forget_scripts()
            assert lease.release()
            nothing_left(other, name)

    @needs(ScriptedTarget, Queued, Listed)
    def test_forgotten_scripts_do_not_stop_waiting_or_renewal(
        self,
        client: AnyClient,
        other: AnyClient,
        store: ScriptedTarget,
        name: str,
        spawn: Spawn,
    ) -> None:
        def unimpressed() -> bool:
            lease = client.lock(name, ttl=RENEWED).acquire()
            waiting = spawn(other.lock(name).acquire)
            while not (lease.lost or is_renewed(client, name)):
                store.forget_scripts()
                time.sleep(TTL / 10)
            kept = lease.release()
            waiting.result().release()
            return kept

        at_least_once(unimpressed)

    def test_clients_survive_a_restart_and_fences_keep_growing(
        self, client: AnyClient, other: AnyClient, store: ServerTarget, name: str
    ) -> None:
        """There are never two holders at once, whether the store keeps its leases or not."""
        last = None
        for _ in range(INJECTIONS // 2):
            lease = client.lock(name).acquire()
            assert last is None or is_later(client, lease, last)
            store.restart()
            taken = other.lock(name).try_acquire()
            assert store.persists in {None, taken is None}
            if taken is None:  # kept
                lease.extend()
                last = lease
                assert lease.release()
            else:  # forgotten: the holder hears of that when it extends
                with pytest.raises(LeaseLost):
                    lease.extend()
                last = taken
                assert is_later(client, taken, lease)
                assert lease.release() is False
                taken.check()
                assert taken.release()
            nothing_left(client, name)

    def test_a_lease_that_a_restart_has_forgotten_cannot_be_released(
        self, client: AnyClient, other: AnyClient, store: ServerTarget, name: str
    ) -> None:
        """Also if its holder has asked for nothing since: somebody else had the name meanwhile."""
        for _ in range(INJECTIONS // 2):
            lease = client.lock(name).acquire()
            store.restart()
            taken = other.lock(name).try_acquire()
            assert lease.release() is (taken is None)
            if taken is not None:
                taken.check()
                assert taken.release()
            nothing_left(client, name)

    @needs(Queued, Listed)
    def test_a_waiter_survives_a_restart_or_is_told(
        self,
        client: AnyClient,
        other: AnyClient,
        store: ServerTarget,
        name: str,
        spawn: Spawn,
    ) -> None:
        """It gets the lock afterwards, or an error of the store: it never waits for ever."""
        for _ in range(INJECTIONS // 2):
            lease = other.lock(name).acquire()
            waiting = spawn(_taken_or_told, client, name)
            eventually(partial(waits, other, name, waiting))
            assert not waiting.done(), waiting.result()
            store.restart()
            lease.release()
            waiting.result()
            eventually(partial(_is_gone, other, name))  # if the grant came after the error
            nothing_left(other, name)

    @needs(Listed)
    def test_renewal_under_a_slow_network(
        self, connect: Connect, other: AnyClient, proxied: Proxied, name: str
    ) -> None:
        slow = connect(proxied.url, ttl=RENEWED)
        slow.lock(name).acquire().release()
        proxied.proxy.latency = TTL / 20

        def renewed() -> bool:
            lease = slow.lock(name).acquire()
            while not (lease.lost or is_renewed(other, name)):
                taken = other.lock(name).try_acquire()
                if taken is not None:
                    taken.release()
                    assert lease.lost
                time.sleep(TTL / 20)
            return lease.release()

        at_least_once(renewed)

    @needs(Without(SessionTarget))
    def test_a_renewal_that_fails_leaves_it_unknown_until_one_is_done(
        self, connect: Connect, proxied: Proxied, name: str
    ) -> None:
        far = connect(proxied.url, ttl=RENEWED)

        def known_again() -> bool:
            lease = far.lock(name).acquire()
            proxied.proxy.refuse()
            proxied.proxy.cut()
            eventually(lambda: lease.state is not LeaseState.HELD)
            failed = lease.state
            proxied.proxy.refuse(False)
            eventually(lambda: lease.state is not LeaseState.UNKNOWN)
            states = (failed, lease.state)
            return lease.release() and states == (LeaseState.UNKNOWN, LeaseState.HELD)

        at_least_once(known_again)

    @needs(Listed)
    def test_renewal_under_a_server_that_hangs_for_a_while(
        self, client: AnyClient, store: ServerTarget, name: str
    ) -> None:
        def kept() -> bool:
            lease = client.lock(name, ttl=RENEWED).acquire()
            while not (lease.lost or is_renewed(client, name)):
                store.server.pause()
                time.sleep(TTL / 5)
                store.server.resume()
            return lease.release()

        at_least_once(kept)

    def test_a_lease_is_lost_at_its_deadline_also_when_nobody_can_say_so(
        self, connect: Connect, other: AnyClient, proxied: Proxied, name: str
    ) -> None:
        """While the store is silent, the holder knows of its loss by the time at which another can
        be granted the name."""
        far = connect(proxied.url, ttl=TTL)
        names = [f"{name}:{number}" for number in range(INJECTIONS)]
        leases = [far.lock(each).acquire() for each in names]
        proxied.proxy.half_open()
        for each, lease in zip(names, leases, strict=True):
            with other.lock(each).acquire() as taken:
                assert lease.lost
                assert is_later(other, taken, lease)
                with pytest.raises(LeaseLost):
                    lease.check()
        proxied.proxy.half_open(False)
        assert not any(_released(lease) for lease in leases)


def _taken_or_told(client: AnyClient, name: str) -> BackendError | None:
    try:
        with client.lock(name).acquire():
            return None
    except BackendError as error:
        return error


def _released(lease: AnyLease) -> bool:
    try:
        return lease.release()
    except BackendError:
        return False


def _is_gone(client: AnyClient, name: str) -> bool:
    return client.inspect(name) is None
