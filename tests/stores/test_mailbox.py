"""The subscription of a process or an event loop: one, for as long as somebody may wait."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from garbage import collected

import lockkit
from lockkit import aio
from lockkit.model.clock import now
from lockkit.model.errors import BackendError
from lockkit.model.settings import settings_from_url
from lockkit.model.types import Mode
from lockkit.stores.redis.aio_wire import AsyncRedisWire
from lockkit.stores.redis.scripts import call
from lockkit.stores.registry import load_store
from lockkit.testing.conformance.base import TRIES, eventually
from lockkit.testing.conformance.steps import claim
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer


def test_a_prefix_with_a_space_has_a_queue(redis_server: RedisServer) -> None:
    client = lockkit.connect(redis_server.url, key_prefix="my shop")
    lease = client.lock("stock:42").acquire()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.lock("stock:42").acquire)
        while not ((info := client.inspect("stock:42")) and info.waiters):
            assert not waiting.done()
        lease.release()
        assert waiting.result().release()
    client.close()


def test_a_release_that_the_server_refuses_tells_nobody(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter takes a message for its grant: it must not come before the grant is written.

    The waiter has a client of its own, because the refusal ends the holder's subscription: a waiter
    of the same client would ask the store at once, and be refused as well.
    """
    monkeypatch.setattr("lockkit.engine.waiting.alive_for", lambda _: 600.0)  # it asks once only
    client, other = (
        lockkit.connect(redis_server.url, key_prefix="refused", ttl=60) for _ in range(2)
    )
    with redis_server.client() as admin, ThreadPoolExecutor() as pool, admin.pubsub() as heard:
        heard.psubscribe("refused:wake:*")
        lease = client.lock("stock:42").acquire()
        waiting = pool.submit(other.lock("stock:42", timeout=50).acquire)
        while not ((info := client.inspect("stock:42")) and info.waiters):
            assert not waiting.done()
        admin.config_set("min-replicas-to-write", 1)
        try:
            with pytest.raises(lockkit.BackendUnavailable, match="NOREPLICAS"):
                lease.release()
            heard.ping()
            told = [heard.get_message(timeout=20) for _ in range(2)]
            assert [message["type"] for message in told] == ["psubscribe", "pong"], told
        finally:
            admin.config_set("min-replicas-to-write", 0)
        with waiting.result() as granted:  # the release is told later
            info = client.inspect("stock:42")
            assert info is not None
            assert info.fence == granted.fencing_token > lease.fencing_token
    client.close()
    other.close()


def test_a_release_passes_a_waiter_that_nobody_listens_for(redis_server: RedisServer) -> None:
    """It is dead, and looks alive until it has not asked for a while."""
    client = lockkit.connect(redis_server.url, key_prefix="passes", ttl=60)
    lease = client.lock("stock:42").acquire()
    dead = lease._hold.request._replace(token="d" * 32)
    asked = client.store._language.acquire(dead, Mode.ENQUEUE, b"nobody")  # type: ignore[attr-defined]
    assert client.perform(call(asked)).startswith(b"B ")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.lock("stock:42", timeout=50).acquire)
        while not ((info := client.inspect("stock:42")) and info.waiters == 2):
            assert not waiting.done()
        assert lease.release()
        info = client.inspect("stock:42")
        with waiting.result() as granted:
            assert info is not None
            assert (info.fence, info.waiters) == (granted.fencing_token, 0)
    client.close()


@pytest.mark.parametrize("dead", [1, 300])  # one step passes 256
@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize("protocol", ["", "?protocol=plain"])
def test_what_only_the_dead_wait_for_is_free_at_once(
    redis_server: RedisServer, protocol: str, is_broken: bool, dead: int
) -> None:
    client = lockkit.connect(
        redis_server.url + protocol, key_prefix="dead:", ttl=60, max_queue=None
    )
    lease = client.lock("stock:42").acquire()
    for number in range(dead):
        request = lease._hold.request._replace(token=f"{number:032x}")
        asked = client.store._language.acquire(request, Mode.ENQUEUE, b"nobody")  # type: ignore[attr-defined]
        client.perform(call(asked))
    if is_broken:
        assert client.break_("stock:42", fence=lease.fencing_token)
        assert not lease.release()
    else:
        assert lease.release()
    with redis_server.client() as admin:
        assert admin.get("dead:stock:42") is None
    granted = client.lock("stock:42").try_acquire()
    assert granted is not None
    granted.release()
    client.close()


