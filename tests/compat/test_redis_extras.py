"""What our locks with redis-py's interface have beyond it."""

from __future__ import annotations

import asyncio
import functools
import gc
import math
import os
import random
import re
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis
import redis.asyncio
from garbage import collected
from interrupting import Interrupting
from redis.backoff import NoBackoff
from redis.cache import CacheConfig
from redis.exceptions import LockError, LockNotOwnedError
from redis.retry import Retry

import lockkit
from lockkit.compat.redis import AsyncLock, AsyncRedis, Lock, Redis
from lockkit.engine.times import alive_for
from lockkit.leases.lease import value
from lockkit.model.errors import ConfigurationError
from lockkit.model.types import LockState
from lockkit.operate.inspect import stuck
from lockkit.stores.redis.aio_pool_wire import AsyncPoolWire
from lockkit.testing.conformance.base import SOON, at_least_once, eventually
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

NAME = "stock:42"
LONG = 30.0
PATIENCE = 8.0
CANCELLED = 100
SEED = 7


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, socket_timeout=10) as made:
        yield made


@pytest.fixture
async def aclient(redis_url: str) -> AsyncIterator[AsyncRedis]:
    made = AsyncRedis.from_url(redis_url, socket_timeout=10)
    yield made
    await made.aclose()


@pytest.fixture
def locks(redis_url: str) -> Iterator[lockkit.LockClient]:
    with lockkit.connect(f"{redis_url}?protocol=plain", ttl=LONG) as made:
        yield made


def test_a_client_class_makes_them(client: Redis) -> None:
    assert type(client.lock(NAME)) is Lock
    assert type(client.lock(NAME, LONG, 0.1, True, None, None)) is Lock
    theirs = redis.lock.Lock
    assert type(client.lock(NAME, lock_class=theirs)) is theirs
    assert type(client.lock(NAME, LONG, 0.1, True, None, theirs)) is theirs


async def test_a_client_class_for_asyncio_makes_them(aclient: AsyncRedis) -> None:
    assert type(aclient.lock(NAME)) is AsyncLock


async def test_a_class_for_clients_of_the_other_kind_says_so(
    client: Redis, aclient: AsyncRedis
) -> None:
    """And works with its own afterwards, though redis-py keeps the scripts of its first client."""

    class First(Lock):
        lua_release = lua_extend = lua_reacquire = None

    class AsyncFirst(AsyncLock):
        lua_release = lua_extend = lua_reacquire = None

    with pytest.raises(ConfigurationError, match=r"AsyncLock for those of redis\.asyncio"):
        await client.lock(NAME, 5, lock_class=AsyncFirst).acquire()
    with pytest.raises(ConfigurationError, match="Lock is for clients of redis"):
        aclient.lock(NAME, 5, lock_class=First).acquire()
    with client.lock(NAME, 5, lock_class=First) as lock:
        assert lock.extend(1)
    async with aclient.lock(NAME, 5, lock_class=AsyncFirst) as alock:
        assert await alock.extend(1)


def test_fencing_tokens_grow_also_between_lockkit_and_the_drop_in(
    client: Redis, locks: lockkit.LockClient
) -> None:
    fences = []
    for _ in range(3):
        with client.lock(NAME, timeout=LONG) as lock:
            fences.append(lock.fencing_token)
        with locks.lock(NAME) as lease:
            fences.append(lease.fencing_token)
    assert fences == sorted(set(fences))


def test_there_is_no_fencing_token_without_the_lock(client: Redis) -> None:
    lock = client.lock(NAME, timeout=LONG)
    with pytest.raises(LockError, match="Cannot tell the fencing token of an unlocked lock"):
        _ = lock.fencing_token
    with lock:
        assert lock.fencing_token > 0
    with pytest.raises(LockError, match="fencing token"):
        _ = lock.fencing_token


