"""wait_replicas: a claim counts once a real replica has confirmed it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from claiming import begun, died, order_of, rules
from redis_family import HOST, WITHOUT_DELAY, until

import lockkit
from lockkit import aio
from lockkit.model.types import Request
from lockkit.orders import Record, Refusal, drive
from lockkit.orders.redis_records import RedisOrderRecords
from lockkit.testing.blocking import AnyClient, Api, connect
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer, ValkeyServer

Pair = tuple[RedisServer, RedisServer]


@contextmanager
def paired(kind: type[RedisServer]) -> Iterator[Pair]:
    with (
        kind(*WITHOUT_DELAY) as master,
        kind(*WITHOUT_DELAY, f"replicaof {HOST} {master.port}") as replica,
    ):
        with replica.client() as admin:
            until(lambda: admin.info("replication")["master_link_status"] == "up", "it follows")
        with master.client() as admin:  # its first confirmation may take a second
            assert admin.set("warm-up", 1) and admin.wait(1, 20_000) == 1
        yield master, replica


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with paired(RedisServer) as pair:
        yield pair


@pytest.fixture(scope="module")
def valkey_pair() -> Iterator[Pair]:
    """On a connection that has written nothing its WAIT is over at once; not so Redis 7.0's."""
    with paired(ValkeyServer) as pair:
        yield pair


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, pair: tuple[RedisServer, Any]) -> Iterator[AnyClient]:
    api: Api = request.param
    options = {"socket_timeout": 20.0}
    client = connect(api, f"{pair[0].url}?wait_replicas=1", ttl=60.0, options=options)
    yield client
    client.close()


def test_a_grant_is_on_the_replica(client: AnyClient, pair: Pair) -> None:
    with pair[1].client() as replica:
        for number in range(50):
            lease = client.lock(f"stock:{number}").acquire()
            held = [replica.hgetall(key) for key in replica.scan_iter("{lockkit:*}:b")]
            fences = b" ".join(value for bucket in held for value in bucket.values())
            assert str(lease.fencing_token).encode() in fences
            assert lease.release()