def test_requests_that_fail_leave_no_slot(redis_server: RedisServer) -> None:
    """A process that goes on asking a store that refuses must not grow."""
    client = lockkit.connect(redis_server.url, key_prefix="slots")
    _handed(client, "stock:42").release()
    inbox = client.store.inbox  # type: ignore[attr-defined]
    with redis_server.client() as admin:
        admin.config_set("maxmemory", 1)
        try:
            for _ in range(5):
                assert inbox.is_open  # else no claim is noted
                with pytest.raises(lockkit.BackendUnavailable, match="OOM"):
                    client.lock("stock:43").acquire(timeout=1)
                with pytest.raises(lockkit.BackendUnavailable, match="OOM"):  # the longer way
                    client.perform(client.store.acquire(claim("stock:43", Mode.ENQUEUE)))
        finally:
            admin.config_set("maxmemory", 0)
    assert not inbox.is_awaited
    client.close()


def test_a_grant_that_nobody_kept_is_forgotten(redis_server: RedisServer) -> None:
    """A process that waits for ever new names must not grow."""
    client = lockkit.connect(redis_server.url, key_prefix="kept", ttl=1.5)
    known = client.store._handed  # type: ignore[attr-defined]
    for number in itertools.count():  # until it is dropped before it is renewed
        lost = _handed(client, name := f"lost:{number}")
        lost._hold.lose()
        lost.released = True  # so nobody complains
        if name in known:
            break

    def is_forgotten() -> bool:
        return _handed(client, "stock:42").release() and name not in known

    eventually(is_forgotten)
    client.close()


def _handed(client: lockkit.LockClient, name: str) -> lockkit.Lease:
    """A lease that its holder has handed over."""
    lease = client.lock(name, ttl=60).acquire()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.lock(name, timeout=50).acquire)
        while not ((info := client.inspect(name)) and info.waiters):
            assert not waiting.done()
        assert lease.release()
        return waiting.result()


async def test_silence_does_not_end_a_subscription(redis_server: RedisServer) -> None:
    """Nothing comes for longer than the socket's time-out: that is no fault, and no reconnect."""
    async with asyncio.timeout(50):
        client = aio.connect(redis_server.url, key_prefix="silence")
        impatient = aio.connect(
            redis_server.url, key_prefix="silence", options={"socket_timeout": 0.2}
        )
        for turn in range(TRIES):
            if await _waits_in_silence(client, impatient, redis_server):
                break
            assert turn + 1 < TRIES
        await impatient.close()
        await client.close()


async def _waits_in_silence(
    client: aio.AsyncLockClient, impatient: aio.AsyncLockClient, server: RedisServer
) -> bool:
    """Whether it makes no connection meanwhile. A machine that stalls may end it early."""
    async with client.lock("stock:42", ttl=30):
        waiting = asyncio.create_task(impatient.lock("stock:42", ttl=30).acquire())
        while not (waiting.done() or await _waiters(client)):  # noqa: ASYNC110 - the store knows
            await asyncio.sleep(0.005)
        before = _connections_made(server)
        await asyncio.sleep(0.5)
        made = _connections_made(server) - before - 1  # our own question
    try:
        await (await waiting).release()
    except BackendError:
        return False
    return made == 0


