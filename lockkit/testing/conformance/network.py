"""A network that fails: dropped replies, cut and refused connections, killed subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lockkit.engine.times import alive_for
from lockkit.model.clock import now
from lockkit.model.errors import BackendError, BackendUnavailable, LeaseLost, OutcomeUnknown
from lockkit.stores.contract import Listed, Pushed, Queued
from lockkit.testing.blocking import AnyClient
from lockkit.testing.conformance.base import (
    INJECTIONS,
    PATIENT,
    SLACK,
    SOON,
    Connect,
    Spawn,
    at_least_once,
    eventually,
    held,
    lasts,
    needs,
    nothing_left,
    queued,
)
from lockkit.testing.conformance.choice import Without
from lockkit.testing.targets import Proxied, ServerTarget, SessionTarget

Reach = Callable[[Proxied], AnyClient]


@needs(ServerTarget)
class NetworkTests:
    """``far`` is a client behind a proxy that fails; ``other`` sees the store directly."""

    @pytest.fixture
    def proxied(self, store: ServerTarget) -> Iterator[Proxied]:
        with store.proxied() as proxied:
            yield proxied

    @pytest.fixture
    def reach(self, connect: Connect) -> Reach:
        """Makes a client that is connected, and whose renewals do not meet the fault."""

        def reached(proxied: Proxied) -> AnyClient:
            client = connect(proxied.url, ttl=30.0)
            client.lock("conformance:warm-up").acquire().release()
            return client

        return reached

    @pytest.fixture
    def far(self, reach: Reach, proxied: Proxied) -> AnyClient:
        return reach(proxied)

    def test_the_reply_to_acquire_is_dropped(
        self, far: AnyClient, other: AnyClient, proxied: Proxied, store: ServerTarget, name: str
    ) -> None:
        """The store granted it: the same token gets the same grant, not "busy"."""
        for _ in range(INJECTIONS):
            fault = proxied.proxy.drop_replies(matching=store.writes)
            lease = far.lock(name).acquire(timeout=0)
            assert fault.happened.wait(SOON)
            assert held(other, name)
            if isinstance(other.store, Listed):
                info = other.inspect(name)
                assert info is not None and info.fence == lease.fencing_token
            assert lease.release() is True
            nothing_left(other, name)

    def test_the_reply_to_release_is_dropped(
        self, far: AnyClient, other: AnyClient, proxied: Proxied, store: ServerTarget, name: str
    ) -> None:
        for _ in range(INJECTIONS):
            lease = far.lock(name).acquire()
            fault = proxied.proxy.drop_replies(matching=store.writes)
            assert lease.release() is True
            assert fault.happened.wait(SOON)
            nothing_left(other, name)

    @needs(Without(SessionTarget))
    def test_the_reply_to_extend_is_dropped(
        self, far: AnyClient, other: AnyClient, proxied: Proxied, store: ServerTarget, name: str
    ) -> None:
        with far.lock(name).acquire() as lease:
            for number in range(INJECTIONS):
                fault = proxied.proxy.drop_replies(matching=store.writes)
                lease.extend(100 + number)
                assert fault.happened.wait(SOON)
                assert lasts(far, lease.remaining(), 100 + number)
        nothing_left(other, name)

    @needs(SessionTarget)
    def test_a_lease_ends_with_its_connection(
        self, far: AnyClient, other: AnyClient, proxied: Proxied, name: str
    ) -> None:
        for _ in range(INJECTIONS):
            lease = far.lock(name).acquire()
            proxied.proxy.cut()
            with pytest.raises(LeaseLost):
                lease.extend()
            eventually(lambda: not held(other, name))
            assert not lease.release()
            nothing_left(other, name)

    @needs(SessionTarget)
    def test_a_release_over_a_connection_that_has_ended_finds_the_lease_lost(
        self, far: AnyClient, other: AnyClient, proxied: Proxied, name: str
    ) -> None:
        """Nobody has noticed the end before, and somebody else may have held the name since."""
        for _ in range(INJECTIONS):
            lease = far.lock(name).acquire()
            proxied.proxy.cut()
            eventually(lambda: not held(other, name))
            assert lease.release() is False
            nothing_left(other, name)

    def test_no_reply_at_all_is_neither_success_nor_failure(
        self, reach: Reach, other: AnyClient, store: ServerTarget, name: str
    ) -> None:
        """What the store granted nevertheless is given back long before its TTL.

        Each client has a proxy of its own: the client before it may still be giving back a grant of
        which it never heard.
        """
        for number in range(INJECTIONS):
            each = f"{name}:{number}"
            other.lock(each).acquire().release()  # a known name is taken by the first write
            with store.proxied() as proxied:
                far = reach(proxied)
                any_request = not store.reconnects
                proxied.proxy.drop_replies(2, matching=store.writes, then_any=any_request)
                with pytest.raises(OutcomeUnknown) as caught:
                    far.lock(each).acquire(timeout=0)
                assert caught.value.name == each
                assert caught.value.__cause__ is not None
                eventually(lambda: not held(other, each))  # noqa: B023
                nothing_left(other, each)

    def test_a_store_that_cannot_be_reached(
        self, far: AnyClient, other: AnyClient, proxied: Proxied, name: str, spawn: Spawn
    ) -> None:
        lease = far.lock(name).acquire()
        proxied.proxy.refuse()
        proxied.proxy.cut()
        names = [f"{name}:{number}" for number in range(INJECTIONS)]
        for refused in [spawn(refused_after, far, each) for each in names]:
            assert refused.result() < SLACK
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

    @needs(Queued, Listed)
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
            waiting.result().release()  # False if the machine stalled: the grant was a short one
            nothing_left(other, name)

    @needs(Pushed, Listed)
    def test_waiters_survive_a_killed_subscription(
        self,
        client: AnyClient,
        other: AnyClient,
        store: ServerTarget,
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
            taken.release()
            nothing_left(other, name)

    @needs(Pushed, Listed)
    def test_a_subscription_killed_while_nobody_waits_is_missed(
        self,
        client: AnyClient,
        other: AnyClient,
        store: ServerTarget,
        name: str,
        spawn: Spawn,
    ) -> None:
        """At the latest, the next waiter notices that it is gone. From then on the order is kept as
        before."""
        for turn in range(INJECTIONS):
            hand_over(client, other, f"{name}:{turn}", spawn, waiters=1)
            store.kill_subscriptions()
            hand_over(client, other, f"{name}:{turn}", spawn, waiters=1)
            hand_over(client, other, f"{name}:{turn}", spawn, waiters=4)


def refused_after(client: AnyClient, name: str) -> float:
    """The seconds until acquire raises a BackendError."""
    started = now()
    with pytest.raises(BackendError):
        client.lock(name).acquire()
    return now() - started


def hand_over(
    client: AnyClient, other: AnyClient, name: str, spawn: Spawn, *, waiters: int
) -> None:
    """This number of waiters of the client get the lock in the order in which they came."""

    def wait(number: int, order: list[int]) -> None:
        with client.lock(name).acquire():
            order.append(number)

    def in_order() -> bool:
        order: list[int] = []
        with other.lock(name).acquire():
            waiting = []
            for number in range(waiters):
                waiting.append(spawn(wait, number, order))
                queued(other, name, number + 1)
        for future in waiting:
            future.result()
        return order == list(range(waiters))

    at_least_once(in_order)
