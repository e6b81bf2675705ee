"""The cost of a step does not grow with the holders of a name, its waiters or dead waiters."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from lock_tables import engine_for, make_table
from steps import Steps

import lockkit
from lockkit.engine import grant, state
from lockkit.model.errors import KindMismatch, LeaseLost
from lockkit.model.settings import settings_from_url
from lockkit.model.types import Busy, Grant, Kind, Mode, Owner, Release, Renewal, Request
from lockkit.runtime import process
from lockkit.stores.contract import Shared
from lockkit.stores.redis import protocol
from lockkit.stores.redis.layout import bucket_of
from lockkit.stores.registry import load_store
from lockkit.stores.sql import listing
from lockkit.stores.sql import rows as table_rows
from lockkit.stores.sql import store as sql_store
from lockkit.testing.servers import RedisServer

FEW, SOME, MANY = 20, 200, 1000
SWEEP = 64
"""Commands by which a step may differ: some of what is over is forgotten on the way."""

NAME = "stock:42"
COLUMNS = "id", "prefix", "name", "version", "fence", "state", "updated"
QUEUE, WAITERS, TOMBS, ALIVE = range(1, 5)
COMMANDS_OF_A_PASS = 12
"""In Redis, for each waiter that a step grants or finds dead."""

USES: dict[str, dict[str, Any]] = {
    "mutex": {"kind": Kind.MUTEX},
    "semaphore": {"kind": Kind.SEMAPHORE, "permits": 5000, "shared": True},
    "reader": {"kind": Kind.RW, "shared": True},
    "writer": {"kind": Kind.RW},
    "reentrant": {"kind": Kind.REENTRANT, "entrant": "me"},
}
PLAIN = "in_plain_keys", "mutex"
TOGETHER = ("semaphore", "reader", "reentrant")


class Counted:
    """A backend, and how many commands or statements its store does."""

    def __init__(self, backend: Steps, count: Callable[[], int]) -> None:
        self.backend = backend
        self.count = count

    def cost(self, step: Callable[[], object]) -> int:
        before = self.count()
        step()
        return self.count() - before


class Entries:
    """What Redis keeps of the claims on a name, by the position in the KEYS of its scripts."""

    def __init__(self, store: Counted, server: RedisServer, name: str) -> None:
        self._keys = store.backend.store._language.keys.of_name(name)
        self._server = server

    def end(self, position: int, requests: Iterable[Request]) -> None:
        """Their time is over, as if it had passed."""
        with self._server.client() as admin:
            admin.zadd(self._keys[position], {each.token: 1 for each in requests}, xx=True)

    def count(self, position: int) -> int:
        with self._server.client() as admin:
            key = self._keys[position]
            return int(admin.hlen(key) if position == WAITERS else admin.zcard(key))


@pytest.fixture
def in_redis(redis_server: RedisServer, redis_url: str) -> Iterator[Counted]:
    yield from _counted(redis_server, redis_url)


@pytest.fixture
def in_plain_keys(redis_server: RedisServer, redis_url: str) -> Iterator[Counted]:
    yield from _counted(redis_server, f"{redis_url}?protocol=plain")


def _counted(server: RedisServer, url: str) -> Iterator[Counted]:
    """Its waiters have no channel: nobody need listen."""
    backend = Steps(load_store(settings_from_url(url)))
    backend.store.inbox.forbid()
    with server.client() as admin:
        yield Counted(backend, lambda: _commands(admin))
    backend.close()


def _commands(admin: redis.Redis) -> int:
    """Those inside of scripts as well, but not those of looking."""
    stats: Any = admin.info("commandstats")
    return sum(stat["calls"] for name, stat in stats.items() if not name.endswith("_info"))


@pytest.fixture
def in_sql(tmp_path: Path) -> Iterator[Counted]:
    backend = Steps(load_store(settings_from_url(f"sqlite:///{tmp_path / 'locks.sqlite3'}")))
    backend.acquire(claim("mutex", name="first"))
    backend.extend([claim("mutex", name="first")])
    statements: list[str] = []
    for slot in (backend.store._steps, backend.store._renewals):
        slot._connection._connection.set_trace_callback(statements.append)
    yield Counted(backend, lambda: len(statements))
    backend.close()


def claim(use: str, mode: Mode = Mode.TRY, *, name: str = NAME, **changes: Any) -> Request:
    request = Request(name, secrets.token_hex(16), 600.0, "owner", mode)
    return request._replace(**{**USES[use], **changes})


def crowd(store: Counted, use: str, size: int, *, waits: bool = True) -> Request:
    """So many hold a name, if several may, and so many wait. Returns one of those who hold it."""
    name = f"{use}:{size}"
    holders = [claim(use, name=name) for _ in range(size if use in TOGETHER else 1)]
    for holder in holders:
        assert isinstance((store.backend.acquire(holder)), Grant)
    for _ in range(size if waits else 0):
        assert isinstance((store.backend.acquire(waiter(use, name))), Busy)
    return holders[0]


def waiter(use: str, name: str, **changes: Any) -> Request:
    terms = {"semaphore": {"permits": 1}, "reentrant": {"entrant": "they"}}.get(use, {})
    waits = "writer" if use == "reader" else use
    return claim(waits, Mode.ENQUEUE, name=name, **terms, **changes)


def costs(store: Counted, use: str, holder: Request) -> dict[str, int]:
    """Of each step, by its name."""
    backend, asker = store.backend, waiter(use, holder.name)
    full = asker._replace(token=secrets.token_hex(16), max_queue=1)
    other = claim("mutex" if use != "mutex" else "writer", name=holder.name)
    steps: dict[str, Callable[[], object]] = {
        "try": lambda: backend.acquire(asker._replace(mode=Mode.TRY)),
        "enqueue": lambda: backend.acquire(asker),
        "poll": lambda: backend.acquire(asker._replace(mode=Mode.POLL)),
        "refuse": lambda: backend.acquire(full),
        "withdraw": lambda: backend.withdraw(asker),
        "withdraw unsure": lambda: backend.withdraw(asker._replace(unsure=True)),
        "extend": lambda: backend.extend([holder._replace(number=1)]),
        "shorten": lambda: backend.extend([holder._replace(number=2, ttl=300.0)]),
        "another kind": lambda: _refused(backend, other),
        "inspect": lambda: [*backend.holders(holder.name)],
        "release": lambda: backend.release(holder),
    }
    if not isinstance(backend.store, Shared):
        del steps["another kind"]
    return {name: store.cost(step) for name, step in steps.items()}


def _refused(backend: Steps, request: Request) -> None:
    with pytest.raises(KindMismatch):
        backend.acquire(request)


@pytest.fixture
def all_are_alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of a crowd in Redis, until a test ends some, however long it takes to come."""
    monkeypatch.setattr(protocol, "alive_for", lambda _: 60.0)
    protocol.terms.cache_clear()
    yield
    protocol.terms.cache_clear()


