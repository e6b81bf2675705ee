"""Features of Redis and Valkey only: URLs, permissions, full memory, layout, request counts."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import redis
import redis.asyncio
from command_line import locks
from tls_ends import TLSEnd

import lockkit
from lockkit import aio
from lockkit.model.errors import BackendUnavailable, StoreRefused
from lockkit.model.types import Busy, Grant, Kind, Mode, Release, Request
from lockkit.stores.redis.failures import from_reply, is_demoted
from lockkit.stores.redis.layout import bucket_of
from lockkit.testing.blocking import Api, BlockingClient, used_as
from lockkit.testing.blocking import connect as connect_by
from lockkit.testing.conformance.base import at_least_once, eventually
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer, ValkeyServer

T = TypeVar("T")

EXPIRY = slice(34, 50)
"""Where a record says when its lease expires: microseconds."""


USES = ["lock", "semaphore:1"]
"""One script each, and what they have in common."""


def test_other_prefixes_cost_one_request_and_what_they_have_used(redis_server: RedisServer) -> None:
    """Each has 64 buckets, of which most are empty."""
    redis_server.flush()
    with lockkit.connect(redis_server.url, key_prefix="other") as other:
        other.lock("stock:42").acquire().release()
    with connect(redis_server.url) as client, redis_server.client() as admin:
        admin.config_resetstat()
        assert client.perform(client.store.prefixes()) == {"other": False}
        assert admin.info("commandstats")["cmdstat_hscan"]["calls"] == 1
        admin.set("{other:63}:b", "of another type")
        assert client.perform(client.store.prefixes()) == {"other": True}


EVERY_CHANNEL = "acl-pubsub-default allchannels"
"""Of each new user, as Redis 6.2 has it: a user can only be given fewer."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    """TLS, a password for everybody, and users with few permissions."""
    users = {
        "shop": "on >secret ~{shop:* ~lockkit:prefixes resetchannels &shop:wake:* +evalsha "
        "+script|load +hscan +ping +subscribe +@hash +@sortedset +pexpire +publish +time",
        "deaf": "on >secret ~* resetchannels +@all",
        "scripted": "on >secret ~* &* +@all -hset -set",
        "reader": "on >secret ~* &* +@read",
    }
    with RedisServer(EVERY_CHANNEL, users=users, password="for-all", tls=True) as server:
        yield server


@pytest.fixture(params=["redis", "valkey"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


def connect(url: str, **settings: object) -> lockkit.LockClient:
    return lockkit.connect(url, key_prefix="shop", **settings)


def subscriptions(server: RedisServer, name: str) -> int:
    """Of the clients of this name: those of other tests may be left to the garbage collector."""
    with server.client() as admin:
        return sum(each["name"] == name for each in admin.client_list(_type="pubsub"))


def waiting(client: lockkit.LockClient, name: str, waiters: int = 1) -> None:
    """Return once so many are in the queue."""
    while (info := client.inspect(name)) is None or info.waiters < waiters:
        pass


@pytest.mark.parametrize("form", ["url", "unix_url", "tls_url"])
def test_every_kind_of_url_locks(guarded: RedisServer, form: str) -> None:
    guarded.flush()
    client = connect(getattr(guarded, form))
    with client.lock("stock:42") as lease:
        assert client.lock("stock:42").try_acquire() is None
        lease.check()
    client.close()


def test_valkey_over_tls(valkey_server: ValkeyServer) -> None:
    """Its wheel speaks none, so something else ends TLS in front of it, as in many a network."""
    valkey_server.flush()
    with TLSEnd(valkey_server.port) as end:
        url = f"rediss://127.0.0.1:{end.port}/0"
        client = connect(f"{url}?ssl_ca_certs={end.certificate}")
        lease = client.lock("stock:42").acquire()
        granted = in_thread(lambda: client.lock("stock:42", timeout=20).acquire())
        waiting(client, "stock:42")
        assert lease.release()
        assert granted().release()
        client.close()
        with pytest.raises(lockkit.BackendUnavailable, match=r"(?i)certificate"):
            connect(url).lock("stock:42").acquire()


def test_an_untrusted_certificate_is_refused(guarded: RedisServer) -> None:
    client = connect(guarded.tls_url.partition("?")[0])
    with pytest.raises(lockkit.BackendUnavailable, match=r"self.signed.*ssl_ca_certs"):
        client.lock("stock:42").acquire()


def test_a_server_that_is_not_in_a_cluster_says_so(redis_url: str) -> None:
    client = connect(redis_url.replace("redis://", "redis+cluster://").partition("/0")[0])
    with pytest.raises(
        lockkit.StoreRefused, match="not in a cluster: its URL begins with redis://"
    ):
        client.lock("stock:42").acquire()
    client.close()


@pytest.mark.parametrize("protocol", ["", "?protocol=plain"])
def test_a_permission_that_is_missing_within_a_script_is_said(
    guarded: RedisServer, protocol: str
) -> None:
    client = connect(guarded.url_for("scripted", "secret") + protocol)
    with pytest.raises(lockkit.OutcomeUnknown, match=r"lacks a permission .*redis\.md"):
        client.lock("stock:42").acquire()
    client.close()


@pytest.mark.parametrize("use", USES)
def test_the_least_privileged_user_can_do_everything(guarded: RedisServer, use: str) -> None:
    guarded.flush()
    client = connect(guarded.url_for("shop", "secret"))
    lease = used_as(client, "stock:42", use).acquire()
    granted = in_thread(lambda: used_as(client, "stock:42", use).acquire(10))
    waiting(client, "stock:42")
    lease.extend(20)
    lease.release()
    second = granted()
    assert second.fencing_token > lease.fencing_token
    assert client.break_("stock:42", fence=second.fencing_token)
    assert second.release() is False
    with pytest.raises(lockkit.AcquireTimeout), used_as(client, "stock:42", use).acquire():
        used_as(client, "stock:42", use).acquire(0.05)
    assert list(client.holders()) == []
    client.perform(client.store.check())
    client.close()


def test_the_least_privileged_user_may_use_the_command(guarded: RedisServer) -> None:
    """Only the names of orders take permissions more, and without them the user is told so."""
    guarded.flush()
    with connect(guarded.url_for("shop", "secret")) as client:
        lease = client.lock("stock:42").acquire()
        shown = locks(client, "show", "stock:42")
        assert (shown.status, shown.err, "held" in shown.out) == (0, "", True)
        released = locks(client, "release", "stock:42", "--yes")
        assert (released.status, released.err) == (0, "")
        assert not lease.release()
        with guarded.client() as admin:
            admin.hset(f"{{shop:{bucket_of('stock:42')}}}:b", "=stock:42", "damaged")
        repaired = locks(client, "release", "stock:42", "--damaged", "--yes")
        assert (repaired.status, repaired.err) == (0, "")
        refused = locks(client, "show", "order:7")
        assert (refused.status, "its store refused the request: " in refused.err) == (1, True)
        assert "lacks a permission" in refused.err
        with guarded.client() as admin:
            admin.execute_command("ACL", "SETUSER", "shop", "+get", "+pttl")
            assert locks(client, "show", "order:7").status == 0
            admin.execute_command("ACL", "SETUSER", "shop", "-get", "-pttl")


def test_a_permission_that_a_renewal_lacks_is_told(guarded: RedisServer) -> None:
    """Its script has to be loaded again."""
    guarded.flush()
    with connect(guarded.url_for("shop", "secret")) as client, guarded.client() as admin:
        lease = client.lock("stock:42").acquire()
        admin.script_flush()
        admin.execute_command("ACL", "SETUSER", "shop", "-script|load")
        try:
            with pytest.raises(StoreRefused, match="lacks a permission"):
                lease.extend()
        finally:
            admin.execute_command("ACL", "SETUSER", "shop", "+script|load")
        assert lease.release()


async def test_a_release_after_a_restart_while_the_loop_was_busy_finds_the_lease_lost() -> None:
    """Somebody else has had the name meanwhile. The loop has not heard of the end yet."""
    with RedisServer() as server, lockkit.connect(server.url) as other:
        async with aio.connect(server.url) as client:
            lease = await client.lock("a").acquire()
            server.restart()
            assert other.lock("a").acquire(0).release()
            assert await lease.release() is False


def test_a_user_who_may_not_publish_or_subscribe_still_hands_on(guarded: RedisServer) -> None:
    """Grants are in the store; a message only saves asking."""
    guarded.flush()
    client = connect(guarded.url_for("deaf", "secret"))
    lease = client.lock("stock:42").acquire()
    granted = in_thread(lambda: client.lock("stock:42", timeout=10).acquire())
    waiting(client, "stock:42")
    lease.release()
    assert granted().release()
    client.close()


@pytest.mark.parametrize("use", USES)
def test_who_may_not_publish_hands_on_to_those_who_listen(guarded: RedisServer, use: str) -> None:
    """The waiter has a channel, and learns of its turn when it asks next."""
    deaf, shop = (connect(guarded.url_for(user, "secret")) for user in ("deaf", "shop"))
    lease = used_as(deaf, "stock:42", use).acquire()
    waiter = used_as(shop, "stock:42", use)._request(shop, 20)
    assert isinstance(shop.perform(shop.store.acquire(waiter)), Busy)
    assert deaf.perform(deaf.store.release(lease._hold.request)) is Release.RELEASED
    assert lease.release() is False, "it was, by the line before"
    assert isinstance(shop.perform(shop.store.acquire(waiter._replace(mode=Mode.POLL))), Grant)
    assert shop.perform(shop.store.release(waiter)) is Release.RELEASED
    for client in (deaf, shop):
        client.close()


def test_a_user_without_write_permission_is_told_so(guarded: RedisServer) -> None:
    client = connect(guarded.url_for("reader", "secret"))
    with pytest.raises(lockkit.BackendUnavailable, match="permission"):
        client.lock("stock:42").acquire()


def test_what_is_refused_while_connecting_was_not_applied(guarded: RedisServer) -> None:
    """Another database is selected first, which takes a permission more."""
    client = connect(guarded.url_for("shop", "secret").replace("/0", "/1"))
    with pytest.raises(lockkit.BackendUnavailable, match=r"permission.*docs/redis\.md"):
        client.lock("stock:42").acquire()


def test_a_wrong_password_is_an_error_without_the_password(guarded: RedisServer) -> None:
    client = connect(guarded.url_for("shop", "canary-password"))
    with pytest.raises(lockkit.BackendUnavailable) as caught:
        client.lock("stock:42").acquire()
    assert "password" in str(caught.value)
    assert "canary-password" not in f"{caught.value!r} {caught.value} {client!r}"


@pytest.mark.parametrize("api", ["sync", "async"])
@pytest.mark.parametrize("login", ["shop@", ""])
def test_a_function_is_asked_for_the_password(guarded: RedisServer, api: Api, login: str) -> None:
    """At each new connection: it may have changed, or there may be none at the moment."""
    right = "secret" if login else "for-all"
    passwords: list[str | None] = ["canary-password", None, right]
    url = f"redis://{login}127.0.0.1:{guarded.port}/0"
    options = {"password": lambda: passwords.pop(0).strip()}  # type: ignore[union-attr]
    client = connect_by(api, url, key_prefix="shop", options=options)
    for _ in range(2):
        with pytest.raises(lockkit.BackendUnavailable, match="password") as caught:
            client.lock("stock:42").acquire()
        assert "canary-password" not in f"{caught.value!r} {client!r}"
    client.lock("stock:42").acquire().release()
    client.stop() if isinstance(client, BlockingClient) else client.close()
    assert not passwords


@pytest.mark.parametrize(
    "bad",
    [
        "redis://127.0.0.1:port/0",
        "redis://127.0.0.1:1/0?db=x",
        "redis://127.0.0.1:1/zero",
        "rediss://127.0.0.1:1/0/1",
        "redis://127.0.0.1:1/²",
        "redis://:secret@127.0.0.1:1/-1",
    ],
)
def test_a_malformed_url_is_a_configuration_error(bad: str) -> None:
    with pytest.raises(lockkit.ConfigurationError, match="the URL ") as caught:
        lockkit.connect(bad)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "scheme", ["redis", "rediss", "redis+sentinel", "redis+cluster", "redlock", "redlocks"]
)
@pytest.mark.parametrize(
    "password",
    ["sec#ret", "sec/ret", "sec?ret", "sec/r#e?t@", "#ret", "?ret", "/ret", "1#ret", "1?sec=ret"],
)
def test_a_password_that_ends_the_url_too_early_is_told_what_to_do(
    scheme: str, password: str
) -> None:
    """What is left of some of these names the server on this host."""
    hosts = "127.0.0.1:1" if scheme in {"redis", "rediss"} else "h1:1,h2:1,h3:1"
    path = "service/0" if scheme.endswith("sentinel") else "0"
    with pytest.raises(lockkit.ConfigurationError) as caught:
        lockkit.connect(f"{scheme}://:{password}@{hosts}/{path}")
    if scheme in {"redis", "rediss"}:
        assert "is percent-encoded there" in str(caught.value)
    assert "sec" not in str(caught.value)
    assert "ret" not in str(caught.value)


def test_a_value_of_the_query_may_have_an_at_sign() -> None:
    assert lockkit.connect("redis://127.0.0.1:1/0?client_name=a@b")


def test_what_to_do_about_another_kind_and_about_an_upgrade(redis_url: str) -> None:
    """The store's scripts refuse it, and the rules of all other stores say the same."""
    with connect(redis_url) as client:
        with client.lock("a"), pytest.raises(lockkit.KindMismatch, match="a mutex: use another"):
            client.semaphore("a", 2).acquire()
        stock = client.rwlock("stock")
        with stock.read(), pytest.raises(lockkit.UpgradeRefused, match=r"ask for \.write\(\) fi"):
            stock.write().acquire()


