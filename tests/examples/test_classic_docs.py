"""docs/classic.md: the code of each classic version fails in the way that the page says.

And lockkit, where the same is done to it, does not.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout
from places import ROOT
from redis.backoff import NoBackoff
from redis.retry import Retry

import lockkit
from lockkit.model.errors import BackendError
from lockkit.testing.checkers import FencedRegister
from lockkit.testing.conformance.base import eventually
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer, ZooKeeperServer

PAGE = (ROOT / "docs" / "classic.md").read_text(encoding="utf-8")
NAME, TTL = "stock:42", 0.3
LONG = 30.0
SOON = 20.0


class Version:
    """The code of one section."""

    def __init__(self, title: str) -> None:
        section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        self.code = "".join(re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE))
        names: dict[str, Any] = {}
        exec(compile(self.code, title, "exec"), names)
        self.acquire: Callable[..., Any] = names.get("acquire", _missing)
        self.release: Callable[..., Any] = names.get("release", _missing)
        self.enqueue: Callable[..., Any] = names.get("enqueue", _missing)
        self.clear: Callable[..., Any] = names.get("clear", _missing)


def _missing(*_: Any) -> Any:
    raise NotImplementedError


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, socket_timeout=10) as made:
        yield made


@pytest.fixture(params=["", "?protocol=plain"], ids=["redis", "plain"])
def locks(redis_url: str, request: pytest.FixtureRequest) -> Iterator[lockkit.LockClient]:
    with lockkit.connect(redis_url + request.param, ttl=TTL, max_hold=0) as made:
        yield made


def test_whoever_is_refused_extends_it(client: redis.Redis, locks: lockkit.LockClient) -> None:
    classic = Version("INCR and EXPIRE")
    assert classic.acquire(client, NAME, LONG)  # by a process that dies now
    for _ in range(3):
        client.pexpire(NAME, int(LONG * 500))  # half of the TTL is over
        assert not classic.acquire(client, NAME, LONG)
        assert client.pttl(NAME) > LONG * 600
    lost = locks.lock("ours").acquire()
    got = eventually(locks.lock("ours", ttl=LONG).try_acquire)
    assert (got.release(), lost.release()) == (True, False)


def test_a_slow_holder_deletes_the_next_ones_counter(client: redis.Redis) -> None:
    _passes_on_what_is_somebody_elses(Version("INCR and EXPIRE"), client)


def test_a_slow_holder_deletes_the_next_ones_lock(client: redis.Redis) -> None:
    _passes_on_what_is_somebody_elses(Version("SET NX PX and DEL"), client)


def _passes_on_what_is_somebody_elses(classic: Version, client: redis.Redis) -> None:
    assert classic.acquire(client, NAME, TTL)
    eventually(lambda: classic.acquire(client, NAME, LONG) if not client.exists(NAME) else False)
    classic.release(client, NAME)  # the first one is done at last
    assert classic.acquire(client, NAME, LONG)  # a third one, while the second works


def test_a_slow_holder_of_ours_releases_nobody_elses(locks: lockkit.LockClient) -> None:
    slow = locks.lock(NAME).acquire()
    second = locks.lock(NAME, ttl=LONG, timeout=SOON).acquire()
    assert slow.release() is False
    assert locks.lock(NAME).try_acquire() is None
    assert second.release()


def test_a_process_that_dies_between_setnx_and_expire_locks_for_ever(
    client: redis.Redis, redis_url: str
) -> None:
    classic = Version("SETNX and EXPIRE")
    program = f"""
import os, redis, signal

class Client(redis.Redis):
    def expire(self, *_):
        os.kill(os.getpid(), signal.SIGKILL)

