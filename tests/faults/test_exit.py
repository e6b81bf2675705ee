"""A process that ends releases what it still holds, and soon, in whatever way it ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forking import IN_C

import lockkit
from lockkit.testing.conformance.base import at_least_once, eventually
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer, ZooKeeperServer

SOON = 60.0
TTL = 600.0
"""Seconds: nothing expires while a test lasts."""

HOLDING = """
import asyncio, os, sys, threading
import lockkit
from lockkit import aio

locks = lockkit.connect(sys.argv[1], ttl=600)
lease = locks.lock("kept").acquire()
"""
HOLDING_IN_A_LOOP = """
import asyncio, sys, threading
from lockkit import aio

async def hold():
    global lease
    lease = await aio.connect(sys.argv[1], ttl=600).lock("kept").acquire()

asyncio.run(hold())
"""


@pytest.fixture(params=["redis", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return f"sqlite:///{tmp_path / 'locks.sqlite3'}"


@pytest.fixture
def locks(url: str) -> Iterator[lockkit.LockClient]:
    client = lockkit.connect(url, ttl=TTL)
    yield client
    client.close()


def run(program: str, *urls: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", program, *urls],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )


@pytest.mark.parametrize(
    ("end", "status"), [("", 0), ("sys.exit(3)", 3), ("raise ZeroDivisionError", 1)]
)
@pytest.mark.parametrize("holding", [HOLDING, HOLDING_IN_A_LOOP], ids=["sync", "async"])
def test_what_is_held_at_the_end_is_released(
    holding: str, end: str, status: int, url: str, locks: lockkit.LockClient
) -> None:
    assert run(holding + end, url).returncode == status
    assert locks.inspect("kept") is None


@pytest.mark.parametrize("state", ['{"v": 99}', "cut"])
@pytest.mark.parametrize("api", ["sync", "async"])
def test_also_what_comes_after_a_row_that_cannot_be_read(
    api: str, state: str, tmp_path: Path
) -> None:
    path = tmp_path / "locks.sqlite3"
    program = f"""
import asyncio, sqlite3, sys
import lockkit
from lockkit import aio

async def hold():
    locks = aio.connect(sys.argv[1], ttl=600)
    return [await locks.lock(name).acquire() for name in ("spoilt", "kept")]

if {api == "async"}:
    leases = asyncio.run(hold())
else:
    locks = lockkit.connect(sys.argv[1], ttl=600)
    leases = [locks.lock(name).acquire() for name in ("spoilt", "kept")]
with sqlite3.connect({str(path)!r}) as rows:
    rows.execute("UPDATE lockkit_lock SET state = ? WHERE name = 'spoilt'", [{state!r}])
"""
    ended = run(program, f"sqlite:///{path}")
    with lockkit.connect(f"sqlite:///{path}") as locks:
        assert locks.inspect("kept") is None
    assert ended.stderr.count("release of 'spoilt' not confirmed") == 1


UNTOLD = """
import asyncio, atexit, sys
import lockkit
from lockkit import aio

def fails(_):
    raise lockkit.OutcomeUnknown("no reply")

locks = lockkit.connect(sys.argv[1], ttl=600)
lease = locks.lock("kept").acquire()
atexit.register(setattr, locks._wire, "exchange", locks._wire.exchange)
locks._wire.exchange = fails
with lease:
    pass
"""
UNTOLD_IN_A_LOOP = """
import asyncio, sys
import lockkit
from lockkit import aio

async def fails(_):
    raise lockkit.OutcomeUnknown("no reply")

async def leave():
    global locks
    locks = aio.connect(sys.argv[1], ttl=600)
    async with locks.lock("kept"):
        locks._wire.exchange = fails

asyncio.run(leave())
"""


@pytest.mark.parametrize("program", [UNTOLD, UNTOLD_IN_A_LOOP], ids=["sync", "async"])
def test_so_is_what_its_store_could_not_be_told_before(
    program: str, url: str, locks: lockkit.LockClient
) -> None:
    """The store answers again as the program ends."""
    ended = run(program, url)
    assert (ended.returncode, ended.stderr.count("not confirmed")) == (0, 1), ended.stderr
    assert locks.inspect("kept") is None


def test_a_loop_that_ends_during_a_pass_of_the_renewal_leaves_no_task(
    redis_server: RedisServer,
) -> None:
    """``asyncio.run`` cancels all tasks. None may take the place of the pass at once: the store
    does not answer it."""
    program = f"""
import asyncio
from lockkit import aio
from lockkit.testing.proxy import FaultProxy