@pytest.mark.parametrize("good", ["redis://h", "redis://h/", "redis://h/15", "unix:///a/b?db=1"])
def test_a_url_needs_no_database(good: str) -> None:
    lockkit.connect(good).close()


def test_an_unknown_option_is_a_configuration_error() -> None:
    with pytest.raises(lockkit.ConfigurationError, match="socket_timeout"):
        lockkit.connect("redis://127.0.0.1/0", options={"socket_timout": 1})


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("redis://h", {"socket_timeout": "2"}, r"OPTIONS\['socket_timeout'\].* is '2'"),
        ("redis://h", {"socket_timeout": None}, "socket_timeout"),
        ("redis://h", {"socket_connect_timeout": -1}, "socket_connect_timeout"),
        ("redis://h?socket_timeout=0", {}, "socket_timeout in the URL"),
        ("redis://h", {"db": "1"}, r"OPTIONS\['db'\]"),
        ("redis://h", {"db": None}, r"OPTIONS\['db'\]"),
        ("redis://h/0", {"db": 5}, "both say 'db'"),
        ("redis://:secret@h", {"password": "other-secret"}, "both say 'password'"),
        ("redis://:secret@h", {"password": lambda: "other-secret"}, "both say 'password'"),
        ("redis://h", {"password": b"secret"}, "password.*of type bytes"),
        ("redis://h", {"client_name": "a b"}, "client_name"),
        ("redis://h", {"ssl_ca_certs": "/ca.pem"}, "rediss://"),
        ("rediss://h", {"ssl_ca_certs": 1}, "ssl_ca_certs"),
        ("rediss://h", {"ssl_cert_reqs": "no"}, "ssl_cert_reqs"),
        ("rediss://h", {"ssl_check_hostname": "no"}, "ssl_check_hostname"),
    ],
)
@pytest.mark.parametrize("module", [lockkit, aio])
def test_a_wrong_option_is_a_configuration_error(
    module: Any, url: str, options: dict[str, object], told: str
) -> None:
    with pytest.raises(lockkit.ConfigurationError, match=told) as caught:
        module.connect(url, options=options)
    assert "secret" not in str(caught.value)


