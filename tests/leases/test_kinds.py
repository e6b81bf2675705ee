"""Entering again: the thread, the task, a holder of the same owner key; never a forked child."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from garbage import collected

import lockkit
from lockkit import aio, fencing
from lockkit.leases.client import LockClient
from lockkit.runtime import entrants
from lockkit.testing.blocking import Api, BlockingClient, connect
from lockkit.testing.conformance.base import eventually
from lockkit.testing.servers import RedisServer

R = TypeVar("R")

TTL = 60.0


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return {"memory": "memory://kinds", "sqlite": f"sqlite:///{tmp_path}/locks.sqlite3"}[
        request.param
    ]


@pytest.fixture
def locks(url: str) -> Iterator[LockClient]:
    client = lockkit.connect(url)
    yield client
    client.close()


def in_thread(work: Callable[[], R]) -> R:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


def forget(leases: list[lockkit.Lease]) -> None:
    """The last reference to each."""
    leases.clear()
    collected()


class TestEntrants:
    def test_a_thread_has_one_key_as_long_as_it_lives(self) -> None:
        assert entrants.of_thread() == entrants.of_thread()
        keys = {in_thread(entrants.of_thread) for _ in range(3)}
        assert len(keys | {entrants.of_thread()}) == 4, "also where the system uses an ident again"

    def test_a_task_has_one_key_as_long_as_it_lives(self) -> None:
        async def key() -> tuple[str, str]:
            first = entrants.of_task(asyncio.current_task())
            await asyncio.sleep(0)
            return first, entrants.of_task(asyncio.current_task())

        async def keys() -> list[tuple[str, str]]:
            return list(await asyncio.gather(key(), key()))

        (one, again), (two, _) = asyncio.run(keys())
        assert one == again != two
        assert entrants.of_thread() not in (one, two)

    def test_a_word_is_no_thread_and_has_no_spaces(self) -> None:
        assert entrants.named("job 17") == entrants.named("job 17") != entrants.named("job\u00a017")
        assert " " not in entrants.named("job 17")
        assert entrants.named(entrants.of_thread()) != entrants.of_thread()

    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
    def test_a_forked_child_has_keys_of_its_own(self) -> None:
        mine = entrants.of_thread()
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, entrants.of_thread().encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as said:
            assert said.read() not in ("", mine)

    @pytest.mark.parametrize("owner", [7, None, "a\nb", "x" * 201])
    def test_a_word_is_printable(self, owner: object) -> None:
        locks = lockkit.connect("memory://")
        with pytest.raises(lockkit.ConfigurationError, match="owner is"):
            locks.rwlock("stock", owner=owner)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", ["lock", "rwlock", "semaphore"])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_what_is_fair_is_true_or_false(make: str, value: object) -> None:
    """A text from a settings file, say: "no" would count as true."""
    permits = (3,) * (make == "semaphore")
    with pytest.raises(lockkit.ConfigurationError, match="fair is"):
        getattr(lockkit.connect("memory://"), make)("stock", *permits, fair=value)


def test_what_is_reentrant_is_true_or_false() -> None:
    with pytest.raises(lockkit.ConfigurationError, match="reentrant is"):
        lockkit.connect("memory://").lock("stock", reentrant="no")  # type: ignore[arg-type]


class TestReadersAndWriters:
    def test_a_thread_enters_again_past_a_writer(self, locks: LockClient) -> None:
        stock = locks.rwlock("stock")
        with stock.read().acquire():
            writing = threading.Thread(target=lambda: stock.write().acquire().release())
            writing.start()
            _until_one_waits(locks, "stock")
            with stock.read().acquire(0):
                assert in_thread(stock.read().try_acquire) is None, "another thread waits"
        writing.join()

    def test_a_thread_that_reads_is_refused_to_write(self, locks: LockClient) -> None:
        stock = locks.rwlock("stock")
        with stock.read(), pytest.raises(lockkit.UpgradeRefused):
            stock.write().acquire()
        with stock.write():
            pass

    def test_a_task_enters_again_and_another_does_not(self, url: str) -> None:
        async def enter() -> tuple[bool, bool]:
            locks = aio.connect(url)
            stock = locks.rwlock("stock")
            async with stock.write():
                again = await stock.write().try_acquire()
                other = await asyncio.create_task(stock.write().try_acquire())
                if again is not None:
                    await again.release()
            await locks.close()
            return again is not None, other is not None

        assert asyncio.run(enter()) == (True, False)

    def test_a_downgraded_lease_fences_no_more(self, locks: LockClient) -> None:
        with locks.rwlock("stock").write() as lease:
            assert fencing.token_of(lease) == lease.fencing_token
            lease.downgrade()
            with pytest.raises(lockkit.ConfigurationError, match="shared"):
                fencing.token_of(lease)


@pytest.mark.parametrize("kind", ["reentrant", "write"])
@pytest.mark.parametrize(("owners", "enters"), [(["", ""], True), (["one", "two"], False)])
def test_a_thread_of_a_pool_owns_what_it_hands_on(
    locks: LockClient, kind: str, owners: list[str], enters: bool
) -> None:
    """Two requests, whose dependencies run in one thread. Owners of their own keep them apart."""

    def dependency(owner: str) -> Iterator[lockkit.Lease | None]:
        writing = locks.rwlock("stock", owner=owner).write()
        reentrant = locks.lock("stock", reentrant=True, owner=owner)
        lease = (reentrant if kind == "reentrant" else writing).try_acquire()
        yield lease
        if lease is not None:
            lease.release()

    requests = [dependency(owner) for owner in owners]
    with ThreadPoolExecutor(1) as threads:
        first, second = [threads.submit(next, request).result() for request in requests]
        assert first is not None
        assert (second is not None) is enters
        if second is not None:
            assert second.fencing_token == first.fencing_token
        for request in requests:
            threads.submit(next, request, None).result()


@pytest.mark.parametrize("kind", ["reentrant", "write"])
def test_a_task_with_a_blocking_client_enters_again_and_another_does_not(
    locks: LockClient, kind: str
) -> None:
    writing = locks.rwlock("stock").write()
    lock = locks.lock("stock", reentrant=True) if kind == "reentrant" else writing

    async def other() -> bool:
        return lock.try_acquire() is None

    async def enter() -> bool:
        with lock, lock:
            return await asyncio.create_task(other())

    assert asyncio.run(enter())


class TestReentrant:
    def test_a_thread_enters_again_and_another_does_not(self, locks: LockClient) -> None:
        lock = locks.lock("stock", reentrant=True)
        with lock as outer, lock as inner:
            assert inner.fencing_token == outer.fencing_token
            assert in_thread(lock.try_acquire) is None
        assert not list(locks.holders())

    def test_a_nested_entry_costs_no_round_trip(self, redis_server: RedisServer) -> None:
        locks = lockkit.connect(redis_server.url, ttl=60)
        with redis_server.client() as admin:

            def requests() -> int:
                stats: Any = admin.info("commandstats")
                return int(stats["cmdstat_evalsha"]["calls"])

            with locks.lock("nested", reentrant=True) as outer:
                outer.extend()  # the server has the scripts now
                before = requests()
                with locks.lock("nested", reentrant=True), locks.lock("nested", reentrant=True):
                    assert requests() == before
                with locks.lock("nested", ttl=90, reentrant=True) as longer:
                    assert longer.remaining() > 80
                    assert requests() == before + 1
                with locks.lock("nested", ttl=90, reentrant=True):
                    assert requests() == before + 1
        locks.close()

    def test_leases_are_released_in_any_order(self, locks: LockClient) -> None:
        lock = locks.lock("stock", reentrant=True)
        leases = [lock.acquire() for _ in range(3)]
        assert leases[0].release()
        assert not leases[0].release()
        assert leases[2].release()
        assert leases[2].lost and not leases[1].lost
        assert locks.inspect("stock") is not None
        assert leases[1].release()
        assert locks.inspect("stock") is None

    def test_a_broken_lease_is_not_entered_again(self, locks: LockClient) -> None:
        lock = locks.lock("stock", reentrant=True)
        outer = lock.acquire()
        assert locks.break_("stock", fence=outer.fencing_token)
        with pytest.raises(lockkit.LeaseLost):
            outer.extend()
        with lock as again:
            assert again.fencing_token > outer.fencing_token
            assert not outer.release()
            again.check()

    def test_a_forgotten_inner_lease_does_not_end_the_outer_one(self, locks: LockClient) -> None:
        lock = locks.lock("stock", reentrant=True)
        with lock as outer:
            held = [lock.acquire()]
            with pytest.warns(ResourceWarning, match="never released"):
                forget(held)
            outer.check()
        assert locks.inspect("stock") is None

    def test_a_forgotten_outer_lease_ends_with_the_inner_one(self, locks: LockClient) -> None:
        lock = locks.lock("stock", reentrant=True)
        held = [lock.acquire()]
        inner = lock.acquire()
        with pytest.warns(ResourceWarning, match="never released"):
            forget(held)
        inner.check()
        assert inner.release()
        assert locks.inspect("stock") is None

    @pytest.mark.parametrize("api", ["sync", "async"])
    def test_who_enters_when_it_is_renewed_no_more_gets_the_whole_ttl(self, api: Api) -> None:
        locks = connect(api, "memory://", ttl=TTL, max_hold=0)
        lock = locks.lock("stock", reentrant=True, owner="job-17")
        with lock.acquire() as outer:
            outer.extend(TTL / 10)
            with lock.acquire() as inner:
                assert inner.remaining() > TTL / 2
        locks.stop() if isinstance(locks, BlockingClient) else locks.close()

    @pytest.mark.parametrize("api", ["sync", "async"])
    def test_who_enters_for_longer_takes_nothing_of_an_extension(self, api: Api) -> None:
        locks = connect(api, "memory://", ttl=TTL)
        use = {"reentrant": True, "owner": "job-17"}
        with locks.lock("stock", **use).acquire() as outer:
            outer.extend(60 * TTL)
            with locks.lock("stock", ttl=2 * TTL, **use).acquire():
                assert outer.remaining() > 50 * TTL
            assert outer.remaining() > 50 * TTL
            outer.extend()  # to what it is renewed to
            assert outer.remaining() > TTL
        locks.stop() if isinstance(locks, BlockingClient) else locks.close()

    def test_an_extended_claim_is_renewed_in_time_for_who_enters_for_longer(self) -> None:
        locks = lockkit.connect("memory://", ttl=TTL)
        with locks.lock("stock", reentrant=True).acquire() as outer:
            outer.extend(60 * TTL)
            with locks.lock("stock", ttl=3 * TTL, reentrant=True).acquire():
                assert outer._hold.deadline - outer._hold.due > TTL
        locks.close()

    def test_of_two_threads_that_leave_at_once_one_gives_it_back(self) -> None:
        locks = lockkit.connect("memory://", ttl=TTL)
        lock = locks.lock("stock", reentrant=True, owner="job-17")
        leases = [lock.acquire(), lock.acquire()]
        with ThreadPoolExecutor(2) as threads:
            with locks._entries._lock:  # neither has looked yet whether it is the last
                leaving = [threads.submit(lease.release) for lease in leases]
                eventually(lambda: all(lease.released for lease in leases))
            assert [each.result() for each in leaving] == [True, True]
        assert locks.inspect("stock") is None
        locks.close()

    def test_who_cannot_be_let_in_for_so_long_is_not_inside(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: object) -> None:
            raise lockkit.BackendUnavailable("it is down")

        locks = lockkit.connect("memory://", ttl=TTL)
        outer = locks.lock("stock", reentrant=True).acquire()
        with monkeypatch.context() as patched:
            patched.setattr(locks.store, "extend", fail)
            with pytest.raises(lockkit.BackendUnavailable) as caught:
                locks.lock("stock", ttl=2 * TTL, reentrant=True).acquire()
        assert outer.release()
        assert locks.inspect("stock") is None
        assert caught.tb, "which keeps what was not given back"
        locks.close()

    async def test_nor_is_a_task(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_: object) -> None:
            raise lockkit.BackendUnavailable("it is down")

        locks = aio.connect("memory://", ttl=TTL)
        outer = await locks.lock("stock", reentrant=True).acquire()
        with monkeypatch.context() as patched:
            patched.setattr(locks.store, "extend", fail)
            with pytest.raises(lockkit.BackendUnavailable) as caught:
                await locks.lock("stock", ttl=2 * TTL, reentrant=True).acquire()
        assert await outer.release()
        assert await locks.inspect("stock") is None
        assert caught.tb, "which keeps what was not given back"
        await locks.close()

    def test_a_task_enters_again_and_another_does_not(self, url: str) -> None:
        async def enter() -> tuple[bool, bool]:
            locks = aio.connect(url)
            lock = locks.lock("stock", reentrant=True)
            async with lock:
                async with lock as inner:
                    inner.check()
                other = await asyncio.create_task(lock.try_acquire())
                still = await locks.inspect("stock") is not None
            free = await locks.inspect("stock") is None
            await locks.close()
            return other is None, still and free

        assert asyncio.run(enter()) == (True, True)

    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
    @pytest.mark.parametrize("owner", ["", "job-17"])
    def test_a_forked_child_does_not_enter_by_its_parents_lease(
        self, redis_url: str, owner: str
    ) -> None:
        """By a word it may enter, as any process may, and with a lease of its own."""
        locks = lockkit.connect(redis_url)
        lock = locks.lock("forked", reentrant=True, owner=owner)
        reader, writer = os.pipe()
        with lock as lease:
            child = os.fork()
            if not child:
                own = lock.try_acquire()
                is_other = own is not None and own.token != lease.token
                os.write(writer, b"own" if is_other else b"none" if own is None else b"parent's")
                if own is not None:
                    own.release()
                os._exit(0)
            os.waitpid(child, 0)
            lease.check()
            assert locks.inspect("forked") is not None
        os.close(writer)
        with os.fdopen(reader) as said:
            assert said.read() == ("own" if owner else "none")
        locks.close()


def _until_one_waits(locks: LockClient, name: str) -> None:
    eventually(lambda: (info := locks.inspect(name)) and info.waiters_alive)
