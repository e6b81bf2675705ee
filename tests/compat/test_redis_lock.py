"""What redis-py's locks do, ours do: each test here runs on redis-py's own classes, and on ours."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.sentinel
from redis.exceptions import (
    BusyLoadingError,
    LockError,
    LockNotOwnedError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as Unreachable

from lockkit.compat.redis import AsyncLock, Lock
from lockkit.model.clock import now
from lockkit.testing.servers import RedisServer

NAME = "stock:42"
LONG = 30.0
SOON = 20.0
ROUNDING = 0.003
YEAR = 365 * 86_400
UNLOCKED = "not owned or is already unlocked|an unlocked lock"  # it depends on the version

WAYS = {
    "redis-py": redis.lock.Lock,
    "lockkit": Lock,
    "redis-py, async": redis.asyncio.lock.Lock,
    "lockkit, async": AsyncLock,
}


class Driver:
    """A client of either kind. Coroutines run on an event loop in a thread of its own."""

    def __init__(self, url: str, kind: type, **options: Any) -> None:
        self.kind = kind
        self.is_async = inspect.iscoroutinefunction(kind.acquire)
        self._loop = asyncio.new_event_loop()
        if self.is_async:
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()
        client = redis.asyncio.Redis if self.is_async else redis.Redis
        self.client: Any = client.from_url(url, socket_timeout=10, **options)

    def do(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if not self.is_async:
            return method(*args, **options)

        async def call() -> Any:
            found = method(*args, **options)
            return await found if isinstance(found, Awaitable) else found

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(2 * SOON)

    def lock(self, name: Any = NAME, **options: Any) -> Any:
        return self.do(self.client.lock, name, lock_class=self.kind, **options)

    def enter(self, lock: Any) -> Any:
        return self.do(lock.__aenter__ if self.is_async else lock.__enter__)

    def leave(self, lock: Any, error: BaseException | None = None) -> Any:
        leave = lock.__aexit__ if self.is_async else lock.__exit__
        return self.do(leave, type(error) if error else None, error, None)

    def set_token(self, lock: Any, token: bytes) -> None:
        self.do(lambda: setattr(lock.local, "token", token))

    def token(self, lock: Any) -> bytes:
        return self.do(lambda: lock.local.token)

    def close(self) -> None:
        self.do(self.client.aclose if self.is_async else self.client.close)
        if self.is_async:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def kind(request: pytest.FixtureRequest) -> type:
    found: type = request.param
    return found


@pytest.fixture
def way(redis_url: str, kind: type) -> Iterator[Driver]:
    driver = Driver(redis_url, kind)
    yield driver
    driver.close()


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def test_the_key_says_the_token_for_the_timeout(way: Driver, server: redis.Redis) -> None:
    lock = way.lock(timeout=LONG)
    assert way.do(lock.acquire) is True
    assert server.get(NAME) == way.token(lock)
    assert LONG - 5 < server.pttl(NAME) / 1000 <= LONG
    assert way.do(lock.release) is None
    assert server.get(NAME) is None


@pytest.mark.parametrize("timeout", [None, 0, 0.0])
def test_without_a_timeout_it_never_expires(
    way: Driver, server: redis.Redis, timeout: float | None
) -> None:
    lock = way.lock(timeout=timeout)
    assert way.do(lock.acquire)
    assert server.pttl(NAME) == -1
    way.do(lock.release)
    assert server.get(NAME) is None


@pytest.mark.parametrize("timeout", [0.0001, -1])
def test_a_timeout_that_the_server_refuses(
    way: Driver, server: redis.Redis, timeout: float
) -> None:
    lock = way.lock(timeout=timeout)
    with pytest.raises(ResponseError, match="invalid expire time"):
        way.do(lock.acquire)
    assert server.get(NAME) is None


@pytest.mark.parametrize("timeout", [0.001, 0.002, 0.009])
def test_a_timeout_of_milliseconds(way: Driver, timeout: float) -> None:
    """It may be over by the time that the reply comes. It was granted all the same."""
    assert way.do(way.lock(timeout=timeout, blocking_timeout=1).acquire) is True


def test_a_timeout_of_decades(way: Driver, server: redis.Redis) -> None:
    first, second = (way.lock(timeout=2**31 - 1) for _ in range(2))
    assert way.do(first.acquire)
    assert server.ttl(NAME) > 20 * YEAR
    assert way.do(first.extend, YEAR) is True
    assert way.do(first.reacquire) is True
    second, waiting = _acquiring(way, second)
    time.sleep(0.2)
    way.do(first.release)
    assert waiting.result() is True
    way.do(second.release)
    assert server.get(NAME) is None


@pytest.mark.parametrize("name", [b"stock:\xff", "stock:é", "{stock}:42", "a}b{"])
def test_any_name_is_the_key(way: Driver, server: redis.Redis, name: str | bytes) -> None:
    lock = way.lock(name, timeout=LONG)
    assert way.do(lock.acquire)
    assert server.exists(name)
    assert way.do(lock.owned)
    way.do(lock.release)
    assert not server.exists(name)


def test_another_does_not_get_it(way: Driver) -> None:
    first, second = way.lock(timeout=LONG), way.lock(timeout=LONG, blocking=False)
    assert way.do(first.acquire)
    assert way.do(second.acquire) is False
    assert way.do(way.lock(timeout=LONG).acquire, blocking=False) is False
    way.do(first.release)
    assert way.do(second.acquire) is True
    way.do(second.release)


def test_what_acquire_says_counts_more_than_the_lock(way: Driver) -> None:
    first, second = way.lock(timeout=LONG), way.lock(timeout=LONG, blocking=False)
    assert way.do(first.acquire)
    started = time.monotonic()
    assert way.do(second.acquire, blocking=True, blocking_timeout=0.3) is False
    assert time.monotonic() - started >= 0.15
    way.do(first.release)


def test_it_gives_up_within_the_blocking_timeout(way: Driver) -> None:
    first = way.lock(timeout=LONG)
    assert way.do(first.acquire)
    second = way.lock(timeout=LONG, sleep=0.1, blocking_timeout=0.5)
    started = time.monotonic()
    assert way.do(second.acquire) is False
    assert 0.35 <= time.monotonic() - started < 5
    way.do(first.release)


def test_it_gives_up_at_once_if_the_next_try_would_be_too_late(way: Driver) -> None:
    first, second = way.lock(timeout=LONG), way.lock(sleep=600, blocking_timeout=50)
    assert way.do(first.acquire)
    started = time.monotonic()
    assert way.do(second.acquire) is False
    assert time.monotonic() - started < 40
    way.do(first.release)


def test_it_waits_until_it_is_released(way: Driver) -> None:
    first = way.lock(timeout=LONG)
    assert way.do(first.acquire)
    second, waiting = _acquiring(way, way.lock(timeout=LONG))
    time.sleep(0.3)
    assert not waiting.done
    way.do(first.release)
    assert waiting.result() is True
    assert way.do(second.owned)
    way.do(second.release)


def test_it_waits_for_ever_if_that_is_its_blocking_timeout(way: Driver) -> None:
    first = way.lock(timeout=LONG)
    assert way.do(first.acquire)
    second, waiting = _acquiring(way, way.lock(timeout=LONG, blocking_timeout=math.inf))
    time.sleep(0.3)
    assert not waiting.done
    way.do(first.release)
    assert waiting.result() is True
    way.do(second.release)


def test_it_waits_until_it_expires(way: Driver, server: redis.Redis) -> None:
    first, second = way.lock(timeout=0.2), way.lock(timeout=LONG, blocking_timeout=SOON)
    assert way.do(first.acquire)
    assert way.do(second.acquire) is True
    assert LONG - 5 < server.pttl(NAME) / 1000 <= LONG
    with pytest.raises(LockNotOwnedError):
        way.do(first.release)
    way.do(second.release)


@pytest.mark.parametrize("timeout", [LONG, 0.5])
def test_what_a_waiter_gets_has_its_whole_timeout(
    way: Driver, server: redis.Redis, timeout: float
) -> None:
    first = way.lock(timeout=LONG)
    assert way.do(first.acquire)
    _, waiting = _acquiring(way, way.lock(timeout=timeout))
    time.sleep(0.2)
    released = time.monotonic()
    way.do(first.release)
    assert waiting.result() is True
    left = server.pttl(NAME) / 1000
    assert timeout - (time.monotonic() - released) - ROUNDING <= left <= timeout


def test_what_a_waiter_gets_without_a_timeout_has_none(way: Driver, server: redis.Redis) -> None:
    first = way.lock(timeout=LONG)
    assert way.do(first.acquire)
    second, waiting = _acquiring(way, way.lock())
    time.sleep(0.2)
    way.do(first.release)
    assert waiting.result() is True
    assert server.pttl(NAME) == -1
    way.do(second.release)


@pytest.mark.parametrize("token", ["mine", b"\x00\xff of mine:", "ümlaut", "0" * 32, "a:b"])
def test_a_token_of_the_users(way: Driver, server: redis.Redis, token: str | bytes) -> None:
    lock = way.lock(timeout=LONG)
    assert way.do(lock.acquire, token=token)
    expected = token.encode() if isinstance(token, str) else token
    assert server.get(NAME) == expected == way.token(lock)
    other = way.lock(timeout=LONG)
    assert way.do(other.acquire, blocking=False, token=token) is False
    assert way.do(lock.owned)
    way.do(lock.release)
    assert server.get(NAME) is None


@pytest.mark.parametrize("theirs", [None, redis.lock.Lock])
def test_giving_up_leaves_the_key_to_another_with_the_same_token(
    way: Driver, server: redis.Redis, theirs: type | None
) -> None:
    """A task that is delivered twice, whose ID is the token."""
    first = server.lock(NAME, timeout=LONG, lock_class=theirs) if theirs else way.lock(timeout=LONG)
    assert way.do(first.acquire, token="mine")
    second = way.lock(timeout=LONG, sleep=0.05, blocking_timeout=0.3)
    assert way.do(second.acquire, token="mine") is False
    assert server.get(NAME) == b"mine"
    assert way.do(first.owned)
    way.do(first.release)
    assert server.get(NAME) is None


def test_what_has_expired_is_told_by_its_token(way: Driver, server: redis.Redis) -> None:
    """Also if another lock has the same. It is not released by the first: see the extras."""
    first, second = way.lock(timeout=10), way.lock(timeout=LONG)
    assert way.do(first.acquire, token="mine")
    server.delete(NAME)  # it expires
    assert way.do(second.acquire, token="mine")
    assert way.do(first.owned)
    assert way.do(first.extend, LONG) is True
    assert server.ttl(NAME) > LONG + 10
    assert way.do(first.reacquire) is True
    assert server.ttl(NAME) <= 10
    way.do(second.release)


def test_a_waiter_with_a_token_of_the_users(way: Driver, server: redis.Redis) -> None:
    first = way.lock(timeout=LONG)
    assert way.do(first.acquire)
    second, waiting = _acquiring(way, way.lock(timeout=LONG), token=b"a token \x00")
    time.sleep(0.2)
    way.do(first.release)
    assert waiting.result() is True
    assert server.get(NAME) == b"a token \x00"
    way.do(second.release)


def test_what_is_not_locked_cannot_be_released(way: Driver) -> None:
    lock = way.lock(timeout=LONG)
    with pytest.raises(LockError, match=UNLOCKED):
        way.do(lock.release)
    assert way.do(lock.acquire)
    way.do(lock.release)
    with pytest.raises(LockError, match=UNLOCKED):
        way.do(lock.release)


def test_what_has_expired_cannot_be_released(way: Driver, server: redis.Redis) -> None:
    lock = way.lock(timeout=LONG)
    assert way.do(lock.acquire)
    server.delete(NAME)
    with pytest.raises(LockNotOwnedError, match="Cannot release a lock that's no longer owned"):
        way.do(lock.release)
    with pytest.raises(LockError, match=UNLOCKED):
        way.do(lock.release)


def test_what_somebody_else_has_is_not_released(way: Driver, server: redis.Redis) -> None:
    lock = way.lock(timeout=LONG)
    assert way.do(lock.acquire)
    server.set(NAME, "theirs")
    with pytest.raises(LockNotOwnedError):
        way.do(lock.release)
    assert server.get(NAME) == b"theirs"


def test_whoever_knows_the_token_releases_it(way: Driver, server: redis.Redis) -> None:
    """In another process: its token was sent there."""
    lock, other = way.lock(timeout=LONG), way.lock(timeout=LONG)
    assert way.do(lock.acquire)
    way.set_token(other, way.token(lock))
    assert way.do(other.owned)
    way.do(other.release)
    assert server.get(NAME) is None
    with pytest.raises(LockNotOwnedError):
        way.do(lock.release)


def test_locked_and_owned(way: Driver, server: redis.Redis) -> None:
    lock, other = way.lock(timeout=LONG), way.lock(timeout=LONG)
    assert (way.do(lock.locked), way.do(lock.owned)) == (False, False)
    assert way.do(lock.acquire)
    assert (way.do(lock.locked), way.do(lock.owned)) == (True, True)
    assert (way.do(other.locked), way.do(other.owned)) == (True, False)
    server.set(NAME, "theirs")
    assert (way.do(lock.locked), way.do(lock.owned)) == (True, False)
    server.delete(NAME)
    assert (way.do(lock.locked), way.do(lock.owned)) == (False, False)


def test_a_client_that_decodes_replies(redis_url: str, kind: type) -> None:
    way = Driver(redis_url, kind, decode_responses=True)
    lock = way.lock(timeout=LONG)
    assert way.do(lock.acquire)
    assert isinstance(way.token(lock), bytes)
    assert way.do(lock.owned)
    assert way.do(lock.extend, 5)
    way.do(lock.release)
    way.close()


def test_extend_adds_to_what_is_left(way: Driver, server: redis.Redis) -> None:
    lock = way.lock(timeout=10)
    assert way.do(lock.acquire)
    assert way.do(lock.extend, 10) is True
    assert 15_000 < server.pttl(NAME) <= 20_000
    assert way.do(lock.extend, 5.5, replace_ttl=True) is True
    assert 3_000 < server.pttl(NAME) <= 5_500
    way.do(lock.release)


def test_reacquire_goes_back_to_the_timeout(way: Driver, server: redis.Redis) -> None:
    lock = way.lock(timeout=10)
    assert way.do(lock.acquire)
    assert server.pexpire(NAME, 2000)
    assert way.do(lock.reacquire) is True
    assert 8_000 < server.pttl(NAME) <= 10_000
    way.do(lock.release)


def test_what_cannot_be_extended(way: Driver, server: redis.Redis) -> None:
    lock, endless = way.lock(timeout=10), way.lock("endless")
    with pytest.raises(LockError, match="Cannot extend an unlocked lock"):
        way.do(lock.extend, 10)
    with pytest.raises(LockError, match="Cannot reacquire an unlocked lock"):
        way.do(lock.reacquire)
    assert way.do(endless.acquire)
    with pytest.raises(LockError, match="Cannot extend a lock with no timeout"):
        way.do(endless.extend, 10)
    with pytest.raises(LockError, match="Cannot reacquire a lock with no timeout"):
        way.do(endless.reacquire)
    way.do(endless.release)
    assert way.do(lock.acquire)
    server.set(NAME, "theirs", px=60_000)
    with pytest.raises(LockNotOwnedError, match="Cannot extend a lock that's no longer owned"):
        way.do(lock.extend, 10)
    with pytest.raises(LockNotOwnedError, match="Cannot reacquire a lock that's no longer owned"):
        way.do(lock.reacquire)
    server.persist(NAME)
    way.set_token(lock, b"theirs")
    with pytest.raises(LockNotOwnedError):  # it has no TTL to be extended
        way.do(lock.extend, 10)


def test_a_block(way: Driver, server: redis.Redis) -> None:
    lock = way.lock(timeout=LONG)
    assert way.enter(lock) is lock
    assert server.exists(NAME)
    way.leave(lock)
    assert not server.exists(NAME)


def test_a_block_whose_lock_is_not_acquired(way: Driver) -> None:
    lock = way.lock(timeout=LONG)
    assert way.do(lock.acquire)
    for options in ({"blocking": False}, {"blocking_timeout": 0.2}):
        with pytest.raises(LockError, match="Unable to acquire lock within the time specified"):
            way.enter(way.lock(timeout=LONG, **options))
    way.do(lock.release)


def test_a_block_whose_lock_is_lost(way: Driver, server: redis.Redis) -> None:
    lock = way.enter(way.lock(timeout=LONG))
    server.delete(NAME)
    with pytest.raises(LockNotOwnedError):
        way.leave(lock)


if "raise_on_release_error" in inspect.signature(redis.Redis.lock).parameters:

    def test_a_block_whose_lock_is_lost_may_log_it_only(
        way: Driver, server: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        lock = way.enter(way.lock(timeout=LONG, raise_on_release_error=False))
        server.delete(NAME)
        way.leave(lock)
        assert "no longer owned when exiting" in caplog.text


def test_a_short_timeout_expires(way: Driver) -> None:
    """Nobody renews it."""
    lock = way.lock(timeout=0.1)
    assert way.do(lock.acquire)
    time.sleep(0.3)
    assert not way.do(lock.locked)
    with pytest.raises(LockNotOwnedError):
        way.do(lock.release)


def test_a_lock_may_be_used_again(way: Driver) -> None:
    lock = way.lock(timeout=LONG)
    tokens = set()
    for _ in range(3):
        assert way.do(lock.acquire)
        tokens.add(way.token(lock))
        way.do(lock.release)
    assert len(tokens) == 3


def test_its_timeout_may_be_changed(way: Driver, server: redis.Redis) -> None:
    lock = way.lock(timeout=LONG)
    lock.timeout = 5
    assert way.do(lock.acquire)
    assert server.pttl(NAME) <= 5000
    way.do(lock.release)


@pytest.mark.parametrize("kind", [redis.lock.Lock, Lock])
def test_giving_up_leaves_what_another_thread_has_by_the_same_object(
    redis_url: str, server: redis.Redis, kind: type
) -> None:
    way = Driver(redis_url, kind)
    lock = way.lock(timeout=LONG, sleep=1, blocking_timeout=1.5, thread_local=False)
    server.set(NAME, "theirs")
    first = Waiting(lambda: lock.acquire(sleep=0.01, blocking_timeout=SOON))
    time.sleep(0.2)
    second = Waiting(lambda: _error_of(lambda: way.enter(lock)))
    time.sleep(0.2)
    server.delete(NAME)
    assert first.result() is True
    assert isinstance(second.result(), LockError)
    assert lock.owned()
    lock.release()
    way.close()


async def test_a_cancelled_wait_leaves_what_another_task_has_by_the_same_object(
    redis_url: str,
) -> None:
    """redis-py's release forgets the token of a task that has acquired it before the reply."""
    client = redis.asyncio.Redis.from_url(redis_url, socket_timeout=10)
    lock = client.lock(NAME, timeout=LONG, lock_class=AsyncLock)
    assert await lock.acquire()
    waiting = [asyncio.create_task(lock.acquire()) for _ in range(2)]
    await asyncio.sleep(0.2)
    await lock.release()
    _, (late,) = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    late.cancel()
    await asyncio.wait([late])
    assert await lock.owned()
    await lock.release()
    await client.aclose()


