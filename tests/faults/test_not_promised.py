"""What no store can promise, or not each: shown as it happens, so that the docs do not drift.

``docs/guarantees.toml`` names these tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest
from lock_tables import make_table
from redis_family import ClusterGroup, SentinelGroup
from skewed import (
    Skewed,
    SkewedCluster,
    SkewedMariaDB,
    SkewedMaster,
    SkewedPostgres,
    SkewedRedis,
    SkewedZooKeeper,
)

import lockkit
from lockkit import LeaseLost
from lockkit.model.clock import now
from lockkit.stores.redis.layout import PREFIXES
from lockkit.testing.blocking import AnyClient, AnyLease, Api, BlockingClient, connect
from lockkit.testing.conformance.base import eventually
from lockkit.testing.servers import RedisServer

HOUR = 3600
TTL = 60.0
LOOK_SECONDS = 1.5
"""PostgreSQL looks at its clock a second after a statement."""

Connect = Callable[[str], AnyClient]
AnySkewed = TypeVar("AnySkewed", bound=Skewed)


@pytest.fixture(params=["sync", "async"])
def api(request: pytest.FixtureRequest) -> Api:
    api: Api = request.param
    return api


@pytest.fixture
def connected(api: Api) -> Iterator[Connect]:
    with ExitStack() as stack:

        def connected(url: str) -> AnyClient:
            client = connect(api, url, ttl=TTL)
            stack.callback(client.stop if isinstance(client, BlockingClient) else client.close)
            return client

        yield connected


@pytest.fixture(scope="module")
def skewed_redis() -> Iterator[SkewedRedis]:
    with SkewedRedis() as server:
        yield server


@pytest.fixture(scope="module")
def skewed_sentinel() -> Iterator[SkewedMaster]:
    with SkewedMaster() as server:
        yield server


@pytest.fixture(scope="module")
def skewed_cluster() -> Iterator[SkewedCluster]:
    with SkewedCluster() as server:
        yield server


@pytest.fixture(scope="module")
def skewed_postgres() -> Iterator[SkewedPostgres]:
    with SkewedPostgres() as server:
        yield with_table(server)


@pytest.fixture(scope="module")
def skewed_mariadb() -> Iterator[SkewedMariaDB]:
    with SkewedMariaDB() as server:
        yield with_table(server)


def with_table(server: AnySkewed) -> AnySkewed:
    make_table(server.url)
    client = lockkit.connect(server.url + "?mode=row")
    client.store.create_table()
    client.close()
    return server


def url_of(request: pytest.FixtureRequest, kind: str, query: str) -> tuple[Skewed, str]:
    server: Skewed = request.getfixturevalue(f"skewed_{kind}")
    server.set_ahead(0)
    if isinstance(server, RedisServer):
        server.flush()
    return server, server.url + query


BY_WALL_CLOCK = [
    ("redis", ""),
    ("redis", "?protocol=plain"),
    ("sentinel", ""),
    ("cluster", ""),
    ("postgres", ""),
    ("mariadb", ""),
]


@pytest.mark.parametrize(("kind", "query"), BY_WALL_CLOCK)
def test_the_store_s_wall_clock_decides(
    request: pytest.FixtureRequest, connected: Connect, kind: str, query: str
) -> None:
    """It jumps ahead, and the lease is over in the store, while its holder counts on it still."""
    server, url = url_of(request, kind, query)
    client, other = connected(url), connected(url)
    first = client.lock("a").acquire()
    assert other.lock("a").try_acquire() is None
    server.set_ahead(HOUR)
    second = eventually(other.lock("a").try_acquire)
    first.check()
    second.check()
    server.set_ahead(0)
    first.release()
    second.release()


@pytest.mark.parametrize(("kind", "query"), BY_WALL_CLOCK)
def test_a_store_s_clock_that_is_set_back_makes_leases_longer(
    request: pytest.FixtureRequest, kind: str, query: str
) -> None:
    """Nobody renews this one. What comes after it has a greater fence all the same."""
    server, url = url_of(request, kind, query)
    with lockkit.connect(url) as client, lockkit.connect(url) as other:
        wish = client.lock("a", ttl=0.5)._request(client, 0)
        granted = client.perform(client.store.acquire(wish))
        server.set_ahead(-HOUR)
        with pytest.raises(lockkit.AcquireTimeout):
            other.lock("a").acquire(timeout=1)
        server.set_ahead(0)
        second = eventually(other.lock("a").try_acquire)
        assert second.fencing_token > granted.fence
        assert second.release()


@pytest.mark.parametrize(
    ("kind", "query", "hours"),
    [
        ("postgres", "?mode=advisory", -1),
        ("mariadb", "?mode=advisory", 1),
        ("mariadb", "?mode=advisory", -1),
        ("mariadb", "?mode=row", 1),
        ("mariadb", "?mode=row", -1),
    ],
)
def test_no_clock_ends_a_session(
    request: pytest.FixtureRequest, connected: Connect, kind: str, query: str, hours: int
) -> None:
    server, url = url_of(request, kind, query)
    client, other = connected(url), connected(url)
    with client.lock("b").acquire() as lease:  # until it is renewed, its session says nothing
        server.set_ahead(hours * HOUR)
        until = now() + LOOK_SECONDS
        while now() < until:
            assert other.lock("b").try_acquire() is None
            time.sleep(0.05)
        lease.extend()
    server.set_ahead(0)


@pytest.mark.parametrize("query", ["?mode=advisory", "?mode=row"])
def test_a_clock_that_jumps_ahead_makes_a_second_holder(
    request: pytest.FixtureRequest, connected: Connect, query: str
) -> None:
    """PostgreSQL times what is idle by its wall clock, and looks at it when another of its timers
    runs out: that for the connection of its client, say, a second after a statement."""
    server, url = url_of(request, "postgres", query)
    client, other = connected(url), connected(url)
    lease = client.lock("d", ttl=600).acquire()
    server.set_ahead(HOUR)
    taken = eventually(other.lock("d").try_acquire)
    lease.check()
    assert taken.release()
    assert lease.release() is False
    server.set_ahead(0)


def test_a_clock_that_is_set_back_ends_a_session_in_a_transaction(
    request: pytest.FixtureRequest, connected: Connect
) -> None:
    """PostgreSQL times what is idle in a transaction by its wall clock; the holder hears of it."""
    server, url = url_of(request, "postgres", "?mode=row")
    client, other = connected(url), connected(url)
    lease = client.lock("c").acquire()
    server.set_ahead(-HOUR)
    assert not renewed(lease)
    assert lease.release() is False
    assert eventually(other.lock("c").try_acquire).release()
    server.set_ahead(0)


def test_the_wall_clock_of_the_host_decides(
    skewed_redis: SkewedRedis, tmp_path: Path, connected: Connect
) -> None:
    """Of SQLite: here the clock of one process is wrong, as that of the host may come to be."""
    url = f"sqlite:///{tmp_path / 'locks.sqlite3'}"
    first = connected(url).lock("a").acquire()
    assert granted_to_another(url, {}) == "False"
    skewed_redis.set_ahead(HOUR)
    assert granted_to_another(url, skewed_redis.preloaded()) == "True"
    first.check()
    first.release()


def granted_to_another(url: str, environment: dict[str, str]) -> str:
    """To another process."""
    program = (
        "import lockkit, sys; client = lockkit.connect(sys.argv[1]); "
        "print(client.lock('a').try_acquire() is not None)"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, url]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_no_wall_clock_decides_in_zookeeper(other_servers: None, connected: Connect) -> None:
    """The leader counts the time since it has heard of a session."""
    with SkewedZooKeeper() as server:
        client, other = connected(server.url), connected(server.url)
        with client.lock("a").acquire() as lease:
            for hours in (1, -1):
                server.set_ahead(hours * HOUR)
                eventually(lambda: "Mode: " in server.ask("srvr"))
                lease.extend()
                assert other.lock("a").try_acquire() is None
            lease.check()


def test_no_wall_clock_decides_in_memory(connected: Connect) -> None:
    url = "memory://not-promised"
    client, other = connected(url), connected(url)
    with client.lock("a").acquire(), pytest.MonkeyPatch.context() as clocks:
        wall = time.time
        clocks.setattr(time, "time", lambda: wall() + HOUR)
        assert other.lock("a").try_acquire() is None


@pytest.mark.parametrize(("url", "granted"), [("memory://", True), ("sqlite:///", False)])
def test_another_process_has_another_memory(
    url: str, granted: bool, connected: Connect, tmp_path: Path
) -> None:
    """A file of SQLite both have."""
    url += f"{tmp_path}/locks.sqlite3" if url.startswith("sqlite") else "not-promised"
    ask = "import sys, lockkit; print(lockkit.connect(sys.argv[1]).lock('a').try_acquire())"
    with connected(url).lock("a").acquire():
        said = subprocess.check_output([sys.executable, "-W", "ignore", "-c", ask, url], text=True)
    assert said.startswith("<Lease 'a' held") is granted


def test_another_machine_has_another_file(connected: Connect, tmp_path: Path) -> None:
    one, other = (connected(f"sqlite:///{tmp_path}/{each}.sqlite3") for each in ("web-1", "web-2"))
    with one.lock("a").acquire(), other.lock("a").acquire():
        pass


@pytest.fixture
def one_server(redis_server: RedisServer) -> tuple[str, list[RedisServer]]:
    redis_server.flush()
    return redis_server.url, [redis_server]


@pytest.fixture
def sentinels() -> Iterator[tuple[str, list[RedisServer]]]:
    with SentinelGroup() as group:
        yield group.url, [group.master]


@pytest.fixture
def cluster() -> Iterator[tuple[str, list[RedisServer]]]:
    with ClusterGroup() as group:
        yield group.url, [*group.masters]


ROOM = 2 << 20
"""More than the backlog of a replication may grow: it is not evicted, but counts."""


@pytest.mark.parametrize(
    ("place", "policy", "query"),
    [
        ("one_server", "allkeys-random", ""),
        ("one_server", "allkeys-random", "?protocol=plain"),
        ("one_server", "volatile-ttl", "?protocol=plain"),
        ("sentinels", "allkeys-random", ""),
        ("cluster", "allkeys-random", ""),
    ],
)
def test_a_server_that_evicts_loses_locks(
    request: pytest.FixtureRequest, connected: Connect, place: str, policy: str, query: str
) -> None:
    """A plain key has a TTL, so it is evicted by a volatile policy as well."""
    url, servers = request.getfixturevalue(place)
    lease = connected(url + query).lock("a").acquire()
    server, tag = next((each, tag) for each in servers for tag in tags(each))
    with server.client() as admin:
        for number in range(200):
            admin.set(f"cache:{tag}:{number}", "x" * 2000, ex=HOUR)
        try:
            admin.config_set("maxmemory-policy", policy)
            admin.config_set("maxmemory", admin.info("memory")["used_memory"] + ROOM)
            while renewed(lease):
                for number in range(50):
                    admin.set(f"cache:{tag}:{now()}:{number}", "x" * 2000, ex=HOUR)
        finally:
            admin.config_set("maxmemory", "0")
            admin.config_set("maxmemory-policy", "noeviction")
    assert lease.release() is False


def tags(server: RedisServer) -> list[str]:
    """Of the keys of its leases: what has one of them, too, is kept in the same slot."""
    with server.client() as admin:
        keys = [key.decode() for key in admin.scan_iter("*") if key != PREFIXES]
    return [f"{{{key.partition('{')[2].partition('}')[0]}}}" for key in keys]


def renewed(lease: AnyLease) -> bool:
    try:
        lease.extend()
    except LeaseLost:
        return False
    return True
