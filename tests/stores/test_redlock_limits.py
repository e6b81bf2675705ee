"""What Redlock stands on: nodes that forget nothing, and clocks that run alike.

Where it promises nothing, the test shows what then happens: two holders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from five_nodes import Nodes, five_nodes
from skewed import SkewedRedis

from lockkit.model.errors import BackendError
from lockkit.testing.blocking import AnyClient, AnyLease, Api, BlockingClient, connect
from lockkit.testing.conformance.base import eventually
from lockkit.testing.servers import RedisServer

HOUR = 3600

TTL = 5.0
LONG = 60.0
"""Seconds: what is renewed on a machine that stalls is not lost."""

Connect = Callable[..., AnyClient]


@pytest.fixture(scope="module")
def servers() -> Iterator[Nodes]:
    with five_nodes(SkewedRedis) as nodes:
        yield nodes


@pytest.fixture
def nodes(servers: Nodes) -> Iterator[Nodes]:
    servers.mend()
    yield servers
    for node in servers:
        assert isinstance(node, SkewedRedis)
        node.set_ahead(0)
    servers.mend()


@pytest.fixture(params=["sync", "async"])
def connected(nodes: Nodes, request: pytest.FixtureRequest) -> Iterator[Connect]:
    api: Api = request.param
    with ExitStack() as stack:

        def connected(**query: object) -> AnyClient:
            client = connect(api, nodes.url(**query), ttl=TTL, max_hold=None)
            stack.callback(client.stop if isinstance(client, BlockingClient) else client.close)
            return client

        yield connected


def of_three(client: AnyClient, nodes: Nodes) -> AnyLease:
    """With the votes of the first three. The other two did not hear of it, and are back."""
    for node in nodes[3:]:
        node.kill()
    lease = client.lock("a", ttl=LONG).acquire()
    for node in nodes[3:]:
        node.start()
    assert nodes.kept() == [["lockkita"]] * 3 + [[]] * 2
    return lease


def jump(nodes: Nodes, which: int, seconds: int = HOUR) -> None:
    node = nodes[which]
    assert isinstance(node, SkewedRedis)
    node.set_ahead(seconds)


def test_a_node_whose_clock_jumps_is_one_vote(nodes: Nodes, connected: Connect) -> None:
    """All five have voted: four, and then three, still exclude."""
    client, other = nodes.warm(connected()), connected()
    with client.lock("a").acquire() as lease:
        eventually(lambda: nodes.kept() == [["lockkita"]] * 5)
        for which in range(2):
            jump(nodes, which)
            eventually(lambda: nodes.kept()[which] == [])  # noqa: B023
            assert other.lock("a").try_acquire() is None
        lease.extend()


def test_a_node_whose_clock_is_before_its_start_does_not_vote(
    nodes: Nodes, connected: Connect
) -> None:
    """Its uptime is less than nothing, and so less than the delay."""
    client = connected(restart_delay=60)
    for which in range(3):
        jump(nodes, which, -HOUR)
    eventually(lambda: all(uptime(node) < 0 for node in nodes[:3]))
    with pytest.raises(BackendError, match=r"votes in 3\d{3} s \(restart_delay\)"):
        client.lock("a").acquire()


def uptime(node: RedisServer) -> int:
    with node.client() as admin:
        return int(admin.info("server")["uptime_in_seconds"])


def test_a_clock_that_jumps_makes_a_second_holder_of_a_bare_quorum(
    nodes: Nodes, connected: Connect
) -> None:
    """Nothing is promised: three nodes have voted, and one of them lets it expire too soon."""
    client, other = connected(), connected()
    first = of_three(client, nodes)
    assert other.lock("a").try_acquire() is None
    jump(nodes, 0)
    second = eventually(other.lock("a").try_acquire)
    second.check()
    first.check()
    assert second.release()
    first.release()


def test_a_node_that_forgot_makes_a_second_holder_without_a_restart_delay(
    nodes: Nodes, connected: Connect
) -> None:
    """Nothing is promised with ``restart_delay=0``: it is for nodes that forget nothing."""
    client, other = connected(), connected()
    first = of_three(client, nodes)
    nodes[0].restart(kill=True)
    second = eventually(other.lock("a").try_acquire)
    second.check()
    first.check()
    assert second.release()
    first.release()


def test_a_node_that_was_restarted_votes_when_all_that_it_forgot_has_expired(
    nodes: Nodes, connected: Connect
) -> None:
    client, other = (nodes.warm(connected(restart_delay=TTL)) for _ in range(2))
    first = client.lock("a").acquire()
    eventually(lambda: nodes.kept() == [["lockkita"]] * 5)
    for node in nodes[2:]:
        node.restart(kill=True)
    assert nodes.kept() == [["lockkita"]] * 2 + [[]] * 3
    with pytest.raises(BackendError, match=r"votes in [1-6] s \(restart_delay\)"):
        other.lock("a").acquire(timeout=0)
    second = eventually(lambda: granted(other))
    assert first.lost
    assert second.release() and not first.release()


def granted(client: AnyClient) -> AnyLease | None:
    try:
        return client.lock("a").try_acquire()
    except BackendError:
        return None
