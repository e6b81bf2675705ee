"""What is special to ZooKeeper: nodes, watches, sessions, users, TLS."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from errno import ECONNREFUSED, EMFILE
from functools import partial
from math import inf
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from command_line import locks as locks_command
from damaging import EXAMPLES
from hypothesis import given
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError, NotEmptyError, SessionExpiredError
from kazoo.security import make_acl, make_digest_acl
from steps import rest_of
from tls_ends import TLSEnd

import lockkit
from lockkit import aio
from lockkit.engine.effects import Effect, Step
from lockkit.engine.times import alive_for
from lockkit.model.clock import now
from lockkit.model.errors import (
    AcquireTimeout,
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    LeaseLost,
    OutcomeUnknown,
    StoreRefused,
    UnsupportedCapability,
)
from lockkit.model.types import Busy, Gone, Grant, LockState, Mode, Release, Request
from lockkit.stores.zookeeper import listing, requests
from lockkit.stores.zookeeper.failures import told, unreachable
from lockkit.stores.zookeeper.handler import Handler
from lockkit.stores.zookeeper.nodes import guid_of
from lockkit.stores.zookeeper.requests import Reply, join
from lockkit.stores.zookeeper.session import Session
from lockkit.testing.blocking import AnyClient, Api, BlockingClient, connect
from lockkit.testing.conformance.base import SLACK, SOON, at_least_once, eventually
from lockkit.testing.conformance.steps import claim
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import ZooKeeperServer

TTL = 0.5
CANARY = "canary-7f3a"
WAITERS = 5
MANY = 300
LONG = 60.0
PATIENT = {"connect_timeout": LONG, "request_timeout": LONG}


@pytest.fixture(scope="module")
def server(other_servers: None) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def url(server: ZooKeeperServer, request: pytest.FixtureRequest) -> str:
    """A chroot of its own for each test; it is made when it is needed."""
    return server.url.replace("/lockkit", f"/{abs(hash(request.node.name))}/deep")


@pytest.fixture
def locks(url: str) -> Iterator[lockkit.LockClient]:
    with lockkit.connect(url, options=PATIENT) as client:
        yield client


@pytest.fixture
def other(url: str) -> Iterator[lockkit.LockClient]:
    with lockkit.connect(url, options=PATIENT) as client:
        yield client


@pytest.fixture(params=["sync", "async"])
def api(request: pytest.FixtureRequest) -> Api:
    return request.param


@pytest.fixture
def either(api: Api, url: str) -> Iterator[AnyClient]:
    """A client of each API."""
    client = connect(api, url, options=PATIENT)
    yield client
    (client.stop if isinstance(client, BlockingClient) else client.close)()


@pytest.fixture
def tree(server: ZooKeeperServer, url: str) -> Iterator[KazooClient]:
    """As others see it."""
    client = KazooClient(url.removeprefix("zookeeper://"))
    client.start_async().wait(20)
    yield client
    client.stop()
    client.close()


def claims(tree: KazooClient, name: str) -> list[str]:
    with suppress(NoNodeError):  # its folder goes with the last
        return sorted(tree.get_children(f"/lockkit/locks/{name}"), key=lambda n: n[-10:])
    return []


def test_a_claim_is_an_ephemeral_node_and_its_folder_goes_with_the_last(
    locks: lockkit.LockClient, tree: KazooClient
) -> None:
    for number in range(20):
        locks.lock(f"order:{number}").acquire().release()
    assert tree.get_children("/lockkit/locks") == []
    with locks.lock("stock") as lease:
        (node,) = claims(tree, "stock")
        data, stat = tree.get(f"/lockkit/locks/stock/{node}")
        assert stat.ephemeralOwner
        assert lease.token.encode() not in data
        assert lease.token not in node
        assert lease.fencing_token == stat.czxid + 2**52


def test_a_try_leaves_no_node(
    locks: lockkit.LockClient, other: lockkit.LockClient, tree: KazooClient
) -> None:
    with locks.lock("stock"):
        before = tree.exists("/lockkit/locks/stock").cversion  # it counts what comes and goes
        for _ in range(5):
            assert other.lock("stock").try_acquire() is None
        assert tree.exists("/lockkit/locks/stock").cversion == before


def test_each_waiter_watches_only_the_one_before_it(
    server: ZooKeeperServer, locks: lockkit.LockClient, url: str, tree: KazooClient
) -> None:
    """So the end of one wakes one, and not all."""
    clients = [lockkit.connect(url) for _ in range(WAITERS)]
    with ThreadPoolExecutor(WAITERS) as threads:
        waiting = []
        lease = locks.lock("stock").acquire()
        for number, client in enumerate(clients):
            waiting.append(threads.submit(client.lock("stock").acquire))
            eventually(lambda: len(claims(tree, "stock")) == number + 2)  # noqa: B023
        eventually(lambda: watches(server) == WAITERS)
        lease.release()
        for future in waiting:
            future.result().release()
            assert watches(server) < WAITERS
    for client in clients:
        client.close()
    assert watches(server) == 0


def watches(server: ZooKeeperServer) -> int:
    told = eventually(lambda: server.ask("mntr"))
    return int(told.partition("zk_watch_count\t")[2].split()[0])


def test_waiters_that_give_up_leave_one_watch(
    server: ZooKeeperServer, locks: lockkit.LockClient, other: lockkit.LockClient
) -> None:
    with locks.lock("stock"):
        for _ in range(20):
            with pytest.raises(AcquireTimeout):
                other.lock("stock").acquire(timeout=0.01)
        assert watches(server) == 1


def test_a_waiter_is_woken_though_another_one_looked_before_it_came(
    either: AnyClient, other: lockkit.LockClient
) -> None:
    """The other one has read the queue without it, and joins behind it after it fell asleep."""
    store: Any = either.store
    late = claim("stock", Mode.ENQUEUE)
    lease = other.lock("stock").acquire()
    step = store.acquire(late)
    reply = either.perform(first_of(step))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(either.lock("stock").acquire)
        eventually(lambda: any(node.is_watching for node in nodes_of(store)))
        (signal,) = (node.signal for node in nodes_of(store) if node.is_watching)
        assert isinstance(either.perform(rest_of(step, reply)), Busy)
        lease.release()
        waiting.result().release()
        assert signal.is_set  # else it asked again by itself, after a second
    assert isinstance(either.perform(store.acquire(late)), Grant)
    assert either.perform(store.release(late)) is Release.RELEASED


def nodes_of(store: Any) -> list[Any]:
    return list(store._nodes._nodes.values())


def first_of(step: Step[Any]) -> Step[Any]:
    """The reply to its first request."""
    return (yield next(step))


def test_a_node_whose_creation_got_no_reply_is_found_again(
    server: ZooKeeperServer, url: str, tree: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy("127.0.0.1", server.port) as proxy:
        far = lockkit.connect(url.replace(f":{server.port}", f":{proxy.port}"))
        far.lock("warm-up").acquire().release()
        monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", SOON)
        for _ in range(5):
            fault = proxy.drop_replies(matching=b'"owner"')
            lease = far.lock("stock").acquire()
            assert fault.happened.wait(5)
            assert len(claims(tree, "stock")) == 1
            assert lease.release()
            assert claims(tree, "stock") == []
        far.close()


def test_a_grant_whose_reply_is_read_late_is_confirmed_anew(
    either: AnyClient, tree: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its node would stay, which nobody extends and nobody deletes: its session lives."""
    ends, late = Session.ends, [1.0]

    def first_is_late(session: Session, sent: float) -> float:
        return sent if late and late.pop() else ends(session, sent)

    monkeypatch.setattr(Session, "ends", first_is_late)
    with either.lock("stock", timeout=SOON).acquire() as lease:
        assert not late
        assert len(claims(tree, "stock")) == 1
        lease.check()
    assert claims(tree, "stock") == []