{classic.code}
acquire(Client.from_url({redis_url!r}), {NAME!r}, 1)
"""
    assert (
        subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    )
    assert client.pttl(NAME) == -1
    assert not classic.acquire(client, NAME, 1)


def _status_of(program: str) -> int:
    return subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode


@pytest.fixture
def version() -> Version:
    return Version("SETNX and GETSET")


def test_a_clock_that_is_ahead_takes_what_is_held(client: redis.Redis, version: Version) -> None:
    assert version.acquire(client, NAME, LONG, time.time)
    assert version.acquire(client, NAME, LONG, lambda: time.time() + 2 * LONG)


def test_whoever_comes_second_overwrites_the_winners_value(
    client: redis.Redis, version: Version
) -> None:
    won: list[bytes] = []

    class Slower(redis.Redis):
        """Another one comes between its GET and its GETSET."""

        def getset(self, name: Any, value: Any) -> Any:
            won.append(version.acquire(client, NAME, LONG, time.time))
            return super().getset(name, value)

    version.acquire(client, NAME, -1, time.time)  # has expired
    slower = Slower(connection_pool=client.connection_pool)
    assert version.acquire(slower, NAME, LONG, time.time) is None
    assert won[0]
    version.release(client, NAME, won[0])
    assert client.exists(NAME)


def test_a_renewal_cancels_the_release(client: redis.Redis) -> None:
    classic, token = Version("WATCH and MULTI"), b"a token"
    client.set(NAME, token, px=30_000)

    class Renewing(redis.client.Pipeline):
        """The watchdog of the same process renews it now."""

        def multi(self) -> None:
            client.pexpire(NAME, 30_000)
            super().multi()

    class Client(redis.Redis):
        def pipeline(self, *_: Any, **__: Any) -> Any:
            return Renewing(self.connection_pool, self.response_callbacks, True, None)

    holder = Client(connection_pool=client.connection_pool)
    assert classic.release(holder, NAME, token) is False
    assert client.get(NAME) == token
    assert classic.release(client, NAME, token) is True


def test_a_release_by_watch_takes_three_requests(redis_server: RedisServer, redis_url: str) -> None:
    classic = Version("WATCH and MULTI")
    requests: dict[str, int] = {}
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        theirs = redis.Redis(port=proxy.port, socket_timeout=10)
        theirs.set(NAME, b"a token", px=30_000)
        before = proxy.requests
        assert classic.release(theirs, NAME, b"a token")
        requests["watch"] = proxy.requests - before
        theirs.close()
        with lockkit.connect(f"redis://127.0.0.1:{proxy.port}/0") as locks:
            locks.lock(NAME).acquire().release()
            lease = locks.lock(NAME).acquire()
            before = proxy.requests
            assert lease.release()
            requests["lockkit"] = proxy.requests - before
    assert requests == {"watch": 3, "lockkit": 1}


@pytest.fixture
def script() -> Version:
    return Version("SET NX PX and a script")


def test_whoever_asks_first_passes_those_who_wait(
    client: redis.Redis, locks: lockkit.LockClient, script: Version
) -> None:
    waits, comes = "has waited for long", "has just come"
    assert script.acquire(client, NAME, "a token", LONG)
    assert not script.acquire(client, NAME, waits, LONG)
    script.release(client, NAME, "a token")
    assert script.acquire(client, NAME, comes, LONG)
    assert not script.acquire(client, NAME, waits, LONG)
    script.release(client, NAME, comes)
    lease = locks.lock(NAME, ttl=LONG).acquire()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(locks.lock(NAME, ttl=LONG, timeout=SOON).acquire)
        eventually(lambda: (info := locks.inspect(NAME)) and info.waiters == 1)
        lease.release()
        assert locks.lock(NAME).try_acquire() is None
        assert waiting.result().release()


def test_a_lost_reply_makes_it_busy_by_itself(
    redis_server: RedisServer, redis_url: str, script: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockkit.engine.holding.RETRY_WITHIN", SOON)
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        theirs = _client_that_tries_again(proxy.port)
        theirs.ping()
        proxy.drop_replies()
        assert script.acquire(theirs, NAME, "a token", LONG) is False
        assert theirs.get(NAME) == b"a token"
        proxy.drop_replies()
        assert script.release(theirs, NAME, "a token") is False
        assert theirs.get(NAME) is None
        theirs.close()
        with lockkit.connect(f"redis://127.0.0.1:{proxy.port}/0?protocol=plain") as locks:
            locks.lock("warm-up").acquire().release()
            proxy.drop_replies()
            lease = locks.lock(NAME).acquire(timeout=0)
            proxy.drop_replies()
            assert lease.release() is True


def test_a_late_set_locks_what_nobody_wants_any_more(script: Version) -> None:
    """The server is stopped, and goes on after the client has given up."""
    with RedisServer() as server:
        theirs = redis.Redis(port=server.port, socket_timeout=1, retry=None)
        theirs.ping()
        url = f"{server.url}?protocol=plain"
        with lockkit.connect(url, options={"socket_timeout": 1}) as locks:
            locks.lock("warm-up").acquire().release()
            server.pause()
            with pytest.raises(redis.TimeoutError):
                script.acquire(theirs, NAME, "a token", LONG)
            with pytest.raises(BackendError):
                locks.lock("ours").acquire(timeout=0)
            server.resume()
            with server.client() as admin:
                eventually(lambda: admin.get(NAME) == b"a token")
                eventually(lambda: _is_buried(admin) and not admin.exists("ours"))
        theirs.close()


def _client_that_tries_again(port: int) -> redis.Redis:
    """As redis-py's do by default since 6.0."""
    again = [redis.ConnectionError]
    retry = Retry(NoBackoff(), 3)
    return redis.Redis(port=port, socket_timeout=10, retry=retry, retry_on_error=again)


def _is_buried(admin: redis.Redis) -> bool:
    return bool(admin.exists("{ours}:lockkit:plain:t:ours"))


def test_a_paused_holder_overwrites_what_a_later_one_wrote(
    client: redis.Redis, script: Version, locks: lockkit.LockClient, tmp_path: Path
) -> None:
    assert script.acquire(client, NAME, "first", TTL)
    eventually(lambda: script.acquire(client, NAME, "second", LONG))
    client.set("resource", "second")
    client.set("resource", "first")  # it goes on, and cannot know
    assert client.get("resource") == b"first"

    register = FencedRegister(tmp_path / "register.sqlite3")
    first = locks.lock("ours").acquire()
    with locks.lock("ours", ttl=LONG, timeout=SOON).acquire() as second:
        assert register.write(second.fencing_token, "second")
        assert not register.write(first.fencing_token, "first")
    assert first.release() is False


