"""``on_lost`` is called once, as soon as the loss can be known, even if store or callback fail."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

import lockkit
from lockkit import aio
from lockkit.model.clock import now
from lockkit.model.settings import settings_from_url
from lockkit.stores.memory import MemoryStore
from lockkit.stores.registry import load_store
from lockkit.testing.conformance.base import eventually
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

SOON = 30.0
TTL = 60.0


@pytest.fixture
def locks() -> Iterator[lockkit.LockClient]:
    client = lockkit.connect("memory://", ttl=TTL)
    yield client
    client.close()


def broken(lease: Any, client: lockkit.LockClient) -> None:
    """What an operator does."""
    assert client.break_(lease.name, fence=lease.fencing_token)


def renew(client: lockkit.LockClient, lease: lockkit.Lease) -> None:
    """Have the watchdog do so now: the TTL is long, so that no stall ends a lease."""
    lease._hold.due = now()
    client._watchdog._hurry()


class Told:
    """A callback, and what it was called with."""

    def __init__(self) -> None:
        self.leases: list[Any] = []
        self.threads: list[threading.Thread] = []
        self._called = threading.Semaphore(0)

    def __call__(self, lease: object) -> None:
        self.leases.append(lease)
        self.threads.append(threading.current_thread())
        self._called.release()

    def wait(self) -> None:
        assert self._called.acquire(timeout=SOON)


class TestWithThreads:
    def test_the_store_says_that_it_is_gone(self, locks: lockkit.LockClient) -> None:
        told = Told()
        lease = locks.lock("stock:42", on_lost=told).acquire()
        broken(lease, locks)
        renew(locks, lease)
        told.wait()
        assert told.leases == [lease]
        assert lease.lost
        assert told.threads[0] is not threading.main_thread()
        assert not lease.release()

    def test_the_deadline_passes_while_the_store_hangs(self, redis_server: RedisServer) -> None:
        """The watchdog waits for a reply then, and can say nothing."""
        redis_server.flush()
        with FaultProxy("127.0.0.1", redis_server.port) as proxy:
            url = f"redis://127.0.0.1:{proxy.port}/0"
            client = lockkit.connect(url, ttl=8.0, options={"socket_timeout": 2 * SOON})
            told_at = Future[float]()
            lock = client.lock("stock:42", on_lost=lambda _: told_at.set_result(now()))
            lease = lock.acquire()
            fault = proxy.delay_requests(matching=b"EVALSHA")
            assert fault.arrived.wait(SOON)
            assert told_at.result(SOON) >= lease._hold.deadline
            assert not fault.happened.is_set()
            fault.release()
            lease.release()
            client.close()

    def test_the_deadline_of_a_ttl_with_many_digits_passes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Stores count microseconds, and what they grant is the whole ttl."""
        told, goes_on, extend = Told(), threading.Event(), MemoryStore.extend

        def hang(store: MemoryStore, requests: Any) -> Any:
            goes_on.wait()
            return extend(store, requests)

        monkeypatch.setattr(MemoryStore, "extend", hang)
        with lockkit.connect("memory://", ttl=4 / 3) as client:
            lease = client.lock("stock:42", on_lost=told).acquire()
            try:
                told.wait()
                assert lease.lost
            finally:
                goes_on.set()
                lease.release()

    def test_it_is_told_after_max_hold(self) -> None:
        """Not renewed any more, and so it ends."""
        client = lockkit.connect("memory://", ttl=0.3, max_hold=0.1)
        told = Told()
        lease = client.lock("a", on_lost=told).acquire()
        told.wait()
        assert lease.lost
        lease.release()
        client.close()

    def test_an_extension_that_finds_it_gone(self, locks: lockkit.LockClient) -> None:
        told = Told()
        lease = locks.lock("a", on_lost=told).acquire()
        broken(lease, locks)
        with pytest.raises(lockkit.LeaseLost):
            lease.extend()
        told.wait()
        lease.release()

    def test_an_extension_to_less_is_told_in_time(self) -> None:
        client = lockkit.connect("memory://", ttl=TTL, max_hold=0)
        told = Told()
        lease = client.lock("a", on_lost=told).acquire()
        lease.extend(0.2)
        told.wait()
        lease.release()
        client.close()

    def test_nobody_is_told_twice(self, locks: lockkit.LockClient) -> None:
        told, last = Told(), Told()
        lease = locks.lock("a", on_lost=told).acquire()
        broken(lease, locks)
        for _ in range(3):
            locks._watchdog.watch(lease._hold)
            renew(locks, lease)
        told.wait()
        locks._watchdog.watch(lease._hold)
        self._told_last(locks, last)
        assert told.leases == [lease]
        lease.release()

    def test_who_releases_is_not_told(self, locks: lockkit.LockClient) -> None:
        told, last = Told(), Told()
        with locks.lock("a", on_lost=told):
            pass
        lease = locks.lock("b", on_lost=told).acquire()
        broken(lease, locks)
        assert not lease.release()
        self._told_last(locks, last)
        assert told.leases == []

    def test_an_error_in_it_is_logged_and_others_are_told(
        self, locks: lockkit.LockClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(_: object) -> None:
            raise ZeroDivisionError

        told = Told()
        with caplog.at_level(logging.ERROR, "lockkit"):
            lease = locks.lock("wrong", on_lost=fail).acquire()
            broken(lease, locks)
            renew(locks, lease)
            self._told_last(locks, told)
        assert "on_lost of 'wrong' failed" in caplog.text
        assert "ZeroDivisionError" in caplog.text
        lease.release()

    def test_a_filter_of_the_log_that_raises_ends_neither_notices_nor_renewals(
        self, locks: lockkit.LockClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Such as one that reads the request: there is none in these threads."""
        tried, told = threading.Event(), Told()

        def fail(*_: object) -> None:
            tried.set()
            raise ZeroDivisionError

        monkeypatch.setattr(logging.getLogger("lockkit"), "filters", [fail])
        lease = locks.lock("wrong", on_lost=fail).acquire()
        with monkeypatch.context() as broken_store:
            broken_store.setattr(locks.store, "extend", fail)
            renew(locks, lease)
            assert tried.wait(SOON)
        broken(lease, locks)
        renew(locks, lease)
        self._told_last(locks, told)
        lease.release()

    def test_a_coroutine_function_is_refused(
        self, locks: lockkit.LockClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nobody would await it."""

        async def tell(_: object) -> None: ...

        with pytest.raises(lockkit.ConfigurationError, match=r"only lockkit\.aio awaits"):
            locks.lock("wrong", on_lost=tell)
        returned: list[Any] = []

        def hidden(lease: object) -> object:
            returned.append(tell(lease))
            return returned[0]

        lease = locks.lock("wrong", on_lost=hidden).acquire()
        broken(lease, locks)
        renew(locks, lease)
        self._told_last(locks, Told())
        assert "on_lost of 'wrong' is not awaited" in caplog.text
        returned[0].close()
        lease.release()

    def test_an_exit_in_it_is_logged_and_others_are_told(
        self, locks: lockkit.LockClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It would end the thread alone, and with it all notices to come."""
        told = Told()
        with caplog.at_level(logging.ERROR, "lockkit"):
            lease = locks.lock("wrong", on_lost=lambda _: sys.exit(1)).acquire()
            broken(lease, locks)
            renew(locks, lease)
            eventually(lambda: "on_lost of 'wrong' failed" in caplog.text)
            self._told_last(locks, told)
        assert len(told.leases) == 1
        lease.release()

    def test_a_slow_one_does_not_delay_renewals(self) -> None:
        client = lockkit.connect("memory://", ttl=0.5)
        slow, entered = threading.Event(), threading.Event()

        def take_long(_: object) -> None:
            entered.set()
            slow.wait(SOON)

        lost = client.lock("a", ttl=TTL, on_lost=take_long).acquire()
        broken(lost, client)
        renew(client, lost)
        assert entered.wait(SOON)

        def renewed() -> bool:
            lease = client.lock("b").acquire()
            start = now()
            eventually(lambda: lease.lost or now() > start + 1)
            return lease.release()

        assert any(renewed() for _ in range(10))
        slow.set()
        lost.release()
        client.close()

    def test_a_forked_child_is_told_of_its_own_only(self, locks: lockkit.LockClient) -> None:
        told = Told()
        lease = locks.lock("a", on_lost=told).acquire()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads are the point here
            child = os.fork()
        if not child:
            try:
                own = Told()
                self._told_last(locks, own)
                os._exit(0 if own.leases and not told.leases else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lease.release()

    def test_of_several_names_each_that_is_lost_is_told(self, locks: lockkit.LockClient) -> None:
        told = Told()
        leases = locks.multi("a", "b", on_lost=told).acquire()
        broken(leases["b"], locks)
        renew(locks, leases["b"])
        told.wait()
        assert told.leases == [leases["b"]]
        leases.release()

    def test_each_who_has_entered_is_told(self, locks: lockkit.LockClient) -> None:
        """Those who have left are not, and those who only stay do not keep the others from it."""
        told, gone = Told(), Told()
        leases = [
            locks.lock("a", reentrant=True, timeout=0, on_lost=tell).acquire()
            for tell in (gone, None, told, gone, told)
        ]
        for number in (3, 0):
            assert leases.pop(number).release()
        broken(leases[0], locks)
        renew(locks, leases[0])
        told.wait()
        told.wait()
        assert told.leases == [leases[1], leases[2]]
        assert gone.leases == []
        for lease in leases:
            lease.release()

    def test_who_enters_again_and_again_is_kept_nowhere(self, locks: lockkit.LockClient) -> None:
        lock = locks.lock("a", reentrant=True, on_lost=Told())
        with lock as outer:
            for _ in range(10):
                lock.acquire().release()
            assert len(outer._hold.on_lost or ()) == 1

    def test_nobody_waits_for_a_notice_that_nobody_wants(self, locks: lockkit.LockClient) -> None:
        with locks.lock("a", reentrant=True) as lease:
            lease.extend()
        assert locks._watchdog._notices._wake is None

    def test_a_cycle_wakes_no_thread(self, locks: lockkit.LockClient) -> None:
        """Who takes and gives back again and again is told for nothing more."""
        lock = locks.lock("a", on_lost=Told())
        lock.acquire().release()
        eventually(lambda: locks._watchdog._notices._deadlines._wake_at < math.inf)
        woken: list[None] = []
        locks._watchdog._notices._hurry = lambda: woken.append(None)  # type: ignore[method-assign]
        for _ in range(100):
            lock.acquire().release()
        assert woken == []

    def _told_last(self, client: lockkit.LockClient, told: Told) -> None:
        """After this, everything that was to be told before is told."""
        lease = client.lock("last", on_lost=told).acquire()
        broken(lease, client)
        renew(client, lease)
        told.wait()
        lease.release()


REQUEST = ContextVar("REQUEST", default="none")


class TestInAnEventLoop:
    async def test_the_store_says_that_it_is_gone(self) -> None:
        await _in_loop(lambda future, lease: future.set_result(lease))

    async def test_a_coroutine_function(self) -> None:
        async def tell(future: asyncio.Future[Any], lease: aio.AsyncLease) -> None:
            await asyncio.sleep(0)
            future.set_result(lease)

        await _in_loop(tell)

    @pytest.mark.parametrize("is_coroutine", [True, False])
    async def test_it_sees_the_variables_of_its_own_request(self, is_coroutine: bool) -> None:
        """Whoever's timer it was by which the loss was found."""
        client = aio.connect("memory://", ttl=0.2, max_hold=0)
        seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def serve(request: str, tell: Callable[[object], object]) -> aio.AsyncLease:
            REQUEST.set(request)
            return await client.lock(request, on_lost=tell).acquire()

        def tell(_: object) -> None:
            seen.set_result(REQUEST.get())

        async def tell_later(_: object) -> None:
            await asyncio.sleep(0)
            seen.set_result(REQUEST.get())

        first = await asyncio.create_task(serve("first", lambda _: None))
        second = await asyncio.create_task(serve("second", tell_later if is_coroutine else tell))
        assert await asyncio.wait_for(seen, SOON) == "second"
        for lease in (first, second):
            await lease.release()
        await client.close()

    async def test_the_deadline_passes(self) -> None:
        client = aio.connect("memory://", ttl=0.2, max_hold=0)
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        lease = await client.lock("a", on_lost=lambda lease: told.set_result(lease.lost)).acquire()
        assert await asyncio.wait_for(told, SOON)
        await lease.release()
        await client.close()

    @pytest.mark.parametrize("is_coroutine", [True, False])
    async def test_an_error_in_it_is_logged(
        self, is_coroutine: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def fail_later(_: object) -> None:
            raise ZeroDivisionError

        def fail(_: object) -> None:
            raise ZeroDivisionError

        client = aio.connect("memory://", ttl=TTL)
        lease = await client.lock("wrong", on_lost=fail_later if is_coroutine else fail).acquire()
        with caplog.at_level(logging.ERROR, "lockkit"):
            await client.break_("wrong", fence=lease.fencing_token)
            with pytest.raises(lockkit.LeaseLost):
                await lease.extend()
            await _until(lambda: "on_lost of 'wrong' failed" in caplog.text)
        await lease.release()
        await client.close()

    async def test_one_that_raises_a_cancellation_ends_nothing(self) -> None:
        client = aio.connect("memory://", ttl=0.2, max_hold=0)
        told = asyncio.Event()

        def fail(_: object) -> None:
            raise asyncio.CancelledError

        leases = [
            await client.lock(name, on_lost=tell).acquire()
            for name, tell in (("a", fail), ("b", lambda _: told.set()))
        ]
        await asyncio.wait_for(told.wait(), SOON)
        for lease in leases:
            await lease.release()
        await client.close()

    def test_an_exit_in_it_ends_the_loop_and_no_notice(self) -> None:
        """Those that are lost by then and those that are lost later are told all the same."""
        told: list[str] = []

        def leave(lease: aio.AsyncLease) -> None:
            told.append(lease.name)
            sys.exit(3)

        client = aio.connect("memory://", ttl=TTL)

        async def lose(*names: str) -> None:
            for name in names:
                lease = await client.lock(name, on_lost=leave).acquire()
                await client.break_(name, fence=lease.fencing_token)
                with pytest.raises(lockkit.LeaseLost):
                    await lease.extend()
                leases.append(lease)
            await asyncio.sleep(SOON)

        leases: list[aio.AsyncLease] = []
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            tasks = [loop.create_task(lose("a", "b"))]
            for names in (["a"], ["a", "b"]):
                with pytest.raises(SystemExit):
                    loop.run_until_complete(tasks[0])
                assert told == names
            tasks.append(loop.create_task(lose("c")))
            with pytest.raises(SystemExit):
                loop.run_until_complete(tasks[1])
            assert told == ["a", "b", "c"]
            for lease in leases:
                runner.run(lease.release())
            runner.run(client.close())

    async def test_each_who_has_entered_is_told(self) -> None:
        client = aio.connect("memory://", ttl=TTL)
        told: list[object] = []
        later = asyncio.Event()

        async def tell(lease: object) -> None:
            told.append(lease)
            later.set()

        leases = [
            await client.lock("a", reentrant=True, on_lost=each).acquire()
            for each in (told.append, None, tell, tell)
        ]
        assert await leases.pop().release()
        await client.break_("a", fence=leases[0].fencing_token)
        with pytest.raises(lockkit.LeaseLost):
            await leases[1].extend()
        await asyncio.wait_for(later.wait(), SOON)
        assert told == [leases[0], leases[2]]
        for lease in leases:
            assert not await lease.release()
        await client.close()

    async def test_who_releases_is_not_told(self) -> None:
        client = aio.connect("memory://", ttl=TTL)
        told: list[object] = []
        async with client.lock("a", on_lost=told.append):
            pass
        lease = await client.lock("b", on_lost=told.append).acquire()
        await client.break_("b", fence=lease.fencing_token)
        assert not await lease.release()
        last = await client.lock("c", on_lost=told.append).acquire()
        await client.break_("c", fence=last.fencing_token)
        with pytest.raises(lockkit.LeaseLost):
            await last.extend()
        await _until(lambda: bool(told))
        assert told == [last]
        await last.release()
        await client.close()


def test_a_watchdog_of_django_tells_as_well() -> None:
    """The adapters' locks have the argument, too."""
    from lockkit_django.leases.client import DjangoLockClient

    settings = settings_from_url("memory://", ttl=TTL)
    client = DjangoLockClient(load_store(settings), settings)
    told = Told()
    lease = client.lock("a", on_lost=told, in_atomic="allow").acquire()
    broken(lease, client)
    renew(client, lease)
    told.wait()
    lease.release()
    client.close()


async def _in_loop(tell: Callable[[asyncio.Future[Any], aio.AsyncLease], object]) -> None:
    client = aio.connect("memory://", ttl=TTL)
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    lease = await client.lock("a", on_lost=partial(tell, told)).acquire()
    await client.break_("a", fence=lease.fencing_token)
    with pytest.raises(lockkit.LeaseLost):
        await lease.extend()
    assert await asyncio.wait_for(told, SOON) is lease
    assert not await lease.release()
    await client.close()


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not is_so():  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.01)
