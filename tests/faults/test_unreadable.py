"""An unreadable record is an error for its own name, and for no other."""

from __future__ import annotations

import json
import logging
import re
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_line import locks
from garbage import collected

import lockkit
from lockkit import aio
from lockkit.leases.lease import give_back
from lockkit.model.errors import DamagedRecord, LayoutMismatch
from lockkit.model.types import LockState
from lockkit.operate.commands import Exit
from lockkit.operate.text import escape
from lockkit.stores.redis.layout import Keys, bucket_of
from lockkit.stores.redis.plain.keys import PlainKeys
from lockkit.testing.blocking import AnyClient, Api, BlockingClient, connect
from lockkit.testing.conformance.base import at_least_once, queued
from lockkit.testing.servers import RedisServer

TTL = 1.5
NAMES = ("b", "a", "c", "d")
SPOILED = "a"
OTHERS = {"b", "c", "d"}

Spoil = Callable[[], None]


class Case:
    """A store, and how to spoil what it keeps of the name."""

    def __init__(self, url: str, spoil: Spoil, mend: Spoil, shown: str) -> None:
        self.url = url
        self.spoil = spoil
        self.mend = mend
        self.shown = {shown: "damaged"}


@pytest.fixture(params=["sqlite", "redis"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    if request.param == "sqlite":
        return _rows(tmp_path / "locks.sqlite3")
    server: RedisServer = request.getfixturevalue("redis_server")
    server.flush()
    return _buckets(server)


def _rows(path: Path, state: str = '{"v": 2, "holders": [["a"') -> Case:
    """A row that was cut."""

    def write(statement: str) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(statement)

    return Case(
        f"sqlite:///{path}",
        lambda: write(
            f"""UPDATE lockkit_lock SET state = '{state}', version = version + 1
            WHERE name = 'a'"""
        ),
        lambda: write("DELETE FROM lockkit_lock WHERE name = 'a'"),
        SPOILED,
    )


def _buckets(server: RedisServer) -> Case:
    """A key of another type, as somebody else's program may write it."""

    def spoil() -> None:
        with server.client() as admin:
            (key,) = (k for k in admin.scan_iter("{*") if admin.hexists(k, f"={SPOILED}"))
            admin.delete(key)
            admin.set(key, "something else")

    return Case(server.url, spoil, server.flush, "{lockkit:7}:b")


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


@pytest.mark.parametrize("api", ["sync", "async"])
@pytest.mark.parametrize("state", ['{"v": 99}', '{"v": 4, "holders": [["a"'])
def test_a_place_in_a_queue_that_cannot_be_read_is_in_the_way_of_nothing(
    api: Api, state: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waited there has heard so; the watchdog goes on to withdraw it."""
    url = f"sqlite:///{tmp_path / 'locks.sqlite3'}"

    def withdrawn() -> bool:
        with lockkit.connect(url, ttl=60) as other, ThreadPoolExecutor() as threads:
            leases = [other.lock(name).acquire() for name in "ab"]
            client = connect(api, url, ttl=60)
            short = client.lock("short", ttl=1).acquire()
            mend = {}
            for name in "ab":
                waiting = threads.submit(client.lock(name).acquire)
                queued(other, name, 1)
                mend[name] = _spoilt(tmp_path, name, state)
                with pytest.raises(lockkit.LockError, match=f"99|'{name}' cannot be read"):
                    waiting.result(20)
            mend["b"]()
            queued(other, "b", 0)
            time.sleep(3)
            kept = short.release()
            mend["a"]()
            queued(other, "a", 0)
            client.stop() if isinstance(client, BlockingClient) else client.close()
            for lease in leases:
                assert lease.release()
        return kept

    with caplog.at_level(logging.ERROR):
        at_least_once(withdrawn)
        collected()
    assert not caplog.records


def _spoilt(directory: Path, name: str, state: str) -> Spoil:
    """Write it into the row; returns what writes the state from before."""
    with closing(sqlite3.connect(directory / "locks.sqlite3")) as database, database:
        ((before,),) = database.execute("SELECT state FROM lockkit_lock WHERE name = ?", [name])
        database.execute(
            "UPDATE lockkit_lock SET state = ?, version = version + 1 WHERE name = ?", [state, name]
        )
    return lambda: _spoilt(directory, name, before) and None


def test_it_is_neither_held_nor_lost_until_its_deadline(case: Case, client: AnyClient) -> None:
    lease = client.lock(SPOILED, ttl=60).acquire()
    case.spoil()
    with pytest.raises(DamagedRecord, match=f"keeps of '{SPOILED}' cannot be read") as caught:
        lease.extend()
    assert caught.value.name == SPOILED
    lease.check()
    case.mend()
    assert lease.release() is False


def test_others_are_listed(case: Case) -> None:
    client = lockkit.connect(case.url, ttl=60)
    leases = [client.lock(name).acquire() for name in NAMES]
    case.spoil()
    listed = {lock["name"]: lock["stuck"] for lock in locks(client, "list", "--format=json").locks}
    assert listed == dict.fromkeys(OTHERS, None) | case.shown
    assert locks(client, "list", "--fail-on-stuck").status == Exit.STUCK
    case.mend()
    for lease in leases:
        lease.release()
    client.close()


async def test_others_are_listed_by_asyncio(case: Case) -> None:
    client = aio.connect(case.url, ttl=60)
    leases = [await client.lock(name).acquire() for name in NAMES]
    case.spoil()
    states = {info.name: info.state async for info in client.holders()}
    assert states == dict.fromkeys(OTHERS, LockState.HELD) | dict.fromkeys(
        case.shown, LockState.DAMAGED
    )
    case.mend()
    for lease in leases:
        await lease.release()
    await client.close()


def test_rows_of_another_release_are_an_error_after_the_others(tmp_path: Path) -> None:
    case = _rows(tmp_path / "locks.sqlite3", '{"v": 99}')
    with lockkit.connect(case.url, ttl=60) as client:
        leases = [client.lock(name).acquire() for name in NAMES]
        case.spoil()
        result = locks(client, "list", "--format=jsonl")
        assert {json.loads(line)["name"] for line in result.out.splitlines()} == OTHERS
        assert result.status == Exit.ERROR
        assert "99" in result.err
        case.mend()
        for lease in leases:
            lease.release()


@pytest.fixture
def later(tmp_path: Path) -> Case:
    """Another release of lockkit writes there."""
    return _rows(tmp_path / "locks.sqlite3", '{"v": 99}')


@pytest.mark.parametrize("names", ["a", "ab"])
@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_block_under_which_another_release_writes_ends_as_if_the_store_were_down(
    later: Case, api: Api, names: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It had the lock to its end. An error of its own is not hidden, and ``release`` raises."""

    def several() -> Any:
        return client.multi(*names) if len(names) > 1 else client.lock(names)

    client = connect(api, later.url, ttl=60)
    with several().acquire():
        later.spoil()
    assert "release of 'a' not confirmed" in caplog.text
    assert "99" in caplog.text
    later.mend()
    with pytest.raises(ZeroDivisionError), several().acquire():
        later.spoil() or 1 / 0
    later.mend()
    lease = several().acquire()
    later.spoil()
    with pytest.raises(LayoutMismatch, match="99"):
        lease.release()
    later.mend()
    client.stop() if isinstance(client, BlockingClient) else client.close()


def test_work_that_is_done_stands_though_another_release_writes_there(
    later: Case, caplog: pytest.LogCaptureFixture
) -> None:
    with lockkit.connect(later.url, ttl=60) as client:
        lease = client.lock("a").acquire()
        later.spoil()
        give_back(lease)
        assert "release of 'a' not confirmed" in caplog.text
        later.mend()


def test_an_interrupt_is_not_hidden_behind_another_release_that_writes_there(later: Case) -> None:
    """The claim that nobody gets cannot be given back now."""
    with lockkit.connect(later.url, ttl=60) as client:

        def interrupted(*_: object) -> None:
            later.spoil()
            raise KeyboardInterrupt

        client._lease = interrupted  # type: ignore[assignment, method-assign]
        with pytest.raises(KeyboardInterrupt):
            client.lock("a").acquire()
        later.mend()


HOSTILE = "-stock:a  b$(touch x)'\"\\;`touch x`"
"""A request may choose it: percent-encoding leaves all of this in a name."""


def _in_a_row(place: Path, _: RedisServer) -> str:
    with closing(sqlite3.connect(place)) as database, database:
        database.execute("UPDATE lockkit_lock SET state = '{', version = version + 1")
    return f"sqlite:///{place}"


def _in_a_bucket(_: Path, server: RedisServer) -> str:
    with server.client() as admin:
        admin.hset(Keys("lockkit").bucket(bucket_of(HOSTILE)), f"={HOSTILE}", "something else")
    return server.url


def _beside_a_key(_: Path, server: RedisServer) -> str:
    with server.client() as admin:
        admin.set(PlainKeys("").of_name(HOSTILE)[0], "something else")
    return f"{server.url}?protocol=plain"


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_repair_leaves_the_last_words_of_a_lease(
    kind: str, tmp_path: Path, redis_server: RedisServer
) -> None:
    """Whatever slots the names have."""
    redis_server.flush()
    place = tmp_path / "locks.sqlite3"
    url = redis_server.url if kind == "redis" else f"sqlite:///{place}"
    names = [f"stock:{number}" for number in (46, 64, 75, 1023, 1131)]
    with lockkit.connect(url) as client, redis_server.client() as admin:
        for name in names:
            lease = client.lock(name).acquire()
            client.break_(name, fence=lease.fencing_token, by="ann")
            lease.release()
            if kind == "redis":
                admin.hset(Keys("lockkit").bucket(bucket_of(name)), f"={name}", "something else")
            else:
                with closing(sqlite3.connect(place)) as database, database:
                    found = "WHERE name = ? AND prefix = 'lockkit'"
                    database.execute(f"UPDATE lockkit_lock SET state = '{{' {found}", [name])
            assert client.repair(name, by="bob")
            told = {words.broken_by: words.fence for words in client.last_words(name)}
            assert told == {"ann": lease.fencing_token, "repaired its record: bob": None}


@pytest.mark.parametrize("spoil", [_in_a_row, _in_a_bucket, _beside_a_key])
def test_the_command_that_repairs_a_name_can_be_typed_in_a_shell(
    spoil: Callable[[Path, RedisServer], str], tmp_path: Path, redis_server: RedisServer
) -> None:
    redis_server.flush()
    place = tmp_path / "locks.sqlite3"
    with lockkit.connect(f"sqlite:///{place}") as client:
        client.lock(HOSTILE).acquire().release()
    with lockkit.connect(spoil(place, redis_server)) as client:
        (line,) = re.findall("locks release (.*)", locks(client, "show", "--", HOSTILE).out)
        refused = locks(client, "release", "--yes", "--", escape(HOSTILE))
        assert refused.err.endswith(f"locks release {line}\n")
        reason = ("--yes", "--reason", "ticket 7")
        assert locks(client, "release", *reason, *shlex.split(line)).status == Exit.OK
        said = r"an operator repaired its record \ds ago: \S+ uid=\d+.*: ticket 7"
        assert re.search(said, locks(client, "show", "--", HOSTILE).out)  # the store keeps it
        assert client.lock(HOSTILE).acquire(timeout=0).release()


def _a_bucket(server: RedisServer) -> tuple[str, str]:
    key = Keys("lockkit").bucket(bucket_of("a")).decode()
    with server.client() as admin:
        admin.set(key, "something else")
    return server.url, f'DEL "{key}" in redis-cli'


def _a_plain_key(server: RedisServer) -> tuple[str, str]:
    with server.client() as admin:
        admin.hset("a", "sku", "7")
    return f"{server.url}?protocol=plain", "it belongs to another program"


@pytest.mark.parametrize("spoil", [_a_bucket, _a_plain_key])
@pytest.mark.parametrize("flag", [[], ["--damaged"]])
def test_damage_that_the_command_does_not_repair(
    spoil: Callable[[RedisServer], tuple[str, str]],
    flag: list[str],
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It says what is damaged, and promises and tries nothing."""
    redis_server.flush()
    url, said = spoil(redis_server)
    with lockkit.connect(url) as client:
        refused = locks(client, "release", "a", *flag, "--yes")
        assert refused.status == Exit.ERROR
        assert "a is damaged: it" in refused.err
        assert said in refused.err
        assert "--damaged" not in refused.err
        assert not [line for line in caplog.records if line.name == "lockkit.audit"]
        assert "locks show a" in locks(client, "run", "a", "--", "true").err
        assert said in " ".join(locks(client, "show", "a").out.split())


def test_an_operator_deletes_what_cannot_be_read(tmp_path: Path) -> None:
    """And only that."""
    case = _rows(tmp_path / "locks.sqlite3")
    with lockkit.connect(case.url, ttl=60) as client:
        leases = [client.lock(name).acquire() for name in NAMES]
        fence = leases[1].fencing_token
        case.spoil()
        refused = locks(client, "release", SPOILED, "--yes")
        assert refused.status == Exit.ERROR
        assert "--damaged" in refused.err
        shown = locks(client, "show", SPOILED).out
        assert "damaged" in shown
        assert "kind:" not in shown, "nothing is known of it"
        assert "waiters:" not in shown
        assert locks(client, "release", "b", "--damaged", "--yes").status == Exit.ERROR
        assert locks(client, "release", SPOILED, "--damaged", "--dry-run").status == Exit.OK
        guarded = locks(client, "release", SPOILED, "--damaged", "--fence", str(fence), "--yes")
        assert guarded.status == Exit.USAGE
        assert "so --fence cannot be compared" in guarded.err
        with pytest.raises(DamagedRecord, match=f"keeps of '{SPOILED}' cannot be read"):
            client.lock(SPOILED).try_acquire()
        assert locks(client, "release", SPOILED, "--damaged", "--yes").status == Exit.OK
        with client.lock(SPOILED).acquire(timeout=0) as lease:
            assert lease.fencing_token > fence
        for lease in leases:
            lease.release()