def test_waiters_are_served_in_their_order(client: Redis, locks: lockkit.LockClient) -> None:
    """Also in one queue with lockkit's."""

    def in_order() -> bool:
        order: list[int] = []

        def wait(number: int) -> None:
            lock = locks.lock(NAME, timeout=SOON) if number % 2 else client.lock(NAME, timeout=LONG)
            with lock:
                order.append(number)

        with client.lock(NAME, timeout=LONG):
            threads = []
            for number in range(6):
                threads.append(_thread(wait, number))
                eventually(lambda n=number: _waiters(locks) == n + 1)
        for thread in threads:
            thread.join(SOON)
        return order == list(range(6))

    at_least_once(in_order)


def test_an_operator_sees_who_holds_it(client: Redis, locks: lockkit.LockClient) -> None:
    lock = client.lock(NAME, timeout=LONG)
    assert lock.acquire()
    info = locks.inspect(NAME)
    assert info is not None
    assert info.owner is not None
    assert (info.owner.pid, info.fence) == (os.getpid(), lock.fencing_token)
    assert locks.break_(NAME, fence=lock.fencing_token)
    with pytest.raises(LockNotOwnedError):
        lock.release()


@pytest.mark.parametrize(("renew", "verdict"), [(False, None), (True, "renewals-missed")])
def test_only_a_lock_that_is_renewed_is_stuck_without_renewals(
    client: Redis, locks: lockkit.LockClient, renew: bool, verdict: str | None
) -> None:
    lock = Lock(client, NAME, timeout=LONG, renew=renew)
    assert lock.acquire()
    info = locks.inspect(NAME)
    assert info is not None
    late = 0.8 * LONG
    found = stuck(info._replace(age=late, renewed=late, left=LONG - late))
    assert (found and found.code) == verdict
    lock.release()


def test_a_lock_without_a_timeout_is_meant_to_have_none(client: Redis, redis_url: str) -> None:
    """It is shown as one without a TTL, and no claim gives it one."""
    lock = client.lock(NAME)
    assert lock.acquire()
    url = f"{redis_url}?protocol=plain&repair_missing_ttl=true"
    with lockkit.connect(url, ttl=0.2) as repairing:
        assert repairing.lock(NAME).try_acquire() is None
        info = repairing.inspect(NAME)
        assert info is not None
        assert (info.state, info.left, info.ttl) == (LockState.HELD, None, None)
    assert client.pttl(NAME) == -1
    lock.release()


class Left:
    """Milliseconds of a lease: less and less, until it is renewed."""

    def __init__(self) -> None:
        self._least = math.inf

    def grows(self, milliseconds: int) -> bool:
        self._least = min(self._least, milliseconds)
        return milliseconds > self._least + 500


def test_it_is_renewed_where_that_is_asked_for(client: Redis) -> None:
    renewed = functools.partial(Lock, renew=True)

    def it_lasts() -> bool:
        left = Left()
        try:
            with client.lock(NAME, timeout=3, lock_class=renewed) as lock:
                eventually(lambda: left.grows(client.pttl(NAME)) or not lock.owned())
                lock.extend(60)
                time.sleep(1.2)  # by then it would have been renewed as before
                assert client.pttl(NAME) > 50_000
        except LockNotOwnedError:
            return False
        return not client.exists(NAME)

    at_least_once(it_lasts)


async def test_it_is_renewed_under_asyncio(aclient: AsyncRedis) -> None:
    assert await _lasts(aclient)


def test_it_is_renewed_in_each_event_loop(redis_url: str) -> None:
    client = AsyncRedis.from_url(redis_url, socket_timeout=10)

    async def in_a_loop() -> bool:
        try:
            return await _lasts(client)
        finally:
            await client.aclose()

    assert asyncio.run(in_a_loop())
    assert asyncio.run(in_a_loop())


async def _lasts(client: AsyncRedis) -> bool:
    """As ``at_least_once``."""
    return await _is_renewed(client) or await _is_renewed(client) or await _is_renewed(client)


async def _is_renewed(client: AsyncRedis) -> bool:
    left = Left()
    try:
        renewed = functools.partial(AsyncLock, renew=True)
        async with client.lock(NAME, timeout=3, lock_class=renewed) as lock:
            while not left.grows(await client.pttl(NAME)):
                if not await lock.owned():
                    return False
                await asyncio.sleep(0.01)
    except LockNotOwnedError:
        return False
    return not await client.exists(NAME)


