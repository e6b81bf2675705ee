"""Who enters again: the thread, the task, whoever says the same word; and never a forked child."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

import lockkit
from lockkit import aio, entrants, fencing
from lockkit.client import LockClient
from lockkit.testing.conformance.base import eventually

R = TypeVar("R")


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


def _until_one_waits(locks: LockClient, name: str) -> None:
    eventually(lambda: (info := locks.inspect(name)) and info.waiters_alive)