def test_a_certificate_for_another_host_is_refused(guarded: RedisServer) -> None:
    """Whatever the version of redis-py: the oldest one that is supported does not look."""
    url = guarded.tls_url.replace("127.0.0.1", "127.0.0.2")
    with lockkit.connect(url) as client, pytest.raises(lockkit.BackendUnavailable):
        client.lock("stock:42").acquire()
    made: Any = lockkit.connect("rediss://h").store
    assert made._connections.fresh.arguments["ssl_check_hostname"] is True


FOR_POOLS = "?protocol=3&max_connections=1&decode_responses=True&health_check_interval=1"
"""What a URL may say that is used by a cache as well."""


def test_a_url_that_is_meant_for_pools(redis_server: RedisServer) -> None:
    redis_server.flush()
    client = connect(f"{redis_server.url}{FOR_POOLS}")
    with client.lock("stock:42"):
        waiters = [
            in_thread(lambda: client.lock("stock:42", timeout=20).acquire().release())
            for _ in range(3)
        ]
        waiting(client, "stock:42", 3)
    assert [waiter() for waiter in waiters] == [True] * 3
    client.close()


async def test_asyncio_with_a_url_that_is_meant_for_pools(redis_server: RedisServer) -> None:
    redis_server.flush()
    async with aio.connect(f"{redis_server.url}{FOR_POOLS}") as client:
        lock = client.lock("stock:42", timeout=20)
        lease = await lock.acquire()
        waiter = asyncio.create_task(lock.acquire())
        while not (info := await client.inspect("stock:42")) or not info.waiters:  # noqa: ASYNC110
            await asyncio.sleep(0)  # each turn asks the store
        await lease.release()
        assert await (await waiter).release()


