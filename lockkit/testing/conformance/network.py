"""A network and a server that fail: dropped replies, cut connections, restarts, silence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from lockkit.clock import now
from lockkit.errors import BackendError, BackendUnavailable, LeaseLost, OutcomeUnknown
from lockkit.testing.blocking import AnyClient
from lockkit.testing.conformance.base import (
    INJECTIONS,
    PATIENT,
    SLACK,
    TTL,
    Connect,
    Needs,
    Spawn,
    eventually,
    held,
    needs,
    nothing_left,
    queued,
    waiters,
)
from lockkit.testing.store import Proxied, ServerStore
from lockkit.types import alive_for

__all__ = ["NetworkTests"]


class NetworkTests:
    """``far`` is a client behind a proxy that fails; ``other`` sees the store directly."""

    @pytest.fixture
    def proxied(self, store: ServerStore) -> Iterator[Proxied]:
        with store.proxied() as proxied:
            yield proxied

    @pytest.fixture
    def far(self, connect: Connect, proxied: Proxied) -> AnyClient:
        """Connected already, and without renewals that would take the fault upon themselves."""
        client = connect(proxied.url, ttl=30.0)
        client.lock("conformance:warm-up").acquire().release()
        return client

    @needs(Needs.SERVER)
    def test_the_reply_to_acquire_is_dropped(
        self, far: AnyClient, other: AnyClient, proxied: Proxied, name: str
    ) -> None:
        """The store granted it: the same token gets the same grant, not "busy"."""
        for _ in range(INJECTIONS):
            fault = proxied.proxy.drop_replies()
            lease = far.lock(name).acquire(timeout=0)
            assert fault.happened.wait(0)
            info = other.inspect(name)
            assert info is not None
            assert info.fence == lease.fencing_token
            assert lease.release() is True
            nothing_left(other, name)

    @needs(Needs.SERVER)
    def test_the_reply_to_release_is_dropped(
        self, far: AnyClient, other: AnyClient, proxied: Proxied, name: str
    ) -> None:
        for _ in range(INJECTIONS):
            lease = far.lock(name).acquire()
            fault = proxied.proxy.drop_replies()
            assert lease.release() is True
            assert fault.happened.wait(0)
            nothing_left(other, name)

    @needs(Needs.SERVER)
    def test_the_reply_to_extend_is_dropped(
        self, far: AnyClient, other: AnyClient, proxied: Proxied, name: str
    ) -> None:
        with far.lock(name).acquire() as lease:
            for number in range(INJECTIONS):
                fault = proxied.proxy.drop_replies()
                lease.extend(100 + number)
                assert fault.happened.wait(0)
                assert 95 + number < lease.remaining() <= 100 + number
        nothing_left(other, name)

    @needs(Needs.SERVER)
    def test_no_reply_at_all_is_neither_success_nor_failure(
        self, far: AnyClient, other: AnyClient, proxied: Proxied, name: str
    ) -> None:
        """And what the store granted nevertheless is given back long before its TTL."""
        for _ in range(INJECTIONS):
            far.lock("conformance:warm-up").acquire().release()
            proxied.proxy.drop_replies(2)
            with pytest.raises(OutcomeUnknown) as caught:
                far.lock(name).acquire(timeout=0)
            assert caught.value.name == name
            assert caught.value.__cause__ is not None
            eventually(lambda: not held(other, name))
            nothing_left(other, name)

    @needs(Needs.SERVER)
    def test_a_store_that_cannot_be_reached(
        self, far: AnyClient, other: AnyClient, proxied: Proxied, name: str
    ) -> None:
        lease = far.lock(name).acquire()
        proxied.proxy.refuse()
        proxied.proxy.cut()
        for _ in range(INJECTIONS):
            started = now()
            with pytest.raises(BackendError):
                far.lock(name + "x").acquire()
            assert now() - started < 5
        with pytest.raises(BackendUnavailable) as caught:
            far.lock(name + "x").acquire(timeout=0)
        assert caught.value.name == name + "x"
        assert caught.value.__cause__ is not None
        lease.check()  # unknown is not lost
        with pytest.raises(BackendError):
            lease.release()
        proxied.proxy.refuse(False)
        eventually(lambda: not held(other, name))  # told as soon as it can be reached
        nothing_left(other, name + "x")

    @needs(Needs.SERVER)
    def test_waiters_survive_cut_connections(
        self, far: AnyClient, other: AnyClient, proxied: Proxied, name: str, spawn: Spawn
    ) -> None:
        for number in range(INJECTIONS):
            lease = other.lock(name, ttl=30).acquire()
            waiting = spawn(far.lock(name, ttl=PATIENT).acquire)
            queued(other, name, 1)
            if number % 2:  # before and after the grant
                proxied.proxy.cut()
                assert lease.release()
            else:
                assert lease.release()
                proxied.proxy.cut()
            assert waiting.result().release()
            nothing_left(other, name)

    @needs(Needs.PUSH)
    def test_waiters_survive_a_killed_subscription(
        self,
        client: AnyClient,
        other: AnyClient,
        store: ServerStore,
        name: str,
        spawn: Spawn,
    ) -> None:
        for number in range(INJECTIONS):
            lease = other.lock(name, ttl=30).acquire()
            waiting = spawn(client.lock(name, ttl=PATIENT).acquire)
            queued(other, name, 1)
            if number % 2:
                store.kill_subscriptions()
                released = now()
                assert lease.release()
            else:
                released = now()
                assert lease.release()
                store.kill_subscriptions()
            taken = waiting.result()
            assert now() - released < alive_for(PATIENT) + SLACK
            assert taken.release()
            nothing_left(other, name)

    @needs(Needs.PUSH)
    def test_a_subscription_killed_while_nobody_waits_is_missed(
        self,
        client: AnyClient,
        other: AnyClient,
        store: ServerStore,
        name: str,
        spawn: Spawn,
    ) -> None:
        """By the next waiter at the latest; from then on the order is kept as before."""
        for turn in range(INJECTIONS):
            hand_over(client, other, f"{name}:{turn}", spawn, waiters=1)
            store.kill_subscriptions()
            hand_over(client, other, f"{name}:{turn}", spawn, waiters=1)
            hand_over(client, other, f"{name}:{turn}", spawn, waiters=4)

    @needs(Needs.SCRIPTS)
    def test_forgotten_scripts_are_loaded_again(
        self, client: AnyClient, other: AnyClient, store: ServerStore, name: str
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

    @needs(Needs.SCRIPTS)
    def test_forgotten_scripts_do_not_stop_waiting_or_renewal(
        self,
        client: AnyClient,
        other: AnyClient,
        store: ServerStore,
        name: str,
        spawn: Spawn,
    ) -> None:
        with client.lock(name, ttl=2 * TTL).acquire() as lease:
            waiting = spawn(other.lock(name).acquire)
            started = now()
            while now() - started < 2 * TTL:
                store.forget_scripts()
                time.sleep(TTL / 10)
            lease.check()
        assert waiting.result().release()

    @needs(Needs.SERVER)
    def test_clients_survive_a_restart_and_fences_keep_growing(
        self, client: AnyClient, other: AnyClient, store: ServerStore, name: str
    ) -> None:
        """Whether the store keeps its leases over it or not: never two holders at once."""
        fence = 0
        for _ in range(INJECTIONS // 2):
            lease = client.lock(name, ttl=2).acquire()
            assert lease.fencing_token > fence
            store.restart()
            taken = other.lock(name).try_acquire()
            if taken is None:  # kept
                lease.extend(2)
                fence = lease.fencing_token
                assert lease.release()
            else:  # forgotten: whoever held it hears of that at the next renewal
                eventually(partial(getattr, lease, "lost"))
                fence = taken.fencing_token
                assert fence > lease.fencing_token
                assert lease.release() is False
                taken.check()
                assert taken.release()
            nothing_left(client, name)

    @needs(Needs.SERVER)
    def test_a_waiter_survives_a_restart_or_is_told(
        self,
        client: AnyClient,
        other: AnyClient,
        store: ServerStore,
        name: str,
        spawn: Spawn,
    ) -> None:
        """It gets the lock afterwards, or an error of the store: it never waits for ever."""
        for _ in range(INJECTIONS // 2):
            lease = other.lock(name).acquire()
            waiting = spawn(_taken_or_told, client, name)
            eventually(partial(_waits, other, name, waiting))
            assert not waiting.done(), waiting.result()
            store.restart()
            lease.release()
            waiting.result()
            nothing_left(other, name)

    @needs(Needs.SERVER)
    def test_renewal_under_a_slow_network(
        self, connect: Connect, other: AnyClient, proxied: Proxied, name: str
    ) -> None:
        slow = connect(proxied.url, ttl=2 * TTL)
        slow.lock(name).acquire().release()
        proxied.proxy.latency = TTL / 20
        with slow.lock(name).acquire() as lease:
            started = now()
            while now() - started < INJECTIONS * 2 * TTL / 3:  # so many renewals
                assert other.lock(name).try_acquire() is None
                lease.check()
                time.sleep(TTL / 20)

    @needs(Needs.SERVER)
    def test_renewal_under_a_server_that_hangs_for_a_while(
        self, client: AnyClient, store: ServerStore, name: str
    ) -> None:
        with client.lock(name, ttl=2 * TTL).acquire() as lease:
            for _ in range(INJECTIONS):
                store.server.pause()
                time.sleep(TTL / 5)
                store.server.resume()
                client.inspect(name)
            lease.check()

    @needs(Needs.SERVER)
    def test_a_lease_is_lost_at_its_deadline_also_when_nobody_can_say_so(
        self, connect: Connect, other: AnyClient, proxied: Proxied, name: str
    ) -> None:
        """Silence: its holder knows no later than another can be granted the name."""
        far = connect(proxied.url, ttl=TTL)
        names = [f"{name}:{number}" for number in range(INJECTIONS)]
        leases = [far.lock(each).acquire() for each in names]
        proxied.proxy.half_open()
        for each, lease in zip(names, leases, strict=True):
            with other.lock(each).acquire() as taken:
                assert lease.lost
                assert taken.fencing_token > lease.fencing_token
                with pytest.raises(LeaseLost):
                    lease.check()
        proxied.proxy.half_open(False)
        assert not any(_released(lease) for lease in leases)


def hand_over(
    client: AnyClient, other: AnyClient, name: str, spawn: Spawn, *, waiters: int
) -> None:
    """So many of the client's waiters get the lock in the order in which they came."""
    order: list[int] = []

    def wait(number: int) -> None:
        with client.lock(name).acquire():
            order.append(number)

    with other.lock(name, ttl=30).acquire():
        waiting = []
        for number in range(waiters):
            waiting.append(spawn(wait, number))
            queued(other, name, number + 1)
    for future in waiting:
        future.result()
    assert order == list(range(waiters))


def _waits(client: AnyClient, name: str, waiting: Future[Any]) -> bool:
    return waiting.done() or waiters(client, name) == 1


def _taken_or_told(client: AnyClient, name: str) -> BackendError | None:
    try:
        with client.lock(name).acquire():
            return None
    except BackendError as error:
        return error


def _released(lease: Any) -> bool:
    try:
        return bool(lease.release())
    except BackendError:
        return False
