"""connect(client=…): locks over the connections of somebody else's client."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import redis
import redis.asyncio
from redis._parsers import _RESP2Parser
from redis.credentials import CredentialProvider

import lockkit
from lockkit import aio
from lockkit.stores.redis.connections import ANY_COMMAND
from lockkit.testing.conformance.base import SOON
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer, ValkeyServer

WAITERS = 8


def handed(url: str, **options: Any) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=10, **options)


FORMS = {
    "client": lambda client: client,
    "pool": lambda client: client.connection_pool,
    "blocking pool": lambda client: redis.BlockingConnectionPool(
        **client.connection_pool.connection_kwargs, max_connections=4
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("resp", [2, 3])
def test_a_lock_over_a_client(redis_url: str, form: str, resp: int) -> None:
    """Is the same lock as over a URL, and its waiter is told by a message."""
    given = FORMS[form](handed(redis_url, protocol=resp, decode_responses=True))
    with (
        lockkit.connect(client=given, ttl=20) as locks,
        lockkit.connect(redis_url) as others,
        ThreadPoolExecutor(1) as threads,
    ):
        lease = others.lock("stock:42").acquire()
        waiting = threads.submit(_wait_for_it, locks)
        while (info := others.inspect("stock:42")) is None or not info.waiters:
            pass
        assert lease.release()
        assert waiting.result(20) > lease.fencing_token
        assert locks.inspect("stock:42") is None
        assert f"port {redis_url}" not in locks.store.database()
    _still_usable(given)


@pytest.mark.parametrize("resp", [2, 3])
def test_what_a_server_says_of_itself_is_read(redis_url: str, resp: int) -> None:
    """In RESP 3 it replies with maps and with texts of another form."""
    with (
        lockkit.connect(client=handed(redis_url, protocol=resp)) as locks,
        lockkit.connect(redis_url) as others,
    ):
        for client in (locks, others):
            store = client.store
            records = store.records()  # type: ignore[attr-defined]
            steps = store.health, records.health, records.capacity, store.server
            said = [client.perform(step()) for step in steps]  # type: ignore[operator]
            assert said[3], "the server's run id"
            if client is locks:
                before = said
        assert said == before
        assert locks.lock("stock:42").acquire().release()
        assert [info.name for info in locks.holders()] == []


def _wait_for_it(locks: lockkit.LockClient) -> int:
    with locks.lock("stock:42", timeout=20) as lease:
        return lease.fencing_token


def _still_usable(given: Any) -> None:
    """Closing the locks closes nothing of it."""
    pool = getattr(given, "connection_pool", given)
    client = redis.Redis(connection_pool=pool)
    assert client.ping()
    pool.disconnect()


def test_the_clients_own_connections_are_used(redis_server: RedisServer) -> None:
    client = handed(redis_server.url, client_name="of-the-app", max_connections=1)
    with lockkit.connect(client=client) as locks, locks.lock("stock:42"):
        in_use = [one["name"] for one in client.client_list()]
        assert in_use.count("of-the-app") == 1
    client.connection_pool.disconnect()


def test_a_client_that_is_closed_before_the_reply_comes(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread, as django-redis closes them with DJANGO_REDIS_CLOSE_CONNECTION."""
    monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", 20)
    is_due = threading.Event()

    def close(_: bytes) -> None:
        if is_due.is_set():
            is_due.clear()
            client.close()

    with FaultProxy("127.0.0.1", redis_server.port, on_reply=close) as proxy:
        client = handed(f"redis://127.0.0.1:{proxy.port}/0")
        with lockkit.connect(client=client) as locks:
            locks.lock("stock:42").acquire().release()
            is_due.set()
            lease = locks.lock("stock:42").acquire()
            assert not is_due.is_set()
            is_due.set()
            assert lease.release()
            assert not is_due.is_set()
        client.connection_pool.disconnect()