def test_a_lease_after_a_pause_counts_from_what_was_sent_before_it(url: str) -> None:
    """A process that is stopped sends no pings."""
    ttl, paused = 4.0, 3.2

    def counts_from_before() -> bool:
        with lockkit.connect(url, ttl=ttl) as client:
            with client.lock("stock"):
                session, over = session_of(client, "stock"), threading.Event()
            session.run(lambda: over.wait(paused) or over.set())
            assert over.wait(SOON)
            with client.lock("stock").acquire() as lease:
                return lease.remaining() <= ttl - paused

    at_least_once(counts_from_before)  # a machine that stalls pauses it for longer


def test_an_operators_words_reach_the_holder(
    locks: lockkit.LockClient, other: lockkit.LockClient
) -> None:
    for by in ("anna, because it hung", "ben, once more"):
        lease = locks.lock("stock").acquire()
        assert other.break_("stock", fence=lease.fencing_token, by=by)
        with pytest.raises(LeaseLost, match=by):
            lease.extend()
        assert not lease.release()
        (words,) = other.last_words("stock")
        assert (words.broken_by, words.fence) == (by, lease.fencing_token)
    assert [info.name for info in other.last_words()] == ["stock"]


def test_the_words_of_so_many_are_kept(
    locks: lockkit.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SLOTS", 2)
    for name in ("a", "b", "c"):
        lease = locks.lock(name).acquire()
        assert locks.break_(name, fence=lease.fencing_token)
        assert not lease.release()
    assert sorted(info.name for info in locks.last_words()) == ["b", "c"]


FIELDS = ("owner", "ttl", "max_hold", "granted", "by", "fence", "guid", "name")
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
    | st.sampled_from([10**400, -(10**400), 1e308, [], {}, "9\0" * 9])
)  # fmt: skip
DOCUMENTS = st.dictionaries(st.sampled_from(FIELDS), VALUES).map(lambda d: json.dumps(d).encode())
NESTED = b"[" * 100_000


@EXAMPLES
@given(damage=st.binary(max_size=40) | DOCUMENTS | st.just(NESTED) | st.none())
def test_data_that_cannot_be_read_is_a_row_and_no_obstacle(
    locks: lockkit.LockClient, other: lockkit.LockClient, tree: KazooClient, damage: bytes | None
) -> None:
    lease = locks.lock("stock").acquire()
    try:
        (node,) = claims(tree, "stock")
        tree.set(f"/lockkit/locks/stock/{node}", damage)
        seen(other, "stock")
        assert other.lock("stock").try_acquire() is None
        assert other.break_("stock", fence=lease.fencing_token)
        tree.set("/lockkit/broken/stock", damage)
        seen(other)
    finally:
        assert not lease.release()


@pytest.mark.parametrize("unreadable", [b"\xff", b"{", b"[]"])
def test_data_that_cannot_be_read_is_not_damage_and_is_written_anew(
    locks: lockkit.LockClient, other: lockkit.LockClient, tree: KazooClient, unreadable: bytes
) -> None:
    store: Any = locks.store
    request = claim("stock")._replace(ttl=LONG)
    grant = locks.perform(store.acquire(request))
    (before,) = other.holders()
    (node,) = claims(tree, "stock")
    tree.set(f"/lockkit/locks/stock/{node}", unreadable)
    (found,) = other.holders()
    assert (found.state, found.owner, found.fence) == (LockState.HELD, None, grant.fence)
    listed = json.loads(locks_command(other, "list", "--format", "json").out)
    assert [row["stuck"] for row in listed["locks"]] == ["no-ttl"]
    assert not other.repair("stock")
    (renewal,) = locks.perform(store.extend([request]))
    assert renewal.left
    (again,) = other.holders()
    assert (again.owner, again.fence) == (before.owner, grant.fence)
    tree.set(f"/lockkit/locks/stock/{node}", unreadable)
    assert locks_command(other, "release", "stock", "--yes").status == 0
    assert claims(tree, "stock") == []


def seen(client: lockkit.LockClient, *names: str) -> None:
    """An operator can look at it, in every format."""
    for form in ("table", "wide", "json", "jsonl"):
        looked = locks_command(client, "list", "--lost", "--format", form)
        assert looked.status == 0
        assert all(name in looked.out for name in names)


def test_what_others_put_into_a_folder_holds_nothing(
    locks: lockkit.LockClient, other: lockkit.LockClient, tree: KazooClient
) -> None:
    lease = locks.lock("stock").acquire()
    tree.create("/lockkit/locks/stock/a-note")
    assert lease.release()
    with other.lock("stock", timeout=0):
        assert [info.name for info in other.holders()] == ["stock"]
    tree.delete("/lockkit/locks/stock/a-note")


def test_a_session_has_the_ttl_of_its_claims(server: ZooKeeperServer, url: str) -> None:
    """So each ttl is kept when a process dies."""
    with lockkit.connect(url, ttl=20) as client:
        leases = [client.lock(f"n{n}", ttl=ttl).acquire() for n, ttl in enumerate((3, 5, 5, 20))]
        assert sorted(timeouts(server)) == [3000, 5000, 20000]
        assert all(lease.release() for lease in leases)


def timeouts(server: ZooKeeperServer) -> list[int]:
    lines = eventually(lambda: server.ask("cons")).splitlines()
    return [int(each.partition("to=")[2].partition(",")[0]) for each in lines if "to=" in each]


def test_there_are_only_so_many_sessions(locks: lockkit.LockClient) -> None:
    leases = [locks.lock(f"n{ttl}", ttl=ttl).acquire() for ttl in range(10, 18)]
    with pytest.raises(ConfigurationError, match="8 different ttls"):
        locks.lock("n18", ttl=18).acquire()
    assert all(lease.release() for lease in leases)


def test_with_all_sessions_in_use_what_is_no_claim_asks_in_one_of_them(
    either: AnyClient, other: lockkit.LockClient, tree: KazooClient
) -> None:
    """None of them has the client's own ttl."""
    leases = [either.lock(f"n{ttl}", ttl=ttl).acquire() for ttl in range(10, 18)]
    assert other.break_("n10", fence=leases[0].fencing_token, by="anna")
    assert not leases[0].release()
    assert either.inspect("n11") is not None
    store: Any = either.store
    request = claim("stock")._replace(ttl=17.0)
    assert isinstance(either.perform(store.acquire(request)), Grant)
    store._nodes.forget(request.token)  # it was extended, and then not kept in time
    either.perform(store.release(request._replace(ttl=60.0)))
    assert claims(tree, "stock") == []
    assert all(lease.release() for lease in leases[1:])


def test_a_session_lasts_no_longer_than_the_protocol_can_say(
    other_servers: None, url: str, locks: lockkit.LockClient
) -> None:
    longest = (2**31 - 1) / 1000
    with pytest.raises(ConfigurationError, match="at most 2147483 s"):
        lockkit.connect(url, ttl=longest + 1)
    with pytest.raises(ConfigurationError, match="at most 2147483 s"):
        locks.lock("stock", ttl=longest + 1).acquire()
    with (
        ZooKeeperServer(f"maxSessionTimeout={2**31 - 1}") as server,
        lockkit.connect(server.url, ttl=longest, options=PATIENT) as client,
    ):
        lease = client.lock("stock").acquire()
        assert lease.remaining() > longest / 4
        lease.extend(longest + 1)
        assert lease.release()


def test_an_error_that_kazoo_does_not_know_is_that_of_one_request(
    locks: lockkit.LockClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The servers do not allow to be reconfigured, and say so by a number that kazoo has not."""
    lease = locks.lock("stock").acquire()
    session = session_of(locks, "stock")
    asked = session.send([lambda s: s.kazoo.reconfig_async("", "", "server.1=x:1:2;3", -1)])
    eventually(lambda: asked.is_set)
    with pytest.raises(BackendUnavailable, match="does not know") as caught:
        told(asked.said[0])
    assert not isinstance(caught.value, StoreRefused), "one is that of a server that throttles"
    assert "the error -123" in caplog.text
    assert not session.is_over
    lease.check()
    assert lease.release()


def refuse(monkeypatch: pytest.MonkeyPatch, module: str, kind: str, times: float = 1) -> list[str]:
    """The next requests of this kind are refused by a number that kazoo does not know, as one is by
    a server that throttles. The list has their paths."""
    make, refused = getattr(requests, kind), list[str]()

    def made(path: str) -> Any:
        if len(refused) >= times:
            return make(path)
        refused.append(path)
        return lambda s: s.kazoo.reconfig_async("", "", "server.1=x:1:2;3", -1)

    monkeypatch.setattr(f"lockkit.stores.zookeeper.{module}.{kind}", made)
    return refused


@pytest.mark.parametrize("what", ["children", "delete"])
def test_a_node_that_nobody_asks_for_goes_though_its_deletion_is_refused(
    locks: lockkit.LockClient, tree: KazooClient, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session goes on, and would keep it as long as the process lives."""
    store: Any = locks.store
    request = claim("stock")
    with locks.lock("other") as lease:
        assert isinstance(locks.perform(store.acquire(request)), Grant)
        refused = refuse(monkeypatch, "nodes", what)
        give_up(store, request)
        eventually(lambda: refused and claims(tree, "stock") == [])
        lease.check()


def test_a_server_that_throttles_is_not_asked_again_at_once(
    locks: lockkit.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockkit.stores.zookeeper.nodes.AGAIN_SECONDS", 60.0)
    store: Any = locks.store
    request = claim("stock")
    with locks.lock("other") as lease:
        assert isinstance(locks.perform(store.acquire(request)), Grant)
        refused = refuse(monkeypatch, "nodes", "children", times=inf)
        give_up(store, request)
        eventually(lambda: refused)
        for _ in range(5):  # in the same session, which answers in order
            lease.extend()
    assert len(refused) == 1


def test_a_claim_that_is_made_and_not_told_of_is_found_again(
    locks: lockkit.LockClient, tree: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks.lock("warm-up").acquire().release()
    monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", SOON)
    refused = refuse(monkeypatch, "queue", "stat")
    lease = locks.lock("stock").acquire()
    assert refused
    assert len(claims(tree, "stock")) == 1
    assert lease.release()


def test_a_server_that_may_not_be_up_to_date_is_not_asked_for_a_claim(
    locks: lockkit.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could say that there is no such claim, and nobody would give it back."""
    store: Any = locks.store
    request = claim("stock")
    assert isinstance(locks.perform(store.acquire(request)), Grant)
    store._nodes.forget(request.token)
    refuse(monkeypatch, "queue", "sync")
    with pytest.raises(BackendUnavailable):
        locks.perform(store.release(request))
    locks.perform(store.release(request))
    assert locks.lock("stock").acquire(timeout=0).release()


def test_a_release_after_its_client_was_closed_connects_no_more(
    either: AnyClient, server: ZooKeeperServer
) -> None:
    """Nobody would close that session: its thread would keep it alive."""
    lease = either.lock("stock", ttl=7.0).acquire()
    either.close()
    eventually(lambda: timeouts(server) == [])
    assert not lease.release()
    assert timeouts(server) == []


NO_FILES = OSError(EMFILE, os.strerror(EMFILE))
NO_THREADS = RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("__init__", NO_FILES),
        ("create_socket_pair", NO_FILES),
        ("spawn", NO_FILES),
        ("spawn", NO_THREADS),
    ],
)
def test_a_session_that_cannot_be_begun_is_replaced(
    locks: lockkit.LockClient, monkeypatch: pytest.MonkeyPatch, what: str, error: Exception
) -> None:
    """The process had too many open files, or threads, at that moment."""
    with monkeypatch.context() as patched:
        patched.setattr(Handler, what, Mock(side_effect=error))
        with pytest.raises(BackendUnavailable, match=r"Too many open files|start new thread"):
            locks.lock("stock").acquire()
    assert locks.lock("stock").acquire().release()


def test_a_server_that_cannot_be_reached_takes_no_memory() -> None:
    """As long as it is away, each request waits for it, and is forgotten."""
    options = {"connect_timeout": 0.5}
    with lockkit.connect("zookeeper://127.0.0.1:1/lockkit", options=options) as client:
        for _ in range(3):
            eventually(partial(is_unreachable, client, "refused"))
        (session,) = client._wire._sessions.values()  # type: ignore[attr-defined]
        assert session._opening == set()


def test_a_host_without_an_address_is_told_of() -> None:
    options = {"connect_timeout": 0.5}
    with (
        lockkit.connect("zookeeper://nowhere.invalid/lockkit", options=options) as client,
        pytest.raises(BackendUnavailable, match="none of its hosts has an address"),
    ):
        client.lock("stock").acquire()


def test_a_reason_is_told_no_longer_than_it_holds(server: ZooKeeperServer, url: str) -> None:
    """Nobody listened, then the server was back, and now it does not answer."""
    with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        lockkit.connect(
            url.replace(f":{server.port}", f":{proxy.port}"), options={"connect_timeout": 0.5}
        ) as far,
    ):
        eventually(lambda: works(far))
        with far.lock("stock"):
            handler = session_of(far, "stock")._handler
        handler.reason = ConnectionRefusedError(ECONNREFUSED, os.strerror(ECONNREFUSED))
        proxy.cut()
        eventually(lambda: works(far))
        proxy.half_open()
        proxy.cut()
        eventually(partial(is_unreachable, far, "no answer in time"))


def is_unreachable(client: lockkit.LockClient, why: str) -> bool:
    with pytest.raises(BackendError) as caught:
        client.lock("stock").acquire()
    return why in str(caught.value)


def test_any_number_of_requests_may_come_at_once(url: str) -> None:
    """A pipe of kazoo's has a byte for each of them, and takes a few hundred."""

    async def many() -> None:
        async with aio.connect(url, ttl=LONG, options=PATIENT) as client:
            claims = (
                client.lock(f"many:{number}", timeout=None).acquire() for number in range(MANY)
            )
            leases = await asyncio.gather(*claims)
            assert all(await asyncio.gather(*(lease.release() for lease in leases)))

    asyncio.run(many())


def test_a_server_that_grants_less_than_the_ttl_is_believed(other_servers: None) -> None:
    with (
        ZooKeeperServer("maxSessionTimeout=8000") as server,
        lockkit.connect(server.url, ttl=30, options=PATIENT) as client,
        client.lock("stock") as lease,
    ):
        assert 0 < lease.remaining() <= 8
        lease.extend(30)
        assert 0 < lease.remaining() <= 8


def test_a_server_that_grants_more_than_the_ttl_is_told_of(
    other_servers: None, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        ZooKeeperServer("minSessionTimeout=10000") as server,
        lockkit.connect(server.url, ttl=8, options=PATIENT) as client,
        client.lock("stock") as lease,
    ):
        assert 0 < lease.remaining() <= 8
        assert "a process that dies are free after 10 s" in caplog.text


def test_a_lease_of_a_blocked_event_loop_ends_at_its_ttl(url: str) -> None:
    """Its session lives: kazoo has a thread."""
    held, over, taken = threading.Event(), threading.Event(), []

    async def hold() -> None:
        async with aio.connect(url, ttl=TTL) as client:
            lease = await client.lock("stock").acquire()
            held.set()
            over.wait(20)
            taken.append(lease.lost)
            assert not await lease.release()

    with ThreadPoolExecutor(1) as threads, lockkit.connect(url) as other:
        future = threads.submit(asyncio.run, hold())
        held.wait(20)
        started = now()
        with other.lock("stock"):
            assert now() - started < TTL + SLACK
            over.set()
            future.result()
        assert list(other.last_words()) == []  # nobody has broken it
    assert taken == [True]


def test_a_waiter_that_does_not_ask_again_does_not_hold_up_the_others(
    locks: lockkit.LockClient, other: lockkit.LockClient
) -> None:
    """As one whose event loop was closed under it. Its session lives."""
    with other.lock("stock"):
        started = now()
        asked = locks.perform(locks.store.acquire(claim("stock", Mode.ENQUEUE)))
        assert isinstance(asked, Busy)
    with other.lock("stock"):
        assert 0.5 < now() - started < alive_for(30) + SLACK


WAITS = """
import sys, lockkit

with lockkit.connect(sys.argv[1], ttl=float(sys.argv[2])) as locks:
    locks.lock("stock").acquire()
"""


def test_a_waiter_whose_process_dies_costs_the_others_its_ttl_at_most(
    locks: lockkit.LockClient, other: lockkit.LockClient, tree: KazooClient, url: str
) -> None:
    """Its node lives as long as its session. The server counts from its last ping, which is sent
    in the first third of the TTL or sooner."""
    ttl = 6.0
    lease = other.lock("stock").acquire()
    run = [sys.executable, "-W", "ignore", "-c", WAITS, url, str(ttl)]
    with ThreadPoolExecutor(1) as threads, subprocess.Popen(run) as child:
        eventually(lambda: len(claims(tree, "stock")) == len(("held", "waits")))
        waiting = threads.submit(locks.lock("stock").acquire)
        eventually(lambda: len(claims(tree, "stock")) == len(("held", "waits", "waits")))
        killed = now()
        child.kill()
        child.wait()
        assert lease.release()
        taken = waiting.result()
        assert alive_for(ttl) < now() - killed < ttl + SLACK
        taken.release()


HOLDS = """
import os, sys, lockkit

locks = lockkit.connect(sys.argv[1], ttl=0.5)
for number in range(3):
    locks.lock(f"order:{number}").acquire()
os.abort()
"""


def test_the_folder_of_a_holder_whose_process_died_goes_as_well(
    locks: lockkit.LockClient, other: lockkit.LockClient, tree: KazooClient, url: str
) -> None:
    """However many names are used once: the server deletes it, within about a minute by default."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", HOLDS, url], check=False)
    with locks.lock("held") as lease:
        eventually(lambda: tree.get_children("/lockkit/locks") == ["held"])
        lease.check()
    with lockkit.connect(url, key_prefix="another") as another:
        assert another.perform(another.store.prefixes()) == {"lockkit": False}


def test_so_does_a_folder_that_was_made_anew_for_a_claim(
    locks: lockkit.LockClient, other: lockkit.LockClient, tree: KazooClient
) -> None:
    """It was there when the claim looked, and was gone when it came."""
    store: Any = locks.store
    lease = other.lock("stock").acquire()
    step = store.acquire(claim("stock", Mode.ENQUEUE))
    reply = replied(locks, next(step))
    assert lease.release()
    assert isinstance(finished(locks, step, reply), Grant)
    (node,) = claims(tree, "stock")
    tree.delete(f"/lockkit/locks/stock/{node}")  # as the end of its session does
    eventually(lambda: tree.get_children("/lockkit/locks") == [])


def test_a_node_that_is_being_deleted_is_not_granted(
    locks: lockkit.LockClient, other: lockkit.LockClient
) -> None:
    """The last reply to a waiter came so late that it was given up meanwhile."""
    store: Any = locks.store
    request = enqueued(locks, other)._replace(mode=Mode.POLL)
    step = store.acquire(request)
    reply = replied(locks, next(step))
    give_up(store, request)
    assert isinstance(finished(locks, step, reply), Gone)
    with other.lock("stock"):
        assert isinstance(locks.perform(store.acquire(request)), Gone)


def test_a_node_that_is_made_after_its_claim_was_given_up_is_deleted(
    locks: lockkit.LockClient, other: lockkit.LockClient, tree: KazooClient
) -> None:
    store: Any = locks.store
    request = claim("stock", Mode.ENQUEUE)
    with other.lock("stock"):
        step = store.acquire(request)
        joining = step.send(replied(locks, next(step)))
        give_up(store, request)
        assert isinstance(finished(locks, step, replied(locks, joining)), Gone)
        assert len(claims(tree, "stock")) == 1


@pytest.mark.parametrize("what", ["the listing", "the node", "the folder"])
def test_a_node_that_nobody_asks_for_goes_though_the_connection_breaks(
    server: ZooKeeperServer, url: str, tree: KazooClient, what: str
) -> None:
    """Again and again: its session goes on, and would keep it as long as the process lives."""
    request = claim("stock")
    guid = guid_of(request.token).encode()
    asked = {"the listing": b"/stock\0", "the node": guid, "the folder": b"/stock\xff"}[what]
    with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        lockkit.connect(url.replace(f":{server.port}", f":{proxy.port}")) as far,
    ):
        far.lock("warm-up").acquire().release()
        tree.create("/lockkit/locks/stock")  # no container, which the server itself deletes
        store: Any = far.store
        assert isinstance(far.perform(store.acquire(request)), Grant)
        session = store._nodes.get(request.token).session
        known = session.kazoo.client_id
        faults = [proxy.delay_requests(matching=asked) for _ in range(2)]
        give_up(store, request)
        for fault in faults:
            assert fault.arrived.wait(SOON)
            proxy.cut()
            fault.release()  # into a connection that is closed: it never arrives
        eventually(lambda: tree.get_children("/lockkit/locks") == [])
        assert (session.kazoo.client_id, session.ended) == (known, 0)


def test_a_waiter_whose_turn_it_is_keeps_it_while_it_asks(
    locks: lockkit.LockClient, other: lockkit.LockClient
) -> None:
    """A reply may take longer than a waiter counts as alive."""
    store: Any = locks.store
    request = enqueued(locks, other)
    step = store.acquire(request._replace(mode=Mode.POLL))
    asked = next(step)
    assert store._nodes.get(request.token).until > now() + alive_for(request.ttl)
    assert isinstance(finished(locks, step, replied(locks, asked)), Grant)
    assert locks.perform(store.release(request)) is Release.RELEASED


def test_what_was_asked_as_the_connection_dropped_is_not_done_in_the_next_session(
    server: ZooKeeperServer, url: str, tree: KazooClient
) -> None:
    """Whoever asked has given up by then, and nobody would delete what it makes."""
    with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        lockkit.connect(url.replace(f":{server.port}", f":{proxy.port}")) as far,
    ):
        far.lock("warm-up").acquire().release()
        session = far._wire._of(30_000)  # type: ignore[attr-defined]
        known = session.kazoo.client_id
        proxy.refuse()
        proxy.cut()
        eventually(lambda: not session.is_open)
        late = session.send([join(far.store.folder("late-"), b"")])  # type: ignore[attr-defined]
        double = KazooClient(f"127.0.0.1:{server.port}", client_id=known)
        double.start()
        double.stop()
        double.close()
        proxy.refuse(False)
        eventually(lambda: late.is_set)
        assert isinstance(late.said[0], SessionExpiredError)
        assert tree.get_children("/lockkit/locks") == []


def test_a_node_that_is_made_after_its_session_was_lost_is_found(
    locks: lockkit.LockClient, tree: KazooClient
) -> None:
    """The next session of the client has made it, and no reply came."""
    store: Any = locks.store
    request = claim("stock")
    locks.lock("warm-up").acquire().release()
    step = store.acquire(request)
    asked = step.send(replied(locks, next(step)))
    store._nodes.end_with(asked.payload.session)
    replied(locks, asked)
    with pytest.raises(OutcomeUnknown):
        step.throw(OutcomeUnknown("the connection broke"))
    assert len(claims(tree, "stock")) == 1
    locks.perform(store.release(request._replace(unsure=True)))
    assert claims(tree, "stock") == []


def test_a_node_of_this_session_is_found_and_keeps_its_fence(locks: lockkit.LockClient) -> None:
    store: Any = locks.store
    request = claim("stock")
    first = locks.perform(store.acquire(request))
    store._nodes.forget(request.token)  # as if no reply had come
    again = locks.perform(store.acquire(request._replace(unsure=True)))
    assert again.fence == first.fence


def test_what_a_session_has_made_that_was_left_is_claimed_anew(
    locks: lockkit.LockClient, tree: KazooClient
) -> None:
    """A lease would count by a session that lives, and the node end with the other one."""
    request = claim("stock", Mode.ENQUEUE)._replace(unsure=True)
    make_node(locks, tree, request)
    assert isinstance(locks.perform(locks.store.acquire(request)), Grant)
    (node,) = claims(tree, "stock")
    assert tree.exists(f"/lockkit/locks/stock/{node}").ephemeralOwner != tree.client_id[0]
    assert locks.perform(locks.store.release(request)) is Release.RELEASED


def test_what_a_session_has_made_that_was_left_is_released(
    locks: lockkit.LockClient, tree: KazooClient
) -> None:
    request = claim("stock")
    make_node(locks, tree, request)
    locks.perform(locks.store.release(request))
    assert claims(tree, "stock") == []


def make_node(locks: lockkit.LockClient, tree: KazooClient, request: Request) -> None:
    locks.lock("warm-up").acquire().release()  # it makes the chroot
    path = f"/lockkit/locks/{request.name}/{guid_of(request.token)}-"
    tree.create(path, b"{}", ephemeral=True, sequence=True, makepath=True)


def test_an_extension_that_was_overtaken_shortens_nothing(locks: lockkit.LockClient) -> None:
    """One thread extends for a moment, and is held up; another one renews for the whole ttl."""
    store: Any = locks.store
    first, claimed = claim("first", ttl=20.0), claim("stock")
    for request in (first, claimed):
        assert isinstance(locks.perform(store.acquire(request)), Grant)
    step = store.extend([each._replace(ttl=SLACK, number=1) for each in (first, claimed)])
    reply = replied(locks, next(step))
    (renewal,) = locks.perform(store.extend([claimed._replace(number=2)]))
    finished(locks, step, reply)
    locks.perform(store.extend([claimed._replace(ttl=SLACK, number=1)]))
    assert store._nodes.get(claimed.token).until > now() + SLACK
    assert renewal.left > SLACK


def test_a_node_that_may_not_be_written_keeps_no_other_from_being_renewed(
    locks: lockkit.LockClient, tree: KazooClient
) -> None:
    """Somebody has changed its ACL."""
    store: Any = locks.store
    requests = [claim(name) for name in ("first", "second", "third")]
    for request in requests:
        assert isinstance(locks.perform(store.acquire(request)), Grant)
    (node,) = claims(tree, "second")
    tree.set_acls(f"/lockkit/locks/second/{node}", [make_acl("world", "anyone", read=True)])
    renewals = locks.perform(store.extend([each._replace(number=1) for each in requests]))
    assert [type(renewal.error) for renewal in renewals] == [NoneType, StoreRefused, NoneType]
    assert all(renewal.left > SLACK for renewal in renewals[::2])
    for request in requests:
        assert locks.perform(store.release(request)) is Release.RELEASED


def expire(server: ZooKeeperServer, session: Session) -> None:
    """Another connection says that it is this session, and ends it. The session may connect again
    before that, and be in the way."""
    client_id = session.kazoo.client_id
    while not session.ended:
        double = KazooClient(f"127.0.0.1:{server.port}", client_id=client_id)
        double.start()
        double.stop()
        double.close()
        with suppress(AssertionError):
            eventually(lambda: session.ended, TTL)


def close(_server: ZooKeeperServer, session: Session) -> None:
    ended = session.stop()
    eventually(lambda: ended.is_set)


End = Callable[[ZooKeeperServer, Session], None]
ENDS = pytest.mark.parametrize("end", [expire, close])


@ENDS
def test_a_session_that_ends_as_its_first_claim_is_read_grants_nothing(
    server: ZooKeeperServer, either: AnyClient, other: lockkit.LockClient, end: End
) -> None:
    """Its thread was paused after the reply, and the name is somebody else's by now."""
    either.lock("warm-up").acquire().release()
    step = as_ended("begin", either.store.acquire(claim("stock")), other, partial(end, server))
    assert isinstance(either.perform(step), Gone)
    with other.lock("stock", timeout=0):
        pass


@ENDS
def test_a_session_that_ends_as_a_waiters_turn_is_read_grants_nothing(
    server: ZooKeeperServer, either: AnyClient, other: lockkit.LockClient, end: End
) -> None:
    request = enqueued(either, other)._replace(mode=Mode.POLL)
    step = as_ended("write", either.store.acquire(request), other, partial(end, server))
    assert isinstance(either.perform(step), Gone)


@ENDS
def test_a_session_that_ends_as_a_grant_is_asked_for_again_grants_nothing(
    server: ZooKeeperServer, either: AnyClient, other: lockkit.LockClient, end: End
) -> None:
    request = claim("stock")
    assert isinstance(either.perform(either.store.acquire(request)), Grant)
    step = as_ended("stat", either.store.acquire(request), other, partial(end, server))
    assert isinstance(either.perform(step), Gone)


@ENDS
def test_a_session_that_ends_as_a_waiters_place_is_read_lets_it_not_wait(
    server: ZooKeeperServer, either: AnyClient, other: lockkit.LockClient, end: End
) -> None:
    """It has no place any more."""
    request = claim("stock", Mode.ENQUEUE)
    with other.lock("stock"):
        step = as_ended("join", either.store.acquire(request), None, partial(end, server))
        busy = either.perform(step)
        started = now()
        assert either.perform(either.store.wait(request, LONG, busy)) is None
        assert now() - started < SOON
        assert isinstance(either.perform(either.store.acquire(request)), Gone)


def test_a_session_that_is_closed_between_two_requests_is_ended_at_the_server(
    either: AnyClient, other: lockkit.LockClient
) -> None:
    """Kazoo's thread has read a reply, and is about to look for the next request."""
    lease = either.lock("stock", ttl=LONG).acquire()
    session = session_of(either, "stock")

    def close(_: object) -> None:
        session.stop()
        session.kazoo._stopped.wait(0.3)

    session.run(lambda: session.kazoo.exists_async("/").rawlink(close))
    assert other.lock("stock").acquire(timeout=SOON).release()
    assert not lease.release()


def test_a_session_that_is_made_while_its_client_closes_is_stopped_by_the_next_close(
    locks: lockkit.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would have its thread and its socket for ever."""
    wire: Any = locks._wire
    locks.lock("stock").acquire().release()
    stop, made = Session.stop, []
    late = threading.Thread(target=lambda: made.append(wire._of(9000)))

    def stop_meanwhile(session: Session) -> object:
        late.start()
        late.join(0.3)  # it waits for the end of this
        return stop(session)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "stop", stop_meanwhile)
        locks.close()
    late.join()
    assert list(wire._sessions.values()) == made
    locks.close()
    assert made[0].is_over


def as_ended(
    asked: str,
    step: Step[Any],
    other: lockkit.LockClient | None,
    end: Callable[[Session], None],
) -> Step[Any]:
    """The same step, but its session ends before it reads the reply to what it has asked so. The
    other one gets the name then."""
    effect: Effect = next(step)
    while True:
        reply = yield effect
        made_by = [each.__qualname__.partition(".")[0] for each in effect.payload.requests]
        lease = None
        if asked in made_by:
            end(reply.session)
            lease = other and other.lock("stock").acquire(LONG)  # a lost goodbye costs a TTL
        try:
            effect = step.send(reply)
        except StopIteration as ended:
            return ended.value
        finally:
            if lease is not None:
                assert lease.release()


def enqueued(locks: AnyClient, other: lockkit.LockClient) -> Request:
    """A claim that has heard of the end of the one before it, and has not asked since."""
    store: Any = locks.store
    request = claim("stock", Mode.ENQUEUE)
    with other.lock("stock"):
        busy = locks.perform(store.acquire(request))
        assert isinstance(busy, Busy)
    locks.perform(store.wait(request, LONG, busy))
    return request


def give_up(store: Any, request: Request) -> None:
    """As its thread does with a claim that nobody asks for any more."""
    store._nodes.get(request.token).until = now()
    store._nodes.work()


def replied(locks: lockkit.LockClient, asked: Any) -> Any:
    return locks._wire.exchange(asked)


def finished(locks: lockkit.LockClient, step: Step[Any], reply: Any) -> Any:
    """What the step returns, at whose first request this is the reply."""
    try:
        while True:
            reply = replied(locks, step.send(reply))
    except StopIteration as ended:
        return ended.value


def test_the_process_enters_again_and_nobody_else_does(
    locks: lockkit.LockClient, other: lockkit.LockClient
) -> None:
    again = locks.lock("stock", reentrant=True)
    with again as outer, again as inner:
        assert inner.fencing_token == outer.fencing_token
        assert other.lock("stock", reentrant=True).try_acquire() is None
    assert other.lock("stock").acquire(0).release()


def test_what_it_cannot_do_is_refused(locks: lockkit.LockClient) -> None:
    for use in (
        partial(locks.semaphore, "stock", 3),
        partial(locks.rwlock, "stock"),
        partial(locks.lock, "stock", reentrant=True, owner="job-17"),
    ):
        with pytest.raises(UnsupportedCapability):
            use()


def test_fences_are_greater_than_those_of_other_stores(
    locks: lockkit.LockClient, redis_url: str, url: str
) -> None:
    with lockkit.connect(redis_url) as redis:
        before, lease = redis.lock("stock").acquire(), locks.lock("stock").acquire()
        assert lease.fencing_token > before.fencing_token
        assert before.release() and lease.release()
    with lockkit.connect(url, options={"fence_base": 2**60}) as later, later.lock("stock") as lease:
        assert lease.fencing_token > 2**60


def test_prefixes(locks: lockkit.LockClient, url: str) -> None:
    with lockkit.connect(url, key_prefix="a/b") as other, lockkit.connect(url, key_prefix="") as no:
        with locks.lock("stock"), other.lock("stock"), no.lock("stock"):
            assert locks.perform(locks.store.prefixes()) == {"a/b": True, "": True}
        assert locks.perform(locks.store.prefixes()) == {"a/b": False, "": False}


def test_a_prefix_that_an_acl_hides(url: str) -> None:
    """It is named, but not what it has."""
    secured = url.replace("zookeeper://", f"zookeeper://shop:{CANARY}@")
    with (
        lockkit.connect(secured) as client,
        lockkit.connect(url, key_prefix="open") as nobody,
        nobody.lock("stock"),
        client.lock("stock"),
    ):
        assert nobody.perform(nobody.store.prefixes()) == {"lockkit": None}


def test_an_acl_keeps_others_away(server: ZooKeeperServer, url: str, tree: KazooClient) -> None:
    secured = url.replace("zookeeper://", f"zookeeper://shop:{CANARY}@")
    with (
        lockkit.connect(secured) as client,
        lockkit.connect(url) as nobody,
        client.lock("stock"),
    ):
        with pytest.raises(StoreRefused, match="ACL"):
            nobody.lock("stock").acquire()
        with pytest.raises(StoreRefused):
            nobody.inspect("stock")
        with pytest.raises(NoAuthError):
            tree.get_children("/lockkit/locks/stock")
        with pytest.raises(StoreRefused):
            nobody.perform(nobody.store.prefixes())
    stranger = {"username": "other", "password": "x"}
    with lockkit.connect(url, options=stranger) as other, pytest.raises(StoreRefused):
        other.lock("stock").acquire()


def test_what_may_not_be_deleted_any_more_goes_with_its_session(
    server: ZooKeeperServer, api: Api, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a change of the password, which the ACL of a node contains."""
    now_used = [CANARY]
    login = {"username": "shop", "password": lambda: now_used[0]}
    with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        lockkit.connect(url, options={**login, "password": CANARY}) as other,
    ):
        near = url.replace(f":{server.port}", f":{proxy.port}")
        client = connect(api, near, ttl=TTL, options=login)
        lease = client.lock("stock").acquire()
        now_used[0] = "another"
        proxy.cut()
        eventually(lambda: lease.lost)
        with pytest.raises(StoreRefused, match="this password"):
            lease.release()
        with other.lock("stock").acquire(timeout=SOON):
            assert "refuses to delete a claim" in caplog.text
            assert CANARY not in caplog.text
        (client.stop if isinstance(client, BlockingClient) else client.close)()


def test_a_folder_that_may_not_be_deleted_ends_no_session(
    url: str, locks: lockkit.LockClient, tree: KazooClient
) -> None:
    """A user may have no right to delete in the folder above: the folder of the name stays."""
    locks.lock("warm-up").acquire().release()
    rights = [make_acl("world", "anyone", read=True, write=True, create=True)]
    tree.set_acls("/lockkit/locks", rights)
    store: Any = locks.store
    request = claim("stock")
    assert isinstance(locks.perform(store.acquire(request)), Grant)
    with locks.lock("other") as lease:
        give_up(store, request)
        eventually(lambda: claims(tree, "stock") == [])
        assert locks.lock("stock").acquire(timeout=0).release()
        lease.check()


def test_a_claim_that_was_refused_ends_no_session(url: str, tree: KazooClient) -> None:
    """Somebody with another password has just made the folder of the name."""
    both = [make_digest_acl("shop", each, all=True) for each in ("old", "new")]
    logins: list[dict[str, Any]] = [{"username": "shop", "password": p} for p in ("new", "old")]
    with lockkit.connect(url, options={**logins[1], "acl": both}) as first:
        first.lock("warm-up").acquire().release()
    locks, other = (lockkit.connect(url, ttl=60, options=login) for login in logins)
    with locks, other, locks.lock("healthy") as lease:
        store: Any = locks.store
        request = claim("stock")._replace(ttl=60)
        step = store.acquire(request)
        reply = locks.perform(first_of(step))
        with other.lock("stock"):
            with pytest.raises(StoreRefused):
                locks.perform(rest_of(step, reply))
            if store._nodes.get(request.token) is not None:
                give_up(store, request)
            later = claim("later")._replace(ttl=60)
            assert isinstance(locks.perform(store.acquire(later)), Grant)
            give_up(store, later)
            eventually(lambda: not tree.exists("/lockkit/locks/later"))  # nothing before it goes on
        lease.check()
        assert lease.release()


def test_a_password_is_changed_while_both_are_in_the_acl(url: str, tree: KazooClient) -> None:
    """The folders that stay are given that ACL once; then the processes change one by one."""
    old = {"username": "shop", "password": "old"}
    with lockkit.connect(url, options=old) as before:
        before.lock("stock").acquire().release()
        both = [make_digest_acl("shop", each, all=True) for each in ("old", "new")]
        tree.add_auth("digest", "shop:old")
        for folder in ("/lockkit", "/lockkit/locks"):
            tree.set_acls(folder, both)
    logins = [{**old, "acl": both}, {"username": "shop", "password": "new", "acl": both}]
    first, second = (lockkit.connect(url, options=login) for login in logins)
    with first, second:
        for one, another in ((first, second), (second, first)):
            with one.lock("stock") as lease:
                assert another.lock("stock").try_acquire() is None
        lease = first.lock("stock").acquire()
        assert second.break_("stock", fence=lease.fencing_token)
        assert not lease.release()


def test_others_may_look_if_the_acl_says_so(url: str) -> None:
    login = {"username": "shop", "password": CANARY, "acl": "creator-read"}
    with (
        lockkit.connect(url, options=login) as client,
        lockkit.connect(url) as nobody,
        client.lock("stock") as lease,
    ):
        info = nobody.inspect("stock")
        assert info is not None
        with pytest.raises(StoreRefused):
            nobody.break_("stock", fence=lease.fencing_token)
        lease.check()


def test_an_acl_of_ones_own(url: str) -> None:
    acl = [make_digest_acl("shop", "a", all=True), make_digest_acl("admin", "b", all=True)]
    logins = [{"username": "shop", "password": "a"}, {"username": "admin", "password": "b"}]
    shop, admin = (lockkit.connect(url, options={**login, "acl": acl}) for login in logins)
    with shop, admin, shop.lock("stock") as lease:
        assert admin.break_("stock", fence=lease.fencing_token)
        lease.released = True


def test_a_password_that_is_a_callable_is_asked_at_each_connection(
    server: ZooKeeperServer, url: str
) -> None:
    asked: list[str] = []

    def password() -> str:
        asked.append(CANARY)
        return CANARY

    with FaultProxy("127.0.0.1", server.port) as proxy:
        near = url.replace(f":{server.port}", f":{proxy.port}")
        options = {"username": "shop", "password": password}
        with lockkit.connect(near, options=options) as client:
            client.lock("stock").acquire().release()
            assert len(asked) == 1
            proxy.cut()
            eventually(lambda: works(client))
            assert len(asked) == 2


def works(client: lockkit.LockClient) -> bool:
    try:
        return client.lock("stock").acquire().release()
    except BackendError:
        return False


def test_a_password_that_cannot_be_had_is_an_error_and_asked_for_again(url: str) -> None:
    vault = {"open": False}

    def password() -> str:
        if not vault["open"]:
            raise OSError("the vault is shut")
        return CANARY

    with lockkit.connect(url, options={"username": "shop", "password": password}) as client:
        with pytest.raises(BackendUnavailable, match=r"OPTIONS\['password'\] has failed") as caught:
            client.lock("stock").acquire()
        assert isinstance(caught.value.__cause__, OSError)
        vault["open"] = True
        assert client.lock("stock").acquire().release()


class Vault:
    """It has a password, and fails so often when it is asked for that."""

    failures = 0.0

    def __call__(self) -> str:
        if self.failures > 0:
            self.failures -= 1
            raise OSError("the vault is shut")
        return CANARY


@pytest.fixture
def vault() -> Vault:
    return Vault()


@pytest.fixture
def proxy(server: ZooKeeperServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture
def guarded(
    api: Api, server: ZooKeeperServer, url: str, vault: Vault, proxy: FaultProxy
) -> Iterator[AnyClient]:
    """A client with the vault's password, whose connection can be cut."""
    login = {"username": "shop", "password": vault, "connect_timeout": SOON}
    near = url.replace(f":{server.port}", f":{proxy.port}")
    client = connect(api, near, ttl=TTL, options=login)
    yield client
    (client.stop if isinstance(client, BlockingClient) else client.close)()


def test_a_password_function_that_fails_once_ends_no_session(
    guarded: AnyClient, vault: Vault, proxy: FaultProxy
) -> None:
    lease = guarded.lock("stock", ttl=LONG).acquire()
    vault.failures = 2
    proxy.cut()
    assert guarded.lock("other", ttl=LONG).acquire().release()
    assert vault.failures == 0
    lease.check()
    assert lease.release()


def test_a_password_function_that_goes_on_failing_is_not_asked_for_ever(
    guarded: AnyClient, vault: Vault, proxy: FaultProxy
) -> None:
    """But as long as the session may live. Then a new one asks once for each request."""
    lease = guarded.lock("stock", ttl=3.0).acquire()
    session = session_of(guarded, "stock")
    vault.failures = inf
    proxy.cut()
    eventually(lambda: lease.lost)
    eventually(lambda: session.is_over)
    with pytest.raises(BackendUnavailable, match=r"OPTIONS\['password'\] has failed"):
        guarded.lock("stock").acquire()
    vault.failures = 0
    assert guarded.lock("stock", ttl=LONG).acquire().release()
    assert not lease.release()


def test_a_request_meanwhile_says_why_there_is_no_connection(
    server: ZooKeeperServer, url: str, vault: Vault, proxy: FaultProxy
) -> None:
    login = {"username": "shop", "password": vault, "connect_timeout": 0.2}
    near = url.replace(f":{server.port}", f":{proxy.port}")
    with lockkit.connect(near, ttl=LONG, options=login) as client:
        eventually(lambda: works(client))
        vault.failures = inf
        proxy.cut()
        eventually(lambda: not works(client))
        with pytest.raises(BackendUnavailable, match=r"OPTIONS\['password'\] has failed"):
            client.lock("stock").acquire()
        vault.failures = 0
        eventually(lambda: works(client))


def session_of(client: AnyClient, name: str) -> Session:
    store: Any = client.store
    (session,) = (n.session for n in nodes_of(store) if n.folder == store.folder(name))
    return session


def test_no_secret_is_shown(
    server: ZooKeeperServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    with FaultProxy("127.0.0.1", server.port) as proxy:
        far = url.replace(f":{server.port}", f":{proxy.port}")
        secured = far.replace("zookeeper://", f"zookeeper://shop:{CANARY}@")
        client = lockkit.connect(secured, options={"connect_timeout": 0.2})
        eventually(lambda: works(client))
        shown = [repr(client), repr(client.store), repr(client.settings)]
        with client.lock("stock") as lease:
            shown += [repr(lease)]
        proxy.refuse()
        proxy.cut()
        with pytest.raises(BackendError) as caught:
            client.lock("stock").acquire()
        shown += [repr(caught.value), repr(caught.value.__cause__)]
        client.close()
    assert CANARY not in "".join([*shown, caplog.text])


@pytest.mark.parametrize(
    "wrong",
    [
        "zookeeper://",
        "zookeeper:///chroot",
        "zookeeper://host?timeout=5",
        "zookeeper://host#x",
        "zookeeper://h1,,h2",
        "zookeeper://h1:x",
        f"zookeeper://{CANARY}:{CANARY}@",
    ],
)
def test_what_is_no_url_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="not a ZooKeeper URL") as caught:
        lockkit.connect(wrong)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("path", ["/..", "/a/../b", "/.", "/a/./b", "//", "//a", "/a//b", "/a//"])
def test_a_chroot_that_is_no_path_of_zookeeper_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="chroot"):
        lockkit.connect(f"zookeeper://host{path}")


@pytest.mark.parametrize("path", ["", "/", "/..a/.b./", "/a/b"])
def test_any_other_chroot_is_taken(path: str) -> None:
    lockkit.connect(f"zookeeper://host{path}").close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"socket_timeout": 3}, "socket_timeout"),
        ({"connect_timeout": 0}, "connect_timeout"),
        ({"acl": "all"}, "acl"),
        ({"acl": []}, "acl"),
        ({"username": "a:b"}, "username"),
        ({"password": "x"}, "needs a username"),
        ({"password": 3, "username": "x"}, "password"),
        ({"ssl_ca_certs": "/x"}, "ssl"),
        ({"ssl": True, "ssl_ca_certs": "/nonexistent"}, "OPTIONS.*cannot be read"),
        ({"ssl": True, "ssl_keyfile": "/nonexistent"}, "without its certificate"),
        ({"ssl": "yes"}, "ssl"),
        ({"fence_base": -1}, "fence_base"),
    ],
)
def test_options_are_checked(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        lockkit.connect("zookeeper://host", options=options)


def test_a_user_is_named_once() -> None:
    with pytest.raises(ConfigurationError, match="both name a user"):
        lockkit.connect("zookeeper://shop:x@host", options={"username": "shop"})


def test_tls_is_verified(server: ZooKeeperServer, url: str) -> None:
    with TLSEnd(server.port) as end:
        secured = url.replace(f"127.0.0.1:{server.port}", f"localhost:{end.port}")
        for options in ({"ssl_ca_certs": end.certificate}, {"ssl_check_hostname": True}):
            trusts = "ssl_ca_certs" in options
            given = {"ssl": True, "connect_timeout": 10.0 if trusts else 1.0, **options}
            with lockkit.connect(secured, options=given) as client:
                if trusts:
                    assert client.lock("stock").acquire().release()
                else:  # nobody has signed it whom this machine trusts
                    with pytest.raises(BackendUnavailable, match="ssl_ca_certs"):
                        client.lock("stock").acquire()
        another = url.replace(f":{server.port}", f":{end.port}").replace("127.0.0.1", "127.0.0.2")
        given = {"ssl": True, "connect_timeout": 1.0, "ssl_ca_certs": end.certificate}
        refused = pytest.raises(BackendUnavailable)
        with lockkit.connect(another, options=given) as client, refused:
            client.lock("stock").acquire()
        with lockkit.connect(
            another, options={**given, **PATIENT, "ssl_check_hostname": False}
        ) as client:
            assert client.lock("stock").acquire().release()


def test_certificates_are_read_for_each_connection(server: ZooKeeperServer, url: str) -> None:
    """They are renewed. One that is missing meanwhile is a connection that fails."""
    with TLSEnd(server.port) as end:
        secured = url.replace(f"127.0.0.1:{server.port}", f"localhost:{end.port}")
        certificate = Path(end.certificate)
        options = {"ssl": True, "connect_timeout": LONG, "ssl_ca_certs": end.certificate}
        with lockkit.connect(secured, ttl=LONG, options=options) as client:
            lease = client.lock("stock").acquire()
            end.renew()
            certificate.rename(certificate.with_suffix(".away"))
            end.cut()
            session = next(iter(client._wire._sessions.values()))
            eventually(lambda: "cannot be read" in str(unreachable(session._handler.reason)))
            certificate.with_suffix(".away").rename(certificate)
            assert client.lock("other").acquire().release()
            assert lease.release()


def test_gevent_is_refused(url: str) -> None:
    program = (
        "from gevent import monkey; monkey.patch_all()\n"
        "import lockkit\n"
        f"try: lockkit.connect({url!r})\n"
        "except lockkit.UnsupportedCapability as error: print(error)\n"
    )
    run = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert "gevent" in done.stdout


def test_a_client_that_is_forgotten_ends_its_sessions(server: ZooKeeperServer, url: str) -> None:
    def forget() -> None:
        client = lockkit.connect(url, ttl=7.0)
        client.lock("stock").acquire().release()
        assert 7000 in timeouts(server)

    forget()
    eventually(lambda: 7000 not in timeouts(server))


@pytest.mark.parametrize("number", ["2147483647", "-2147483648"])
def test_a_claim_without_a_number_of_its_own_is_given_up(
    locks: lockkit.LockClient, number: str
) -> None:
    """No test can make two thousand million nodes, so here the server's part is played."""
    store: Any = locks.store
    request = claim("a")
    session = SimpleNamespace(watches={}, ended=0, is_over=False)
    step = store.acquire(request)
    next(step)
    step.send(Reply(session, [[]], 0))  # nobody is there
    path = f"{store.folder('a')}/{guid_of(request.token)}-{number}"
    leaving = step.send(Reply(session, [(path, SimpleNamespace(czxid=7)), [path]], 0))
    assert len(leaving.payload.requests) == len(("the node", "its folder"))
    with pytest.raises(BackendUnavailable, match="no number left"):
        step.send(Reply(session, [True, NotEmptyError()], 0))
    assert store._nodes.get(request.token) is None


NEVER_CLOSED = """
import sys, lockkit

class Kept:
    pass

kept = Kept()
kept.itself, kept.locks = kept, lockkit.connect(sys.argv[1], ttl=60)
kept.lease = kept.locks.lock("a").acquire()
if sys.argv[2] == "free":
    kept.lease.release()
"""


@pytest.mark.parametrize("how", ["free", "held"])
def test_a_program_ends_that_never_closes_its_client(url: str, how: str) -> None:
    """Also if the client is found only as the interpreter clears up."""
    run = [sys.executable, "-W", "ignore::ResourceWarning", "-c", NEVER_CLOSED, url, how]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=LONG)
    assert done.stderr == ""


