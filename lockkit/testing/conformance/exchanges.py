"""Each exchange of a client's call fails once: it is refused, or done and its reply dropped. A
request to several servers fails at all of them at once.

The call returns a result or raises a BackendError, and both are true: a grant excludes others, and
a failure leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import pytest

from lockkit.model.errors import AcquireTimeout, BackendError
from lockkit.stores.contract import Fenced, Listed, Shared
from lockkit.testing.blocking import AnyClient, used_as
from lockkit.testing.conformance.base import (
    Spawn,
    eventually,
    held,
    needs,
    nothing_left,
)
from lockkit.testing.faulty import Failing, FaultyExchange

R = TypeVar("R")

MOST = 20
"""More exchanges than any call makes, unless it polls."""


def each_fault(fault: FaultyExchange, name: str) -> Iterator[str]:
    """A fresh name for each exchange and each way to fail, until there are no more exchanges."""
    for failing in Failing:
        for number in range(MOST):
            fault.plan(number, failing)
            yield f"{name}:{failing.value}:{number}"
            if not fault.happened:
                break


class ExchangeTests:
    """``faulty`` is a client whose exchanges fail as ``fault`` says, within its block."""

    @pytest.mark.parametrize("use", ["lock", "reentrant"])
    def test_a_fault_while_acquiring(  # noqa: PLR0917  fixtures
        self,
        faulty: AnyClient,
        other: AnyClient,
        fault: FaultyExchange,
        name: str,
        use: str,
        spawn: Spawn,
    ) -> None:
        """The others ask from another thread, because this thread may enter again."""
        for each in each_fault(fault, name):
            others = used_as(other, each, use)
            lease = attempt(fault, used_as(faulty, each, use).acquire)
            if lease is None:
                is_free_soon(other, each)
            else:
                assert spawn(others.try_acquire).result() is None
                assert lease.release()
                nothing_left(other, each)

    @needs(Shared)
    @pytest.mark.parametrize("use", ["semaphore:1", "write"])
    def test_a_fault_while_acquiring_another_kind(  # noqa: PLR0917  fixtures
        self,
        faulty: AnyClient,
        other: AnyClient,
        fault: FaultyExchange,
        name: str,
        use: str,
        spawn: Spawn,
    ) -> None:
        self.test_a_fault_while_acquiring(faulty, other, fault, name, use, spawn)

    def test_a_fault_while_releasing(
        self, faulty: AnyClient, other: AnyClient, fault: FaultyExchange, name: str
    ) -> None:
        for each in each_fault(fault, name):
            lease = faulty.lock(each).acquire()
            released = attempt(fault, lease.release)
            assert released in (True, None)
            if released is None:
                is_free_soon(other, each)
            else:
                nothing_left(other, each)

    def test_a_fault_while_extending(
        self, faulty: AnyClient, other: AnyClient, fault: FaultyExchange, name: str
    ) -> None:
        for each in each_fault(fault, name):
            lease = faulty.lock(each).acquire()
            attempt(fault, lease.extend)
            lease.check()
            assert other.lock(each).try_acquire() is None
            assert lease.release()
            nothing_left(other, each)

    def test_a_fault_while_waiting(
        self, faulty: AnyClient, other: AnyClient, fault: FaultyExchange, name: str, spawn: Spawn
    ) -> None:
        if not makes_exchanges(faulty, fault, name):
            return
        for each in each_fault(fault, name):
            lease = other.lock(each).acquire()
            waiting = spawn(attempt, fault, faulty.lock(each).acquire)
            eventually(lambda: fault.asked or waiting.done())  # noqa: B023
            assert lease.release()
            granted = waiting.result()
            if granted is not None:
                assert other.lock(each).try_acquire() is None
                assert granted.release()
            is_free_soon(other, each)

    def test_a_fault_while_giving_up(
        self, faulty: AnyClient, other: AnyClient, fault: FaultyExchange, name: str
    ) -> None:
        for each in each_fault(fault, name):
            given_up = pytest.raises((AcquireTimeout, BackendError))
            with other.lock(each).acquire(), fault, given_up:
                faulty.lock(each).acquire(timeout=0.02)
            is_free_soon(other, each)

    @needs(Listed)
    def test_a_fault_while_listing(
        self, faulty: AnyClient, other: AnyClient, fault: FaultyExchange, name: str
    ) -> None:
        for each in each_fault(fault, name):
            with other.lock(each).acquire():
                assert attempt(fault, partial(faulty.inspect, each)) or fault.happened
                assert held(other, each)
            nothing_left(other, each)

    @needs(Listed, Fenced)
    def test_a_fault_while_an_operator_releases(
        self, faulty: AnyClient, other: AnyClient, fault: FaultyExchange, name: str
    ) -> None:
        for each in each_fault(fault, name):
            lease = other.lock(each).acquire()
            broken = attempt(fault, partial(faulty.break_, each, fence=lease.fencing_token))
            if broken is None and held(other, each):
                assert lease.release()
            else:
                assert broken is not False and not lease.release()
            nothing_left(other, each)


def makes_exchanges(faulty: AnyClient, fault: FaultyExchange, name: str) -> bool:
    """Whether the client makes any exchanges. A store in memory may do without."""
    fault.plan(-1, Failing.REFUSED)  # none fails
    with fault:
        faulty.lock(name).acquire().release()
    return fault.asked > 0


def attempt(fault: FaultyExchange, work: Callable[[], R]) -> R | None:
    """What ``work`` returns; None if the store failed."""
    try:
        with fault:
            return work()
    except BackendError:
        return None


def is_free_soon(client: AnyClient, name: str) -> None:
    """Soon nothing is left: what a failure left open is released in the background, well before it
    expires. A server may carry out an old request so late that the name is free, taken and free
    again. So the looks go on until one of them finds everything in order."""

    def is_free() -> bool:
        try:
            nothing_left(client, name)
        except AssertionError:
            return False
        return True

    eventually(is_free)