@pytest.mark.parametrize("mine", [True, False])
@pytest.mark.parametrize("kind", [redis.lock.Lock, Lock])
def test_another_thread_has_a_token_of_its_own(redis_url: str, kind: type, mine: bool) -> None:
    """It cannot release, unless thread_local is off."""
    way = Driver(redis_url, kind)
    lock = way.lock(timeout=LONG, thread_local=mine)
    assert lock.acquire()
    failed: list[BaseException] = []

    def release() -> None:
        try:
            lock.release()
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    thread = threading.Thread(target=release)
    thread.start()
    thread.join()
    assert [type(error) for error in failed] == ([AttributeError] if mine else [])
    assert lock.locked() is mine
    if mine:
        lock.release()
    way.close()


def test_a_server_that_is_down(kind: type) -> None:
    with RedisServer() as server:
        url = server.url
    way = Driver(url, kind, retry=None)
    with pytest.raises(Unreachable):
        way.do(way.lock(timeout=LONG).acquire)
    way.close()


REFUSALS = {
    "READONLY": (ReadOnlyError, "REPLICAOF 127.0.0.1 1"),
    "OOM": (OutOfMemoryError, "CONFIG SET maxmemory 1"),
    "LOADING": (BusyLoadingError, "DEBUG RELOAD"),
}


