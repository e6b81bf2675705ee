"""What most locks ever do is two requests and little else: granted at once, and given back."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import redis
from lock_tables import make_table

import lockkit
from lockkit import LockClient, LockHeld, TooManyWaiters, aio
from lockkit.model.types import Owner
from lockkit.testing.servers import RedisServer

MOST_CALLS = 62
"""Of Python functions, for a pair: more than those of today, and far less than by steps (101)."""

MOST_AWAITED = 85
"""Of lockkit's own, for a pair in a task, with each time that one goes on. By steps: 104."""

IN_DATABASES = [
    ("postgres_url", "table", 100),
    ("mariadb_url", "table", 195),
    ("postgres_url", "advisory", 130),
    ("mariadb_url", "advisory", 480),
]
"""The same with theirs; half of MariaDB's are PyMySQL's."""


@pytest.fixture(params=["", "?protocol=plain"], ids=["scripts", "plain"])
def locks(request: pytest.FixtureRequest, redis_url: str) -> Iterator[LockClient]:
    with lockkit.connect(redis_url + request.param, ttl=60) as client:
        client.lock("first").acquire().release()  # connects, and loads the scripts
        yield client


@pytest.fixture
def admin(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """The calls of this thread, of functions of Python together; and of lockkit's own."""
    calls = Counter[str]()

    def count(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            calls[function.__name__] += 1
        elif event == "call":
            calls["Python"] += 1
            calls["own"] += frame.f_globals.get("__name__", "").startswith("lockkit.")

    gc.collect()
    gc.disable()  # others are collected in calls of their own
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        gc.enable()


def counted(step: Callable[[], object]) -> Counter[str]:
    with counting() as calls:
        step()
    return calls


def scripts(admin: redis.Redis, step: Callable[[], object]) -> int:
    """How many run."""
    before = _scripts(admin)
    step()
    return _scripts(admin) - before


def _scripts(admin: redis.Redis) -> int:
    stats: Any = admin.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


def pair(client: LockClient) -> None:
    client.lock("stock:42").acquire().release()


def block(client: LockClient) -> None:
    with client.lock("stock:42"):
        pass


@pytest.mark.parametrize("use", [pair, block])
def test_a_pair_is_two_requests(locks: LockClient, use: Callable[[LockClient], None]) -> None:
    use(locks)
    calls = counted(lambda: use(locks))
    assert (calls["sendall"], calls["recv"]) == (2, 2)


def test_a_pair_is_few_calls(locks: LockClient) -> None:
    lock = locks.lock("stock:42")
    lock.acquire().release()
    assert counted(lambda: lock.acquire().release())["Python"] < MOST_CALLS


@pytest.mark.parametrize("query", ["", "?protocol=plain"], ids=["scripts", "plain"])
async def test_an_awaited_pair_is_few_calls(redis_url: str, query: str) -> None:
    async with aio.connect(redis_url + query, ttl=60) as locks:
        lock = locks.lock("stock:42")
        for _ in range(2):  # connects, and loads the scripts
            await (await lock.acquire()).release()
        with counting() as pair:
            await (await lock.acquire()).release()
        with counting() as block:
            async with lock:
                pass
    assert pair["own"] < MOST_AWAITED, pair
    assert block["own"] < MOST_AWAITED + 20, block


@pytest.mark.parametrize(("server", "mode", "most"), IN_DATABASES)
def test_a_pair_in_a_database_is_few_calls(
    server: str, mode: str, most: int, request: pytest.FixtureRequest
) -> None:
    url = str(request.getfixturevalue(server))
    if mode != "advisory":
        make_table(url)
    with lockkit.connect(f"{url}?mode={mode}", ttl=60) as locks:
        lock = locks.lock("stock:42")
        for _ in range(3):
            lock.acquire().release()
        # Of a few: each time that a reply comes in two parts, there are more.
        assert min(counted(lambda: lock.acquire().release())["Python"] for _ in range(5)) < most


def test_a_try_that_fails_is_one_request(locks: LockClient, admin: redis.Redis) -> None:
    with locks.lock("stock:42"):
        assert scripts(admin, locks.lock("stock:42").try_acquire) == 1


def wait_for_waiter(client: LockClient, admin: redis.Redis) -> None:
    queue = client.store._language.keys.of_name("stock:42")[1]  # type: ignore[attr-defined]
    while not admin.zcard(queue):
        pass


def test_whoever_waits_first_in_a_process_has_asked_once_before(
    locks: LockClient, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries without listening, and joins the queue once it listens."""
    monkeypatch.setattr("lockkit.engine.waiting.alive_for", lambda _: 600.0)  # nor asks again soon
    holder = locks.lock("stock:42").acquire()
    waiter = threading.Thread(target=lambda: locks.lock("stock:42").acquire().release())

    def wait() -> None:
        waiter.start()
        wait_for_waiter(locks, admin)

    assert scripts(admin, wait) == 2
    assert holder.release()
    waiter.join()


def test_a_full_queue_refuses_by_one_request(
    redis_url: str, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockkit.engine.waiting.alive_for", lambda _: 600.0)  # the first asks once
    with lockkit.connect(redis_url, ttl=60, max_queue=1) as locks:
        lock = locks.lock("stock:42", timeout=60)
        holder = lock.acquire()
        first = threading.Thread(target=lambda: lock.acquire().release())
        first.start()
        wait_for_waiter(locks, admin)

        def refused() -> None:
            with pytest.raises(TooManyWaiters):
                lock.acquire()

        assert scripts(admin, refused) == 1
        holder.release()
        first.join()


def test_a_server_that_has_forgotten_the_scripts_is_told_again(
    locks: LockClient, admin: redis.Redis
) -> None:
    lock = locks.lock("stock:42")
    admin.script_flush()
    lease = lock.acquire()
    admin.script_flush()
    assert lease.release()
    with lock:
        pass


def test_a_reply_that_comes_in_pieces_is_read_to_its_end(locks: LockClient) -> None:
    """It names the holder, and is longer than what is asked for at once."""
    holder = Owner("web-1", 4121, "t" * 20_000, "POST /orders")
    request = locks.lock("stock:42", timeout=0)._request(locks, 0)
    locks.perform(locks.store.acquire(request._replace(owner=holder.encode())))
    with pytest.raises(LockHeld) as raised:
        locks.lock("stock:42").acquire(0)
    assert raised.value.holder == holder