def test_a_dead_waiter_at_the_head_stops_all_others(
    client: redis.Redis, locks: lockkit.LockClient
) -> None:
    classic = Version("A queue in a sorted set")
    classic.enqueue(client, NAME, b"dead", time.time)
    classic.enqueue(client, NAME, b"alive", time.time)
    assert not _ever(lambda: classic.acquire(client, NAME, b"alive", TTL))
    _passes_a_dead_waiter(locks)


def test_a_clock_that_is_behind_passes_all_who_wait(client: redis.Redis) -> None:
    classic = Version("A queue in a sorted set")
    classic.enqueue(client, NAME, b"first", time.time)
    classic.enqueue(client, NAME, b"later", lambda: time.time() - 60)
    assert not classic.acquire(client, NAME, b"first", TTL)
    assert classic.acquire(client, NAME, b"later", TTL)


def test_a_dead_head_of_the_list_stops_all_others(client: redis.Redis) -> None:
    classic = Version("A queue in a list")
    classic.enqueue(client, NAME, b"dead")
    classic.enqueue(client, NAME, b"alive")
    assert not _ever(lambda: classic.acquire(client, NAME, b"alive"))


def test_a_slow_holder_takes_away_the_next_ones_place(client: redis.Redis) -> None:
    classic = Version("A queue in a list")
    classic.enqueue(client, NAME, b"slow")
    assert classic.acquire(client, NAME, b"slow")
    client.delete(NAME)  # it has expired
    classic.enqueue(client, NAME, b"second")
    classic.enqueue(client, NAME, b"third")
    assert classic.acquire(client, NAME, b"second")
    classic.release(client, NAME)  # by the slow one
    assert classic.acquire(client, NAME, b"third")  # while the second works


def _passes_a_dead_waiter(locks: lockkit.LockClient) -> None:
    """It joins the queue, and is not heard of again."""
    lease = locks.lock(NAME, ttl=LONG).acquire()
    pid = os.fork()
    if not pid:
        try:
            locks.lock(NAME, timeout=SOON).acquire()
        finally:
            os._exit(1)
    eventually(lambda: (info := locks.inspect(NAME)) and info.waiters == 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    lease.release()
    with locks.lock(NAME, ttl=LONG, timeout=SOON):
        pass


def _ever(condition: Callable[[], bool]) -> bool:
    """In more than the TTL of all that is held."""
    started = time.monotonic()
    while time.monotonic() - started < 2 * TTL:
        if condition():
            return True
        time.sleep(TTL / 10)
    return False


@pytest.fixture
def shop(lock_table_url: str) -> Iterator[psycopg.Connection]:
    """Its database, where the locks are."""
    with psycopg.connect(lock_table_url, autocommit=True) as database:
        database.execute("CREATE TABLE locks (name TEXT UNIQUE, since TIMESTAMPTZ)")
        yield database


def test_a_row_of_a_dead_process_locks_for_ever(
    shop: psycopg.Connection, lock_table_url: str
) -> None:
    classic = Version("A unique index")
    program = f"""
import os, signal, lockkit, psycopg
{classic.code}
assert acquire(psycopg.connect({lock_table_url!r}, autocommit=True), {NAME!r})
lease = lockkit.connect({lock_table_url!r}, ttl=1).lock({NAME!r}).acquire()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert (
        subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    )
    assert not _ever(lambda: classic.acquire(shop, NAME))
    with lockkit.connect(lock_table_url) as locks, locks.lock(NAME, timeout=SOON):
        pass


def test_clearing_old_rows_makes_two_holders(shop: psycopg.Connection) -> None:
    classic = Version("A unique index")
    assert classic.acquire(shop, NAME)  # by somebody who works for longer than TTL

    def acquired() -> bool:
        classic.clear(shop, TTL)
        return bool(classic.acquire(shop, NAME))

    eventually(acquired)
    classic.release(shop, NAME)  # by the first one
    assert classic.acquire(shop, NAME)  # a third one, while the second works


def test_a_release_by_another_mutex_releases_nothing(other_servers: None) -> None:
    classic = Version("ZooKeeper by another mutex")
    with ZooKeeperServer() as server:
        first, second = (KazooClient(f"127.0.0.1:{server.port}") for _ in range(2))
        first.start()
        second.start()
        assert classic.acquire(first, "/stock")
        classic.release(first, "/stock")
        with pytest.raises(LockTimeout):
            classic.acquire(second, "/stock")
        first.stop()  # which ends its session
        assert classic.acquire(second, "/stock")
        with lockkit.connect(server.url) as locks:
            locks.lock("stock").acquire().release()
            with locks.lock("stock", timeout=0):
                pass
        second.stop()
        first.close()
        second.close()


def test_each_failure_that_the_page_names_has_its_test() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 14
    assert named <= {name for name in globals() if name.startswith("test_")}
    titles = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert titles == re.findall(r"^\| \[(.*?)\]\(#", PAGE, re.MULTILINE)
    for title in titles:
        section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        assert "`test_" in section
        assert "In its place:" in section