@pytest.mark.usefixtures("all_are_alive")
@pytest.mark.parametrize(("kind", "use"), [*product(["in_redis", "in_sql"], USES), PLAIN])
def test_a_step_costs_the_same_however_many_there_are(
    request: pytest.FixtureRequest, kind: str, use: str
) -> None:
    store: Counted = request.getfixturevalue(kind)
    costs(store, use, crowd(store, use, 2))  # the scripts are loaded
    few, many = (costs(store, use, crowd(store, use, size)) for size in (FEW, SOME))
    for step, cost in many.items():
        assert cost <= few[step] + SWEEP, (step, cost, few[step])
    assert many["refuse"] <= many["try"] + FEW, many


@pytest.mark.usefixtures("all_are_alive")
@pytest.mark.parametrize(("kind", "use"), [*product(["in_redis"], USES), PLAIN])
def test_a_step_passes_so_many_of_the_dead(
    request: pytest.FixtureRequest, kind: str, use: str, redis_server: RedisServer
) -> None:
    """Who is alive behind them has its turn after some more steps."""
    store: Counted = request.getfixturevalue(kind)
    holder = crowd(store, use, 1, waits=False)
    dead = [waiter(use, holder.name) for _ in range(MANY - 1)]
    alive = waiter(use, holder.name)
    for each in (*dead, alive):
        (store.backend.acquire(each))
    entries = Entries(store, redis_server, holder.name)
    entries.end(ALIVE, dead)
    assert entries.count(QUEUE) == MANY
    most = grant.PASS_MOST * COMMANDS_OF_A_PASS
    poll = alive._replace(mode=Mode.POLL)
    assert store.cost(lambda: store.backend.acquire(poll)) <= most
    other = waiter(use, holder.name)._replace(mode=Mode.TRY)
    assert store.cost(lambda: store.backend.acquire(other)) <= most
    assert store.cost(lambda: store.backend.release(holder)) <= most
    for _ in range(MANY // grant.PASS_MOST + 1):
        assert store.cost(lambda: store.backend.acquire(poll)) <= most
    assert isinstance((store.backend.acquire(poll)), Grant)


@pytest.mark.usefixtures("all_are_alive")
def test_a_poll_behind_another_client_forgets_so_many_of_the_dead(
    in_plain_keys: Counted, redis_server: RedisServer
) -> None:
    with redis_server.client() as admin:
        admin.set(NAME, "theirs")
    backend = in_plain_keys.backend
    dead = [waiter("mutex", NAME) for _ in range(SOME)]
    alive = waiter("mutex", NAME)
    for each in (*dead, alive):
        backend.acquire(each)
    entries = Entries(in_plain_keys, redis_server, NAME)
    entries.end(ALIVE, dead)
    assert entries.count(QUEUE) == SOME + 1
    poll = alive._replace(mode=Mode.POLL)
    for _ in range(SOME // 16 + 1):
        assert in_plain_keys.cost(lambda: backend.acquire(poll)) <= FEW + SWEEP
    busy = backend.acquire(poll)
    assert isinstance(busy, Busy)
    assert busy.ahead == 0


@pytest.mark.usefixtures("all_are_alive")
@pytest.mark.parametrize("kind", ["in_redis", "in_plain_keys"])
def test_who_joins_forgets_some_of_the_dead(
    request: pytest.FixtureRequest, kind: str, redis_server: RedisServer
) -> None:
    """While the name is held, nobody passes them."""
    store: Counted = request.getfixturevalue(kind)
    holder = crowd(store, "mutex", 1, waits=False)
    dead = [waiter("mutex", holder.name) for _ in range(FEW)]
    for each in dead:
        store.backend.acquire(each)
    entries = Entries(store, redis_server, holder.name)
    entries.end(ALIVE, dead)
    assert entries.count(QUEUE) == FEW
    for _ in range(2):
        store.backend.acquire(waiter("mutex", holder.name))
    assert [entries.count(each) for each in (QUEUE, WAITERS, ALIVE)] == [2, 2, 2]


@pytest.mark.parametrize("kind", ["in_redis", "in_plain_keys"])
def test_a_mark_of_what_was_given_up_ends_others_whose_time_is_over(
    request: pytest.FixtureRequest, kind: str, redis_server: RedisServer
) -> None:
    store: Counted = request.getfixturevalue(kind)
    given_up = [claim("mutex", unsure=True) for _ in range(FEW)]
    for each in given_up:
        store.backend.withdraw(each)
    entries = Entries(store, redis_server, NAME)
    entries.end(TOMBS, given_up)
    assert entries.count(TOMBS) == FEW
    for _ in range(2):
        store.backend.withdraw(claim("mutex", unsure=True))
    assert entries.count(TOMBS) == 2


def test_many_are_extended_in_many_short_scripts(
    in_redis: Counted, redis_server: RedisServer
) -> None:
    """Each of them reads who shares the name once at most."""
    readers = [claim("reader", ttl=300.0) for _ in range(MANY)]
    for reader in readers:
        (in_redis.backend.acquire(reader))
    with redis_server.client() as admin:
        admin.config_resetstat()
        for number, ttl in enumerate((600.0, 60.0), 1):
            requests = [r._replace(ttl=ttl, number=number) for r in readers]
            assert all(renewal.left for renewal in (in_redis.backend.extend(requests)))
        stats: Any = admin.info("commandstats")
    scripts = stats["cmdstat_evalsha"]["calls"]
    assert scripts >= 2 * MANY / 100
    assert stats["cmdstat_hvals"]["calls"] <= scripts
    assert _commands(admin) <= 8 * 2 * MANY


def test_those_who_share_a_row_are_extended_at_once(in_sql: Counted) -> None:
    """And what is written of one of them is written of all."""
    others = claim("mutex", name="another")
    in_sql.backend.acquire(others)
    readers = [claim("reader", ttl=300.0) for _ in range(FEW)]
    for reader in readers:
        in_sql.backend.acquire(reader)
    gone = claim("reader")

    def extend(number: int, *requests: Request) -> list[Renewal]:
        return in_sql.backend.extend([r._replace(number=number, ttl=600.0) for r in requests])

    one = in_sql.cost(lambda: extend(1, readers[0], others))
    assert in_sql.cost(lambda: extend(2, readers[0], others, gone, *readers[1:])) == one
    renewals = extend(1, readers[0], gone, others, *readers[1:])  # held up on their way
    assert [renewal.left is None for renewal in renewals] == [False, True, *[False] * FEW]
    assert all(renewal.left is None or renewal.left > 500 for renewal in renewals)


def test_a_process_is_looked_at_once_however_many_claims_it_has(
    in_sql: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database is locked for others."""
    for number in range(FEW):
        owner = process.owner_text(f"reader {number}", f"thread {number}")
        assert isinstance(in_sql.backend.acquire(claim("reader", owner=owner)), Grant)
    looked: list[int] = []

    def is_dead(owner: Owner) -> bool:
        looked.append(owner.pid)
        return False

    monkeypatch.setattr(process, "is_dead", is_dead)
    assert isinstance(in_sql.backend.acquire(claim("reader")), Grant)
    assert looked == [os.getpid()]


@pytest.mark.parametrize("use", ["semaphore", "reader"])
def test_sharing_a_name_reads_none_of_those_who_hold_it(
    in_redis: Counted, redis_server: RedisServer, use: str
) -> None:
    """While nobody waits; but now and then, to forget those who have expired."""
    holder = crowd(in_redis, use, MANY, waits=False)
    backend = in_redis.backend
    with redis_server.client() as admin:
        admin.config_resetstat()
        for _ in range(20):
            asker = claim(use, name=holder.name)
            assert isinstance(backend.acquire(asker), Grant)
            assert backend.release(asker) is Release.RELEASED
        stats: Any = admin.info("commandstats")
    assert stats.get("cmdstat_hgetall", {"calls": 0})["calls"] <= 5


def test_no_script_reads_all_of_what_grows() -> None:
    """But those who share a name, of whom there are 10,000 at most."""
    scripts = [*Path(str(files("lockkit"))).rglob("*.lua")]
    assert {script.parts[-3] for script in scripts} == {"redis", "redlock"}
    for script in scripts:
        for call in re.findall(r"redis\.p?call\(.*", script.read_text()):
            reads = re.search(r"'(HGETALL|HVALS|HKEYS|SMEMBERS|LRANGE|KEYS|SCAN)', ([^)]+)", call)
            if reads:
                assert reads[2] in {"KEYS[6]", "KEYS[queue + 3]", "key"}, (script.name, call)
            if "'ZRANGE'" in call:
                assert re.search(r"'LIMIT'|, 0, (\d+|LOOK_MOST)\b", call), (script.name, call)
            assert "ZREMRANGEBY" not in call, (script.name, call)


def test_no_more_share_a_name_than_each_step_can_read(
    in_redis: Counted, redis_server: RedisServer
) -> None:
    backend = in_redis.backend
    backend.acquire(claim("reader"))
    key = backend.store._protocol.keys.holders(NAME)
    with redis_server.client() as admin:
        (entry,) = admin.hvals(key)
        some = {f"{number:032x}": entry for number in range(state.MOST_SHARED - 2)}
        admin.hset(key, mapping=some)
        assert isinstance(backend.acquire(claim("reader")), Grant)
        assert isinstance(backend.acquire(claim("reader")), Busy)


def test_what_was_abandoned_of_shared_kinds_is_forgotten(redis_server: RedisServer) -> None:
    """By whoever takes another name of the same kind."""
    redis_server.flush()
    names = [n for n in map("n{}".format, range(200_000)) if bucket_of(n) == 7][:2200]
    client = lockkit.connect(redis_server.url)
    backend = Steps(client.store)
    key = backend.store._protocol.keys.bucket(7)
    for name in names[:200]:
        backend.acquire(claim("semaphore", name=name))
    with redis_server.client() as admin:
        old = b"%016d" % int((time.time() - 3600) * 1e6)
        for field, value in admin.hgetall(key).items():
            if field[:1] == b"=":
                admin.hset(key, field, value[:34] + old)
        for name in names[200:]:
            client.semaphore(name, 1).acquire().release()
        left = admin.hlen(key)
    assert left < 160
    client.close()


@pytest.mark.parametrize("use", TOGETHER)
def test_what_was_evicted_is_lost(use: str, redis_server: RedisServer) -> None:
    redis_server.flush()
    client = lockkit.connect(redis_server.url)
    lease = {
        "semaphore": client.semaphore(NAME, 3),
        "reader": client.rwlock(NAME).read(),
        "reentrant": client.lock(NAME, reentrant=True),
    }[use].acquire()
    backend = Steps(client.store)
    with redis_server.client() as admin:
        admin.delete(backend.store._protocol.keys.bucket(bucket_of(NAME)))
    with pytest.raises(LeaseLost):
        lease.extend()
    lease.release()
    client.close()


def test_short_lived_processes_prune_as_well(tmp_path: Path) -> None:
    """Each uses one new name, and ends."""
    path = tmp_path / "locks.sqlite3"
    with lockkit.connect(f"sqlite:///{path}") as client:
        for number in range(50):
            client.lock(f"old:{number}").acquire().release()
    with contextlib.closing(sqlite3.connect(path)) as table:
        table.execute("UPDATE lockkit_lock SET updated = updated - ?", (2 * table_rows.DAY,))
        table.commit()
    with contextlib.closing(sqlite3.connect(path)) as table:
        for number in range(1000):  # one in 32 prunes, beginning at a random row
            with lockkit.connect(f"sqlite:///{path}") as client:
                client.lock(f"new:{number}").acquire().release()
            old = "SELECT count(*) FROM lockkit_lock WHERE name LIKE 'old:%'"
            ((left,),) = table.execute(old)
            if left < 25:
                break
        assert left < 25


def test_old_rows_are_deleted_at_once(
    in_sql: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever locks a new name waits for one commit, not for one of each old row."""
    monkeypatch.setattr(sql_store, "PRUNE_EVERY", 1)
    monkeypatch.setattr(table_rows.secrets, "token_hex", lambda _: "")

    def cost_beside(old: int) -> int:
        for number in range(old):
            request = claim("mutex", name=f"old:{number}")
            in_sql.backend.acquire(request)
            in_sql.backend.release(request)
        with contextlib.closing(sqlite3.connect(tmp_path / "locks.sqlite3")) as table:
            table.execute("UPDATE lockkit_lock SET updated = updated - ?", (2 * table_rows.DAY,))
            table.commit()
            asker = claim("mutex", name=f"new:{old}")
            cost = in_sql.cost(lambda: in_sql.backend.acquire(asker))
            left = table.execute("SELECT name FROM lockkit_lock WHERE name LIKE 'old:%'")
            assert not left.fetchall()
        return cost

    assert cost_beside(SOME // 2) == cost_beside(1)


class Table:
    """Of a database, with rows of whatever prefix."""

    def __init__(self, client: lockkit.LockClient, engine: sa.Engine) -> None:
        self.client = client
        self._engine = engine

    def fill(self, *rows: tuple[str, str, str, int]) -> None:
        """Key, prefix, state and numbers of each."""
        insert = sa.insert(sa.table("lockkit_lock", *map(sa.column, COLUMNS)))
        values = ((key, prefix, key, n, n, state, n) for key, prefix, state, n in rows)
        with self._engine.begin() as admin:
            admin.execute(insert, [dict(zip(COLUMNS, row, strict=True)) for row in values])

    def delete(self, where: str = "0 = 0", **values: object) -> None:
        with self._engine.begin() as admin:
            admin.execute(sa.text(f"DELETE FROM lockkit_lock WHERE {where}"), values)


@pytest.fixture(params=["sqlite", "postgres_url", "mariadb_url"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    path = f"sqlite:///{tmp_path / 'locks.sqlite3'}"
    url = path if request.param == "sqlite" else request.getfixturevalue(request.param)
    engine = engine_for(url)
    if request.param != "sqlite":
        make_table(url)
    with lockkit.connect(url) as client:
        client.lock("a").acquire().release()
        yield Table(client, engine)
    engine.dispose()


def test_other_prefixes_are_looked_for_in_so_many_rows(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a table has: what is behind them is not read."""
    monkeypatch.setattr(listing, "PREFIXES_OF", SOME)
    store, perform = table.client.store, table.client.perform
    table.delete()
    table.fill(*((f"{number:064}", "first", "", 0) for number in range(SOME)))
    table.fill(("f" * 64, "behind", "some", 1))
    assert perform(store.prefixes()) == {"first": False}
    table.delete("id = :id", id=f"{0:064}")
    assert perform(store.prefixes()) == {"first": False, "behind": True}


@pytest.mark.parametrize("state", ["", "some"], ids=["free", "used"])
def test_a_listing_looks_at_so_many_rows_at_once(
    table: Table, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whosever they are: a statement that looks for its own would read a shared table whole."""
    monkeypatch.setattr(listing, "PAGE", SOME)
    table.fill(*((f"0{number:063}", "other", state, 1) for number in range(3 * SOME)))
    pages: list[list[str]] = []
    with table.client.lock("a"):
        page = table.client.perform(table.client.store.page(None))
        while page.cursor is not None:
            pages.append([info.name for info in page.infos])
            page = table.client.perform(table.client.store.page(None, page.cursor))
    assert pages == [[], [], []]
    assert [info.name for info in page.infos] == ["a"]
