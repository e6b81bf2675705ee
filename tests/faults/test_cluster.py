"""redis+cluster://: six servers; slots move and masters die while locks are taken."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import count
from typing import Any

import pytest
import redis
import redis.asyncio
from claiming import left_behind
from command_line import locks
from redis_family import CALM, HOST, SOON, ClusterGroup, ClusterServer, until
from rushing import Rush

import lockkit
from lockkit import aio
from lockkit.engine import holding
from lockkit.engine.effects import Step
from lockkit.leases.lease import give_back
from lockkit.model.clock import now
from lockkit.model.types import ClaimReply, Grant, Mode, Owner, Release, Request
from lockkit.orders.redis_records import orphans
from lockkit.runtime.hold import Hold
from lockkit.runtime.process import new_token
from lockkit.stores.records import OnServer
from lockkit.stores.redis import slots
from lockkit.stores.redis.layout import SLOTS, bucket_of, slot_of
from lockkit.stores.redis.slots import slot_of_command
from lockkit.testing.blocking import AnyClient, Api, connect
from lockkit.testing.conformance.base import at_least_once, eventually
from lockkit.testing.proxy import FaultProxy

BUCKETS = 64

TTL = 4.0
"""Seconds, of leases whose release may be lost."""


@pytest.fixture(scope="module")
def servers_of_all() -> Iterator[ClusterGroup]:
    with ClusterGroup() as group:
        yield group


@pytest.fixture
def group(servers_of_all: ClusterGroup) -> ClusterGroup:
    """Empty: a lease may be left that another test could not release."""
    servers_of_all.flush()
    return servers_of_all


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, group: ClusterGroup) -> Iterator[AnyClient]:
    api: Api = request.param
    client = connect(api, group.url, ttl=60.0)
    yield client
    client.close()


@pytest.fixture
def other(group: ClusterGroup) -> Iterator[lockkit.LockClient]:
    with lockkit.connect(group.url, ttl=60.0) as other:
        yield other


def one_of_each_bucket() -> list[str]:
    names: dict[int, str] = {}
    number = 0
    while len(names) < BUCKETS:
        names.setdefault(bucket_of(f"stock:{number}"), f"stock:{number}")
        number += 1
    return list(names.values())


def slot_of_name(name: str) -> int:
    return slot_of(b"{lockkit:%d}:b" % bucket_of(name))


def at_last(work: Any) -> Any:
    deadline = now() + SOON
    while True:
        try:
            return work()
        except lockkit.BackendError:
            assert now() < deadline, "the new master is not used"
            threading.Event().wait(0.05)


def test_names_in_every_bucket(client: AnyClient, other: lockkit.LockClient) -> None:
    """They are on all three servers, and are listed, extended and taken together all the same."""
    names = one_of_each_bucket()
    leases = [client.lock(name).acquire() for name in names]
    assert {info.name for info in other.holders()} == set(names)
    assert not any(other.lock(name).try_acquire() for name in names)
    for lease in leases:
        lease.extend(120)
        assert lease.remaining() > 60
    assert all(lease.release() for lease in leases)
    with other.multi(*names):
        assert {info.name for info in other.holders()} == set(names)
    assert list(other.holders()) == []
    other.perform(other.store.check())
    assert other.perform(other.store.health()) == []


def test_names_on_every_slot(group: ClusterGroup, other: lockkit.LockClient) -> None:
    """Other prefixes are on other slots. All slots are reckoned as the servers do, and a sample of
    them, those at the borders of the servers among it, has a lock."""
    prefixes: dict[int, tuple[str, int]] = {}
    number = 0
    while len(prefixes) < SLOTS:
        for bucket in range(BUCKETS):
            place = (f"p{number}", bucket)
            prefixes.setdefault(slot_of(key_of(*place)), place)
        number += 1
    borders = [SLOTS * part // 3 + step for part in (1, 2) for step in (-1, 0)]
    with group.masters[0].client() as admin:
        asked = admin.pipeline(transaction=False)
        for slot in range(SLOTS):
            asked.execute_command("CLUSTER KEYSLOT", key_of(*prefixes[slot]))
        assert asked.execute() == [*range(SLOTS)]
        for slot in [0, SLOTS - 1, *borders, *range(7, SLOTS, 509)]:
            prefix, bucket = prefixes[slot]
            name = next(n for n in one_of_each_bucket() if bucket_of(n) == bucket)
            with lockkit.connect(group.url, key_prefix=prefix) as locks, locks.lock(name):
                assert locks.inspect(name)


def key_of(prefix: str, bucket: int) -> bytes:
    return b"{%b:%d}:b" % (prefix.encode(), bucket)


def test_a_slot_moves_while_it_is_locked(
    group: ClusterGroup, client: AnyClient, other: lockkit.LockClient
) -> None:
    """MOVED, ASK and TRYAGAIN: none of them loses a lease or lets two in, and none is an error."""
    name = "stock:moving"
    slot = slot_of_name(name)
    ends, found, end = [0], [], threading.Event()
    inside = [0]

    def work(locks: lockkit.LockClient) -> None:
        while not end.is_set():
            with locks.lock(name, timeout=SOON) as lease:
                inside[0] += 1
                found.append((lease.fencing_token, inside[0]))
                inside[0] -= 1
                ends[0] += 1

    kept_name = next(n for n in one_of_each_bucket() if bucket_of(n) == bucket_of(name))
    kept = client.lock(kept_name, ttl=60).acquire()
    clients = [lockkit.connect(group.url, ttl=60) for _ in range(3)]
    threads = [threading.Thread(target=work, args=(one,)) for one in clients]
    for thread in threads:
        thread.start()
    for target in (1, 2, 0):
        move(group, slot, group.masters[target])
        before = ends[0]
        until(lambda before=before: ends[0] > before + 20, "locks are granted where it went")
        kept.extend()
    end.set()
    for thread in threads:
        thread.join()
    for one in clients:
        one.close()
    assert {count for _, count in found} == {1}
    assert found == sorted(found)
    assert kept.release()
    owner = owner_of(group, slot)
    assert owner is group.masters[0]


@pytest.mark.parametrize("is_away", [False, True], ids=["half-moved", "moved"])
def test_a_slot_that_is_on_its_way_is_waited_for(
    group: ClusterGroup, client: AnyClient, is_away: bool
) -> None:
    """Its keys are half here, half there: nothing can be decided, so the request is tried again.
    Most keys of a request are not there: if all others have moved, it is the target that waits."""
    name = "stock:halfway"
    slot = slot_of_name(name)
    client.lock(name).acquire().release()
    source = owner_of(group, slot)
    target = next(one for one in group.masters if one is not source)
    begin(slot, source, target)
    if is_away:
        move_keys(slot, source, target)
    timer = threading.Timer(0.3, finish, (group, slot, source, target))
    started = now()
    timer.start()
    with_lease = client.lock(name).acquire()
    assert now() - started >= 0.3
    timer.join()
    assert with_lease.release()
    begin(slot, target, source)
    if is_away:
        move_keys(slot, target, source)
    with pytest.raises(lockkit.BackendUnavailable, match="TRYAGAIN"):
        client.lock(name).acquire()
    finish(group, slot, target, source)
    assert client.lock(name).acquire().release()


def begin(slot: int, source: ClusterServer, target: ClusterServer) -> None:
    target.says("CLUSTER SETSLOT", slot, "IMPORTING", source.name)
    source.says("CLUSTER SETSLOT", slot, "MIGRATING", target.name)


def move_keys(slot: int, source: ClusterServer, target: ClusterServer) -> None:
    while keys := source.says("CLUSTER GETKEYSINSLOT", slot, 10):
        source.says("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)


def finish(group: ClusterGroup, slot: int, source: ClusterServer, target: ClusterServer) -> None:
    move_keys(slot, source, target)
    target.says("CLUSTER SETSLOT", slot, "NODE", target.name)
    for one in group.masters:
        one.says("CLUSTER SETSLOT", slot, "NODE", target.name)


def move(group: ClusterGroup, slot: int, target: ClusterServer) -> None:
    source = owner_of(group, slot)
    if source is not target:
        begin(slot, source, target)
        finish(group, slot, source, target)


def owner_of(group: ClusterGroup, slot: int) -> ClusterServer:
    for first, last, server, *_ in group.masters[0].says("CLUSTER SLOTS"):
        if first <= slot <= last:
            return next(one for one in group.masters if one.port == server[1])
    raise AssertionError(f"nobody has slot {slot}")


def test_a_waiter_hears_of_its_grant_from_any_server(
    group: ClusterGroup, client: AnyClient, other: lockkit.LockClient
) -> None:
    """By a message: it was published at another server than that which is listened to."""
    delays: list[float] = []

    def wait(name: str) -> float:
        with client.lock(name, ttl=60, timeout=SOON).acquire():
            return now()

    with ThreadPoolExecutor(1) as threads:
        for name in one_of_each_bucket()[:12]:
            lease = other.lock(name, ttl=60).acquire()
            waiting = threads.submit(wait, name)
            until(lambda name=name: (info := other.inspect(name)) and info.waiters, "it waits")
            released = now()
            lease.release()
            delays.append(waiting.result() - released)
    assert sorted(delays)[6] < 0.7, f"it asks every 1.5 s by itself: {delays}"


@pytest.fixture
def least(group: ClusterGroup, client: AnyClient) -> Iterator[AnyClient]:
    """A client with the rights of docs/redis.md."""
    rights = (
        "on >secret resetkeys ~{shop:* ~lockkit:prefixes resetchannels &shop:wake:* -@all +evalsha "
        "+script|load +hscan +ping +subscribe +@hash +@sortedset +pexpire +publish +time "
        "+cluster|slots +cluster|info +asking +wait"
    )
    for node in group.nodes:
        node.says("ACL SETUSER", "shop", *rights.split())
    api: Api = "sync" if isinstance(client, lockkit.LockClient) else "async"
    url = group.url.replace("://", "://shop:secret@") + "?wait_replicas=1"
    patient = {"socket_timeout": 20.0}
    made = connect(api, url, key_prefix="shop", ttl=60.0, options=patient)
    yield made
    made.close()


def test_the_least_privileged_user(least: AnyClient) -> None:
    for name in one_of_each_bucket()[::9]:
        lease = least.lock(name).acquire()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(least.lock(name, timeout=SOON).acquire)
            until(lambda name=name: (info := least.inspect(name)) and info.waiters, "it waits")
            assert lease.release()
            assert waiting.result().release()
    least.perform(least.store.check())
    assert list(least.holders()) == []


def test_the_least_privileged_user_extends_while_a_slot_moves(
    group: ClusterGroup, least: AnyClient
) -> None:
    lease = least.lock("stock:42").acquire()
    slot = slot_of(b"{shop:%d}:b" % bucket_of("stock:42"))
    source = owner_of(group, slot)
    target = next(one for one in group.masters if one is not source)
    begin(slot, source, target)
    move_keys(slot, source, target)
    try:
        lease.extend()
    finally:
        finish(group, slot, source, target)
        move(group, slot, source)
    assert lease.release()


@pytest.mark.parametrize("resp", [2, 3])
def test_a_client_of_a_cluster_is_handed_over(
    group: ClusterGroup, other: lockkit.LockClient, resp: int
) -> None:
    """Names of every server, and a waiter that is told by a message."""
    with (
        redis.RedisCluster(host=HOST, port=group.masters[0].port, protocol=resp) as given,
        lockkit.connect(client=given) as locks,
        ThreadPoolExecutor() as threads,
    ):
        for name in one_of_each_bucket()[::7]:
            lease = locks.lock(name).acquire()
            waiting = threads.submit(other.lock(name, timeout=SOON).acquire)
            until(lambda name=name: (info := locks.inspect(name)) and info.waiters, "it waits")
            assert lease.release()
            waiting = threads.submit(_then_in(locks, name), waiting.result())
            assert waiting.result().release()
        assert list(locks.holders()) == []
        given.set("still usable", "yes")


def _then_in(locks: lockkit.LockClient, name: str) -> Any:
    """Waits for a lease that it gives back itself, while it waits."""

    def take(before: lockkit.Lease) -> lockkit.Lease:
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(locks.lock(name, timeout=SOON).acquire)
            until(lambda: (info := locks.inspect(name)) and info.waiters, "it waits")
            assert before.release()
            return waiting.result()

    return take


@pytest.mark.parametrize("is_native", [True, False])
async def test_a_client_of_a_cluster_under_asyncio(group: ClusterGroup, is_native: bool) -> None:
    """One of redis.asyncio, or a blocking one by way of threads."""
    kind: Any = redis.asyncio.RedisCluster if is_native else redis.RedisCluster
    given = kind(host=HOST, port=group.masters[0].port)
    async with aio.connect(client=given, ttl=60) as locks:
        for name in one_of_each_bucket()[::13]:
            lock = locks.lock(name, timeout=SOON)
            lease = await lock.acquire()
            waiter = asyncio.create_task(lock.acquire())
            while not (info := await locks.inspect(name)) or not info.waiters:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert await lease.release()
            assert await (await waiter).release()
    if is_native:
        with pytest.raises(lockkit.ConfigurationError, match=r"lockkit\.aio\.connect"):
            lockkit.connect(client=given)
        await given.aclose()
    else:
        given.close()


def test_a_client_of_a_cluster_with_a_function_for_its_connections(group: ClusterGroup) -> None:
    port = group.masters[0].port
    with (
        redis.RedisCluster(host=HOST, port=port, redis_connect_func=lambda _: None) as given,
        pytest.raises(lockkit.ConfigurationError, match=r"redis\+cluster://"),
    ):
        lockkit.connect(client=given)


def test_records_of_orders_are_beside_their_locks(client: AnyClient, group: ClusterGroup) -> None:
    """On whichever server those are; what runs is found on all of them."""
    records = client.store.records()
    assert records is not None
    names = one_of_each_bucket()[::7]
    for name in names:
        lease = client.lock(name).acquire()
        fence = lease.fencing_token
        claim = records.claim(name, fence, b"it", 60.0, running=True, replaces=False)
        assert client.perform(claim) is ClaimReply.WRITTEN
        assert lease.release()
    assert {name for name, _ in _all_pages(client, records)} == set(names)
    for name in names:
        record = client.perform(records.read(name))
        assert record is not None and record.payload == b"it"
        assert client.perform(records.drop(name, record.fence))
    assert _all_pages(client, records) == []
    assert {danger.code for danger in client.perform(records.health())} == {"persistence"}
    with lockkit.connect(f"redis+cluster://{group.replicas[2].address}") as elsewhere:
        # After a fail-over servers agree on it when they have heard of each other.
        eventually(lambda: _server_of(elsewhere) == _server_of(client))
        assert _server_of(client)


def test_the_first_order_of_a_process_needs_all_servers(group: ClusterGroup) -> None:
    """Another release of lockkit might keep the same order on the one that is not asked."""
    stopped, brief = group.masters[1], {"socket_timeout": 1.0}
    names = (n for n in one_of_each_bucket() if owner_of(group, slot_of_name(n)) is not stopped)
    with ExitStack() as stack:
        known, new = (
            stack.enter_context(lockkit.connect(group.url, ttl=60.0, options=brief)) for _ in "ab"
        )
        assert _claimed(known, next(names))
        with new.lock(next(names)):
            stopped.pause()
        stack.callback(stopped.resume)
        assert _claimed(known, next(names))
        with pytest.raises(lockkit.BackendUnavailable):
            _claimed(new, next(names))
        stopped.resume()
        assert _claimed(new, next(names))


def _claimed(client: lockkit.LockClient, name: str) -> bool:
    records = client.store.records()
    assert records is not None
    with client.lock(name) as lease:
        claim = records.claim(name, lease.fencing_token, b"it", 60.0, running=True, replaces=False)
        return client.perform(claim) is ClaimReply.WRITTEN


def _server_of(client: AnyClient | lockkit.LockClient) -> str | None:
    assert isinstance(client.store, OnServer)
    return client.perform(client.store.server())


def _all_pages(client: AnyClient, records: Any) -> list[Any]:
    found, cursor = client.perform(records.orphans())
    while cursor is not None:
        entries, cursor = client.perform(records.orphans(None, cursor))
        found = [*found, *entries]
    return list(found)


def test_it_is_told_which_url_to_use(group: ClusterGroup) -> None:
    elsewhere = next(n for n in one_of_each_bucket() if slot_of_name(n) > SLOTS // 2)
    client = lockkit.connect(group.masters[0].url)
    with pytest.raises(lockkit.StoreRefused, match=r"redis\+cluster://"):
        client.lock(elsewhere).acquire()
    client.close()


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_server_that_has_left_the_cluster_is_passed_over(group: ClusterGroup, api: Api) -> None:
    with ClusterServer(None) as gone:
        only = connect(api, f"redis+cluster://{gone.address}")
        with pytest.raises(lockkit.BackendUnavailable, match="is in no cluster with slots"):
            only.lock("stock:1").acquire(timeout=0)
        only.close()
        client = connect(api, group.url.replace("://", f"://{gone.address},"))
        for name in one_of_each_bucket():
            assert client.lock(name).acquire().release()
        client.close()


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_slot_that_nobody_had_is_looked_for_again(api: Api) -> None:
    """As while the cluster is being made, when the first program uses it."""
    with ClusterServer(None) as server, ExitStack() as stack:
        server.says("CONFIG SET", "cluster-require-full-coverage", "no")
        here, there = sorted(one_of_each_bucket(), key=slot_of_name)[:: BUCKETS - 1]
        server.says("CLUSTER ADDSLOTSRANGE", 0, slot_of_name(here))
        client = connect(api, f"redis+cluster://{server.address}")
        stack.callback(client.close)
        at_last(client.lock(here).acquire).release()
        with pytest.raises(lockkit.BackendUnavailable, match="has this slot"):
            client.lock(there).acquire(timeout=0)
        server.says("CLUSTER ADDSLOTSRANGE", slot_of_name(here) + 1, SLOTS - 1)
        assert client.lock(there).acquire(timeout=0).release()


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_server_that_has_left_the_cluster_keeps_no_connection(
    group: ClusterGroup, api: Api
) -> None:
    with ClusterServer(None) as gone:
        client = connect(api, group.url.replace("://", f"://{gone.address},"))
        for name in one_of_each_bucket():
            assert client.lock(name).acquire().release()
        with gone.client() as admin:
            eventually(lambda: len(admin.client_list()) == 1)
        client.close()


def test_clients_do_not_all_begin_at_one_server() -> None:
    """Each subscribes there."""
    clients = [lockkit.connect("redis+cluster://h1,h2,h3") for _ in range(40)]
    assert len({client.store._connections.fresh.server() for client in clients}) == 3


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_subscription_at_a_server_that_leaves_the_cluster_is_made_elsewhere(
    group: ClusterGroup, other: lockkit.LockClient, api: Api
) -> None:
    """That server stays up and answers, so only waiters who were handed a lock can notice that its
    messages do not come."""
    with ClusterServer(None) as leaving:
        join(group, leaving)
        client = connect(api, group.url, ttl=6.0)
        while not is_listened_to(leaving):
            for node in (*group.nodes, leaving):
                node.says("CLIENT KILL TYPE pubsub")
            hand_over(other, client)
        for node in group.nodes:
            node.says("CLUSTER FORGET", leaving.name)
        leaving.says("CLUSTER RESET", "HARD")
        assert is_listened_to(leaving)
        until(lambda: hand_over(other, client) or not is_listened_to(leaving), "it moves on")
        assert any(is_listened_to(node) for node in group.nodes)
        client.close()


def join(group: ClusterGroup, server: ClusterServer) -> None:
    """As a second replica of the first master."""
    master = group.masters[0]
    server.name = server.says("CLUSTER MYID").decode()
    for node in group.nodes:
        server.says("CLUSTER MEET", HOST, node.port, node.bus)
    known = len(group.nodes) + 1
    until(lambda: all(group.knows(n) == known for n in (*group.nodes, server)), "all know it")
    server.says("CLUSTER REPLICATE", master.name)
    until(lambda: all(_names(node, server) for node in group.nodes), "clients hear of it")


def _names(node: ClusterServer, server: ClusterServer) -> bool:
    ports = [each[1] for _, _, *found in node.says("CLUSTER SLOTS") for each in found]
    return server.port in ports


def hand_over(giver: lockkit.LockClient, taker: AnyClient) -> None:
    lease = giver.lock("stock:42", ttl=60).acquire()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(taker.lock("stock:42", timeout=SOON).acquire)
        until(lambda: (info := giver.inspect("stock:42")) and info.waiters, "it waits")
        assert lease.release()
        waiting.result().release()


def is_listened_to(server: ClusterServer) -> bool:
    return bool(server.says("PUBSUB CHANNELS", "*"))


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_server_that_is_cut_off_from_the_others_is_passed_over(
    group: ClusterGroup, api: Api
) -> None:
    """It still believes that slots are its own, says so, and serves nobody (CLUSTERDOWN)."""
    with ClusterServer(None) as cut_off:
        cut_off.says("CLUSTER ADDSLOTSRANGE", 0, SLOTS // 2)
        its = [name for name in one_of_each_bucket() if slot_of_name(name) <= SLOTS // 2]
        only = connect(api, f"redis+cluster://{cut_off.address}")
        with pytest.raises(lockkit.BackendUnavailable, match="CLUSTERDOWN"):
            only.lock(its[0]).acquire(timeout=0)
        only.close()
        client = connect(api, group.url.replace("://", f"://{cut_off.address},"))
        for name in its:
            assert client.lock(name).acquire().release()
        client.close()


def test_a_master_is_killed_while_many_lock() -> None:
    """Where all was passed on, no second holder, neither of its names nor of the others'. It comes
    back as a replica: without one, nothing could be passed on."""
    names = one_of_each_bucket()
    its, others = (
        next(name for name in names if (slot_of_name(name) < SLOTS // 3) is of_the_victim)
        for of_the_victim in (True, False)
    )
    patient = {"wait_replicas": 1, "socket_timeout": 10.0}
    with ClusterGroup() as group:
        clients = [lockkit.connect(group.url, ttl=TTL, options=patient) for _ in range(6)]
        with Rush(clients[:3], its) as rush, Rush(clients[3:], others) as rush_of_others:
            rush.goes_on()
            group.fail_over_after(1000)
            group.masters[0].kill()
            rush_of_others.goes_on()
            until(
                lambda: group.replicas[0].says("ROLE")[0] == b"master", "its replica is the master"
            )
            group.masters[0].start()
            rush.goes_on()
        for client in clients:
            client.close()


@pytest.mark.parametrize("api", ["sync", "async"])
def test_what_was_held_when_a_master_was_killed(api: Api) -> None:
    """The names of the others go on; its own do as soon as its replica is the master. What was
    passed on is held as before, what was not is lost and said; fences go on growing."""
    with ClusterGroup() as group:
        client = connect(api, group.url, ttl=60.0)
        victim, replica = group.masters[0], group.replicas[0]
        names = one_of_each_bucket()
        leases = {name: client.lock(name).acquire() for name in names}
        its = [name for name in names if slot_of_name(name) < SLOTS // 3]
        with victim.client() as admin:  # WAIT is for what this connection has written
            assert admin.hset(b"{lockkit:%d}:b" % bucket_of(its[0]), "", "")
            assert admin.wait(1, 10_000) == 1
        with replica.client() as admin:
            admin.config_set("masterauth", "that-nobody-knows")
            admin.execute_command("CLIENT KILL TYPE master")
        late = [f"{name}:lost" for name in names]
        lost = [client.lock(n).acquire() for n in late if slot_of_name(n) < SLOTS // 3]
        group.fail_over_after(1000)
        victim.kill()

        others = next(name for name in names if name not in its)
        until(lambda: _extended(leases[others]), "the others are extended")
        with lockkit.connect(group.url, ttl=60.0) as other:
            at_last(lambda: [other.inspect(name) for name in its])
            group.fail_over_after(CALM)
            for name in its:
                assert other.lock(name).try_acquire() is None
            for lease in lost:
                taken = other.lock(lease.name).acquire()
                assert taken.fencing_token > lease.fencing_token
                with pytest.raises(lockkit.LeaseLost):
                    lease.extend()
                taken.release()
            for lease in leases.values():
                at_last(lease.extend)
                assert lease.release()
            assert not any(lease.release() for lease in lost)
        client.close()


def _extended(lease: Any) -> bool:
    try:
        lease.extend()
    except lockkit.BackendError:
        return False
    return True


def test_what_is_renewed_together_fails_apart(
    group: ClusterGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server is stopped: the leases at the others are extended in the same step, and listed. It
    is asked once, or those at the others would be reached too late."""
    names = one_of_each_bucket()
    with lockkit.connect(group.url, ttl=60.0, options={"socket_timeout": 3.0}) as client:
        store = client.store
        owner = Owner("host", 1, "thread", "").encode()
        requests = [Request(name, new_token(), 60.0, owner, mode=Mode.TRY) for name in names]
        for request in requests:
            assert isinstance(client.perform(store.acquire(request)), Grant)
        stopped = group.masters[1]
        its = {n for n in names if owner_of(group, slot_of_name(n)) is stopped}
        before = connections_to(stopped)
        asked: list[Any] = []
        ask = store._confirmed

        def confirmed(commands: Any) -> Any:
            asked.extend(owner_of(group, slot_of_command(each.packed)) for each in commands)
            return ask(commands)

        monkeypatch.setattr(store, "_confirmed", confirmed)
        stopped.pause()
        try:
            renewals = client.perform(store.extend(requests))
            failed = {
                r.name for r, renewal in zip(requests, renewals, strict=True) if renewal.error
            }
            assert failed == its
            assert asked.count(stopped) == 1
            listed, error = _listed(client)
            assert listed == set(names) - its
            assert isinstance(error, lockkit.BackendError)
        finally:
            stopped.resume()
        for request in requests:
            step: Step[Release] = store.release(request)
            assert client.perform(step) is Release.RELEASED
        tried = connections_to(stopped) - before
        assert tried < len(its) / 2


