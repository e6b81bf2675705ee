"""Waiting, in the store's queue, or in the core's queue in front of a store that has none."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

from lockkit.model.clock import now
from lockkit.model.errors import AcquireTimeout
from lockkit.model.types import Busy, Gone, Grant, Mode, Release, Request
from lockkit.stores.contract import Queued, Sessioned, Waited
from lockkit.testing.blocking import AnyClient
from lockkit.testing.conformance.base import (
    PROMPT,
    QUICK,
    SLACK,
    TTL,
    Spawn,
    at_least_once,
    eventually,
    needs,
    nothing_left,
)
from lockkit.testing.conformance.choice import Without
from lockkit.testing.conformance.steps import claim, granted, queue_of

HEARD = 0.02
"""Seconds within which a server hears of a claim that waits, on a machine that does not stall."""

CLAIMS = 5
RACES = 30
SEED = 30_000


class WaitingTests:
    @needs(Queued)
    def test_claims_are_granted_in_the_order_in_which_they_joined(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        clients = (client, other)

        def in_order(name: str) -> bool:
            holders = [claim(name), *(claim(name, Mode.ENQUEUE) for _ in range(CLAIMS))]
            granted(other, holders[0])
            waits = [join(clients[at % 2], each) for at, each in enumerate(holders[1:])]
            for at, ask in enumerate(waits):
                if ask() is not None:
                    return False
                before = clients[(at - 1) % 2]
                assert before.perform(before.store.release(holders[at])) is Release.RELEASED
                eventually(ask)
            last = clients[(CLAIMS - 1) % 2]
            assert last.perform(last.store.release(holders[-1])) is Release.RELEASED
            nothing_left(client, name)
            return True

        unless_silent(in_order, name)

    @needs(Queued)
    def test_nobody_comes_before_a_claim_that_waits(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        def first(name: str) -> bool:
            holder, waiter = claim(name), claim(name, Mode.ENQUEUE)
            granted(client, holder)
            ask = join(other, waiter)
            assert client.perform(client.store.release(holder)) is Release.RELEASED
            early = client.lock(name).try_acquire()
            if early is not None:
                assert early.release()
            eventually(ask)
            assert other.perform(other.store.release(waiter)) is Release.RELEASED
            nothing_left(client, name)
            return early is None

        unless_silent(first, name)

    @needs(Waited)
    def test_all_claims_that_wait_are_granted_one_after_the_other(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        def in_turn(name: str) -> bool:
            holder = claim(name)
            granted(client, holder)
            waiting = [claim(name, Mode.ENQUEUE) for _ in range(CLAIMS)]
            clients = {each: (client, other)[at % 2] for at, each in enumerate(waiting)}
            asking = {each: join(clients[each], each) for each in waiting}
            clients[holder] = client

            def follower() -> Request | None:
                return next((each for each, ask in asking.items() if ask()), None)

            while asking:
                assert all(ask() is None for ask in asking.values())
                assert clients[holder].perform(clients[holder].store.release(holder))
                holder = eventually(follower)
                del asking[holder]
            assert clients[holder].perform(clients[holder].store.release(holder))
            nothing_left(client, name)
            return True

        unless_silent(in_turn, name)

    @needs(Waited)
    def test_a_claim_that_is_withdrawn_is_passed_over(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        def passed_over(name: str) -> bool:
            holder, first, second = claim(name), *(claim(name, Mode.ENQUEUE) for _ in range(2))
            granted(client, holder)
            join(other, first)
            ask = join(client, second)
            other.perform(other.store.release(first._replace(queued=True)))
            assert client.perform(client.store.release(holder)) is Release.RELEASED
            eventually(ask)
            assert client.perform(client.store.release(second)) is Release.RELEASED
            nothing_left(client, name)
            return True

        unless_silent(passed_over, name)

    @needs(Queued, Without(Sessioned))
    def test_a_claim_that_falls_silent_costs_the_others_three_seconds_at_most(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        def in_time(name: str) -> bool:
            holder, silent, second = claim(name), *(claim(name, Mode.ENQUEUE) for _ in range(2))
            granted(client, holder)
            join(other, silent)
            ask = join(client, second)
            released = now()
            assert client.perform(client.store.release(holder)) is Release.RELEASED
            eventually(ask)
            seconds = now() - released
            assert client.perform(client.store.release(second)) is Release.RELEASED
            nothing_left(client, name)
            return seconds < 3.0 + PROMPT

        unless_silent(in_time, name)

    def test_a_waiter_gets_it_soon_after_it_is_released(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        def soon() -> bool:
            lease = client.lock(name).acquire()
            waiting = spawn(_granted_at, other, name)
            time.sleep(TTL / 5)  # it waits by now, or will find the name free
            released = now()
            assert lease.release()
            return waiting.result() - released < PROMPT

        at_least_once(soon)

    def test_a_time_limit_that_races_a_grant(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        """The release comes about when the waiter gives up. The waiter gets the lock or leaves
        nothing behind.

        If the machine is so busy that no grant comes in time, the waiter gets more patience."""
        moments = random.Random(SEED)
        outcomes: set[str] = set()
        patience = 0.015
        while "granted" not in outcomes and patience < SLACK:
            for _ in range(RACES):
                lease = client.lock(name, ttl=30).acquire()
                waiting = spawn(_outcome, other, name, patience)
                time.sleep(moments.uniform(0.0, 2 * patience))
                assert lease.release()
                outcomes.add(waiting.result())
                nothing_left(client, name)
            patience *= 4
        assert "granted" in outcomes


class Silent(Exception):
    """A claim has lost its place, because nobody asked for it for so long."""


def unless_silent(scene: Callable[[str], bool], name: str) -> None:
    """The scene goes well at least once. These claims give signs of life only when the test asks,
    so a machine that stalls may spoil a try, but no try that ends soon. Each has a name of its own.
    """
    names = (f"{name}:{number}" for number in itertools.count())

    def well() -> bool:
        began = now()
        try:
            return scene(next(names))
        except Silent:
            if now() - began < QUICK:
                raise
            return False

    at_least_once(well)


def join(client: AnyClient, request: Request) -> Callable[[], Grant | None]:
    """Join the queue, and wait there for a moment. Returns a function that asks for the grant, and
    raises Silent if the claim has lost its place."""
    busy = client.perform(client.store.acquire(request))
    if client.perform(queue_of(client).listen(request)):
        busy = client.perform(client.store.acquire(request))
    assert isinstance(busy, Busy) and busy.ticket
    assert client.perform(queue_of(client).wait(request, HEARD, busy)) is None

    def ask() -> Grant | None:
        reply = client.perform(client.store.acquire(request._replace(mode=Mode.POLL)))
        if isinstance(reply, Gone):
            raise Silent
        return reply if isinstance(reply, Grant) else None

    return ask


def _granted_at(client: AnyClient, name: str) -> float:
    with client.lock(name).acquire():
        return now()


def _outcome(client: AnyClient, name: str, timeout: float) -> str:
    try:
        lease = client.lock(name).acquire(timeout)
    except AcquireTimeout:
        return "timed out"
    lease.check()
    assert lease.release()
    return "granted"