@pytest.mark.parametrize("code", REFUSALS)
def test_a_server_that_refuses(kind: type, code: str) -> None:
    error, command = REFUSALS[code]
    slow = ("key-load-delay 2000", "loading-process-events-interval-bytes 1024")
    with (
        RedisServer("enable-debug-command yes", *slow) as server,
        server.client() as admin,
        ThreadPoolExecutor(1) as threads,
    ):
        way = Driver(server.url, kind, retry=None)
        assert way.do(way.lock(timeout=LONG).acquire)
        admin.mset({f"key:{number}": "x" * 200 for number in range(1500)})
        refusing = threads.submit(admin.execute_command, *command.split())
        with pytest.raises(redis.RedisError) as caught:
            _acquire_until(way, refusing.done)
        assert type(caught.value) is error
        refusing.result()
        way.close()


def _acquire_until(way: Driver, is_over: Callable[[], bool]) -> None:
    """Once more after that."""
    for number in itertools.count():
        is_last = is_over()
        assert way.do(way.lock(f"stock:{number}", timeout=LONG).acquire)
        if is_last:
            return


class OneMaster:
    """Answers as Sentinels do that know this master."""

    def __init__(self, server: RedisServer) -> None:
        self._address = "127.0.0.1", server.port

    def discover_master(self, _: str) -> tuple[str, int]:
        return self._address