def test_however_long_a_server_was_away_it_is_used_again() -> None:
    with RedisServer() as server:
        client = connect(server.url)
        client.lock("stock:42").acquire().release()
        server.kill()
        for _ in range(120):  # more than redis-py's pool would ever connect
            with pytest.raises(lockkit.BackendError):
                client.lock("stock:42").acquire()
        server.start()
        assert client.lock("stock:42").acquire().release()
        client.close()


def test_nobody_there_is_unavailable_at_once() -> None:
    client = connect("redis://127.0.0.1:1/0")
    with pytest.raises(lockkit.BackendUnavailable):
        client.lock("stock:42").acquire()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://:canary@127.0.0.1:1/0", "127.0.0.1:1: the Redis server.*(refused|Connect call)"),
        ("unix:///nowhere/redis.sock", "^/nowhere/redis.sock: .*No such file"),
        ("rediss://:canary@127.0.0.1:{port}/0", "^127.0.0.1:{port}: .*(TLS|no answer)"),
        ("redis://:canary@127.0.0.1:{port}/99", "^127.0.0.1:{port}: the .*(password|database)"),
        ("redis://127.0.0.1:{port}/99", "^127.0.0.1:{port}: .*no database of the number"),
    ],
)
@pytest.mark.parametrize("api", ["sync", "async"])
def test_an_error_says_why_it_cannot_connect_and_where(
    redis_server: RedisServer, url: str, reason: str, api: Api
) -> None:
    url, reason = (text.replace("{port}", str(redis_server.port)) for text in (url, reason))
    client = connect_by(api, url, options={"socket_timeout": 3})
    with pytest.raises(lockkit.BackendUnavailable, match=reason) as caught:
        client.lock("stock:42").acquire()
    assert "canary" not in str(caught.value)
    client.stop() if isinstance(client, BlockingClient) else client.close()


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_server_that_is_full_is_told_from_one_that_cannot_be_reached(api: Api) -> None:
    """It says so and hangs up: what it says may be lost then, and under asyncio most often is."""
    with RedisServer() as server, server.client() as admin:
        admin.config_set("maxclients", 1)
        client = connect_by(api, server.url)

        def it_says_so() -> bool:
            with pytest.raises(lockkit.BackendUnavailable) as caught:
                client.lock("stock:42").acquire()
            return "maxclients" in str(caught.value)

        at_least_once(it_says_so)
        client.stop() if isinstance(client, BlockingClient) else client.close()