def test_a_server_that_is_down_hides_no_orphan_of_the_others(group: ClusterGroup) -> None:
    brief = {"socket_timeout": 1.0}
    with lockkit.connect(group.url) as client, lockkit.connect(group.url, options=brief) as hasty:
        names = {left_behind(client, f"A-{number}").lock_name for number in range(12)}
        stopped = group.masters[1]
        its = {name for name in names if owner_of(group, slot_of_name(name)) is stopped}
        stopped.pause()
        try:
            shown = locks(hasty, "--format", "json")
        finally:
            stopped.resume()
        assert (shown.status, set(shown.names)) == (69, names - its)
        assert its
        for name in names:
            assert locks(client, "resolve", name, "--retry", "--yes").status == 0


def test_a_cluster_that_has_never_answered_is_asked_once_for_a_listing() -> None:
    """And not for each bucket: a server that is silent takes its socket_timeout each time."""
    with FaultProxy(HOST, 1) as seed, FaultProxy(HOST, 1) as another:
        url = f"redis+cluster://{HOST}:{seed.port},{HOST}:{another.port}"
        with lockkit.connect(url) as client, pytest.raises(lockkit.BackendUnavailable):
            list(client.holders())
        assert (seed.connections, another.connections) == (1, 1)


def test_nor_is_each_server_looked_for_if_all_are_gone(group: ClusterGroup) -> None:
    with ExitStack() as stack:
        ways = {
            server.port: stack.enter_context(FaultProxy(HOST, server.port))
            for server in (*group.masters, *group.replicas)
        }
        url = f"redis+cluster://{HOST}:{ways[group.masters[0].port].port}"
        remap = {"address_remap": lambda address: (HOST, ways[address[1]].port)}
        client = stack.enter_context(lockkit.connect(url, options=remap))
        list(client.holders())
        for way in ways.values():
            way.refuse()
            way.cut()
        before = sum(way.connections for way in ways.values())
        for step in (lambda: list(client.holders()), lambda: list(orphans(client))):
            with pytest.raises(lockkit.BackendUnavailable):
                step()
        tried = sum(way.connections for way in ways.values()) - before
        assert tried <= 2 * (len(ways) + 2)


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_silent_cluster_is_not_asked_through_at_each_try(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is silent takes its socket_timeout, and there may be many. Each has its turn: it
    may be the first to answer again."""
    monkeypatch.setattr(slots, "LOOK_SECONDS", 0.05)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(5)]
        hosts = ",".join(f"{HOST}:{each.getsockname()[1]}" for each in silent)
        client = connect(api, f"redis+cluster://{hosts}", options={"socket_timeout": 0.1})
        stack.callback(client.close)
        asked = []
        for _ in range(1 + len(silent)):
            with pytest.raises(lockkit.BackendUnavailable):
                client.lock("a").acquire(timeout=0)
            asked.append(select.select(silent, [], [], 0)[0])
            for each in asked[-1]:
                each.accept()[0].close()
        assert asked == [silent, *([each] for each in silent)]


def test_one_that_answers_is_found_among_many_that_do_not(
    group: ClusterGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "LOOK_SECONDS", 0.0)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(3)]
        hosts = ",".join(f"{HOST}:{each.getsockname()[1]}" for each in silent)
        url = group.url.replace("://", f"://{hosts},", 1)
        with lockkit.connect(url, options={"socket_timeout": 0.5}) as client:
            client.lock("a").acquire(timeout=0).release()


def test_a_waiter_does_not_look_for_messages_at_all_silent_servers_at_once(
    group: ClusterGroup, other: lockkit.LockClient
) -> None:
    """It has to ask for its claim in between, or it loses its place."""
    first = group.nodes[0]
    name = next(n for n in one_of_each_bucket() if owner_of(group, slot_of_name(n)) is first)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server((HOST, 0))) for _ in group.nodes[1:]]
        ports = {n.port: s.getsockname()[1] for n, s in zip(group.nodes[1:], silent, strict=True)}
        remap = {"address_remap": lambda address: (HOST, ports.get(address[1], address[1]))}
        options = {**remap, "socket_timeout": 1.0}
        url = f"redis+cluster://{first.address}"
        client = stack.enter_context(lockkit.connect(url, options=options))
        client.lock(name).acquire().release()  # looks for other things than messages
        nodes = [port for _, port in client.store._slots.nodes]
        client.store._connections.rotation._turn = count(nodes.index(first.port) + 1)
        for each in silent:
            each.setblocking(False)
            with suppress(BlockingIOError):
                each.accept()[0].close()
        stack.enter_context(other.lock(name))
        with pytest.raises(lockkit.AcquireTimeout):
            client.lock(name).acquire(timeout=0.1)
        assert len(select.select(silent, [], [], 0)[0]) <= len(("as it joined", "as it waited"))
        while not is_listened_to(first):
            with pytest.raises(lockkit.AcquireTimeout):
                client.lock(name).acquire(timeout=0.1)


@pytest.fixture
def apart(group: ClusterGroup) -> Iterator[tuple[lockkit.LockClient, list[Hold], list[Hold]]]:
    """Leases of a server that is silent, and then those of the others."""
    names = one_of_each_bucket()
    options = {"socket_timeout": 1.0}  # more than RETRY_WITHIN
    with ExitStack() as stack:
        patient = stack.enter_context(lockkit.connect(group.url, ttl=60.0))
        client = stack.enter_context(lockkit.connect(group.url, ttl=60.0, options=options))
        stopped = group.masters[1]
        leases = [patient.lock(name).acquire() for name in names]
        assert len(list(client.holders())) == len(names)  # it knows all servers
        for lease in leases:
            stack.callback(give_back, lease)
        holds = [lease._hold for lease in leases]
        its = [h for h in holds if owner_of(group, slot_of_name(h.name)) is stopped]
        stopped.pause()
        stack.callback(stopped.resume)
        yield client, its, [hold for hold in holds if hold not in its]


def test_a_silent_server_is_asked_last_for_renewals(
    apart: tuple[lockkit.LockClient, list[Hold], list[Hold]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leases at the others have been renewed by then."""
    client, its, others = apart
    asked: list[set[str]] = []
    renew = client.store.renew

    def renewed(requests: Any) -> Any:
        asked.append({request.name for request in requests})
        return renew(requests)

    monkeypatch.setattr(client.store, "renew", renewed)
    for _ in range(2):
        client.perform(holding.renew(client.store, [*its, *others]))
        assert all(hold.failing_since is not None for hold in its)
        assert not any(hold.failing_since for hold in others)
    assert len(asked) == 6
    assert asked[-1] == {hold.name for hold in its}


def test_what_is_released_at_the_exit_fails_apart(
    apart: tuple[lockkit.LockClient, list[Hold], list[Hold]],
    other: lockkit.LockClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The silent server is asked for one name."""
    client, its, others = apart
    asked: set[str] = set()
    release = client.store.release

    def released(request: Request) -> Any:
        asked.add(request.name)
        return release(request)

    monkeypatch.setattr(client.store, "release", released)
    client.perform(holding.release_all(client.store, [*its, *others]))
    assert not any(other.inspect(hold.name) for hold in others)
    assert asked == {hold.name for hold in [its[0], *others]}


def test_a_refused_bucket_is_refused_alone(group: ClusterGroup, other: lockkit.LockClient) -> None:
    """Its server answers well to all other requests of the same step."""
    names = one_of_each_bucket()
    owner = Owner("host", 1, "thread", "").encode()
    requests = [Request(name, new_token(), 60.0, owner, mode=Mode.TRY) for name in names]
    for request in requests:
        assert isinstance(other.perform(other.store.acquire(request)), Grant)
    bucket = b"{lockkit:%d}:b" % bucket_of(names[0])
    with owner_of(group, slot_of(bucket)).client() as admin:
        record = admin.dump(bucket)
        admin.set(bucket, "not a hash")
        renewals = other.perform(other.store.extend(requests))
        admin.restore(bucket, 0, record, replace=True)
    assert [renewal.error is not None for renewal in renewals] == [True] + [False] * 63
    for request in requests:
        assert other.perform(other.store.release(request)) is Release.RELEASED


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_slot_that_is_on_its_way_delays_no_renewal(group: ClusterGroup, api: Api) -> None:
    """One claim alone cannot be renewed or released: what it needs is half here, half there."""
    names = one_of_each_bucket()
    ttl = 1.5
    client = connect(api, group.url, ttl=ttl)
    slot = slot_of_name(names[0])
    source = owner_of(group, slot)
    target = next(one for one in group.masters if one is not source)
    bucket = b"{lockkit:%d}:b" % bucket_of(names[0])

    def all_are_held() -> bool:
        halfway = client.semaphore(names[0], permits=2).acquire()
        leases = [client.lock(name).acquire() for name in names[1:]]
        begin(slot, source, target)
        source.says("MIGRATE", HOST, target.port, bucket, 0, 5000)
        try:
            until(lambda: halfway.state is not lockkit.LeaseState.HELD, "its renewal fails")
            with pytest.raises(lockkit.BackendError):
                halfway.release()  # and is tried again
            threading.Event().wait(1.5 * ttl)
            held = {lease.state for lease in leases} == {lockkit.LeaseState.HELD}
            released = [lease.release() for lease in leases]
            return held and all(released)
        finally:
            finish(group, slot, source, target)
            move(group, slot, source)

    with closing(client):
        at_least_once(all_are_held)


def connections_to(server: ClusterServer) -> int:
    return int(server.says("INFO", "stats")["total_connections_received"])


def _listed(client: lockkit.LockClient) -> tuple[set[str], Exception | None]:
    found = set()
    try:
        for info in client.holders():
            found.add(info.name)
    except lockkit.BackendError as error:
        return found, error
    return found, None