def test_a_client_that_waits_for_ever_does_so_for_no_lock(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall has forgotten its idle connection. Its own commands may still take their time."""
    monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", 20)
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        client = redis.Redis(port=proxy.port, socket_timeout=None)
        with lockkit.connect(client=client) as locks:
            locks.lock("stock:42").acquire().release()
            monkeypatch.setattr("lockkit.stores.redis.connections.SOCKET_TIMEOUT", 0.4)
            assert proxy.lose_store()
            locks.lock("stock:42").acquire().release()
            assert client.blpop("nothing", timeout=0.5) is None
        client.connection_pool.disconnect()


@pytest.mark.parametrize("kind", [redis.ConnectionPool, redis.BlockingConnectionPool])
def test_a_pool_that_is_in_use_says_so(redis_url: str, kind: type[redis.ConnectionPool]) -> None:
    """It waits a while or not, and its server can be reached."""
    patience = {"timeout": 0.1} if kind is redis.BlockingConnectionPool else {}
    pool = kind.from_url(redis_url, max_connections=1, socket_timeout=10, **patience)
    with lockkit.connect(client=redis.Redis(connection_pool=pool)) as locks:
        taken = pool.get_connection(*ANY_COMMAND)
        with pytest.raises(lockkit.BackendUnavailable, match="in use: raise max_connections"):
            locks.lock("stock:42").acquire()
        pool.release(taken)
        locks.lock("stock:42").acquire().release()
    pool.disconnect()


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_is_closed_while_it_connects(redis_server: RedisServer, reads: bool) -> None:
    """By another thread, as above. redis-py's parser in Python raises an AttributeError before it
    reads, and a ValueError while it does so."""
    is_due = threading.Event()

    def close(_: bytes) -> None:
        if is_due.is_set():
            is_due.clear()
            client.close()

    def greet(connection: Any) -> None:
        connection.on_connect()
        connection.send_command("PING")
        close(b"")
        connection.read_response()

    with FaultProxy("127.0.0.1", redis_server.port, on_reply=close if reads else None) as proxy:
        client = handed(
            f"redis://127.0.0.1:{proxy.port}/0",
            parser_class=_RESP2Parser,
            redis_connect_func=None if reads else greet,
        )
        with lockkit.connect(client=client) as locks:
            is_due.set()
            with pytest.raises(lockkit.BackendUnavailable):
                locks.lock("stock:42").acquire()
            assert locks.lock("stock:42").acquire().release()
        client.connection_pool.disconnect()


def test_an_error_of_lockkits_in_a_function_of_the_clients_user_passes(redis_url: str) -> None:
    def greet(_: object) -> None:
        raise lockkit.ConfigurationError("there is no token for it")

    client = handed(redis_url, redis_connect_func=greet)
    with (
        lockkit.connect(client=client) as locks,
        pytest.raises(lockkit.ConfigurationError, match="there is no token for it"),
    ):
        locks.lock("stock:42").acquire()


class Refused(Exception):
    """Of a service for passwords. Nobody can make another one from its arguments."""

    def __init__(self, code: int, *, by: str) -> None:
        super().__init__(f"{code} by {by}")


class Refusing(CredentialProvider):
    def get_credentials(self) -> NoReturn:
        raise Refused(403, by="the vault")


async def test_the_error_of_a_credential_provider_passes_under_asyncio(redis_url: str) -> None:
    client = redis.asyncio.Redis.from_url(redis_url, credential_provider=Refusing())
    async with aio.connect(client=client) as locks:
        with pytest.raises(Refused, match="403 by the vault"):
            await locks.lock("stock:42").acquire()
    await client.aclose()


def test_a_client_with_a_cache_of_its_own_is_refused(redis_url: str) -> None:
    from redis.cache import CacheConfig

    client = handed(redis_url, protocol=3, cache_config=CacheConfig())
    with pytest.raises(lockkit.ConfigurationError, match="cache_config"):
        lockkit.connect(client=client)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "lockkit.stores.redis:RedisStore"}, "a client or a backend"),
        ({"options": None}, "options of connect"),
        ({"options": [("client", 1)]}, "options of connect"),
    ],
)
def test_options_beside_a_client_are_checked(
    redis_url: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(lockkit.ConfigurationError, match=said):
        lockkit.connect(client=handed(redis_url), **options)


@pytest.mark.parametrize("is_native", [True, False])
async def test_a_client_under_asyncio(redis_url: str, is_native: bool) -> None:
    """One of redis.asyncio, or a blocking one by way of threads."""
    if is_native:
        client: Any = redis.asyncio.Redis.from_url(redis_url, socket_timeout=10)
    else:
        client = handed(redis_url)
    async with aio.connect(client=client, ttl=20) as locks:
        lock = locks.lock("stock:42", timeout=20)
        lease = await lock.acquire()
        waiter = asyncio.create_task(lock.acquire())
        while not (info := await locks.inspect("stock:42")) or not info.waiters:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await lease.release()
        assert await (await waiter).release()
    if is_native:
        assert await client.ping()
        await client.aclose()
    else:
        _still_usable(client)


async def test_a_subscription_that_hangs_delays_nothing_but_its_waiters(
    redis_server: RedisServer,
) -> None:
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        given = handed(f"redis://127.0.0.1:{proxy.port}/0")
        fault = proxy.delay_requests(WAITERS, matching=b"SUBSCRIBE")
        async with aio.connect(client=given) as locks:
            held = await locks.lock("stock:42").acquire()
            waiting = [asyncio.create_task(_pass(locks)) for _ in range(WAITERS)]
            assert await asyncio.to_thread(fault.arrived.wait, SOON)
            async with asyncio.timeout(9):  # less than a connection waits for a reply
                for _ in range(2 * WAITERS):
                    async with locks.lock("another"):
                        pass
            fault.release()
            assert await held.release()
            await asyncio.gather(*waiting)
        given.close()


async def _pass(locks: aio.AsyncLockClient) -> None:
    async with locks.lock("stock:42", timeout=20):
        pass


async def test_a_client_of_asyncio_greets_as_its_user_says(redis_url: str) -> None:
    """It may authenticate by a token, or choose the database."""

    async def greet(connection: Any) -> None:
        await connection.on_connect()
        await connection.send_command("SELECT", 1)
        await connection.read_response()

    client = redis.asyncio.Redis.from_url(redis_url, socket_timeout=10, redis_connect_func=greet)
    with lockkit.connect(f"{redis_url.removesuffix('0')}1") as others:
        async with aio.connect(client=client) as locks, locks.lock("stock:42"):
            assert others.lock("stock:42").try_acquire() is None
        assert others.lock("stock:42").acquire().release()
    await client.aclose()


def test_a_client_of_asyncio_is_for_asyncio(redis_url: str) -> None:
    client = redis.asyncio.Redis.from_url(redis_url)
    with pytest.raises(lockkit.ConfigurationError, match=r"lockkit\.aio\.connect"):
        lockkit.connect(client=client)


@pytest.mark.parametrize("module", [lockkit, aio])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"client": object()}, r"a builtins\.object"),
        ({"client": redis.Redis(), "url": "redis://:canary@h"}, "a URL and a client"),
        ({"client": redis.Redis(), "options": {"socket_timeout": 1}}, "socket_timeout"),
        ({"client": redis.Redis(), "ttl": -1}, "ttl"),
        ({"client": redis.client.PubSubWorkerThread}, "a builtins.type"),
        ({"client": redis.backoff.NoBackoff()}, "not a client or a pool"),
    ],
)
def test_what_cannot_be_handed_over(module: Any, given: dict[str, Any], told: str) -> None:
    with pytest.raises(lockkit.ConfigurationError, match=told) as caught:
        module.connect(**given)
    assert "canary" not in str(caught.value)


def test_a_client_says_itself_where_its_server_is() -> None:
    backend = "lockkit.stores.redis.handed.HandedStore"
    with pytest.raises(lockkit.ConfigurationError, match="'redis://'"):
        lockkit.connect("redis://elsewhere", backend=backend, options={"client": redis.Redis()})


def test_a_cluster_has_a_backend_of_its_own() -> None:
    cluster = SimpleNamespace(nodes_manager=None)
    backend = "lockkit.stores.redis.handed.HandedStore"
    with pytest.raises(lockkit.ConfigurationError, match="HandedClusterStore"):
        lockkit.connect("redis://", backend=backend, options={"client": cluster})


@pytest.mark.parametrize("resp", [2, 3])
def test_a_client_without_the_password(resp: int) -> None:
    """RESP 3 begins with a greeting, whose refusal has other words."""
    with (
        RedisServer(password="sesame") as server,
        redis.Redis(port=server.port, protocol=resp) as client,
        lockkit.connect(client=client) as locks,
        pytest.raises(lockkit.StoreRefused, match=r"the client that was handed over \(NOAUTH\)"),
    ):
        locks.lock("stock:42").acquire(timeout=0)


def test_the_password_of_a_client_is_shown_nowhere() -> None:
    client = redis.Redis(host="127.0.0.1", port=1, password="canary")
    with lockkit.connect(client=client) as locks:
        with pytest.raises(lockkit.BackendUnavailable) as caught:
            locks.lock("stock:42").acquire()
        said = f"{caught.value!r} {locks!r} {locks.settings!r} {locks.store!r}"
        assert "canary" not in said + locks.store.database()


def test_records_and_dangers_over_resp_3(redis_server: RedisServer) -> None:
    """What the replies of the newer protocol look like is no matter."""
    found = []
    for resp in (2, 3):
        client = handed(redis_server.url, protocol=resp)
        with lockkit.connect(client=client) as locks:
            records = locks.store.records()
            assert records is not None
            dangers = (records.health(), records.capacity(), locks.store.health())
            found.append([locks.perform(step) for step in dangers])
        client.connection_pool.disconnect()
    assert found[0] == found[1]
    assert [danger.code for danger in found[0][0]] == ["persistence"]


def test_a_client_of_valkey(valkey_server: ValkeyServer) -> None:
    client = handed(valkey_server.url)
    with lockkit.connect(client=client) as locks, locks.lock("stock:42") as lease:
        assert lease.extend() is None
    client.connection_pool.disconnect()
