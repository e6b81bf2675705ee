"""Several names at once: in one order for everybody, within one deadline.

What depends on the store is in the conformance suite.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

import lockkit
from lockkit import aio
from lockkit.engine.effects import Step
from lockkit.leases.client import Lease, LockClient
from lockkit.model.clock import now
from lockkit.model.errors import (
    AcquireTimeout,
    BackendUnavailable,
    ConfigurationError,
    InvalidName,
    LeaseLost,
    OpenTransaction,
    OutcomeUnknown,
)
from lockkit.model.types import Release, Request
from lockkit.testing.blocking import AnyClient, AnyMultiLock, Api, BlockingClient, connect
from lockkit.testing.conformance.base import SOON, at_least_once, eventually, queued, waiters

NAMES = ("stock:b", "stock:a", "stock:é", "stock:a")
ORDER = ("stock:a", "stock:b", "stock:é")

URL = "memory://several"

ALL = 0.2
"""Seconds for all names together."""

SHORT = 0.3
"""A TTL. A lease that is lost is told of it within this time."""


@pytest.fixture(params=["sync", "async"])
def api(request: pytest.FixtureRequest) -> Api:
    api: Api = request.param
    return api


@pytest.fixture
def both(api: Api) -> Iterator[AnyClient]:
    """A client of each API."""
    client = connect(api, URL, ttl=60, acquire_timeout=30)
    yield client
    stop(client)


def stop(client: AnyClient) -> None:
    client.stop() if isinstance(client, BlockingClient) else client.close()


@pytest.fixture
def locks() -> Iterator[LockClient]:
    client = lockkit.connect(URL, ttl=60, acquire_timeout=30)
    yield client
    client.close()


def held(locks: AnyClient) -> list[str]:
    return sorted(info.name for info in locks.holders())


def broken(locks: AnyClient, name: str) -> bool:
    """Whether an operator has released the lease on this name."""
    info = locks.inspect(name)
    return info is not None and locks.break_(name, fence=info.fence)


def test_each_once_in_the_order_of_their_bytes(both: AnyClient) -> None:
    with both.multi(*NAMES).acquire() as leases:
        assert leases.names == ORDER == tuple(held(both))
        assert leases["stock:a"].fencing_token < leases["stock:é"].fencing_token


def test_waiting_for_one_takes_from_the_time_for_the_next(both: AnyClient) -> None:
    def taken(threads: ThreadPoolExecutor) -> bool:
        with both.lock("b").acquire():
            first = both.lock("a").acquire()
            waiting = threads.submit(refused, both.multi("a", "b", timeout=ALL))
            eventually(lambda: waiters(both, "a") == 1 or waiting.done())
            start = now()
            eventually(lambda: now() > start + ALL / 20)
            first.release()
            error = waiting.result()
        (seconds,) = re.findall(r"within ([0-9.]+) s", str(error))
        assert len(seconds) <= len("0.123")
        assert error.waited >= ALL
        return error.name == "b" and float(seconds) < ALL

    with ThreadPoolExecutor(1) as threads:
        at_least_once(lambda: taken(threads))
    assert held(both) == []


def test_no_time_left_for_the_last_is_not_a_refusal_to_wait(
    both: AnyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LockHeld is for a ``timeout`` of 0."""
    hours = count(step=3600)
    monkeypatch.setattr("lockkit.leases.multi.now", lambda: float(next(hours)))
    with both.lock("b").acquire():
        assert type(refused(both.multi("a", "b", timeout=ALL))) is AcquireTimeout
        assert type(refused(both.multi("a", "b", timeout=0))) is lockkit.LockHeld
    assert held(both) == []


def refused(lock: AnyMultiLock) -> AcquireTimeout:
    with pytest.raises(AcquireTimeout) as late:
        lock.acquire()
    return late.value


@pytest.mark.parametrize("by", ["an operator", "MAX_HOLD"])
def test_one_that_is_lost_while_the_next_is_waited_for_leaves_none(
    api: Api, locks: LockClient, by: str
) -> None:
    told = threading.Event()
    client = connect(api, URL, ttl=SHORT, max_hold=60 if by == "an operator" else 0)
    both = client.multi("a", "b", timeout=60, on_lost=lambda _: told.set())
    with ThreadPoolExecutor(1) as threads:
        with locks.lock("b"):
            waiting = threads.submit(both.acquire)
            queued(locks, "b", 1)
            assert by == "MAX_HOLD" or broken(locks, "a")
            assert told.wait(SOON)
            third = locks.lock("a").acquire()
        with pytest.raises(LeaseLost, match=f"'a' is lost: .*{by}"):
            waiting.result()
    assert held(locks) == ["a"]
    assert third.release()
    stop(client)


def test_what_the_body_has_released_was_not_lost(both: AnyClient) -> None:
    with both.multi("a", "b").acquire() as leases:
        assert leases.release()
    for name in "ab":
        with both.multi("a", "b").acquire() as leases:
            assert leases[name].release()
    assert held(both) == []


def test_what_the_body_has_not_released_may_be_lost(both: AnyClient) -> None:
    leases = both.multi("a", "b").acquire()
    assert leases["a"].release()
    assert both.break_("b", fence=leases["b"].fencing_token)
    with pytest.raises(LeaseLost):
        leases.__exit__(None, None, None)