def test_what_nobody_has_any_more_is_not_renewed(client: Redis) -> None:
    lock = Lock(client, NAME, timeout=0.3, renew=True)
    assert lock.acquire()
    del lock
    collected()
    eventually(lambda: not client.exists(NAME))


def test_a_reply_that_is_lost_is_asked_for_again(
    redis_server: RedisServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py sends SET once more, and says False of a lock that it has; and a release that was
    done is an error."""
    monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", SOON)
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        client = _client_that_tries_again(proxy.port)
        lock = client.lock(NAME, timeout=LONG, lock_class=Lock)
        assert lock.acquire()
        lock.release()
        for _ in range(5):
            fault = proxy.drop_replies()
            assert lock.acquire(blocking=False)
            assert fault.happened.wait(SOON)
            fault = proxy.drop_replies()
            lock.release()
            assert fault.happened.wait(SOON)
        client.close()


async def test_a_client_that_waits_for_ever_does_so_for_no_lock(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall has forgotten its idle connection."""
    monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", SOON)
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        client = AsyncRedis(port=proxy.port, socket_timeout=None)
        lock = client.lock(NAME, timeout=LONG)
        assert await lock.acquire()
        await lock.release()
        monkeypatch.setattr("lockkit.stores.redis.aio_pool_wire.SOCKET_TIMEOUT", 0.4)
        assert proxy.lose_store()
        assert await lock.acquire()
        await lock.release()
        await client.aclose()


KINDS = pytest.mark.parametrize("kind", [Redis, AsyncRedis])


@KINDS
async def test_what_had_expired_is_not_owned_though_the_first_reply_is_lost(
    kind: type[Any], redis_server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second reply says the same of a key that was released, and of one that had expired."""
    monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", SOON)
    async with _behind_a_proxy(kind, redis_server) as (far, proxy):
        lock = far.lock(NAME, timeout=0.1)
        assert await value(lock.acquire())
        eventually(lambda: not client.exists(NAME))
        with pytest.raises(LockNotOwnedError):
            await _release_unheard(lock, proxy)


EXTENDED: dict[str, Callable[[Any], Any]] = {
    "extend": lambda lock: lock.extend(LONG),
    "replace": lambda lock: lock.extend(LONG, replace_ttl=True),
    "reacquire": lambda lock: setattr(lock, "timeout", LONG) or lock.reacquire(),
}


@pytest.mark.parametrize("by", EXTENDED)
@KINDS
async def test_what_was_extended_is_owned_for_as_long_though_the_first_reply_is_lost(
    kind: type[Any],
    by: str,
    redis_server: RedisServer,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", SOON)
    async with _behind_a_proxy(kind, redis_server) as (far, proxy):
        while True:
            lock = far.lock(NAME, timeout=0.5)
            assert await value(lock.acquire())
            acquired = time.monotonic()
            with suppress(LockNotOwnedError):  # this machine was slow
                await value(EXTENDED[by](lock))
                break
        eventually(lambda: time.monotonic() > acquired + 0.5)
        await _release_unheard(lock, proxy)


@KINDS
async def test_what_is_renewed_is_renewed_in_time_after_an_extension_to_less(
    kind: type[Any], redis_url: str, client: Redis
) -> None:
    renewed = functools.partial(AsyncLock if kind is AsyncRedis else Lock, renew=True)
    far = kind.from_url(redis_url, socket_timeout=10)

    async def it_is() -> bool:
        lock = far.lock(NAME, timeout=LONG, lock_class=renewed)
        assert await value(lock.acquire())
        assert await value(lock.extend(3, replace_ttl=True))
        while 0 < client.pttl(NAME) <= 3000:  # noqa: ASYNC110  it is in the server
            await asyncio.sleep(0.05)
        owned = await value(lock.owned())
        if owned:
            await value(lock.release())
        return bool(owned)

    assert await it_is() or await it_is() or await it_is()
    await _closed(far)


def test_what_redis_py_does_then(redis_server: RedisServer, redis_url: str) -> None:
    """The control: this is what is not repeated here."""
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        client = _client_that_tries_again(proxy.port)
        lock = client.lock(NAME, timeout=LONG)
        assert lock.acquire()
        lock.release()
        proxy.drop_replies()
        assert lock.acquire(blocking=False) is False
        assert client.exists(NAME)
        client.delete(NAME)
        assert lock.acquire()
        proxy.drop_replies()
        with pytest.raises(LockNotOwnedError):
            lock.release()
        client.close()


class Late:
    """Holds the reply to the first script that nobody has run before it was armed, once, for longer
    than waiters count as alive. Messages come in time."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._is_due = self.is_armed = self.has_happened = False

    def see(self, request: bytes) -> None:
        scripts = {*re.findall(rb"EVALSHA\r\n\$40\r\n(\w+)", request)}
        if not self.is_armed:
            self._known |= scripts
        elif scripts - self._known:
            self._is_due = True

    def hold(self, reply: bytes) -> None:
        if self._is_due and reply.startswith(b"*1"):
            self._is_due, self.has_happened = False, True
            time.sleep(alive_for(LONG) + 0.1)


def acquired(port: int) -> bool:
    """There is no timeout: what is left would stay for ever."""
    client = Redis(port=port, socket_timeout=10)
    lock = client.lock(NAME, blocking_timeout=PATIENCE)
    found = lock.acquire() and lock.owned()
    if found:
        lock.release()
    client.close()
    return bool(found)


def acquired_by_a_task(port: int) -> bool:
    async def acquire() -> bool:
        client = AsyncRedis(port=port, socket_timeout=10)
        lock = client.lock(NAME, blocking_timeout=PATIENCE)
        found = await lock.acquire() and await lock.owned()
        if found:
            await lock.release()
        await client.aclose()
        return bool(found)

    return asyncio.run(acquire())


@pytest.mark.parametrize("acquire", [acquired, acquired_by_a_task])
def test_what_was_handed_over_is_kept_though_that_is_heard_late(
    redis_server: RedisServer,
    client: Redis,
    locks: lockkit.LockClient,
    acquire: Callable[[int], bool],
) -> None:
    """The waiter has said that it took it, and the reply comes when its sign of life is over."""

    def it_is_heard_late() -> bool:
        late = Late()
        with (
            FaultProxy(
                "127.0.0.1", redis_server.port, on_request=late.see, on_reply=late.hold
            ) as far,
            ThreadPoolExecutor(1) as threads,
        ):
            holder = locks.lock(NAME).acquire()
            waiting = threads.submit(acquire, far.port)
            eventually(lambda: _waiters(locks))
            late.is_armed = True
            holder.release()
            assert waiting.result()
        assert not client.exists(NAME)
        return late.has_happened

    at_least_once(it_is_heard_late)


@pytest.mark.parametrize("waits", [False, True])
def test_an_interrupt_anywhere_leaves_nothing(client: Redis, waits: bool) -> None:
    """There is no timeout: what is left would stay for ever."""
    at = 0
    while True:
        at += 1
        holder = client.lock(NAME, timeout=0.02 if waits else LONG)
        # What could not be withdrawn at once is withdrawn a little later, in the background.
        eventually(lambda one=holder: one.acquire(blocking=False))
        if not waits:
            holder.release()
        lock = client.lock(NAME)
        with Interrupting(at) as interrupting:
            lock.acquire()
        if not interrupting.where:
            break
        assert lock.local.token is None
        eventually(lambda: not client.exists(NAME))
    assert at > 50
    assert lock.owned()
    lock.release()


def test_an_interrupt_is_raised_even_if_the_server_is_down(redis_server: RedisServer) -> None:
    redis_server.flush()
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        client = Redis(port=proxy.port, socket_timeout=10, retry=Retry(NoBackoff(), 0))

        class Interrupted(Lock):
            def acquire(self, *args: Any, **kwargs: Any) -> bool:
                super().acquire(*args, **kwargs)
                proxy.refuse()
                proxy.cut()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), client.lock(NAME, LONG, lock_class=Interrupted):
            pytest.fail("the block has begun")
        client.close()


async def test_a_cancellation_is_raised_even_if_the_server_is_down(
    redis_server: RedisServer,
) -> None:
    redis_server.flush()
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
        client = AsyncRedis(port=proxy.port, socket_timeout=10, retry=retry)

        class Cancelled(AsyncLock):
            def _taken(self, *args: Any) -> None:
                super()._taken(*args)
                proxy.refuse()
                proxy.cut()
                raise asyncio.CancelledError

        lock = client.lock(NAME, LONG, lock_class=Cancelled)
        with pytest.raises(asyncio.CancelledError):
            await lock.acquire()
        await client.aclose()


async def test_cancelling_at_any_moment_leaves_nothing(aclient: AsyncRedis) -> None:
    moments = random.Random(SEED)
    lock = aclient.lock(NAME)  # no timeout: what is left would stay for ever
    for number in range(CANCELLED):
        task = asyncio.create_task(lock.acquire())
        await asyncio.sleep(moments.uniform(0, 0.003))
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if outcome is True:
            await lock.release()
        deadline = time.monotonic() + SOON
        while await aclient.exists(NAME):
            assert time.monotonic() < deadline, f"left behind in turn {number}"
            await asyncio.sleep(0.002)


async def test_cancelling_who_waits_leaves_nothing(aclient: AsyncRedis) -> None:
    first = aclient.lock(NAME, timeout=LONG)
    assert await first.acquire()
    for _ in range(10):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(aclient.lock(NAME).acquire(), 0.05)
    await first.release()
    second = aclient.lock(NAME, timeout=LONG)
    assert await second.acquire(blocking=False)
    await second.release()


async def test_cancelling_leaves_the_key_to_another_with_the_same_token(
    aclient: AsyncRedis, locks: lockkit.LockClient
) -> None:
    first = aclient.lock(NAME, timeout=LONG)
    assert await first.acquire(token="mine")
    task = asyncio.create_task(aclient.lock(NAME, timeout=LONG).acquire(token="mine"))
    deadline = time.monotonic() + SOON
    while not _waiters(locks):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await aclient.get(NAME) == b"mine"
    await first.release()


async def test_a_release_keeps_what_another_task_has_acquired_by_the_same_object(
    aclient: AsyncRedis,
) -> None:
    """Before the reply to the release was read. redis-py forgets the token of that task."""

    class Slow(AsyncLock):
        async def do_release(self, expected_token: Any) -> None:
            await super().do_release(expected_token)
            assert await asyncio.create_task(self.acquire())

    lock = aclient.lock(NAME, timeout=LONG, lock_class=Slow)
    assert await lock.acquire()
    await lock.release()
    assert await lock.owned()
    await aclient.delete(NAME)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_late_release_leaves_the_key_to_another_with_the_same_token(
    client: Redis, redis_server: RedisServer, is_known: bool
) -> None:
    """It is told to a server that was out of reach, again and again."""
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        far = Redis(port=proxy.port, socket_timeout=10, retry=Retry(NoBackoff(), 0))
        first, last = far.lock(NAME, timeout=LONG), far.lock("last", timeout=LONG)
        assert first.acquire(token="mine")
        assert last.acquire()
        if not is_known:
            first.local.acquisition = None  # as where only its token was sent
        proxy.refuse()
        proxy.cut()
        for lock in (first, last):
            with pytest.raises(redis.ConnectionError):
                lock.release()
        client.delete(NAME)  # it expires
        second = client.lock(NAME, timeout=LONG)
        assert second.acquire(token="mine")
        proxy.refuse(False)
        eventually(lambda: not client.exists("last"))
        assert second.owned()
        second.release()
        far.close()


async def test_a_second_release_leaves_the_key_to_another_with_the_same_token(
    aclient: AsyncRedis, redis_server: RedisServer
) -> None:
    """From version 8 on, redis-py keeps the token if a release fails, for another try."""
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
        far = AsyncRedis(port=proxy.port, socket_timeout=10, retry=retry)
        first, second = far.lock(NAME, timeout=LONG), aclient.lock(NAME, timeout=LONG)
        assert await first.acquire(token="mine")
        proxy.refuse()
        proxy.cut()
        with pytest.raises(redis.ConnectionError):
            await first.release()
        await aclient.delete(NAME)  # it expires
        assert await second.acquire(token="mine")
        proxy.refuse(False)
        with pytest.raises(LockError):
            await first.release()
        assert await second.owned()
        with pytest.raises(LockError):
            assert first.fencing_token
        await second.release()
        await far.aclose()


async def test_two_releases_at_once_leave_the_key_to_another_with_the_same_token(
    aclient: AsyncRedis,
) -> None:
    others = [aclient.lock(NAME, timeout=LONG)]

    class Slow(AsyncLock):
        async def do_release(self, expected_token: Any) -> None:
            await super().do_release(expected_token)
            if others:
                assert await others.pop().acquire(token="mine")
                with pytest.raises(LockError):
                    await asyncio.create_task(self.release())

    lock = aclient.lock(NAME, timeout=LONG, lock_class=Slow)
    assert await lock.acquire(token="mine")
    await lock.release()
    assert await aclient.get(NAME) == b"mine"


def test_what_expired_leaves_the_key_to_another_with_the_same_token(client: Redis) -> None:
    """It is neither renewed nor released."""
    first = client.lock(NAME, timeout=0.6, lock_class=functools.partial(Lock, renew=True))
    assert first.acquire(token="mine")
    client.delete(NAME)  # it expires
    second = client.lock(NAME, timeout=LONG)
    assert second.acquire(blocking=False, token="mine")
    hold = first.local.acquisition.hold
    eventually(lambda: hold.dead)
    assert client.pttl(NAME) > 1000
    with pytest.raises(LockNotOwnedError):
        first.release()
    second.release()


async def test_tasks_wait_for_one_another(redis_url: str) -> None:
    """And nothing is left open: a subscription ends with the last who waits."""
    before = _open_transports()
    client = AsyncRedis.from_url(redis_url, socket_timeout=10, max_connections=40)
    others = {*await client.pubsub_channels()}
    inside = most = 0

    async def work() -> None:
        nonlocal inside, most
        async with client.lock(NAME, timeout=LONG):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1

    await asyncio.gather(*(work() for _ in range(30)))
    assert most == 1
    deadline = time.monotonic() + SOON
    while {*await client.pubsub_channels()} - others:  # the server hears of it a little later
        assert time.monotonic() < deadline
    await client.aclose()
    assert _open_transports() <= before


async def test_a_waiter_keeps_the_subscription_that_was_made_for_it(
    aclient: AsyncRedis, locks: lockkit.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each acquire that ends looks whether anybody still needs it: here one that ends in the turn
    of the loop before the waiter goes on."""
    listened = AsyncPoolWire._listened
    leaving: list[asyncio.Task[None]] = []

    def and_another_leaves(self: AsyncPoolWire, task: asyncio.Task[None]) -> None:
        listened(self, task)
        leaving.append(asyncio.ensure_future(self.hang_up()))

    monkeypatch.setattr(AsyncPoolWire, "_listened", and_another_leaves)
    first, second = (aclient.lock(NAME, timeout=LONG) for _ in range(2))
    assert await first.acquire()
    before = await _subscribed(aclient)
    waiting = asyncio.create_task(second.acquire(blocking_timeout=SOON))
    deadline = time.monotonic() + SOON
    while not (waiting.done() or _waiters(locks)):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    await first.release()
    assert await waiting
    await asyncio.gather(*leaving)
    await second.release()
    assert await _subscribed(aclient) == before + 1


async def test_cancelling_who_subscribes_leaves_no_subscription(
    aclient: AsyncRedis, redis_server: RedisServer
) -> None:
    others = {*await aclient.pubsub_channels()}
    holder = aclient.lock(NAME, timeout=LONG)
    assert await holder.acquire()
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        far = AsyncRedis.from_url(f"redis://127.0.0.1:{proxy.port}/0", socket_timeout=10)
        fault = proxy.delay_requests(matching=b"SUBSCRIBE")
        waiting = asyncio.create_task(far.lock(NAME, timeout=LONG).acquire())
        assert await asyncio.to_thread(fault.arrived.wait, SOON)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        fault.release()
        assert await asyncio.to_thread(fault.happened.wait, SOON)
        deadline = time.monotonic() + SOON
        while {*await aclient.pubsub_channels()} - others:
            assert time.monotonic() < deadline
        await far.aclose()
    await holder.release()


def test_threads_wait_for_one_another(client: Redis) -> None:
    counter = {"value": 0}

    def work() -> None:
        for _ in range(5):
            with client.lock(NAME, timeout=LONG):
                value = counter["value"]
                time.sleep(0.001)
                counter["value"] = value + 1

    threads = [_thread(work) for _ in range(10)]
    for thread in threads:
        thread.join(SOON)
    assert counter["value"] == 50


def test_it_works_in_a_forked_child(client: Redis) -> None:
    with client.lock(NAME, timeout=LONG):
        pid = os.fork()
        if not pid:
            try:
                busy = client.lock(NAME, timeout=LONG).acquire(blocking=False) is False
                with client.lock("other", timeout=LONG):
                    os._exit(0 if busy else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not client.exists(NAME)


def test_a_client_with_a_cache_of_its_own_is_refused(redis_url: str) -> None:
    """Its connections read on their own account."""
    client = Redis.from_url(redis_url, protocol=3, cache_config=CacheConfig())
    with pytest.raises(ConfigurationError, match="client-side cache"):
        client.lock(NAME, timeout=LONG).acquire()
    client.close()


# Others may have left sockets to the garbage collector, which is asked to work here.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_clients_that_are_gone_are_not_kept(redis_url: str) -> None:
    """But for the first one of all: redis-py keeps its scripts in the class."""

    def is_gone() -> bool:
        client = Redis.from_url(redis_url)
        with client.lock(NAME, timeout=LONG):
            pass
        pool = weakref.ref(client.connection_pool)
        client.close()
        del client
        collected()
        return pool() is None

    at_least_once(is_gone)


@asynccontextmanager
async def _behind_a_proxy(
    kind: type[Any], server: RedisServer
) -> AsyncIterator[tuple[Any, FaultProxy]]:
    """A client of this kind, which is connected, and whose scripts the server knows."""
    with FaultProxy("127.0.0.1", server.port) as proxy:
        far = kind(port=proxy.port, socket_timeout=10)
        lock = far.lock("before", timeout=LONG)
        assert await value(lock.acquire())
        await value(lock.release())
        yield far, proxy
        await _closed(far)


async def _closed(client: Any) -> None:
    await value(client.aclose() if isinstance(client, AsyncRedis) else client.close())


async def _release_unheard(lock: Any, proxy: FaultProxy) -> None:
    """The reply is lost, and it is asked once more."""
    fault = proxy.drop_replies()
    try:
        await value(lock.release())
    finally:
        assert fault.happened.wait(SOON)


def _client_that_tries_again(port: int) -> redis.Redis:
    """As redis-py's do by default since 6.0."""
    again = [redis.ConnectionError]
    retry = Retry(NoBackoff(), 3)
    return redis.Redis(port=port, socket_timeout=10, retry=retry, retry_on_error=again)


def _open_transports() -> set[int]:
    found = [each for each in gc.get_objects() if type(each).__name__.endswith("SocketTransport")]
    return {id(each) for each in found if not each.is_closing()}


async def _subscribed(client: AsyncRedis) -> int:
    """How often anybody has."""
    stats = await client.info("commandstats")
    return int(stats.get("cmdstat_subscribe", {"calls": 0})["calls"])


def _waiters(locks: lockkit.LockClient) -> int:
    info = locks.inspect(NAME)
    return info.waiters if info else 0


def _thread(work: Callable[..., Any], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread
