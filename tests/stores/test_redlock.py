"""Redlock on five real servers, some of which stop, die, forget, or answer too late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from five_nodes import Nodes, five_nodes
from forking import in_child
from garbage import collected
from interrupting import Interrupting

import lockkit
from lockkit import aio
from lockkit.engine.effects import Step
from lockkit.engine.times import drift
from lockkit.model.clock import now
from lockkit.model.errors import (
    BackendError,
    BackendUnavailable,
    LeaseLost,
    OutcomeUnknown,
)
from lockkit.model.types import Grant, Release
from lockkit.stores.redlock import wire
from lockkit.stores.redlock.line import Line, Lines
from lockkit.stores.redlock.node import NodeRequests
from lockkit.stores.redlock.votes import together
from lockkit.testing.blocking import AnyClient, AnyLease, Api, BlockingClient, connect
from lockkit.testing.conformance.base import at_least_once, eventually
from lockkit.testing.conformance.steps import claim
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

LONG = 60.0
"""Seconds that a node has to answer where nobody should wait for it."""

AT_ONCE = 15.0
"""Seconds, on a machine that stalls: much less than a node may take."""

TWO = ["pause", "kill"]
"""How nodes fail: silent, their connections open; or gone."""

Connect = Callable[..., AnyClient]


@pytest.fixture(scope="module")
def servers() -> Iterator[Nodes]:
    with five_nodes() as nodes:
        yield nodes


@pytest.fixture
def nodes(servers: Nodes) -> Iterator[Nodes]:
    """All are up, and know nothing."""
    servers.mend()
    yield servers
    servers.mend()


@pytest.fixture(params=["sync", "async"])
def api(request: pytest.FixtureRequest) -> Api:
    api: Api = request.param
    return api


@pytest.fixture
def connected(nodes: Nodes, api: Api) -> Iterator[Connect]:
    """A client that has a connection to each node."""
    with ExitStack() as stack:

        def connected(url: str = "", **options: object) -> AnyClient:
            client = connect(api, url or nodes.url(), **{"ttl": 30.0, **options})
            stack.callback(client.stop if isinstance(client, BlockingClient) else client.close)
            return client

        yield connected


@pytest.fixture
def client(connected: Connect, nodes: Nodes) -> AnyClient:
    return nodes.warm(connected())


@pytest.mark.parametrize("how", TWO)
def test_two_of_five_are_down(
    nodes: Nodes, client: AnyClient, connected: Connect, how: str
) -> None:
    """It works as before, for those who are connected and for those who come now."""
    for node in nodes[1:3]:
        getattr(node, how)()
    for one, other in ((client, connected()), (connected(), client)):
        lease = one.lock("a").acquire()
        assert other.lock("a").try_acquire() is None
        lease.extend(10)
        assert 5 < lease.remaining() < 10
        assert lease.release() is True
    nodes.mend()


def test_votes_that_came_while_the_process_stood_still_count(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their time is over when it goes on."""
    begin = wire._Round._begin

    def stands_still(this: wire._Round) -> None:
        begin(this)
        eventually(lambda: now() > this._ends + 0.1)

    def is_granted() -> bool:
        try:
            with client.lock("a", timeout=0):
                return True
        except BackendError:
            return False

    with lockkit.connect(nodes.url(socket_timeout=0.5), ttl=30.0) as client:
        nodes.warm(client)
        monkeypatch.setattr(wire._Round, "_begin", stands_still)
        at_least_once(is_granted)


def test_two_silent_nodes_are_not_waited_for(
    nodes: Nodes, client: AnyClient, connected: Connect
) -> None:
    """Neither by who is connected to them, nor by who comes now and never will be."""
    patient = nodes.warm(connected(nodes.url(socket_timeout=LONG)))
    cold = connected(nodes.url(socket_timeout=LONG, socket_connect_timeout=LONG))
    for node in nodes[3:]:
        node.pause()
    for each in (patient, cold):
        began = now()
        for _ in range(20):
            lease = each.lock("a").acquire()
            lease.extend()
            assert lease.release() is True
        assert now() - began < AT_ONCE


def test_a_vote_that_silent_nodes_would_decide_waits_for_them_only_at_first(
    nodes: Nodes, client: AnyClient
) -> None:
    """Two are for it and one is against: with the silent ones it could be won."""
    nodes.take("a", 0)
    for node in nodes[3:]:
        node.pause()
    began = now()
    for _ in range(20):
        assert client.lock("a").try_acquire() is None
    assert now() - began < AT_ONCE
    for node in nodes[3:]:
        node.resume()
    eventually(lambda: granted(client, "a"))


def granted(client: AnyClient, name: str) -> bool:
    lease = client.lock(name).try_acquire()
    return lease is not None and lease.release()


def answered(client: AnyClient, name: str) -> bool:
    with suppress(BackendError):
        return granted(client, name)
    return False


@pytest.mark.parametrize("how", TWO)
def test_three_of_five_are_down(
    nodes: Nodes, client: AnyClient, connected: Connect, how: str
) -> None:
    """An error that names them, within the time that a node has; nothing is left behind."""
    for node in nodes[:3]:
        getattr(node, how)()
    for each in (client, connected()):
        began = now()
        with pytest.raises(BackendError, match="3 of 5 nodes do not vote: ") as caught:
            each.lock("a").acquire(timeout=0)
        assert now() - began < AT_ONCE
        assert isinstance(caught.value, BackendUnavailable) or how == "pause"
        assert caught.value.name == "a"
        assert caught.value.__cause__ is not None
        assert str(caught.value).count(f"127.0.0.1:{nodes[0].port}: ") == 1
    for node in nodes[:3]:
        node.resume() if how == "pause" else node.start()
    eventually(lambda: not any(nodes.kept()))
    eventually(lambda: works(client))


def works(client: AnyClient) -> bool:
    try:
        return client.lock("a").acquire().release()
    except BackendError:
        return False


def test_waiters_of_one_process_are_served_in_their_order(nodes: Nodes) -> None:
    served: list[int] = []
    with lockkit.connect(nodes.url(), ttl=30.0) as client, ThreadPoolExecutor(5) as threads:
        nodes.warm(client)
        waiting: Any = client._queue

        def wait(number: int) -> None:
            with client.lock("a").acquire():
                served.append(number)

        with client.lock("a").acquire():
            for number in range(5):
                threads.submit(wait, number)
                eventually(lambda: len(waiting._queues.get("a", ())) > number)  # noqa: B023  at once
        threads.shutdown()
    assert served == [0, 1, 2, 3, 4]


def test_a_node_that_evicts_is_one_vote_less(
    nodes: Nodes, client: AnyClient, connected: Connect
) -> None:
    lease = client.lock("a").acquire()
    with nodes[0].client() as admin:
        try:
            admin.config_set("maxmemory-policy", "allkeys-random")
            admin.config_set("maxmemory", 1)
            eventually(lambda: not admin.dbsize())
            assert connected().lock("a").try_acquire() is None
            lease.extend(60)
        finally:
            admin.config_set("maxmemory", 0)
            admin.config_set("maxmemory-policy", "noeviction")
    assert lease.remaining() > 40
    assert lease.release()


def test_what_silent_nodes_hear_later_is_taken_back(nodes: Nodes, client: AnyClient) -> None:
    """Requests wait in their sockets; the release comes behind them, or has buried them."""
    for node in nodes[3:]:
        node.pause()
    for number in range(20):
        assert client.lock(f"late:{number}").acquire().release()
    for node in nodes[3:]:
        node.resume()
    eventually(lambda: not any(nodes.kept()))


def test_full_memory_refuses_new_locks_and_extends_old_ones(
    nodes: Nodes, client: AnyClient
) -> None:
    lease = client.lock("a").acquire()
    try:
        for node in nodes:
            with node.client() as admin:
                admin.config_set("maxmemory", 1)
        with pytest.raises(BackendUnavailable, match="memory"):
            client.lock("b").acquire()
        lease.extend(50)
        assert lease.remaining() > 40
        assert lease.release()
    finally:
        for node in nodes:
            with node.client() as admin:
                admin.config_set("maxmemory", 0)