@pytest.mark.parametrize("kind", [redis.lock.Lock, Lock])
def test_a_master_that_sentinels_have_demoted(kind: type) -> None:
    """A new connection leads to the new one, so redis-py says that the old one is lost."""
    with RedisServer() as server, server.client() as admin:
        sentinels: Any = OneMaster(server)
        pool = redis.sentinel.SentinelConnectionPool("stock", sentinels, retry=None)
        client = redis.Redis(connection_pool=pool)
        client.lock(NAME, timeout=LONG, lock_class=kind).acquire()
        admin.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(Unreachable):
            client.lock("another", timeout=LONG, lock_class=kind).acquire()
        pool.disconnect()


@pytest.mark.parametrize("kind", [Lock, AsyncLock])
def test_a_release_that_fails_is_not_tried_for_longer_than_the_lock_lasts(kind: type) -> None:
    with RedisServer() as server:
        way = Driver(server.url, kind, retry=None)
        lock = way.lock(timeout=5)
        way.do(lock.acquire)
        server.kill()
        with pytest.raises(Unreachable):
            way.do(lock.release)
        withdrawals = way.do(lock._client)._watchdog._schedule._withdrawals.values()
        assert all(until < now() + 6 for _, until in withdrawals)
    way.close()


def test_the_error_knows_the_lock(redis_url: str) -> None:
    for kind in (redis.lock.Lock, Lock):
        way = Driver(redis_url, kind)
        with pytest.raises(LockError) as caught:
            way.lock().release()
        assert caught.value.lock_name == NAME
        way.close()