def test_a_wait_in_vain_names_the_holder(
    locks: lockkit.LockClient, other: lockkit.LockClient
) -> None:
    with locks.lock("a", label="the first"), pytest.raises(AcquireTimeout) as caught:
        other.lock("a", timeout=0.3).acquire()
    assert caught.value.holder is not None
    assert caught.value.holder.label == "the first"


@pytest.mark.parametrize("leaves", [False, True])
def test_a_wait_in_vain_names_the_one_that_holds_it_now(
    locks: lockkit.LockClient, other: lockkit.LockClient, url: str, leaves: bool
) -> None:
    with ThreadPoolExecutor(3) as pool, lockkit.connect(url) as third:
        lease = locks.lock("a", label="the first").acquire()
        second = pool.submit(other.lock("a", label="the second").acquire)
        eventually(lambda: waiters(locks) == 1)
        if leaves:  # it waits before the third
            before = pool.submit(locks.lock("a", timeout=3).acquire)
            eventually(lambda: waiters(locks) == 2)
        vain = pool.submit(third.lock("a", timeout=6 if leaves else 4).acquire)
        eventually(lambda: waiters(locks) == 2 + leaves)
        lease.release()
        held = second.result()
        with pytest.raises(AcquireTimeout) as caught:
            vain.result()
        assert caught.value.holder is not None
        assert caught.value.holder.label == "the second"
        assert not leaves or isinstance(before.exception(), AcquireTimeout)
        held.release()