def test_connections_that_a_firewall_has_forgotten_are_made_anew(
    nodes: Nodes, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes answer on new ones, so it is not they that are silent."""
    for module in "line", "aio_wire":
        monkeypatch.setattr(f"lockkit.stores.redlock.{module}.STALE", 10 * LONG)
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy("127.0.0.1", node.port)) for node in nodes]
        url = nodes.url(socket_timeout=0.2)
        for node, proxy in zip(nodes, proxies, strict=True):
            url = url.replace(f":{node.port}", f":{proxy.port}")
        client = nodes.warm(connected(url))
        lease = client.lock("a").acquire()
        for proxy in proxies:
            assert proxy.lose_store() > 0
        eventually(lambda: answered(client, "b"))
        lease.extend()
        assert lease.release()


def test_after_a_quiet_time_only_the_first_acquire_fails(nodes: Nodes, connected: Connect) -> None:
    """A firewall has forgotten all connections. Others are made while nobody asks."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy("127.0.0.1", node.port)) for node in nodes]
        url = nodes.url(socket_timeout=0.5)
        for node, proxy in zip(nodes, proxies, strict=True):
            url = url.replace(f":{node.port}", f":{proxy.port}")

        def only_the_first_fails() -> bool:
            client = nodes.warm(connected(url))
            for proxy in proxies:
                assert proxy.lose_store() > 0
            eventually(lambda: sum(map(clients, nodes)) == 0)
            assert not answered(client, "a")
            eventually(lambda: all(clients(node) == 1 for node in nodes))
            return answered(client, "a")

        at_least_once(only_the_first_fails)


def test_a_node_that_is_being_connected_to_hears_of_a_release(
    nodes: Nodes, connected: Connect
) -> None:
    """Nobody waits for it; its vote would last as long as the lease would have."""
    with FaultProxy("127.0.0.1", nodes[4].port) as proxy:
        times = {"socket_timeout": LONG, "socket_connect_timeout": LONG}
        url = nodes.url(**times).replace(f":{nodes[4].port}", f":{proxy.port}")
        client = nodes.warm(connected(url, ttl=600.0))
        lease = client.lock("a").acquire()
        eventually(lambda: all(nodes.kept()))
        greeting = proxy.delay_requests()
        proxy.cut()
        assert lease.release() is True
        assert "lockkita" in nodes.kept()[4]
        greeting.release()
        eventually(lambda: not any(nodes.kept()))


def test_a_vote_whose_connection_broke_is_taken_back(nodes: Nodes, connected: Connect) -> None:
    """The node is told once there is a new connection; nobody waits for that."""
    with FaultProxy("127.0.0.1", nodes[4].port) as proxy, ThreadPoolExecutor(1) as elsewhere:
        times = {"socket_timeout": LONG, "socket_connect_timeout": LONG}
        url = nodes.url(**times).replace(f":{nodes[4].port}", f":{proxy.port}")
        client = nodes.warm(connected(url, ttl=600.0))
        nodes.take("a", 0, 1, 2)
        nodes[0].pause()  # without it, nothing is decided
        unheard = proxy.drop_replies(matching=b"EVAL")
        trying = elsewhere.submit(client.lock("a").try_acquire)
        assert unheard.happened.wait(AT_ONCE)
        greeting = proxy.delay_requests()
        nodes[0].resume()
        assert trying.result() is None
        assert nodes.kept()[4] == ["lockkita"]
        greeting.release()
        eventually(lambda: not nodes.kept()[4])


def test_late_replies_are_no_votes_for_anything_else(nodes: Nodes, connected: Connect) -> None:
    """Two nodes grant other names late: with these replies it would have four of five."""
    client = nodes.warm(connected(nodes.url(socket_timeout=LONG)))
    nodes.take("taken", 2, 3, 4)
    for node in nodes[3:]:
        node.pause()
    leases = [client.lock(f"free:{number}").acquire() for number in range(3)]
    with ThreadPoolExecutor(1) as elsewhere:
        trying = elsewhere.submit(client.lock("taken").try_acquire)
        eventually(lambda: "lockkittaken" in nodes[:1].kept()[0])
        for node in nodes[3:]:
            node.resume()
        assert trying.result() is None
    assert [lease.release() for lease in leases] == [True] * 3


def test_who_has_most_votes_has_it(nodes: Nodes, client: AnyClient) -> None:
    """Also against clients in other languages, which write the same keys."""
    nodes.take("a", 0, 1, 2)
    assert client.lock("a").try_acquire() is None
    assert nodes.kept() == [["lockkita"]] * 3 + [[]] * 2
    nodes.drop("a", 2)
    lease = client.lock("a").acquire(timeout=0)
    assert nodes.kept() == [["lockkita"]] * 5
    assert lease.release() is True
    assert nodes.kept() == [["lockkita"]] * 2 + [[]] * 3


@pytest.mark.parametrize("silent", [0, 1])
def test_a_lost_vote_does_not_spoil_the_next_one(
    nodes: Nodes, client: AnyClient, silent: int
) -> None:
    """A waiter polls with one token: its lost votes are taken back, and its later ones count."""
    nodes.take("a", 0, 1, 2, ttl=400)
    for node in nodes[:silent]:
        node.pause()
    assert client.lock("a").acquire(timeout=LONG).release() is True


def test_a_vote_that_is_taken_back_late_takes_no_later_vote(client: AnyClient) -> None:
    """Its release was held up on another connection; meanwhile the same token was asked again."""
    request, node = claim("a"), NodeRequests("lockkit", 0)
    assert of_all(client, lambda: node.acquire(request, 1)) == [30_000] * 5
    assert min(of_all(client, lambda: node.acquire(request, 2))) > 0
    assert of_all(client, lambda: node.release(request, 1, unsure=False)) == [0] * 5
    assert client.perform(client.store.release(request)) is Release.RELEASED


def test_a_vote_that_was_taken_back_before_it_came_is_none(client: AnyClient) -> None:
    request, node = claim("a"), NodeRequests("lockkit", 0)
    assert of_all(client, lambda: node.release(request, 1, unsure=False)) == [0] * 5
    assert of_all(client, lambda: node.acquire(request, 1)) == [0] * 5
    assert of_all(client, lambda: node.acquire(request, 2)) == [30_000] * 5
    assert client.perform(client.store.release(request)) is Release.RELEASED


def of_all(client: AnyClient, step: Callable[[], Step[int]]) -> list[object]:
    steps = [step() for _ in range(5)]
    return client.perform(together(steps, LONG, lambda answers: None not in answers))


def test_what_is_left_counts_from_before_the_nodes_were_asked(
    nodes: Nodes, connected: Connect
) -> None:
    """Less what the clocks may drift; by the clock of this machine, which nobody sets."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy("127.0.0.1", node.port)) for node in nodes]
        far = nodes.warm(connected(url_of(proxies, socket_timeout=LONG)))
        for proxy in proxies:
            proxy.latency = 0.2
        with far.lock("a", ttl=10).acquire() as lease:
            assert 5 < lease.remaining() <= 10 - 0.4 - drift(10)
            lease.extend(20)
            assert 15 < lease.remaining() <= 20 - 0.4 - drift(20)


def test_what_is_left_is_what_most_nodes_have(nodes: Nodes, client: AnyClient) -> None:
    """The same token is told how long most of them will keep it, not the longest of them."""
    request = claim("a")
    assert isinstance(client.perform(client.store.acquire(request)), Grant)
    eventually(lambda: nodes.kept() == [["lockkita"]] * 5)
    for node in nodes[:3]:
        with node.client() as admin:
            admin.pexpire("lockkita", 5000)
    reply = client.perform(client.store.acquire(request))
    assert isinstance(reply, Grant) and 0 < reply.left <= 5
    assert client.perform(client.store.release(request)) is Release.RELEASED


def test_a_vote_that_takes_longer_than_the_lease_is_worth_nothing(
    nodes: Nodes, connected: Connect
) -> None:
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy("127.0.0.1", node.port)) for node in nodes]
        far = nodes.warm(connected(url_of(proxies)))
        for proxy in proxies:
            proxy.latency = 0.3
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            far.lock("a", ttl=0.2).acquire(timeout=0)
    eventually(lambda: not any(nodes.kept()))


def url_of(proxies: list[FaultProxy], **query: object) -> str:
    words = "&".join(f"{key}={value}" for key, value in {"restart_delay": 0, **query}.items())
    return f"redlock://{','.join(f'127.0.0.1:{proxy.port}' for proxy in proxies)}/0?{words}"


@pytest.mark.parametrize("lost", [2, 3])
def test_a_quorum_extends(nodes: Nodes, client: AnyClient, lost: int) -> None:
    """A node that has lost the lease does not get it back: it may be somebody else's by then."""
    lease = client.lock("a").acquire()
    eventually(lambda: nodes.kept() == [["lockkita"]] * 5)
    nodes.drop("a", *range(lost))
    if lost == 2:
        lease.extend()
        assert nodes.kept()[:2] == [[], []]
        assert lease.release() is True
    else:
        with pytest.raises(LeaseLost):
            lease.extend()
        assert lease.release() is False
    assert not any(nodes.kept())


def test_an_extension_that_is_not_known_is_no_loss(nodes: Nodes, client: AnyClient) -> None:
    """Two nodes have lost it, one does not answer: with that one there is a quorum."""
    lease = client.lock("a").acquire()
    eventually(lambda: nodes.kept() == [["lockkita"]] * 5)
    nodes.drop("a", 0, 1)
    nodes[2].pause()
    with pytest.raises(OutcomeUnknown, match="1 of 5 nodes do not vote"):
        lease.extend()
    assert not lease.lost
    nodes[2].resume()
    eventually(lambda: extended(lease))
    assert lease.release() is True


def test_a_lease_is_lost_at_its_deadline_if_no_node_answers(
    nodes: Nodes, client: AnyClient, connected: Connect
) -> None:
    """Its holder knows no later than another can be granted the name."""
    lease = client.lock("a", ttl=1.0).acquire()
    for node in nodes:
        node.pause()
    eventually(lambda: lease.lost)
    with pytest.raises(LeaseLost):
        lease.check()
    for node in nodes:
        node.resume()
    with nodes.warm(connected()).lock("a", timeout=AT_ONCE).acquire():
        assert lease.release() is False


def extended(lease: AnyLease) -> bool:
    try:
        lease.extend()
    except BackendError:
        return False
    return True


def test_each_lease_of_a_batch_has_its_own_answer(nodes: Nodes, client: AnyClient) -> None:
    requests = [claim(f"batch:{number}") for number in range(250)]
    for request in requests[:3]:
        assert isinstance(client.perform(client.store.acquire(request)), Grant)
    eventually(lambda: [len(keys) for keys in nodes.kept()] == [3] * 5)
    nodes.drop("batch:1", 0, 1, 2)
    nodes.drop("batch:2", 0, 1)
    lefts = [r.left for r in client.perform(client.store.extend(requests))]
    assert lefts[:3] == [30, None, 30]
    assert lefts[3:] == [None] * 247


def test_a_waiter_that_is_cancelled_while_it_asks_leaves_nothing(nodes: Nodes) -> None:
    """The nodes hear of it later, when the name is free, and grant it to nobody."""

    async def cancelled() -> None:
        async with aio.connect(nodes.url(socket_timeout=LONG), ttl=LONG) as client:
            async with client.lock("a"):  # from now on it has a connection to each node
                pass
            nodes.take("a", *range(len(nodes)), ttl=1000)
            waiter = asyncio.create_task(client.lock("a").acquire())
            await asyncio.sleep(0.1)
            for node in nodes:
                node.pause()
            await asyncio.sleep(1.0)  # it has asked, and the name expires
            waiter.cancel()
            await asyncio.sleep(0)
            for node in nodes:
                node.resume()
            with suppress(asyncio.CancelledError):
                await waiter

    asyncio.run(cancelled())
    eventually(lambda: not any(nodes.kept()))


@pytest.mark.parametrize("free", [True, False])
def test_cancelling_at_any_moment_leaves_nothing(nodes: Nodes, free: bool) -> None:
    moments = random.Random(20_002)

    async def scene() -> None:
        async with aio.connect(nodes.url()) as client:
            await (await client.lock("warm").acquire()).release()
            for _ in range(60):
                task = asyncio.create_task(client.lock("a").acquire())
                await asyncio.sleep(moments.choice([0, moments.uniform(0, 0.004)]))
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await (await task).release()

    if not free:
        nodes.take("a", 0, 1, 2)
    asyncio.run(scene())
    eventually(lambda: nodes.kept() == ([[]] * 5 if free else [["lockkita"]] * 3 + [[]] * 2))


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("at", range(1, 17))
def test_an_interrupt_as_a_node_is_first_connected_to_loses_no_node(nodes: Nodes, at: int) -> None:
    """Its thread has not begun, and nobody waits for that. Tasks have no thread to begin."""
    with lockkit.connect(nodes[:3].url(socket_timeout=LONG), ttl=6) as client:
        with Interrupting(at, below="redlock/line.py") as interrupting:
            client.lock("a").acquire()
        assert interrupting.where
        started = now()
        dangers = client.perform(client.store.health())
        assert {danger.code for danger in dangers} == {"persistence"}  # without a restart_delay
        assert now() - started < AT_ONCE
        collected()


def test_a_forked_child_has_connections_of_its_own(nodes: Nodes) -> None:
    with lockkit.connect(nodes.url(), ttl=30.0) as client:
        lease = client.lock("a").acquire()

        def child() -> None:
            assert lease.lost
            assert client.lock("a").try_acquire() is None
            assert client.lock("b").acquire().release()

        for _ in range(3):
            in_child(child)
            assert client.lock("c").acquire().release()
        assert lease.release() is True


def test_a_closed_client_has_no_connections(nodes: Nodes, client: AnyClient) -> None:
    """And connects again when it is used again."""
    for _ in range(2):
        client.lock("a").acquire().release()
        client.close()
        eventually(lambda: not any(clients(node) for node in nodes))
        assert works(client)


def test_a_connection_that_is_in_use_at_a_close_is_closed_afterwards(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread, say: one that tells nodes to forget a vote."""
    give = Lines.give

    def late(lines: Lines, line: Line) -> None:
        monkeypatch.undo()
        client.close()
        give(lines, line)

    with lockkit.connect(nodes.url()) as client:
        lease = nodes.warm(client).lock("a").acquire()
        monkeypatch.setattr(Lines, "give", late)
        assert lease.release()
        eventually(lambda: not any(clients(node) for node in nodes))
        assert works(client)


def clients(node: RedisServer) -> int:
    with node.client() as admin:
        return len(admin.client_list()) - 1
