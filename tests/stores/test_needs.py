"""The connections and threads of a process, as docs/guarantees.md tells them."""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from five_nodes import five_nodes
from lock_tables import table_at
from places import ROOT

import lockkit
from lockkit.model.clock import now
from lockkit.testing.blocking import AnyClient, BlockingClient, connect
from lockkit.testing.conformance.base import eventually
from lockkit.testing.servers import MariaDBServer, PostgresServer, RedisServer, ZooKeeperServer

STORES = tomllib.loads((ROOT / "docs" / "guarantees.toml").read_text(encoding="utf-8"))["stores"]

OURS = Path("/proc/self/fd")

FOUR = 4
"""Threads or tasks that lock at once, and wait for one another."""

SERVERS = {"postgresql": "postgres_server", "mariadb": "mariadb_server"}

Count = Callable[[], int]
Reached = tuple[str, Count]


def no_connection() -> int:
    return 0


def descriptors_of(path: Path) -> int:
    return sum(each.is_symlink() and each.resolve() == path for each in OURS.iterdir())


def over_redis(server: RedisServer, query: str = "") -> Reached:
    def count() -> int:
        with server.client() as admin:
            return len(admin.client_list()) - 1

    server.flush()
    with server.client() as admin:
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal")
        admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    return server.url + query, count


def of_tables(server: PostgresServer | MariaDBServer, url: str, query: str = "") -> Reached:
    name = url.rpartition("/")[2].partition("?")[0]
    if isinstance(server, PostgresServer):
        sql = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"
        return url + query, lambda: int(server.execute(sql))
    sql = f"SELECT count(*) FROM information_schema.processlist WHERE db = '{name}'"
    return url + query, lambda: int(server.execute(sql))


@pytest.fixture
def reached(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> Iterator[Reached]:
    if store == "memory":
        yield "memory://", no_connection
    elif store == "sqlite":
        path = tmp_path / "locks.sqlite3"
        yield f"sqlite:///{path}", partial(descriptors_of, path)
    elif store in {"redis", "plain"}:
        server = request.getfixturevalue("redis_server")
        yield over_redis(server, "?protocol=plain" * (store == "plain"))
    elif store == "redlock":
        with five_nodes(count=3) as nodes:
            yield nodes.url(), over_redis(nodes[0])[1]
    elif store == "zookeeper":
        request.getfixturevalue("other_servers")
        with ZooKeeperServer() as zookeeper:
            yield zookeeper.url, lambda: eventually(lambda: zookeeper.ask("cons")).count("sid=")
    else:
        kind, _, mode = store.partition("-")
        database = request.getfixturevalue(SERVERS[kind])
        with table_at(database) as url:
            query = f"?mode={mode}" if mode else ""
            prepare(url + query)
            yield of_tables(database, url, query)


def prepare(url: str) -> None:
    with lockkit.connect(url) as client:
        client.store.create_table()


@pytest.mark.parametrize("api", ["sync", "asyncio"])
@pytest.mark.parametrize("store", [name for name, row in STORES.items() if "needs" in row])
def test_no_more_than_is_told(store: str, api: str, reached: Reached) -> None:
    needs: dict[str, Any] = STORES[store]["needs"][api]
    url, connections = reached
    others = {*threading.enumerate()}
    client = connect("sync" if api == "sync" else "async", url, ttl=6.0)
    lease = client.lock("held").acquire()
    end = now() + lease.remaining()
    with ThreadPoolExecutor(FOUR) as threads:
        for each in [threads.submit(lock_and_wait, client, number) for number in range(FOUR)]:
            each.result()
        if store in SERVERS:  # a renewal has a connection of its own
            eventually(lambda: now() + lease.remaining() > end + 0.5)
        alive = {*threading.enumerate()}
        guards = {t for t in alive if t.name == "lockkit-guard" and store == "mariadb"}
        ours = alive - others | guards  # one for the process, which has begun with the table
        named = sorted(thread.name for thread in ours if thread.name.startswith("lockkit"))
        found = {"connections": connections(), "threads": len(named)}
    assert lease.release()
    client.stop() if isinstance(client, BlockingClient) else client.close()
    if store in SERVERS:
        assert found["connections"] >= 2, found
    assert found["connections"] <= needs["connections"], found
    assert found["threads"] <= needs["threads"], named


def lock_and_wait(client: AnyClient, number: int) -> None:
    for _ in range(10):
        with client.lock(f"own:{number}").acquire(), client.lock("shared").acquire():
            pass