async def hold():
    global lease
    url = f"redis://127.0.0.1:{{proxy.port}}/0"
    lease = await aio.connect(url, ttl=3).lock("kept").acquire()
    proxy.half_open()
    while not any(task.get_name() == "lockkit-watchdog" for task in asyncio.all_tasks()):
        await asyncio.sleep(0)

with FaultProxy("127.0.0.1", {redis_server.port}) as proxy, asyncio.Runner() as runner:
    loop = runner.get_loop()
    runner.run(hold())
print(asyncio.all_tasks(loop))
"""
    redis_server.flush()
    at_least_once(lambda: run(program).stdout == "set()\n")


def test_what_only_an_ended_loop_could_release_is_left_to_expire(redis_url: str) -> None:
    """Somebody else's client makes connections of asyncio alone. Nothing of ours fails; redis-py 5
    itself complains of the connection that it has left open."""
    program = """
import asyncio, sys
import redis.asyncio
from lockkit import aio

async def hold():
    global lease
    client = redis.asyncio.Redis.from_url(sys.argv[1])
    lease = await aio.connect(client=client, ttl=600).lock("kept").acquire()

asyncio.run(hold())
"""
    process = run(program, redis_url)
    assert process.returncode == 0
    assert "at the exit" not in process.stderr
    assert "ConfigurationError" not in process.stderr
    with lockkit.connect(redis_url) as locks:
        info = locks.inspect("kept")
        assert info is not None
        assert locks.break_("kept", fence=info.fence or 0)


def test_also_what_is_not_renewed_any_more(url: str, locks: lockkit.LockClient) -> None:
    """It is over MAX_HOLD, and has the rest of its TTL."""
    program = f"""
import sys, time, lockkit
locks = lockkit.connect(sys.argv[1], ttl={TTL}, max_hold=0)
lease = locks.lock("kept").acquire()
lease._hold.due = 0
locks._watchdog._hurry()
while lease._hold.due == 0:
    time.sleep(0.01)
"""
    assert run(program, url).returncode == 0
    assert locks.inspect("kept") is None


def test_a_daemon_thread_cannot_rely_on_it_any_more(url: str, locks: lockkit.LockClient) -> None:
    """Such a thread goes on for a moment: to it the lease is lost before the store hears of it."""
    program = f"""{HOLDING}
release = locks.store.release

def seen(request):
    print("lost" if lease.lost else "held", flush=True)
    return release(request)

locks.store.release = seen
"""
    process = run(program, url)
    assert (process.returncode, process.stdout) == (0, "lost\n")
    assert locks.inspect("kept") is None


def test_threads_that_are_awaited_keep_theirs(url: str, locks: lockkit.LockClient) -> None:
    """The interpreter waits for threads that are not daemons; they work under their lock."""
    program = """
import sys, threading, time, lockkit
locks = lockkit.connect(sys.argv[1], ttl=600)
inside = threading.Event()

def work():
    with locks.lock("kept") as lease:
        inside.set()
        while threading.main_thread().is_alive():
            time.sleep(0.01)
        time.sleep(0.2)
        lease.check()
        print("checked", flush=True)

threading.Thread(target=work).start()
inside.wait()
"""
    process = run(program, url)
    assert (process.returncode, process.stdout) == (0, "checked\n"), process.stderr
    assert locks.inspect("kept") is None


@pytest.mark.parametrize("end", ["sys.exit()", "raise ZeroDivisionError", "os._exit(0)"])
def test_a_forked_child_does_not_release_its_parents(
    end: str, url: str, locks: lockkit.LockClient
) -> None:
    program = f"""{HOLDING}
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if not child:
    with locks.lock("of the child"):
        pass
    own = locks.lock("kept by the child").acquire()
    {end}
os.waitpid(child, 0)
lease.check()
print(locks.inspect("kept").fence == lease.fencing_token)
"""
    process = run(program, url)
    assert process.stdout == "True\n", process.stderr
    assert locks.inspect("kept") is None
    assert (locks.inspect("kept by the child") is None) == ("os._exit" not in end)


@pytest.mark.parametrize("holding", ["threads", "loop", "gevent"])
def test_nor_does_a_child_that_was_forked_in_c_and_only_ends(holding: str, redis_url: str) -> None:
    """Python hears nothing of such a fork. Nor does the child wait for its parent's threads."""
    held = HOLDING_IN_A_LOOP if holding == "loop" else HOLDING
    patch = "from gevent import monkey\nmonkey.patch_all()\n" if holding == "gevent" else ""
    program = f"""{patch}{held}{IN_C}
import os, lockkit
from lockkit.runtime import process
process.EXIT_SECONDS = 2 * {SOON}
child = fork_in_c()
if not child:
    sys.exit()
os.waitpid(child, 0)
lease.check()
print(lockkit.connect(sys.argv[1]).inspect("kept").fence == lease.fencing_token)
"""
    process = run(program, redis_url)
    assert process.stdout == "True\n", process.stderr