async def test_who_comes_while_it_reconnects_makes_no_second_one(
    redis_server: RedisServer,
) -> None:
    async with asyncio.timeout(50):
        with FaultProxy("127.0.0.1", redis_server.port) as proxy:
            client = aio.connect(f"redis://127.0.0.1:{proxy.port}/0", key_prefix="second")
            holder = await client.lock("stock:42", ttl=30).acquire()
            waiting = [asyncio.create_task(client.lock("stock:42").acquire())]
            await _in_queue(client)
            proxy.latency = 0.02
            with redis_server.client() as admin:
                admin.execute_command("CLIENT KILL TYPE pubsub")
            for _ in range(10):
                waiting.append(asyncio.create_task(client.lock("stock:42").acquire()))
                await asyncio.sleep(0.01)
            proxy.latency = 0.0
            await _in_queue(client, len(waiting))
            with redis_server.client() as admin:
                while not (subscribed := admin.client_list(_type="pubsub")):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # they are queued before it is there
            assert len(subscribed) == 1
            assert proxy.connections == 3
            await holder.release()
            for lease in asyncio.as_completed(waiting):
                await (await lease).release()
            await client.close()


@pytest.mark.parametrize("moment", ["reconnecting", "opening"])
async def test_a_close_in_the_middle_of_a_subscription_leaves_no_connection(
    redis_server: RedisServer, moment: str
) -> None:
    async with asyncio.timeout(50):
        with FaultProxy("127.0.0.1", redis_server.port) as proxy, redis_server.client() as admin:
            client = aio.connect(f"redis://127.0.0.1:{proxy.port}/0", key_prefix="middle")
            holder = await client.lock("stock:42", ttl=30).acquire()
            if moment == "reconnecting":
                waiting = asyncio.create_task(client.lock("stock:42").acquire())
                await _in_queue(client)
                proxy.latency = 0.05
                admin.execute_command("CLIENT KILL TYPE pubsub")
            else:
                proxy.latency = 0.05
                waiting = asyncio.create_task(client.lock("stock:42").acquire())
            await asyncio.sleep(0.06)  # it is at it, or has done it: both must do
            await client.close()
            proxy.latency = 0.0
            await holder.release()  # by a connection of its own
            await (await waiting).release()  # he asks again and again
        collected()  # warns of what is open


def test_a_closed_client_over_tls_waits_for_no_server() -> None:
    """A polite end of TLS needs an answer; without one, the socket would outlive the loop."""

    async def scene(url: str, proxy: FaultProxy) -> None:
        client = aio.connect(url)
        lease = await client.lock("stock:42", ttl=30).acquire()
        waiting = asyncio.create_task(client.lock("stock:42").acquire())
        await _in_queue(client)
        proxy.half_open()
        waiting.cancel()
        await client.close()
        await asyncio.wait([waiting])
        await lease.release()

    with RedisServer(tls=True) as server, FaultProxy("127.0.0.1", server.tls_port) as proxy:
        url = server.tls_url.replace(f":{server.tls_port}", f":{proxy.port}")
        with pytest.raises(BackendError):
            asyncio.run(scene(url, proxy))
        collected()  # warns of what is open


async def _in_queue(client: aio.AsyncLockClient, waiters: int = 1) -> None:
    while await _waiters(client) < waiters:  # noqa: ASYNC110 - the store knows
        await asyncio.sleep(0.005)


async def _waiters(client: aio.AsyncLockClient) -> int:
    info = await client.inspect("stock:42")
    return info.waiters if info else 0


def _connections_made(server: RedisServer) -> int:
    with server.client() as admin:
        return int(admin.info("stats")["total_connections_received"])


async def test_a_connection_on_which_nobody_asks_anything_is_not_kept_for_ever(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only task that wanted it was cancelled as it was made. One that was just made is kept: a
    task is about to ask."""
    settings = settings_from_url(redis_url, options={"socket_timeout": 600.0})
    wire = load_store(settings).async_wire()
    assert type(wire) is AsyncRedisWire
    await wire._connected()
    assert not wire.leave()
    monkeypatch.setattr("lockkit.stores.redis.line.now", lambda: now() + 600.0)
    assert wire.leave()
    await asyncio.sleep(0)  # the loop closes its socket
