"""The last words of a lease that was not released, even if another lease has the name now."""

from __future__ import annotations

import asyncio
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import redis
from command_line import hold, locks, until
from lock_tables import make_table

import lockkit
import lockkit.aio
from lockkit.engine import last_words, state
from lockkit.leases.client import LockClient
from lockkit.model.types import Kind, LockInfo, LockState, Mode, Owner, Request, Waiting
from lockkit.operate.inspect import Process, process_of, remark, safe_to_break, stuck
from lockkit.runtime import process
from lockkit.stores.redis.layout import bucket_of
from lockkit.stores.sql.connector import Parameters, Result
from lockkit.stores.sql.sqlite import SQLiteConnection

SHARED = {"semaphore": lambda c, n: c.semaphore(n, 2), "mutex": lambda c, n: c.lock(n)}


def urls(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/locks.sqlite3"
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    if request.param == "mariadb":
        url = str(request.getfixturevalue("mariadb_url"))
        make_table(url)
        return url
    return str(request.getfixturevalue("lock_table_url"))


@pytest.fixture(params=["memory", "sqlite", "postgresql", "mariadb", "redis"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LockClient]:
    found = lockkit.connect(urls(request, tmp_path))
    yield found
    found.close()


def lose(client: LockClient, name: str, kind: str = "mutex", **facts: object) -> int:
    """A lease that expires without a release; its fence."""
    claim = {"kind": Kind.SEMAPHORE, "permits": 2, "shared": True}
    terms = {**(claim if kind == "semaphore" else {}), **facts}
    hold(client, name, ttl=0.05, **terms)
    until(lambda: states(client, name) == [LockState.ABANDONED])
    (info,) = client.holders(name)
    assert info.fence is not None
    return info.fence


def states(client: LockClient, name: str) -> list[LockState]:
    return [info.state for info in client.holders(name)]


@pytest.mark.parametrize("kind", ["mutex", "semaphore"])
def test_they_outlive_the_next_holder(client: LockClient, kind: str) -> None:
    fence = lose(client, "stock:42", kind, max_hold=600.0)
    assert list(client.last_words("stock:42")) == []
    with SHARED[kind](client, "stock:42").acquire():
        pass
    assert list(client.holders("stock:42")) == []
    (words,) = client.last_words("stock:42")
    assert (words.state, words.fence, words.broken_by) == (LockState.LOST, fence, "")
    assert words.owner == Owner("elsewhere", 4121, "MainThread", "POST /stock/42")
    assert words.left is not None
    assert words.left < 0
    assert words.max_hold == 600.0
    assert list(client.last_words()) == [words._replace(
        age=pytest.approx(words.age, abs=5), left=pytest.approx(words.left, abs=5),
        renewed=pytest.approx(words.renewed, abs=5),
    )]  # fmt: skip
    assert list(client.last_words("stock:43")) == []


NEXT = {
    "mutex": lambda c, n: c.lock(n),
    "reentrant": lambda c, n: c.lock(n, reentrant=True),
    "semaphore": lambda c, n: c.semaphore(n, 2),
    "write": lambda c, n: c.rwlock(n).write(),
}


@pytest.mark.parametrize("kind", ["mutex", "semaphore"])
@pytest.mark.parametrize("then", NEXT)
def test_they_outlive_a_holder_of_another_kind(client: LockClient, kind: str, then: str) -> None:
    fence = lose(client, "stock:42", kind)
    with NEXT[then](client, "stock:42").acquire(timeout=0):
        assert states(client, "stock:42") == [LockState.HELD]
    (words,) = client.last_words("stock:42")
    assert (words.fence, words.kind.value) == (fence, kind)


def test_a_lease_that_was_released_has_none(client: LockClient) -> None:
    for _ in range(3):
        with client.lock("stock:42"), client.semaphore("pool", 2):
            pass
    assert list(client.last_words()) == []


def test_who_broke_it_and_why(client: LockClient) -> None:
    hold(client, "x")
    assert locks(client, "release", "x", "--yes", "--reason", "ticket 7").status == 0
    (words,) = client.last_words("x")
    assert re.fullmatch(r"\S+@\S+:\d+ uid=\d+( sudo_user=\S+)?: ticket 7", words.broken_by)
    shown = locks(client, "show", "x").out
    assert shown.startswith("x is free in ")
    assert re.search(r"reason: +an operator released it \ds ago: .* ticket 7\n", shown)
    again = locks(client, "release", "x", "--yes")
    assert again.status == 1
    assert again.err.startswith("nothing to release: x is free in ")


def test_without_a_word_it_is_this_process(client: LockClient) -> None:
    request = hold(client, "x")
    (info,) = client.holders("x")
    assert client.break_("x", fence=info.fence or 0)
    assert client.perform(client.store.release(request))
    (words,) = client.last_words("x")
    assert words.broken_by == str(process.owner(""))


def test_the_latest_of_a_name_is_kept(client: LockClient) -> None:
    lose(client, "x")
    second = lose(client, "x")
    third = lose(client, "x")
    (words,) = client.last_words("x")
    assert second < third
    assert words.fence == second


@pytest.mark.parametrize("client", ["memory", "sqlite"], indirect=True)
def test_the_operators_words_outlive_those_of_one_abandoned_long_ago(
    client: LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same step forgets the other one."""
    lease = client.semaphore("x", 2).acquire()
    hold(client, "x", ttl=0.05, kind=Kind.SEMAPHORE, permits=2, shared=True)
    until(lambda: LockState.ABANDONED in states(client, "x"))
    monkeypatch.setattr(state, "GRACE_SECONDS", 0)
    assert client.break_("x", fence=lease.fencing_token, by="ann: ticket 7")
    (words,) = client.last_words("x")
    assert (words.fence, words.broken_by) == (lease.fencing_token, "ann: ticket 7")
    with pytest.raises(lockkit.LeaseLost, match="an operator released it: ann: ticket 7"):
        lease.extend()
    lease.release()


def test_many_who_lost_a_name_at_once_are_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = lockkit.connect(f"sqlite:///{tmp_path}/locks.sqlite3")
    claim = {"kind": Kind.SEMAPHORE, "permits": 100, "shared": True}
    held = [hold(client, "x", **claim) for _ in range(50)]
    client.perform(client.store.extend([one._replace(ttl=0.05, number=1) for one in held]))
    until(lambda: states(client, "x") == [LockState.ABANDONED] * 50)
    execute, writes = SQLiteConnection.execute, []

    def counted(connection: SQLiteConnection, statement: str, values: Parameters) -> Result:
        if statement == connection.dialect.put:
            writes.append(values)
        return execute(connection, statement, values)

    monkeypatch.setattr(SQLiteConnection, "execute", counted)
    hold(client, "x", **claim)
    assert states(client, "x") == [LockState.HELD]
    assert len(writes) == len(list(client.last_words("x"))) == 1
    client.close()


def test_there_are_at_most_a_thousand(memory: LockClient, tmp_path: Path) -> None:
    with lockkit.connect(f"sqlite:///{tmp_path}/locks.sqlite3") as on_disk:
        for client in (memory, on_disk):
            for number in range(last_words.SLOTS + 100):
                name = f"job:{number}"
                hold(client, name)
                (info,) = client.holders(name)
                client.break_(name, fence=info.fence or 0, by="a test")
            found = [info.name for info in client.last_words()]
            assert len(found) <= last_words.SLOTS
            assert len(found) > last_words.SLOTS / 2
            assert len(set(found)) == len(found)


def test_they_are_forgotten_after_a_day(
    memory: LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(memory, "x")
    later(monkeypatch, 11 * 60)
    assert list(memory.holders()) == []
    assert [info.name for info in memory.last_words()] == ["x"], "nobody has asked for it since"
    later(monkeypatch, 24 * 3600 - 12 * 60)
    assert [info.name for info in memory.last_words("x")] == ["x"]
    later(monkeypatch, 2 * 60)
    assert list(memory.last_words("x")) == list(memory.last_words()) == []


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """For memory's own clock."""
    from lockkit.stores import memory

    monkeypatch.setattr(memory, "_EPOCH", memory._EPOCH + seconds)


def test_what_nobody_has_asked_for_since_is_told_on_disk_too(tmp_path: Path) -> None:
    """A lease that has not changed has its moments from its fence."""
    client = lockkit.connect(f"sqlite:///{tmp_path}/locks.sqlite3")
    fence = lose(client, "x")
    with sqlite3.connect(tmp_path / "locks.sqlite3") as database:
        database.execute("UPDATE lockkit_lock SET fence = fence - ?", (11 * 60 * 10**6,))
    database.close()
    assert list(client.holders()) == []
    found = [*client.last_words("x"), *client.last_words()]
    assert [info.name for info in found] == ["x", "x"]
    assert re.search(r"expired 66\ds ago", locks(client, "show", "x").out)
    assert fence > (found[0].fence or 0)
    client.close()


@pytest.mark.parametrize("argv", [["show", "x"], ["--lost"], ["--lost", "--match", "x"]])
def test_show_and_list_tell_them(client: LockClient, argv: list[str]) -> None:
    lose(client, "x")
    with client.lock("x"):
        shown = locks(client, *argv, "--format", "json")
        found = {lock["state"]: lock for lock in shown.locks}
        assert sorted(found) == ["held", "lost"]
        assert found["lost"]["verdict"] == "info"
        assert found["lost"]["stuck"] is None
        assert "expired" in found["lost"]["reason"]
        assert [row["state"] for row in locks(client, "--format", "json").locks] == ["held"]
        assert locks(client, "--fail-on-stuck", "--lost").status == 0
        assert "lost" in locks(client, *argv).out


def test_the_asyncio_api_has_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.sqlite3"
    client = lockkit.connect(url)
    lose(client, "x")
    client.lock("x").acquire().release()
    client.close()

    async def ask() -> list[LockInfo]:
        async with lockkit.aio.connect(url) as found:
            return [*await found.last_words("x"), *await found.last_words()]

    assert [info.state for info in asyncio.run(ask())] == [LockState.LOST] * 2


PROGRAM = """
import signal, sys, lockkit
lease = lockkit.connect(sys.argv[1]).lock("job", ttl=float(sys.argv[2])).acquire()
print("held", flush=True)
signal.pause()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[LockClient, subprocess.Popen[bytes]]]:
    url = f"sqlite:///{tmp_path}/locks.sqlite3"
    client = lockkit.connect(url)
    command = [sys.executable, "-c", PROGRAM, url, "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        yield client, running
        running.kill()
    client.close()


def facts(client: LockClient, name: str = "job") -> dict[str, str]:
    shown = locks(client, "show", name).out
    return dict(re.findall(r"^([a-z ]+): +(.*)$", shown, re.MULTILINE))


def test_show_says_whether_it_is_safe_to_break(
    holder: tuple[LockClient, subprocess.Popen[bytes]],
) -> None:
    """Running, stopped, killed; the last also once its lease has expired."""
    client, running = holder
    assert facts(client)["break"] == (
        "not safe, its process is running on this host: only a fence stops it; nobody waits"
    )
    running.send_signal(signal.SIGSTOP)
    until(lambda: process_of(client.inspect("job").owner) is not Process.RUNNING)  # type: ignore[union-attr]
    until(lambda: states(client, "job") == [LockState.ABANDONED])
    stopped = facts(client)
    assert stopped["verdict"] == "info"
    assert stopped["reason"].endswith("and was not released: its process is stopped")
    running.kill()
    running.wait()
    until(lambda: facts(client)["reason"].endswith("its process has ended or was killed"))
    assert locks(client, "--fail-on-stuck").status == 0, "it blocks nobody"
    with client.lock("job"):
        assert "its process has ended or was killed" in locks(client, "show", "job").out


def held(**given: object) -> LockInfo:
    usual = {"owner": process.owner("job"), "fence": 7, "age": 45.0, "left": 25.0,
             "renewed": 5.0, "ttl": 30.0, "max_hold": 600.0}  # fmt: skip
    return LockInfo("x", LockState.HELD, **{**usual, **given})  # type: ignore[arg-type]


def dead() -> Owner:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return process.owner("job")._replace(pid=child.pid)


def test_what_is_safe_to_break() -> None:
    assert safe_to_break(held(owner=dead())) == (True, "safe, its process is gone")
    assert safe_to_break(held()).safe is False
    away = safe_to_break(held(owner=Owner("web-2", 1, "t")))
    assert away == (None, "not known, its process is on another host or in another container")
    assert safe_to_break(held(owner=None)).safe is None
    assert safe_to_break(LockInfo("x", LockState.QUEUED)).why.startswith(
        "there is nothing to break"
    )


def test_killed_paused_and_max_hold_read_differently() -> None:
    ended = held()._replace(state=LockState.ABANDONED, left=-63.0, age=123.0)
    texts = {
        remark(ended._replace(owner=dead())),
        remark(ended),
        remark(ended._replace(max_hold=0.0)),
        remark(ended._replace(age=63.0 + 622)),
        remark(ended._replace(owner=Owner("web-2", 1, "t"))),
        remark(ended._replace(owner=None)),
    }
    assert texts == {
        f"the lease expired 63s ago and was not released: {cause}"
        for cause in (
            "its process has ended or was killed",
            (
                "its process is running, but did not renew it: it was paused or cut off from the "
                "store, or the lease was dropped"
            ),
            "its process is running, and was not to renew it",
            "it was renewed up to its maximum of 600s",
            "its process was on another host or in another container",
            "nothing is known of its process",
        )
    }


@pytest.mark.parametrize("lasted", [30, 583, 612])
def test_no_lease_that_was_not_renewed_to_the_end_is_told_as_max_hold(lasted: float) -> None:
    """It was to be renewed once more."""
    for most in (600.0, lasted - 1):
        ended = held(max_hold=most, age=lasted + 63.0, left=-63.0)
        assert "its process is running" in remark(ended._replace(state=LockState.ABANDONED))


def test_an_abandoned_lease_is_trouble_only_where_somebody_waits() -> None:
    ended = held()._replace(state=LockState.ABANDONED, left=-63.0)
    assert stuck(ended) is None
    assert stuck(ended._replace(waiters=1, waiters_alive=0)) is None
    assert stuck(ended._replace(waiters=1, waiters_alive=1, left=-0.5)) is None, "just now"
    for waiters, end in ((1, "; 1 waits for it"), (2, "; 2 wait for it")):
        found = stuck(ended._replace(waiters=waiters, waiters_alive=waiters))
        assert found is not None
        assert found.code == "abandoned"
        assert found.reason.endswith(end)


def in_line(*since: float) -> tuple[Waiting, ...]:
    return tuple(Waiting(Owner("web", 1, "t"), each, alive=True) for each in since)


def test_a_waiter_that_starves() -> None:
    info = held(max_hold=None, waiters=2, waiters_alive=2, queue=in_line(601.0, 3.0))
    assert stuck(info) == ("starving", "the first of 2 waiters has been waiting for 601s")
    assert stuck(info._replace(queue=in_line(599.0))) is None
    assert stuck(info._replace(max_hold=3600.0)) is None, "one hold may take so long"
    assert stuck(info._replace(queue=in_line(5.0)), waiting_longer_than=4.0) == (
        "starving", "the first of 2 waiters has been waiting for 5s"
    )  # fmt: skip
    gone = (Waiting(Owner("web", 1, "t"), 900.0, alive=False), *in_line(2.0))
    assert stuck(info._replace(queue=gone)) is None, "the first one is dead"


def wait_for(client: LockClient, name: str, count: int, ttl: float = 60.0, first: int = 0) -> None:
    for number in range(first, first + count):
        owner = Owner("web-3", number, "t", "POST /pay").encode()
        waiting = Request(name, f"{number:032x}", ttl, owner, Mode.ENQUEUE)
        client.perform(client.store.acquire(waiting))


def test_waiting_longer_than(client: LockClient) -> None:
    hold(client, "fine")
    hold(client, "busy")
    wait_for(client, "busy", 2)
    until(lambda: (client.inspect("busy").waiting or 0) > 0.3)  # type: ignore[union-attr]
    (found,) = locks(client, "--waiting-longer-than", "300ms", "--format", "json").locks
    assert (found["name"], found["stuck"]) == ("busy", "starving")
    assert found["waiting"] > 0.3
    assert [each["owner"]["pid"] for each in found["queue"]] == [0, 1]
    assert locks(client, "--waiting-longer-than", "0.3", "--fail-on-stuck").status == 3
    assert locks(client, "--waiting-longer-than", "1h", "--fail-on-stuck").status == 0
    assert locks(client, "--stuck", "--waiting-longer-than", "0", "--format", "json").names == [
        "busy"
    ]
    assert locks(client, "--stuck").out == ""


def test_show_has_the_queue(client: LockClient) -> None:
    hold(client, "busy")
    wait_for(client, "busy", 20)
    shown = locks(client, "show", "busy").out
    assert re.search(r"break: +not known, .*; 20 are waiting, the first for \d\.\ds\n", shown)
    assert re.search(r"queue: +1\. web-3:0 POST /pay waits \d\.\ds\n", shown)
    assert re.search(r"\n +16\. web-3:15 POST /pay waits", shown)
    assert re.search(r"\n +and 4 more\n", shown)


def test_many_dead_waiters_hide_nobody_who_lives(client: LockClient) -> None:
    """They are at the head of the queue until the next one joins it."""
    hold(client, "busy")
    wait_for(client, "busy", 16, ttl=1.5)
    wait_for(client, "busy", 1, first=16)
    last = Request("busy", f"{16:032x}", 60.0, "", Mode.POLL)

    def only_the_last_lives() -> bool:
        client.perform(client.store.acquire(last))
        info = client.inspect("busy")
        assert info is not None
        return info.waiters_alive == 1

    until(only_the_last_lives)
    shown = locks(client, "show", "busy").out
    assert re.search(r"break: +not known, .*; 1 has waited for \d\.\ds\n", shown)
    found = locks(client, "--waiting-longer-than", "0.1", "--fail-on-stuck")
    assert found.status == 3
    assert "its waiter has been waiting for " in found.out


def test_a_queue_that_grows_is_told_by_watch(memory: LockClient) -> None:
    """Three looks in a row; and not while it stays or shrinks."""
    hold(memory, "busy")
    looks = 0

    class Growing(LockClient):
        def _pages(self, name: str | None) -> Iterator[list[LockInfo]]:
            nonlocal looks
            looks += 1
            wait_for(memory, "busy", looks)
            return super()._pages(name)

    growing = Growing(memory.store, memory.settings)
    shown = locks(growing, "--watch", "0.1", "--fail-on-stuck")
    assert shown.status == 3
    assert looks == 4
    assert "its queue grows: 4 wait" in shown.out


def an_hour_ago(url: str, name: str) -> None:
    """What was abandoned there was abandoned then: Redis has no clock that a test may set."""
    with redis.Redis.from_url(url) as admin:
        (bucket,) = admin.scan_iter("{*b")
        record = admin.hget(bucket, "=" + name)
        if len(record) == 50:
            admin.hset(bucket, "=" + name, record[:34] + moved_digits(record[34:]))
            (holders,) = admin.scan_iter("*h:" + name)
            for token, entry in admin.hgetall(holders).items():
                admin.hset(holders, token, entry[:1] + moved_digits(entry[1:81]) + entry[81:])
        else:
            moved = record[:34] + moved_digits(record[34:114]) + record[114:]
            admin.hset(bucket, "=" + name, moved)


def moved_digits(text: bytes) -> bytes:
    parts = [int(text[i : i + 16]) for i in range(0, len(text), 16)]
    return b"".join(b"%016d" % max(part - 3600 * 10**6, 0) for part in parts)


@pytest.mark.parametrize("kind", ["mutex", "semaphore"])
def test_what_nobody_has_asked_for_since_is_told_by_redis_too(redis_url: str, kind: str) -> None:
    """Also once those who lock other names have forgotten it, bit by bit."""
    client = lockkit.connect(redis_url)
    lose(client, "x", kind, max_hold=600.0)
    an_hour_ago(redis_url, "x")
    assert list(client.holders("x")) == []
    for _ in range(2):
        (words,) = client.last_words("x")
        assert [info.name for info in client.last_words()] == ["x"]
        assert words.left == pytest.approx(-3600, abs=60)
        assert words.max_hold == 600.0
        assert words.owner == Owner("elsewhere", 4121, "MainThread", "POST /stock/42")
        neighbour = next(n for n in map(str, count()) if bucket_of(n) == bucket_of("x"))
        with redis.Redis.from_url(redis_url) as admin:
            (bucket,) = admin.scan_iter("{*b")
            while admin.hexists(bucket, "=x"):
                client.lock(neighbour).acquire().release()
            assert not list(admin.scan_iter("*h:x"))
    client.close()


def test_redis_keeps_a_bounded_number_and_for_a_day(redis_url: str) -> None:
    client = lockkit.connect(redis_url)
    names = [name for name in map(str, range(20_000)) if bucket_of(name) == 7][:60]
    for name in names:
        hold(client, name)
        (info,) = client.holders(name)
        assert client.break_(name, fence=info.fence or 0, by="a test")
    found = [info.name for info in client.last_words()]
    assert 5 < len(found) <= 15
    assert names[-1] in found
    with redis.Redis.from_url(redis_url) as admin:
        (bucket,) = admin.scan_iter("{*b")
        for field, value in admin.hgetall(bucket).items():
            if field.startswith(b"w"):
                day_before = b"%016d" % (int(value[:16]) - last_words.DAY - 1)
                admin.hset(bucket, field, day_before + value[16:])
        assert list(client.last_words()) == []
        hold(client, names[0])
        (info,) = client.holders(names[0])
        client.break_(names[0], fence=info.fence or 0, by="a test")
        assert [info.name for info in client.last_words()] == [names[0]]
        assert sum(field.startswith(b"w") for field in admin.hkeys(bucket)) == 1
    client.close()


def test_redis_shrugs_at_words_that_it_did_not_write(redis_url: str) -> None:
    client = lockkit.connect(redis_url)
    lose(client, "x")
    client.lock("x").acquire().release()
    with redis.Redis.from_url(redis_url) as admin:
        (bucket,) = admin.scan_iter("{*b")
        (field,) = (each for each in admin.hkeys(bucket) if each.startswith(b"w"))
        for odd in (b"", b"x", b"1" * 16 + b"MX 0 9 9 x", b"\xff" * 200):
            admin.hset(bucket, field, odd)
            assert list(client.last_words("x")) == []
            lose(client, "x")
            client.lock("x").acquire().release()
            assert [info.name for info in client.last_words()] == ["x"]
    client.close()


def test_the_asyncio_api_of_redis_has_them(redis_url: str) -> None:
    async def lose_it() -> tuple[list[LockInfo], str]:
        async with lockkit.aio.connect(redis_url) as found:
            lease = await found.lock("x", ttl=30).acquire()
            await found.break_("x", fence=lease.fencing_token, by="ann: ticket 7")
            with pytest.raises(lockkit.LeaseLost) as lost:
                await lease.extend()
            await lease.release()
            return await found.last_words("x"), str(lost.value)

    words, said = asyncio.run(lose_it())
    assert [(info.state, info.broken_by) for info in words] == [(LockState.LOST, "ann: ticket 7")]
    assert said.endswith("an operator released it: ann: ticket 7")
