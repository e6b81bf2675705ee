"""No false all-clear: the command names where it looked, and what else is there."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from command_line import lockkit_process, locks

import lockkit
import lockkit.aio
from lockkit.leases.client import LockClient
from lockkit.testing.servers import RedisServer


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://places"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/locks.sqlite3"
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return str(request.getfixturevalue("lock_table_url"))


@pytest.fixture
def shop(url: str) -> Iterator[LockClient]:
    found = lockkit.connect(url, key_prefix="shop")
    yield found
    found.close()


@pytest.fixture
def misspelt(url: str) -> Iterator[LockClient]:
    found = lockkit.connect(url, key_prefix="shopp")
    yield found
    found.close()


def test_a_misspelt_prefix_is_told(shop: LockClient, misspelt: LockClient) -> None:
    with shop.lock("stock:42"):
        shown = locks(misspelt)
        assert (shown.status, shown.out) == (0, "")
        assert "nothing is held in" in shown.err
        assert "key prefix 'shopp'; other key prefixes there: 'shop' (has locks)" in shown.err
        assert "'shop' (has locks)" in locks(misspelt, "show", "stock:42").out
        assert "'shop' (has locks)" in locks(misspelt, "release", "stock:42", "--yes").err
        assert "'shop' (has locks)" in locks(misspelt, "--format", "jsonl").err
        for command in (["resolve", "--retry"], ["release", "--damaged"]):
            refused = locks(misspelt, *command, "--yes", "stock:42")
            assert (refused.status, "'shop' (has locks)" in refused.err) == (1, True)
        document = json.loads(locks(misspelt, "--format", "json").out)
        assert document["stores"]["default"]["key_prefix"] == "shopp"
        is_memory = misspelt.settings.shown_location.startswith("memory:")
        assert document["stores"]["default"]["this_process_only"] is is_memory
        assert document["stores"]["default"]["other_prefixes"] == {"shop": True}
        document = json.loads(locks(shop, "--format", "json").out)
        assert document["stores"]["default"]["other_prefixes"] is None
    assert "other key prefixes" not in locks(shop).err


def test_plain_keys_are_no_all_clear(redis_url: str) -> None:
    """Nothing says which prefixes they have: a prefix is a part of the key, and may be empty."""
    url = f"{redis_url}?protocol=plain"
    with (
        lockkit.connect(url, key_prefix="shop:") as shop,
        lockkit.connect(url, key_prefix="shopp:") as misspelt,
        shop.lock("stock:42"),
    ):
        shown = locks(misspelt)
        assert (shown.status, shown.out) == (0, "")
        assert "key prefix 'shopp:'; other key prefixes are not known\n" in shown.err
        document = json.loads(locks(misspelt, "--format", "json").out)
        assert document["stores"]["default"]["other_prefixes"] is None
        assert "not known" not in locks(shop).err


def test_with_nothing_kept_it_is_told_so(shop: LockClient, misspelt: LockClient) -> None:
    with shop.lock("stock:42"):
        pass
    assert "(has locks)" not in locks(misspelt).err


def test_of_several_stores_the_empty_one_is_told(shop: LockClient, misspelt: LockClient) -> None:
    """Its prefix may be misspelt, though another store has rows."""
    clients = {"default": lambda: shop, "orders": lambda: misspelt}
    with shop.lock("stock"):
        shown = locks(clients)
        assert [row[:2] for row in shown.rows] == [["default", "stock"]]
        assert shown.err.startswith("nothing is held in orders (")
        assert "key prefix 'shopp'; other key prefixes there: 'shop' (has locks)" in shown.err
        assert locks(clients, "--match", "st*").err == ""
        assert locks(clients, "--limit", "1").err == ""
        assert "in default (" in locks(clients, "--match", "x").err


def test_looking_leaves_no_prefix_behind(shop: LockClient, misspelt: LockClient) -> None:
    locks(misspelt)
    locks(misspelt, "show", "x")
    with shop.lock("stock:42"):
        assert "shopp" not in locks(shop, "show", "nothing").out


def test_the_database_is_named(shop: LockClient, url: str, tmp_path: Path) -> None:
    said = locks(shop).err
    if url.startswith("redis"):
        assert "database 0), key prefix 'shop'" in said
        with lockkit.connect(url.rpartition("/")[0] + "/3") as other:
            assert "database 3)" in locks(other).err
    elif url.startswith("sqlite"):
        assert f"{tmp_path}/locks.sqlite3 (where nobody has ever locked), key prefix" in said
        with shop.lock("stock:42"):
            pass
        assert f"{tmp_path}/locks.sqlite3, key prefix" in locks(shop).err
    elif url.startswith("memory"):
        assert "memory://places, key prefix" in said
    else:
        assert url.startswith("postgresql://")
        assert f"held in postgresql://{url.rpartition('@')[2]}, key prefix" in said
    assert ":postgres@" not in said


def test_a_relative_path_is_told_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with lockkit.connect("sqlite:///locks.sqlite3") as found:
        said = locks(found).err
    path = os.path.realpath(tmp_path / "locks.sqlite3")
    assert f"sqlite:///locks.sqlite3 ({path}, where nobody has ever locked), key prefix" in said


def test_each_client_of_redis_writes_its_note_once(redis_url: str) -> None:
    server = redis.Redis.from_url(redis_url)
    with lockkit.connect(redis_url, key_prefix="shop") as client:
        list(client.holders())
        assert not server.exists("lockkit:prefixes"), "looking writes nothing"
        client.lock("a").acquire().release()
        assert server.zrange("lockkit:prefixes", 0, -1) == [b"shop"]
        assert server.pttl("lockkit:prefixes") > 364 * 86400 * 1000, "a program may run for long"
        server.delete("lockkit:prefixes")
        client.lock("a").acquire().release()
        assert not server.exists("lockkit:prefixes")

    async def lock() -> None:
        async with lockkit.aio.connect(redis_url, key_prefix="async") as found:
            for _ in range(2):
                await (await found.lock("a").acquire()).release()

    asyncio.run(lock())
    assert server.zrange("lockkit:prefixes", 0, -1) == [b"async"]
    server.close()


READER = "on >secret ~{shopp:* +evalsha +script|load +hscan +hget +hmget +hlen +hvals +zcard "
READER += "+zcount +zrange +time +getrange +get +pttl +type"


@pytest.mark.parametrize("why", ["refused", "of another type"])
def test_prefixes_that_cannot_be_read_are_no_all_clear(why: str) -> None:
    with RedisServer(users={"reader": READER}) as server, server.client() as admin:
        if why == "refused":
            url = server.url_for("reader", "secret")
        else:
            url = server.url
            admin.set("lockkit:prefixes", "something")
        with lockkit.connect(url, key_prefix="shopp") as looking:
            shown = locks(looking)
            assert "nothing is held in" in shown.err
            assert "; other key prefixes are not known" in shown.err
            document = json.loads(locks(looking, "--format", "json").out)
            assert document["stores"]["default"]["other_prefixes"] is None


def test_a_prefix_that_one_may_not_look_into_is_named() -> None:
    """Whether it has locks is not known then, and not said."""
    reader = f"{READER} ~lockkit:prefixes"
    with (
        RedisServer(users={"reader": reader}) as server,
        lockkit.connect(server.url, key_prefix="shop") as shop,
        shop.lock("stock:42"),
        lockkit.connect(server.url_for("reader", "secret"), key_prefix="shopp") as looking,
    ):
        assert "; other key prefixes there: 'shop'\n" in locks(looking).err
        document = json.loads(locks(looking, "--format", "json").out)
        assert document["stores"]["default"]["other_prefixes"] == {"shop": None}


def test_the_note_is_bounded_and_forgets_the_oldest(redis_url: str) -> None:
    server = redis.Redis.from_url(redis_url)
    server.zadd("lockkit:prefixes", {f"old-{n}": n for n in range(20)})
    server.zadd("lockkit:prefixes", {f"new-{n}": 2**50 + n for n in range(300)})
    with lockkit.connect(redis_url, key_prefix="shop") as client:
        client.lock("a").acquire().release()
    kept = server.zrange("lockkit:prefixes", 0, -1)
    assert b"shop" in kept
    assert b"old-15" not in kept
    assert len(kept) == 321 - 16
    server.close()


@pytest.mark.parametrize("url", ["memory://", "sqlalchemy+sqlite://"])
def test_a_store_in_memory_says_that_it_cannot_see_other_processes(url: str) -> None:
    ended = lockkit_process("--url", url, "locks")
    assert ended.returncode == 0
    assert "the locks of other processes are not shown" in ended.stderr
    shown = lockkit_process("--url", url, "locks", "show", "x")
    assert "the locks of other processes are not shown" in shown.stdout
    told = json.loads(lockkit_process("--url", url, "locks", "--format", "json").stdout)
    assert told["stores"]["default"]["this_process_only"] is True


def blank(path: Path) -> None:
    """An SQLite file without a table."""
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode=DELETE")
        database.execute("CREATE TABLE x (y)")
        database.execute("DROP TABLE x")
    database.close()


def test_a_file_that_cannot_be_reached_is_not_said_to_be_empty(tmp_path: Path) -> None:
    """Such as in a directory of another user. A loop of links is out of reach of root, too."""
    (tmp_path / "loop").symlink_to("loop")
    with lockkit.connect(f"sqlite:///{tmp_path}/loop/locks.sqlite3") as client:
        for arguments in ([], ["--stuck", "--fail-on-stuck"], ["show", "x"]):
            shown = locks(client, *arguments)
            assert shown.status == 69
            assert "nobody has ever locked" not in shown.err
            assert "free" not in shown.out


def test_a_file_that_may_not_be_reached_is_refused(tmp_path: Path) -> None:
    """Such as in a directory of another user. Root is like them without its capabilities."""
    (tmp_path / "theirs").mkdir(mode=0)
    url = f"sqlite:///{tmp_path}/theirs/locks.sqlite3"
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    for argv in (["list"], ["run", "job", "true"]):
        command = [*without, sys.executable, "-m", "lockkit", "--url", url, "locks", *argv]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        assert "theirs/locks.sqlite3 cannot be opened: is it this user's" in ended.stderr


@pytest.mark.parametrize("make", [Path.touch, blank])
def test_an_empty_file_is_not_written_by_looking(make: object, tmp_path: Path) -> None:
    path = tmp_path / "locks.sqlite3"
    make(path)  # type: ignore[operator]
    before = path.read_bytes()
    with lockkit.connect(f"sqlite:///{path}") as client:
        shown = locks(client)
        assert shown.status == 0
        assert "where nobody has ever locked" in shown.err
        assert "free" in locks(client, "show", "x").out
        assert list(client.last_words()) == []
        assert client.perform(client.store.prefixes()) == {}
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    with lockkit.connect(f"sqlite:///{path}") as client, client.lock("x"):
        assert locks(client, "--format", "json").names == ["x"]


def test_nor_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "locks.sqlite3").touch()
    ended = lockkit_process("--url", f"sqlite:///{tmp_path}/locks.sqlite3", "locks")
    assert ended.returncode == 2
    assert "locks.sqlite3 is missing or empty: nobody has ever locked there" in ended.stderr
    assert (tmp_path / "locks.sqlite3").read_bytes() == b""


def test_looking_drops_no_lock_that_sqlite_has_in_this_process(tmp_path: Path) -> None:
    """Another client of this process looks, again and again, while steps are under way."""
    url = f"sqlite:///{tmp_path}/locks.sqlite3"
    with lockkit.connect(url) as client:
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                with lockkit.connect(url) as other:
                    list(other.holders())

        looking = threading.Thread(target=look)
        looking.start()
        for number in range(50):
            with client.lock(f"job:{number % 3}"):
                pass
        done.set()
        looking.join()