def test_nor_does_it_remove_the_lock_file_beside_its_parents_database_in_memory() -> None:
    program = f"""{HOLDING}{IN_C}
import os
child = fork_in_c()
if not child:
    sys.exit()
os.waitpid(child, 0)
print(locks.inspect("kept").fence == lease.fencing_token)
"""
    process = run(program, "sqlalchemy+sqlite://")
    assert process.stdout == "True\n", process.stderr


SLOW = """
from lockkit.runtime import process
process.EXIT_SECONDS = 0  # as if the first release took so long
locks.store.release = lambda request: threading.Event().wait()
"""
SLOW_IN_A_LOOP = """
from lockkit.runtime import process
process.EXIT_SECONDS = 0
"""


@pytest.mark.parametrize(
    "program",
    [HOLDING + SLOW, HOLDING_IN_A_LOOP + SLOW_IN_A_LOOP],
    ids=["sync", "async"],
)
def test_a_store_that_is_slow_delays_it_no_longer_than_is_allowed(
    program: str, tmp_path: Path
) -> None:
    """What is not released by then expires."""
    url = f"sqlite:///{tmp_path / 'locks.sqlite3'}"
    assert run(program, url).returncode == 0
    with lockkit.connect(url) as locks:
        assert locks.inspect("kept") is not None


@pytest.mark.parametrize("holding", [HOLDING, HOLDING_IN_A_LOOP], ids=["sync", "async"])
def test_a_store_that_does_not_answer_delays_it_little(
    holding: str, redis_server: RedisServer
) -> None:
    """A hundred leases, whose releases would each wait for a time-out."""
    more = """
lock = locks.lock
kept = [lock(f"kept:{number}").acquire() for number in range(100)]
"""
    more_in_a_loop = """
async def hold():
    global kept
    client = aio.connect(sys.argv[1], ttl=600)
    kept = [await client.lock(f"kept:{number}").acquire() for number in range(100)]

asyncio.run(hold())
"""
    redis_server.flush()
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        program = holding + (more if holding is HOLDING else more_in_a_loop)
        process = subprocess.Popen(
            [
                *(sys.executable, "-W", "ignore", "-c"),
                f"{program}\nprint('holding', flush=True); sys.stdin.read()",
                f"redis://127.0.0.1:{proxy.port}/0",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"holding\n"
                proxy.half_open()
                process.communicate(timeout=SOON)
            finally:
                process.kill()
        assert process.returncode == 0


NO_THREADS = """
import atexit

@atexit.register
def end():  # as the interpreter does, from Python 3.12 on
    def refuse(*_):
        raise RuntimeError("can't create new thread at interpreter shutdown")
    threading.Thread.start = refuse
"""


@pytest.fixture(scope="module")
def zookeeper(other_servers: None) -> Iterator[str]:
    with ZooKeeperServer() as server:
        yield server.url


def test_zookeeper_is_told_without_a_loop_or_another_thread(zookeeper: str, redis_url: str) -> None:
    """And so is the store of the client that was made next."""
    program = f"""{HOLDING_IN_A_LOOP}
import lockkit
locks = lockkit.connect(sys.argv[2], ttl=600)
other = locks.lock("kept").acquire()
{NO_THREADS}"""
    zookeeper += "/loop"
    process = run(program, zookeeper, redis_url)
    assert (process.returncode, process.stderr) == (0, "")
    for url in (zookeeper, redis_url):
        with lockkit.connect(url) as locks:
            assert locks.inspect("kept") is None


def test_zookeeper_hears_of_a_close_at_the_exit(zookeeper: str) -> None:
    program = f"{HOLDING}\nimport atexit\natexit.register(locks.close)\n{NO_THREADS}"
    zookeeper += "/closed"
    process = run(program, zookeeper)
    assert (process.returncode, process.stderr) == (0, "")
    with lockkit.connect(zookeeper) as locks:
        eventually(lambda: locks.inspect("kept") is None)


def test_what_fails_at_the_exit_keeps_no_other_from_it(redis_url: str) -> None:
    program = f"""
from lockkit.runtime import process

class Broken:
    def begin(self):
        raise ValueError("it cannot begin")

    def finish(self, until):
        raise ValueError("it cannot finish")

broken = Broken()
process.at_exit(broken.begin, broken.finish)
{HOLDING}"""
    process = run(program, redis_url)
    assert "it cannot begin" in process.stderr
    assert "it cannot finish" in process.stderr
    with lockkit.connect(redis_url) as locks:
        assert locks.inspect("kept") is None