def test_that_of_a_client_that_was_handed_over_says_where() -> None:
    client = redis.Redis.from_url("redis://:canary@127.0.0.1:1/0")
    with pytest.raises(lockkit.BackendUnavailable, match=r"^127\.0\.0\.1:1: the Red") as caught:
        lockkit.connect(client=client).lock("stock:42").acquire()
    assert "canary" not in str(caught.value)


async def test_that_of_one_of_asyncio_does() -> None:
    client = redis.asyncio.Redis.from_url("redis://:canary@127.0.0.1:1/0")
    with pytest.raises(lockkit.BackendUnavailable, match=r"^127\.0\.0\.1:1: the Red"):
        await aio.connect(client=client).lock("stock:42").acquire()


def test_a_query_is_told_where_it_belongs() -> None:
    with pytest.raises(lockkit.ConfigurationError, match="OPTIONS"):
        lockkit.connect("redis://127.0.0.1:1/0?ssl_cert_reqs=none")


@pytest.mark.parametrize("use", USES)
def test_another_layout_is_refused(redis_server: RedisServer, url: str, use: str) -> None:
    client = connect(url)
    used_as(client, "stock:42", use).acquire().release()
    import redis

    with redis.Redis.from_url(url) as admin:
        for key in admin.scan_iter("{shop:*}:b"):
            admin.hset(key, "v", "99")
    with pytest.raises(lockkit.LayoutMismatch, match="99") as refused:
        used_as(client, "stock:42", use).acquire()
    assert "KEY_PREFIX" not in str(refused.value)  # the other release holds locks under this one
    client.close()


@pytest.mark.parametrize("use", USES)
def test_full_memory_refuses_new_locks_and_lets_go_of_old_ones(
    redis_server: RedisServer, use: str
) -> None:
    redis_server.flush()
    client = connect(redis_server.url)
    lease = used_as(client, "stock:42", use).acquire()
    granted = in_thread(lambda: used_as(client, "stock:42", use).acquire(10))
    waiting(client, "stock:42")
    admin = redis_server.client()
    admin.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(lockkit.BackendUnavailable, match="memory"):
            used_as(client, "stock:43", use).acquire()
        before = scripts_run(admin)
        while scripts_run(admin) < before + 2:  # by the waiter, which asks again
            pass
        lease.extend(40)
        assert lease.remaining() > 30
        assert lease.release()
        second = granted()
        second.extend()
        assert client.break_("stock:42", fence=second.fencing_token)
        gone = used_as(client, "stock:44", use)._request(client, 20)._replace(unsure=True)
        assert client.perform(client.store.release(gone)) is Release.ABSENT
    finally:
        admin.config_set("maxmemory", "0")
    second.release()
    client.close()