def test_a_grant_by_message_counts_once_it_is_confirmed(
    client: AnyClient, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever handed it over did not wait for that. It is given back if nobody confirms it."""
    with lockkit.connect(pair[0].url) as other, ThreadPoolExecutor(1) as threads:
        for is_heard in (True, False):
            lease = other.lock("stock:42").acquire()
            waiting = threads.submit(client.lock("stock:42", timeout=20).acquire)
            until(lambda: (info := other.inspect("stock:42")) and info.waiters, "it waits")
            if is_heard:
                lease.release()
                assert waiting.result().release()
                continue
            monkeypatch.setitem(client.store._connections.fresh.arguments, "socket_timeout", 0.5)
            pair[1].pause()
            try:
                lease.release()
                with pytest.raises(lockkit.OutcomeUnknown, match="0 of 1 replicas"):
                    waiting.result()
            finally:
                pair[1].resume()
                monkeypatch.undo()
            until(lambda: other.inspect("stock:42") is None, "it is given back")


def test_without_a_replica_nothing_is_granted(
    client: AnyClient, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing stays behind. An extension does not count, and the lease is not lost by that."""
    kept = client.lock("kept").acquire()
    monkeypatch.setitem(client.store._connections.fresh.arguments, "socket_timeout", 0.5)
    pair[1].pause()
    try:
        with pytest.raises(lockkit.OutcomeUnknown, match="0 of 1 replicas"):
            client.lock("stock:42").acquire()
        left = kept.remaining()
        with pytest.raises(lockkit.OutcomeUnknown, match="0 of 1 replicas"):
            kept.extend(120)
        assert kept.remaining() <= left
        kept.check()
    finally:
        pair[1].resume()
        monkeypatch.undo()
    with lockkit.connect(pair[0].url) as other:
        until(lambda: other.inspect("stock:42") is None, "it is given back")
    kept.extend(120)
    assert kept.remaining() > 100
    assert kept.release()


class Interrupted(RedisOrderRecords):
    """Its replica stops after the grant of the order's lock, and before the claim."""

    def __init__(self, locks: lockkit.LockClient, pair: Pair) -> None:
        super().__init__(locks)
        self._replica = pair[1]

    def start(self, record: Record, fence: int, *, replaces: bool) -> Any:
        self._replica.pause()
        return super().start(record, fence, replaces=replaces)


def test_the_view_of_an_order_does_not_run_before_its_claim_is_confirmed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is promoted may not know of the claim, and the order would run twice."""
    with lockkit.connect(f"{pair[0].url}?wait_replicas=1", ttl=60) as locks:
        orders = rules()
        order = order_of(orders)
        died(begun(orders, order_of(orders, "A-0"), RedisOrderRecords(locks), locks))
        monkeypatch.setitem(locks.store._connections.fresh.arguments, "socket_timeout", 0.5)
        try:
            refused = drive(orders.admit(order), Interrupted(locks, pair), locks)
        finally:
            pair[1].resume()
            monkeypatch.undo()
        assert isinstance(refused, Refusal)
        assert refused.code == "order-store-unavailable"
        died(begun(orders, order, RedisOrderRecords(locks), locks))  # nothing has stayed behind


@pytest.mark.parametrize("protocol", ["", "&protocol=plain"])
@pytest.mark.parametrize("api", ["sync", "async"])
def test_what_is_not_granted_needs_no_replica(api: Api, protocol: str, pair: Pair) -> None:
    """A waiter keeps its place while the replica restarts."""
    master, replica = pair
    url, options = f"{master.url}?wait_replicas=1{protocol}", {"socket_timeout": 0.5}
    client, other = (connect(api, url, ttl=60.0, options=options) for _ in range(2))
    lease = client.lock("stock:42").acquire()
    with ThreadPoolExecutor(1) as threads:
        replica.pause()
        try:
            assert other.lock("stock:42").try_acquire() is None
            waiting = threads.submit(other.lock("stock:42", timeout=20).acquire)
            until(lambda: (info := client.inspect("stock:42")) and info.waiters, "it waits")
        finally:
            replica.resume()
        assert lease.release()
        assert waiting.result().release()
    client.close()
    other.close()


@pytest.mark.parametrize("protocol", ["", "&protocol=plain"])
@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_grant_that_is_asked_for_again_counts_once_it_is_confirmed(
    api: Api, protocol: str, valkey_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to the first request is lost. The next one goes over another connection, which
    has written nothing that replicas could confirm."""
    monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", 20)
    pair = valkey_pair
    url = f"{pair[0].url}?wait_replicas=1{protocol}"
    with FaultProxy(HOST, pair[0].port) as proxy, lockkit.connect(url) as other:
        through = url.replace(f":{pair[0].port}", f":{proxy.port}")
        client = connect(api, through, ttl=600.0, options={"socket_timeout": 20.0})
        client.lock("stock:42").acquire().release()
        fault = proxy.drop_replies(matching=b"EVALSHA")
        assert client.lock("stock:42").acquire().release()
        assert fault.happened.wait(20)
        client.store._connections.fresh.arguments["socket_timeout"] = 0.5
        fault = proxy.drop_replies(matching=b"EVALSHA")
        pair[1].pause()
        try:
            with pytest.raises(lockkit.OutcomeUnknown):
                client.lock("stock:42").acquire()
            assert fault.happened.wait(20)
        finally:
            pair[1].resume()
        until(lambda: other.inspect("stock:42") is None, "it is given back")
        client.close()


@pytest.mark.parametrize("api", ["sync", "async"])
def test_what_is_extended_beside_an_unreadable_one_is_confirmed_too(
    api: Api, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"socket_timeout": 20.0}
    client = connect(api, f"{pair[0].url}?protocol=plain&wait_replicas=1", options=options)
    leases = [client.lock(name).acquire() for name in ("unreadable", "kept")]
    requests = [
        Request(lease.name, lease.token, ttl=60.0, owner="", number=1 << 40) for lease in leases
    ]
    with pair[0].client() as admin:
        admin.delete("unreadable")
        admin.lpush("unreadable", "somebody else's")
        first, second = client.perform(client.store.extend(requests))
        assert isinstance(first.error, lockkit.DamagedRecord)
        assert second.left == 60.0
        monkeypatch.setitem(client.store._connections.fresh.arguments, "socket_timeout", 0.5)
        pair[1].pause()
        try:
            with pytest.raises(lockkit.OutcomeUnknown, match="0 of 1 replicas"):
                client.perform(client.store.extend(requests))
        finally:
            pair[1].resume()
            monkeypatch.undo()
            admin.delete("unreadable")
    for lease in leases:
        lease.release()
    client.close()


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_user_that_may_not_wait_for_replicas_locks_nothing(api: Api, pair: Pair) -> None:
    """The server has granted the claim, and then refuses to wait: it is given back."""
    with pair[0].client() as admin, lockkit.connect(pair[0].url) as other:
        rights = "on", ">secret", "~*", "&*", "+@all", "-wait"
        admin.execute_command("ACL", "SETUSER", "shop", *rights)
        url = f"{pair[0].url_for('shop', 'secret')}?wait_replicas=1"
        client = connect(api, url, ttl=600.0)
        with pytest.raises(lockkit.OutcomeUnknown, match=r"lacks \+wait"):
            client.lock("stock:42").acquire()
        assert other.lock("stock:42").acquire(timeout=20).release()
        admin.execute_command("ACL", "SETUSER", "shop", "-evalsha")
        with pytest.raises(lockkit.StoreRefused, match="NOPERM"):
            client.lock("stock:42").acquire()
        client.close()
        admin.execute_command("ACL", "DELUSER", "shop")


@pytest.mark.parametrize("module", [lockkit, aio])
@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://h?wait_replicas=one", {}),
        ("redis://h?wait_replicas=1", {"wait_replicas": 2}),
        ("redis://h", {"wait_replicas": "1"}),
        ("redis://h", {"wait_replicas": -1}),
        ("redis://h", {"wait_replicas": None}),
        ("redis+sentinel://h/shop?wait_replicas=", {}),
    ],
)
def test_a_wrong_number_is_a_configuration_error(
    module: Any, url: str, options: dict[str, Any]
) -> None:
    with pytest.raises(lockkit.ConfigurationError, match="wait_replicas"):
        module.connect(url, options=options)
