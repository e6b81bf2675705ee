"""Single steps of a store, called directly: the flows rely on them."""

from __future__ import annotations

import secrets
from typing import ClassVar

import pytest

from lockkit.engine.times import drift
from lockkit.model.clock import now
from lockkit.model.types import Busy, Gone, Grant, Mode, Owner, Release, Request
from lockkit.stores.contract import Buried, Listed, Queued, Sessioned, Waited
from lockkit.testing.blocking import AnyClient
from lockkit.testing.conformance.base import (
    TTL,
    Spawn,
    eventually,
    held,
    lasts,
    needs,
    nothing_left,
    queued,
)
from lockkit.testing.conformance.choice import Without


class StepTests:
    brief: ClassVar[float]

    def test_the_same_token_gets_the_same_grant_with_what_is_left(
        self, client: AnyClient, name: str
    ) -> None:
        request = claim(name)
        first = granted(client, request)
        again = granted(client, request)
        assert again.fence == first.fence
        assert again.left <= first.left
        assert client.perform(client.store.release(request)) is Release.RELEASED
        nothing_left(client, name)

    def test_the_same_token_is_told_what_it_still_has(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        """Nobody else gets the name before the time of the second answer is over."""
        request, began = claim(name, ttl=self.brief), now()
        granted(client, request)
        eventually(lambda: now() > began + self.brief / 2)
        asked = now()
        again = polled(client, request)  # None if the machine stalled: it has expired by now
        with other.lock(name).acquire():
            assert again is None or now() > asked + again.left - drift(again.left)

    def test_what_another_has_taken_is_neither_extended_nor_released(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        """By the one whose claim has expired."""
        request = claim(name, ttl=self.brief)
        granted(client, request)
        with other.lock(name).acquire() as taken:
            is_gone(client, request)
            taken.extend()
            assert client.lock(name).try_acquire() is None

    @needs(Without(Sessioned))
    def test_what_has_expired_is_gone_also_when_nobody_has_taken_it(
        self, client: AnyClient, name: str
    ) -> None:
        """Whoever had it has been told that it is lost."""
        request = claim(name, ttl=self.brief)
        left = granted(client, request).left
        until = now() + left + drift(left)
        eventually(lambda: now() > until)
        is_gone(client, request)
        nothing_left(client, name)

    @needs(Queued, Listed)
    def test_a_retried_enqueueing_joins_once(self, client: AnyClient, name: str) -> None:
        with client.lock(name, ttl=30).acquire():
            request = claim(name, Mode.ENQUEUE)
            first, again = (
                client.perform(client.store.acquire(request)),
                client.perform(client.store.acquire(request)),
            )
            assert isinstance(first, Busy) and isinstance(again, Busy)
            assert first.ticket == again.ticket > 0
            queued(client, name, 1)
            client.perform(client.store.release(request._replace(queued=True)))
        nothing_left(client, name)

    @needs(Queued, Listed)
    def test_a_try_joins_no_queue(self, client: AnyClient, name: str) -> None:
        with client.lock(name, ttl=30).acquire():
            assert isinstance(client.perform(client.store.acquire(claim(name))), Busy)
            queued(client, name, 0)

    @needs(Queued, Listed)
    def test_a_poll_never_joins(self, client: AnyClient, name: str) -> None:
        assert isinstance(client.perform(client.store.acquire(claim(name, Mode.POLL))), Gone)
        with client.lock(name, ttl=30).acquire():
            assert isinstance(client.perform(client.store.acquire(claim(name, Mode.POLL))), Gone)
            queued(client, name, 0)
        nothing_left(client, name)

    @needs(Buried)
    @pytest.mark.parametrize("mode", list(Mode))
    def test_an_acquire_delayed_past_its_withdraw_gets_nothing(
        self, client: AnyClient, name: str, mode: Mode
    ) -> None:
        """Its withdraw found nothing, and left a tombstone."""
        request = claim(name, mode)
        client.perform(client.store.release(request._replace(queued=True)))
        assert isinstance(client.perform(client.store.acquire(request)), Gone)
        nothing_left(client, name)

    @needs(Buried)
    def test_a_withdraw_in_doubt_buries_the_token_as_well(
        self, client: AnyClient, name: str
    ) -> None:
        """A second copy of the acquire may still be under way."""
        request = claim(name)
        granted(client, request)
        client.perform(client.store.release(request._replace(unsure=True)._replace(queued=True)))
        assert isinstance(client.perform(client.store.acquire(request)), Gone)
        nothing_left(client, name)

    @needs(Queued, Listed)
    def test_a_withdraw_gives_back_a_grant_that_raced_it(
        self, client: AnyClient, name: str, spawn: Spawn
    ) -> None:
        holder, waiter = claim(name), claim(name, Mode.ENQUEUE)
        granted(client, holder)
        busy = client.perform(client.store.acquire(waiter))
        assert isinstance(busy, Busy)
        waiting = spawn(lambda: client.perform(queue_of(client).wait(waiter, 1.0, busy)))
        following = spawn(client.lock(name).acquire)
        queued(client, name, 2)
        client.perform(client.store.release(holder))
        client.perform(client.store.release(waiter._replace(queued=True)))
        waiting.result()
        with following.result():
            assert isinstance(
                client.perform(client.store.acquire(waiter._replace(mode=Mode.POLL))), Gone
            )

    @needs(Queued, Listed)
    def test_a_withdraw_leaves_the_queue_in_order(self, client: AnyClient, name: str) -> None:
        first, second = claim(name, Mode.ENQUEUE), claim(name, Mode.ENQUEUE)
        with client.lock(name, ttl=30).acquire():
            client.perform(client.store.acquire(first))
            client.perform(client.store.acquire(second))
            client.perform(client.store.release(first._replace(queued=True)))
            busy = client.perform(client.store.acquire(second._replace(mode=Mode.POLL)))
            assert isinstance(busy, Busy)
            assert busy.ahead == 0
            client.perform(client.store.release(second._replace(queued=True)))
        nothing_left(client, name)

    @needs(Listed)
    def test_the_token_of_another_does_nothing(self, client: AnyClient, name: str) -> None:
        with client.lock(name, ttl=30).acquire() as lease:
            stranger = claim(name)
            assert client.perform(client.store.release(stranger)) is Release.ABSENT
            assert client.perform(client.store.extend([stranger]))[0].left is None
            client.perform(client.store.release(stranger._replace(queued=True)))
            info = client.inspect(name)
            assert info is not None
            assert info.fence == lease.fencing_token

    def test_the_token_of_another_name_does_nothing(self, client: AnyClient, name: str) -> None:
        with client.lock(name, ttl=30).acquire() as lease:
            with client.lock(name + "x").acquire() as neighbour:
                foreign = claim(name)._replace(token=neighbour.token)
                assert client.perform(client.store.release(foreign)) is Release.ABSENT
                assert client.perform(client.store.extend([foreign]))[0].left is None
            lease.check()
            assert held(client, name)

    def test_a_second_release_finds_nothing(self, client: AnyClient, name: str) -> None:
        request = claim(name)
        granted(client, request)
        assert client.perform(client.store.release(request)) is Release.RELEASED
        assert client.perform(client.store.release(request)) is Release.ABSENT
        nothing_left(client, name)

    @needs(Listed)
    def test_a_release_after_an_operators_says_so(self, client: AnyClient, name: str) -> None:
        request = claim(name)
        fence = granted(client, request).fence
        assert fence
        assert client.break_(name, fence=fence)
        assert client.perform(client.store.release(request)) is Release.BROKEN
        assert client.perform(client.store.extend([request]))[0].left is None
        assert isinstance(client.perform(client.store.acquire(request)), Gone)

    def test_extends_are_answered_one_by_one(self, client: AnyClient, name: str) -> None:
        requests = [claim(f"{name}:{number}") for number in range(5)]
        for request in requests[::2]:
            granted(client, request)
        renewals = client.perform(client.store.extend([r._replace(ttl=20.0) for r in requests]))
        assert [r.left is not None for r in renewals] == [True, False, True, False, True]
        assert all(lasts(client, r.left, 20) for r in renewals if r.left is not None)
        for request in requests[::2]:
            assert client.perform(client.store.release(request)) is Release.RELEASED

    def test_an_extend_that_comes_after_a_later_one_changes_nothing(
        self, client: AnyClient, name: str
    ) -> None:
        """The network held up the earlier one. The holder relies on the later one."""
        request = claim(name)
        granted(client, request)
        for number, ttl, left in (
            (2, 60.0, 60.0),
            (1, 2.0, 60.0),
            (2, 50.0, 50.0),
            (3, 40.0, 40.0),
        ):
            extension = request._replace(ttl=ttl, number=number)
            (renewal,) = client.perform(client.store.extend([extension]))
            if isinstance(client.store, Listed):
                info = client.inspect(name)
                assert info is not None and lasts(client, info.left, left)
            assert lasts(client, renewal.left, left)
        assert client.perform(client.store.release(request)) is Release.RELEASED

    def test_no_extends_are_no_work(self, client: AnyClient) -> None:
        assert client.perform(client.store.extend([])) == []

    @needs(Queued, Listed)
    def test_a_stale_handoff_message_is_no_grant(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        """A grant was sent to a waiter that was busy elsewhere; it expired; another has the name.

        The waiter joins the queue again, by a repeated request with the same token, and finds the
        old message: it carries the ticket of another enqueueing.
        """
        holder, waiter = claim(name), claim(name, Mode.ENQUEUE, ttl=TTL)
        next_one = claim(name, Mode.ENQUEUE)
        granted(other, holder)
        busy = client.perform(client.store.acquire(waiter))
        assert isinstance(busy, Busy)
        client.perform(queue_of(client).wait(waiter, 0.02, busy))  # ready to hear
        other.perform(other.store.release(holder))
        fence = eventually(lambda: polled(other, next_one)).fence
        for request in (waiter._replace(mode=Mode.POLL), waiter):
            reply = client.perform(client.store.acquire(request))
            assert not isinstance(reply, Grant)
            if isinstance(reply, Busy):
                assert client.perform(queue_of(client).wait(request, 0.02, reply)) is None
        info = client.inspect(name)
        assert info is not None
        assert info.fence == fence
        client.perform(client.store.release(waiter._replace(queued=True)))
        other.perform(other.store.release(next_one))


def claim(name: str, mode: Mode = Mode.TRY, ttl: float = 30.0) -> Request:
    """A request as the flows make them."""
    owner = Owner("some-host", 1, "MainThread", "a test").encode()
    return Request(name, secrets.token_hex(16), ttl, owner, mode)


def granted(client: AnyClient, request: Request) -> Grant:
    reply = client.perform(client.store.acquire(request))
    assert isinstance(reply, Grant)
    return reply


def is_gone(client: AnyClient, request: Request) -> None:
    """The claim is neither extended nor released."""
    (renewal,) = client.perform(client.store.extend([request]))
    assert renewal.left is None
    assert client.perform(client.store.release(request)) is Release.ABSENT


def polled(client: AnyClient, request: Request) -> Grant | None:
    reply = client.perform(client.store.acquire(request))
    return reply if isinstance(reply, Grant) else None


def queue_of(client: AnyClient) -> Waited:
    assert isinstance(client.store, Waited)
    return client.store