def scripts_run(admin: Any) -> int:
    return int(admin.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_full_memory_lets_a_writer_become_a_reader(redis_server: RedisServer) -> None:
    redis_server.flush()
    with connect(redis_server.url) as client:
        lease = client.rwlock("stock:42").write().acquire()
        admin = redis_server.client()
        admin.config_set("maxmemory", "1mb")
        try:
            lease.downgrade()
        finally:
            admin.config_set("maxmemory", "0")
        client.rwlock("stock:42").read().acquire().release()
        assert lease.release()


@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl", "volatile-random"])
def test_volatile_eviction_policies_evict_no_lock(redis_server: RedisServer, policy: str) -> None:
    redis_server.flush()
    client = connect(redis_server.url)
    leases = [client.lock(f"stock:{number}").acquire() for number in range(200)]
    admin = redis_server.client()
    for number in range(400):
        admin.set(f"cache:{number}", "x" * 2000, ex=1000)
    admin.config_set("maxmemory-policy", policy)
    admin.config_set("maxmemory", admin.info("memory")["used_memory"] + 200_000)
    try:
        for number in range(400, 800):
            admin.set(f"cache:{number}", "x" * 2000, ex=1000)
        assert admin.info("stats")["evicted_keys"] > 0
        assert sum(1 for _ in client.holders()) == 200
    finally:
        admin.config_set("maxmemory", "0")
        admin.config_set("maxmemory-policy", "noeviction")
    assert [lease.release() for lease in leases] == [True] * 200
    client.close()


def test_a_waiter_whose_place_was_evicted_queues_anew(redis_server: RedisServer) -> None:
    """What has a TTL goes first: the queue, and never what is held."""
    redis_server.flush()
    client = connect(redis_server.url)
    lease = client.lock("stock:42").acquire()
    granted = in_thread(lambda: client.lock("stock:42", timeout=20).acquire())
    waiting(client, "stock:42")
    with redis_server.client() as admin:
        evicted = [key for key in admin.scan_iter("{*") if admin.ttl(key) > 0]
        assert admin.delete(*evicted) == 3
    assert client.lock("stock:42").try_acquire() is None
    assert lease.release()
    assert granted().release()
    client.close()


def test_health_names_an_evicting_policy(redis_server: RedisServer) -> None:
    client = connect(redis_server.url)
    admin = redis_server.client()
    assert list(client.perform(client.store.health())) == []
    admin.config_set("maxmemory-policy", "allkeys-lru")
    try:
        (danger,) = client.perform(client.store.health())
        assert danger.code == "eviction"
        assert "noeviction" in danger.remedy
    finally:
        admin.config_set("maxmemory-policy", "noeviction")
    client.close()


def test_health_of_records_names_a_server_that_forgets(redis_server: RedisServer) -> None:
    """Redis saves to disk by default; that of the tests does not."""
    client = connect(redis_server.url)
    admin = redis_server.client()
    records = client.store.records()
    assert records is not None
    assert [danger.code for danger in client.perform(records.health())] == ["persistence"]
    for setting, value in (("save", "3600 1"), ("appendonly", "yes")):
        before = admin.config_get(setting)[setting]
        admin.config_set(setting, value)
        assert client.perform(records.health()) == []
        admin.config_set(setting, before)
    client.close()


def test_health_that_cannot_be_asked_is_not_known(guarded: RedisServer) -> None:
    client = connect(guarded.url_for("shop", "secret"))
    records = client.store.records()
    assert records is not None
    for dangers, allowed in ((client.store.health, "+info"), (records.health, "+config|get")):
        (danger,) = client.perform(dangers())
        assert "not known" in danger.text
        assert allowed in danger.remedy
    with guarded.client() as admin:
        admin.execute_command("ACL", "SETUSER", "shop", "+info")
        assert list(client.perform(client.store.health())) == []
        admin.execute_command("ACL", "SETUSER", "shop", "-info")
    client.close()


def test_a_read_only_replica_is_unavailable(redis_server: RedisServer) -> None:
    with RedisServer(f"replicaof 127.0.0.1 {redis_server.port}") as replica:
        client = connect(replica.url)
        with pytest.raises(lockkit.BackendUnavailable, match=r"replica|loading"):
            client.lock("stock:42").acquire()


def test_what_redis_6_says_of_a_command_in_a_script_is_understood() -> None:
    """Its words are those of a server of 6.2.5: this machine has no such."""
    said = redis.ResponseError(
        "Error running script (call to f_0a9f75e991483d02789696e4c90d26c10395863e): "
        "@user_script:8: @user_script: 8: -READONLY You can't write against a read only replica."
    )
    assert is_demoted(said)
    assert re.search("read-only replica.*READONLY", str(from_reply(said)))


def test_released_names_leave_nothing_in_the_store(redis_server: RedisServer, url: str) -> None:
    """However many names: buckets remain, keys of names do not."""
    client = connect(url)
    for number in range(2_000):
        client.lock(f"order:{number}").acquire().release()
    import redis

    with redis.Redis.from_url(url) as admin:
        keys = list(admin.scan_iter("{*"))
        fields = {field for key in keys for field in admin.hkeys(key)}
        assert admin.dbsize() == len(keys) + 1, "the note of key prefixes"
    assert len(keys) <= 64
    assert fields == {b"v", b"f"}
    client.close()


def test_an_abandoned_permit_does_not_hold_up_another_kind(redis_url: str) -> None:
    """The last live holder ends the use as a semaphore, also where it reads none of the others."""
    with connect(redis_url) as client:
        lease = client.semaphore("stock:42", 2).acquire()
        terms = {"kind": Kind.SEMAPHORE, "permits": 2, "shared": True}
        client.perform(client.store.acquire(Request("stock:42", "a" * 32, 0.01, "", **terms)))
        eventually(lambda: {info.state for info in client.holders()} == {"held", "abandoned"})
        assert lease.release()
        with client.lock("stock:42", timeout=0):
            pass


def test_a_bucket_of_another_layout_hides_no_other(redis_url: str) -> None:
    with connect(redis_url) as client, redis.Redis.from_url(redis_url) as admin:
        first, *_, last = sorted(map(str, range(99)), key=bucket_of)
        with client.lock(last):
            client.lock(first).acquire().release()
            for key in admin.scan_iter("*shop:*}:b"):
                if not admin.hexists(key, f"={last}"):
                    admin.hset(key, "v", "99")
            found: list[str] = []
            with pytest.raises(lockkit.LayoutMismatch, match="99"):
                found.extend(info.name for info in client.holders())
            assert found == [last]


def test_what_was_abandoned_long_ago_is_forgotten_bit_by_bit(redis_url: str) -> None:
    """By those who acquire: each of some dozens looks at a few that share its bucket."""
    client = connect(redis_url)
    name = "stock:42"
    neighbours = [n for n in map(str, range(2_000)) if bucket_of(n) == bucket_of(name)][:6]
    old, young = neighbours[:5], neighbours[5:]
    for abandoned in neighbours:
        client.perform(client.store.acquire(Request(abandoned, "a" * 32, 0.01, "")))
    import redis

    with redis.Redis.from_url(redis_url) as admin:
        [bucket] = admin.scan_iter("*shop:*}:b")
        for abandoned in old:
            record = admin.hget(bucket, f"={abandoned}")
            expired = b"%016d" % (int(record[EXPIRY]) - 601 * 1_000_000)
            admin.hset(
                bucket, f"={abandoned}", record[: EXPIRY.start] + expired + record[EXPIRY.stop :]
            )
        for _ in range(3_000):
            client.lock(name).acquire().release()
            if not any(admin.hexists(bucket, f"={abandoned}") for abandoned in old):
                break
        kept = {field for field in admin.hkeys(bucket) if field.startswith(b"=")}
    assert kept == {f"={abandoned}".encode() for abandoned in young}
    client.close()


def test_requests_of_an_uncontended_and_of_a_contended_acquisition(
    redis_server: RedisServer,
) -> None:
    """As many scripts: what a connection says at its beginning is not counted."""
    redis_server.flush()
    scripts = 0

    def count(request: bytes) -> None:
        nonlocal scripts
        scripts += request.count(b"EVALSHA")

    elsewhere = connect(redis_server.url)
    with FaultProxy("127.0.0.1", redis_server.port, on_request=count) as between:
        client = connect(f"redis://127.0.0.1:{between.port}/0")

        def of_uncontended() -> int:
            nonlocal scripts
            scripts = 0
            client.lock("stock:42").acquire().release()
            return scripts

        def of_contended() -> int:
            nonlocal scripts
            lease = client.lock("stock:42").acquire()
            scripts = 0
            granted = in_thread(lambda: client.lock("stock:42", timeout=20).acquire())
            waiting(elsewhere, "stock:42")
            lease.release()
            granted().release()
            return scripts

        of_contended()  # the first to wait in this process subscribes, and asks once more
        # Queueing, the release that handed over, and its own; who waits for long also asks again.
        counts = [(of_uncontended(), of_contended()) for _ in range(3)]
        assert min(counts) == (2, 3)
        client.close()
    elsewhere.close()


def test_a_listing_survives_that_its_connections_were_closed(redis_server: RedisServer) -> None:
    redis_server.flush()
    client = connect(redis_server.url)
    with client.lock("stock:42") as lease:
        redis_server.client().client_kill_filter(_type="normal", skipme=True)
        info = client.inspect("stock:42")
        assert info is not None
        assert info.fence == lease.fencing_token
        redis_server.client().client_kill_filter(_type="normal", skipme=True)
        assert [info.name for info in client.holders()] == ["stock:42"]
    client.close()


def test_one_subscription_serves_all_waiters_of_a_process(redis_server: RedisServer) -> None:
    redis_server.flush()
    client = connect(redis_server.url, options={"client_name": "one"})
    lease = client.lock("stock:42").acquire()
    waiters = [
        in_thread(lambda: client.lock("stock:42", timeout=20).acquire().release()) for _ in range(8)
    ]
    waiting(client, "stock:42", 8)
    subscribers = redis_server.client().pubsub_channels("shop:wake:*")
    assert len(subscribers) == subscriptions(redis_server, "one") == 1
    lease.release()
    assert [waiter() for waiter in waiters] == [True] * 8
    client.close()


@pytest.mark.parametrize("use", USES)
def test_a_waiter_whom_nobody_hears_loses_its_turn(redis_server: RedisServer, use: str) -> None:
    """Its process is gone, though it gave a sign of life a moment ago: the next one is granted."""
    redis_server.flush()
    here, gone, there = (connect(redis_server.url) for _ in range(3))
    gone.store.inbox.channel += b":gone"  # type: ignore[attr-defined]
    lease = used_as(here, "stock:42", use).acquire()
    (dead, alive) = (
        used_as(client, "stock:42", use)._request(client, 20) for client in (gone, there)
    )
    for client, request in ((gone, dead), (there, alive)):
        reply = client.perform(client.store.acquire(request))
        assert isinstance(reply, Busy)
        assert reply.ticket
    gone.close()
    with redis_server.client() as admin:
        eventually(lambda: not admin.pubsub_channels("*:gone"))
    lease.release()
    assert isinstance(there.perform(there.store.acquire(alive._replace(mode=Mode.POLL))), Grant)
    for client in (here, there):
        client.close()


@pytest.mark.parametrize("use", USES)
def test_what_is_kept_of_a_name_goes_away_by_itself(redis_server: RedisServer, use: str) -> None:
    """Whoever crashes leaves a field in a bucket, which is forgotten later, and no key for ever."""
    redis_server.flush()
    client = connect(redis_server.url)
    lock = used_as(client, "stock:42", use)
    lease = lock.acquire()
    client.perform(client.store.acquire(lock._request(client, 20)))
    bucket, *_ = client.store._protocol.keys.of_name("stock:42")  # type: ignore[attr-defined]
    with redis_server.client() as admin:
        for seconds in (30, 3_600, 10):
            lease.extend(seconds)
            left = [admin.pttl(key) for key in admin.scan_iter("{*") if key != bucket]
            assert left, "of who waits"
            assert min(left) > 0
            assert max(left) > seconds * 1_000 or use == "lock", "not before the lease"
    assert lease.release()
    client.close()


def test_fences_outlive_the_loss_of_all_data(redis_server: RedisServer) -> None:
    redis_server.flush()
    client = connect(redis_server.url)
    before = client.lock("stock:42").acquire()
    redis_server.flush()
    after = client.lock("stock:42").acquire()
    assert after.fencing_token > before.fencing_token
    assert before.release() is False
    assert after.release()
    client.close()


async def test_asyncio_has_one_subscription_per_loop(redis_server: RedisServer) -> None:
    redis_server.flush()
    client = aio.connect(redis_server.url, key_prefix="shop", options={"client_name": "per-loop"})

    async def work() -> int:
        async with client.lock("stock:42", timeout=20) as lease:
            return lease.fencing_token

    async with client.lock("stock:42"):
        tasks = [asyncio.create_task(work()) for _ in range(20)]
        while (info := await client.inspect("stock:42")) is None or info.waiters < 20:  # noqa: ASYNC110
            await asyncio.sleep(0)  # each turn asks the store
        assert subscriptions(redis_server, "per-loop") == 1
    fences = await asyncio.gather(*tasks)
    assert len(set(fences)) == 20
    await client.close()


async def test_many_tasks_at_once_share_one_connection(redis_server: RedisServer) -> None:
    """Hundreds of TLS handshakes side by side would all be too late."""
    redis_server.flush()
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        options = {"socket_timeout": 20, "client_name": "many"}
        client = aio.connect(f"redis://127.0.0.1:{proxy.port}/0", options=options)
        greetings = proxy.delay_requests(1000, matching=b"many")
        tasks = [
            asyncio.create_task(client.lock(f"stock:{number}").acquire()) for number in range(60)
        ]
        assert await asyncio.to_thread(greetings.arrived.wait, 20)
        await asyncio.to_thread(client_count, redis_server)  # others would have come by now
        assert proxy.connections == 1
        greetings.release()
        for task in tasks:
            assert await (await task).release()
        assert proxy.connections == 1
        await client.close()


def client_count(server: RedisServer) -> int:
    with server.client() as admin:
        return len(admin.client_list())


def in_thread(work: Callable[[], T]) -> Callable[[], T]:
    """Start in a thread; call the result to wait for what it returns."""
    box: list[T | BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            box.append(work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            box.append(error)
        done.set()

    threading.Thread(target=run, daemon=True).start()

    def result() -> T:
        assert done.wait(30)
        if isinstance(box[0], BaseException):
            raise box[0]
        return box[0]

    return result


def test_a_server_that_is_loading_says_so_to_new_connections() -> None:
    slow = ("key-load-delay 2000", "loading-process-events-interval-bytes 1024")
    with (
        RedisServer("enable-debug-command yes", *slow) as server,
        ThreadPoolExecutor() as threads,
        server.client() as admin,
    ):
        admin.mset({f"key:{number}": "x" * 200 for number in range(1500)})
        loading = threads.submit(admin.execute_command, "DEBUG", "RELOAD")

        def lock_anew() -> None:
            while not loading.done():
                with lockkit.connect(server.url) as client:
                    client.lock("x").acquire(timeout=0).release()

        with pytest.raises(BackendUnavailable, match="still loading"):
            lock_anew()
        loading.result()