def waiters(client: lockkit.LockClient) -> int:
    info = client.inspect("a")
    return info.waiters if info else 0


def test_a_listing_shows_no_more_than_the_session_lasts(
    locks: lockkit.LockClient, other: lockkit.LockClient
) -> None:
    with locks.lock("a", ttl=5) as lease:
        lease.extend(20)
        info = other.inspect("a")
        assert info is not None
        assert info.ttl == 5
        assert lease.remaining() <= 5


def test_a_node_of_unknown_outcome_is_looked_for_at_the_leader() -> None:
    """Another server may not have heard of it yet."""
    with lockkit.connect("zookeeper://127.0.0.1:1/lockkit") as client:
        step = client.store.find(Request("a", "t" * 32, 5.0, "", Mode.TRY))  # type: ignore[attr-defined]
        asked = Mock()
        for ask in next(step).payload.requests:
            ask(asked)
    calls = [call[0] for call in asked.kazoo.method_calls]
    assert calls == ["sync_async", "get_children_async"]


def test_a_session_that_takes_the_place_of_another_makes_no_node_for_it() -> None:
    """Nobody would delete it: what a claim knows is of its own session."""
    with lockkit.connect("zookeeper://127.0.0.1:1/lockkit") as client:
        step = client.store.enter(Request("a", "t" * 32, 5.0, "", Mode.ENQUEUE))  # type: ignore[attr-defined]
        next(step)
        first = Mock()
        made = step.send(Reply(first, [NoNodeError()], 0))
        assert made.payload.session is first
