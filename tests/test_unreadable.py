"""Something unreadable in the store: it is an error in its own place, and in no other."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from command_line import locks

import lockkit
from lockkit import aio
from lockkit.errors import LockError
from lockkit.testing.blocking import AnyClient, Api, BlockingClient, connect
from lockkit.testing.conformance.base import at_least_once
from lockkit.testing.servers import RedisServer

TTL = 1.5
NAMES = ("b", "a", "c", "d")
SPOILED = "a"
OTHERS = {"b", "c", "d"}

Spoil = Callable[[], None]


class Case:
    """A store, and how to spoil what it keeps of the name."""

    def __init__(self, url: str, spoil: Spoil, mend: Spoil) -> None:
        self.url = url
        self.spoil = spoil
        self.mend = mend


@pytest.fixture(params=["sqlite", "redis"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    if request.param == "sqlite":
        return _rows(tmp_path / "locks.sqlite3")
    server: RedisServer = request.getfixturevalue("redis_server")
    server.flush()
    return _buckets(server)


def _rows(path: Path) -> Case:
    """A row of a later layout."""

    def write(statement: str) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(statement)

    return Case(
        f"sqlite:///{path}",
        lambda: write(
            """UPDATE lockkit_lock SET state = '{"v": 99}', version = version + 1
            WHERE name = 'a'"""
        ),
        lambda: write("DELETE FROM lockkit_lock WHERE name = 'a'"),
    )


def _buckets(server: RedisServer) -> Case:
    """A key of another type, as somebody else's program may write it."""

    def spoil() -> None:
        with server.client() as admin:
            (key,) = (k for k in admin.scan_iter("{*") if admin.hexists(k, f"={SPOILED}"))
            admin.delete(key)
            admin.set(key, "something else")

    return Case(server.url, spoil, server.flush)


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, case: Case) -> Iterator[AnyClient]:
    api: Api = request.param
    client = connect(api, case.url, ttl=TTL)
    yield client
    client.stop() if isinstance(client, BlockingClient) else client.close()


def test_other_leases_are_renewed(case: Case, client: AnyClient) -> None:
    def renewed() -> bool:
        leases = {name: client.lock(name).acquire() for name in NAMES}
        case.spoil()
        time.sleep(2 * TTL)
        assert leases[SPOILED].lost
        kept = {name for name, lease in leases.items() if not lease.lost}
        case.mend()
        for lease in leases.values():
            lease.release()
        return kept == OTHERS

    at_least_once(renewed)


def test_it_is_neither_held_nor_lost_until_its_deadline(case: Case, client: AnyClient) -> None:
    lease = client.lock(SPOILED, ttl=60).acquire()
    case.spoil()
    with pytest.raises(LockError):
        lease.extend()
    lease.check()
    case.mend()
    assert lease.release() is False


def test_others_are_listed(case: Case) -> None:
    client = lockkit.connect(case.url, ttl=60)
    leases = [client.lock(name).acquire() for name in NAMES]
    case.spoil()
    result = locks(client, "list")
    assert {row[1] for row in result.rows} == OTHERS
    assert result.status != 0
    assert result.err
    case.mend()
    for lease in leases:
        lease.release()
    client.close()


async def test_others_are_listed_by_asyncio(case: Case) -> None:
    client = aio.connect(case.url, ttl=60)
    leases = [await client.lock(name).acquire() for name in NAMES]
    case.spoil()
    found = set()
    with pytest.raises(LockError):  # noqa: PT012 - those before it were shown
        async for info in client.holders():
            found.add(info.name)
    assert found == OTHERS
    case.mend()
    for lease in leases:
        await lease.release()
    await client.close()