def test_thousands_are_given_back(both: AnyClient) -> None:
    assert both.multi(*(f"stock:{number}" for number in range(1100))).acquire().release()
    assert held(both) == []


INTERRUPTED = [
    ([BackendUnavailable("of d"), OutcomeUnknown("of b")], BackendUnavailable),
    ([BackendUnavailable("of d"), KeyboardInterrupt()], KeyboardInterrupt),
    ([KeyboardInterrupt(), BackendUnavailable("of b")], KeyboardInterrupt),
]


@pytest.mark.parametrize(("errors", "passes"), INTERRUPTED)
def test_whatever_becomes_of_one_the_others_are_given_back(
    locks: LockClient,
    errors: list[BaseException],
    passes: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two errors the first passes; but no interrupt is hidden behind a store that fails."""
    leases = locks.multi("a", "b", "c", "d").acquire()
    release, wrong = locks.store.release, dict(zip("db", errors, strict=True))

    def fails(request: Request) -> Step[Release]:
        if request.name in wrong:
            raise wrong.pop(request.name)
        released.append(request.name)
        return release(request)

    released: list[str] = []
    monkeypatch.setattr(locks.store, "release", fails)
    with pytest.raises(passes):
        leases.release()
    assert [name for name in released if name in "ca"] == ["c", "a"]
    eventually(lambda: held(locks) == [])  # what could not be released is withdrawn


def test_one_that_cannot_even_begin_to_be_released_does_not_hold_up_the_others(
    locks: LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a transaction of Django's that is to keep it, and cannot."""
    leases = locks.multi("a", "b", "c").acquire()
    begin = type(leases["b"])._releasing

    def fails(lease: Lease, *silent: Any) -> Step[bool]:
        if lease.name == "b":
            raise OpenTransaction("the database is locked")
        return begin(lease, *silent)

    with monkeypatch.context() as patched:
        patched.setattr(Lease, "_releasing", fails)
        with pytest.raises(OpenTransaction):
            leases.release()
    assert [info.name for info in locks.holders()] == ["b"]
    assert leases["b"].release()


def test_one_that_was_interrupted_before_it_began_is_released_after_the_failure_of_another(
    locks: LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is begun once more, as any other one: the failure was not its own."""
    leases = locks.multi("a", "b", "c").acquire()
    begin, interrupts = Lease._releasing, [KeyboardInterrupt()]
    release, wrong = locks.store.release, [BackendUnavailable("of c")]

    def interrupted(lease: Lease, *silent: Any) -> Step[bool]:
        if lease.name == "b" and interrupts:
            raise interrupts.pop()
        return begin(lease, *silent)

    def fails(request: Request) -> Step[Release]:
        if request.name == "c" and wrong:
            raise wrong.pop()
        return release(request)

    monkeypatch.setattr(Lease, "_releasing", interrupted)
    monkeypatch.setattr(locks.store, "release", fails)
    with pytest.raises(KeyboardInterrupt):
        leases.release()
    assert leases["b"].released
    eventually(lambda: held(locks) == [])


async def test_cancelled_in_one_the_others_of_the_twin_are_given_back(
    locks: LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = aio.connect(URL, ttl=60)
    leases = await client.multi("a", "b", "c", "d").acquire()
    release = client.store.release
    wrong = {"d": BackendUnavailable("of d"), "b": asyncio.CancelledError()}

    def fails(request: Request) -> Step[Release]:
        if request.name in wrong:
            raise wrong.pop(request.name)
        return release(request)

    monkeypatch.setattr(client.store, "release", fails)
    with pytest.raises(asyncio.CancelledError):
        await leases.release()
    assert not {"a", "c"} & {*held(locks)}
    async with asyncio.timeout(20):
        while held(locks):  # noqa: ASYNC110  it is withdrawn
            await asyncio.sleep(0.01)
    await client.close()


def test_an_error_of_the_body_passes(both: AnyClient) -> None:
    with pytest.raises(ValueError, match="body"), both.multi("a", "b").acquire():
        raise ValueError("body")
    assert held(both) == []


def test_a_lock_of_several_is_entered_and_left(locks: LockClient) -> None:
    lock = locks.multi("a", "b")
    with lock as leases:
        assert held(locks) == ["a", "b"]
        leases.check()
    assert held(locks) == []


async def test_so_is_its_twin(locks: LockClient) -> None:
    client = aio.connect(URL, ttl=60)
    async with client.multi("a", "b") as leases:
        assert held(locks) == ["a", "b"]
        leases.check()
    assert held(locks) == []
    await client.close()


async def test_cancelled_it_holds_none(locks: LockClient) -> None:
    client = aio.connect(URL, ttl=60)
    async with client.lock("b"):
        waiting = asyncio.create_task(client.multi("a", "b", timeout=None).acquire())
        await asyncio.to_thread(queued, locks, "b", 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert held(locks) == ["b"]
    await client.close()


def test_what_names_nothing(locks: LockClient) -> None:
    for names in ((), (7,), (None,), (["a", "b"],)):
        with pytest.raises(ConfigurationError):
            locks.multi(*names)  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        locks.multi("a", "")
    with pytest.raises(ConfigurationError):
        locks.multi("a", "b", ttl=-1)
    with pytest.raises(ConfigurationError):
        locks.multi("a", "b").acquire(-1)
    assert held(locks) == []