@pytest.mark.parametrize(
    ("ours", "theirs"), [(Lock, redis.lock.Lock), (AsyncLock, redis.asyncio.lock.Lock)]
)
def test_methods_take_the_same_arguments(ours: type, theirs: type) -> None:
    assert issubclass(ours, theirs)
    for name, method in vars(theirs).items():
        if inspect.isfunction(method) and name != "__init__":
            assert _arguments(getattr(ours, name)) == _arguments(method)


def _error_of(work: Callable[[], Any]) -> Exception | None:
    try:
        work()
    except Exception as error:  # noqa: BLE001
        return error
    return None


def _arguments(method: Any) -> list[tuple[str, Any]]:
    found = inspect.signature(method).parameters.values()
    return [(parameter.name, parameter.default) for parameter in found]


class Waiting:
    def __init__(self, work: Callable[[], Any]) -> None:
        self._found: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._found.append(work()), daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(SOON)
        assert self.done, f"it has not ended within {SOON:g} s"
        return self._found[0]


def _acquiring(way: Driver, lock: Any, **options: Any) -> tuple[Any, Waiting]:
    """It is acquired in another thread, and used here."""
    lock.local = type("Shared", (), {"token": None})()
    return lock, Waiting(lambda: way.do(lock.acquire, **options))
