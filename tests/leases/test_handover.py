"""A lease for which an event loop has waited, in the hands of a blocking client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import lockkit
from lockkit import aio
from lockkit.aio import AsyncLease, AsyncLockClient
from lockkit.leases.client import LockClient
from lockkit.leases.handover import handed_over
from lockkit.model.clock import now
from lockkit.model.errors import ConfigurationError
from lockkit.testing.conformance.base import at_least_once, eventually

STORE = "memory://handover"


@pytest.fixture
def locks() -> Iterator[LockClient]:
    with lockkit.connect(STORE, ttl=60) as client:
        yield client


def test_it_outlives_its_loop_and_is_released_in_any_thread(locks: LockClient) -> None:
    async def take() -> lockkit.Lease:
        async with aio.connect(STORE, ttl=60) as client:
            lease = await client.lock("stock:42").acquire()
            mine = handed_over(lease, locks)
            assert lease.released
            assert mine.fencing_token == lease.fencing_token
            assert not client._watchdog.give_up()  # it would release it at the exit as well
            return mine

    lease = asyncio.run(take())
    lease.check()
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lease.release).result()
    assert locks.inspect("stock:42") is None


def test_it_is_renewed_when_its_loop_has_ended(locks: LockClient) -> None:
    async def take() -> lockkit.Lease:
        async with aio.connect(STORE, ttl=0.5) as client:
            return handed_over(await client.lock("short").acquire(), locks)

    def renewed() -> bool:
        lease, start = asyncio.run(take()), now()
        eventually(lambda: lease.lost or now() > start + 0.6)
        kept = not lease.lost
        return lease.release() and kept

    at_least_once(renewed)


async def test_several_names(locks: LockClient) -> None:
    async with aio.connect(STORE) as client:
        leases = handed_over(await client.multi("a", "b").acquire(), locks)
        leases.check()
        assert leases.release()
    assert not list(locks.holders())


async def test_what_was_entered_once_is_left_in_its_loop(locks: LockClient) -> None:
    async with aio.connect(STORE) as client:
        report = client.lock("report", reentrant=True, timeout=0)
        lease = handed_over(await report.acquire(), locks)
        assert lease.release()
        async with report:  # of the store, not of what has been released
            assert locks.inspect("report") is not None


async def test_what_others_share_or_must_hear_of_stays(locks: LockClient) -> None:
    async with aio.connect(STORE) as client:
        report = client.lock("report", reentrant=True)
        async with report, report as lease:
            await stays(lease, locks)
        async with client.lock("stock:42", on_lost=print) as lease:
            await stays(lease, locks)


async def stays(lease: AsyncLease, locks: LockClient) -> None:
    with pytest.raises(ConfigurationError):
        handed_over(lease, locks)
    lease.check()


async def test_without_a_thread_to_renew_it_all_is_as_before(
    locks: LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    client: AsyncLockClient
    async with aio.connect(STORE) as client:
        leases = await client.multi("a", "b").acquire()
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError):
                handed_over(leases, locks)
        leases.check()
        assert await leases.release()
    assert not locks._watchdog._schedule.holds_any
