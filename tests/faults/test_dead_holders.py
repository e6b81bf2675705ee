"""Leases of a process that is known to be gone are free at once in SQLite, unless that is off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import hold, until
from forking import IN_C

import lockkit
from lockkit.leases.client import LockClient
from lockkit.model.errors import ConfigurationError
from lockkit.model.types import Mode, Owner
from lockkit.runtime import process

TTL = 600.0
HOLD = """\
import sys, time, lockkit
locks = lockkit.connect(sys.argv[1], ttl=600)
lease = locks.lock(sys.argv[2]).acquire()
print("held", flush=True)
time.sleep(600)
"""
FORK = f"""\
{IN_C}
import os, sys, time, lockkit
locks = lockkit.connect(sys.argv[1], ttl=600)
lease = locks.lock("parents").acquire()
fork = fork_in_c if sys.argv[2] == "c" else os.fork
if fork() == 0:
    lease.release()
    lease = locks.lock("childs").acquire()
    print(os.getpid(), flush=True)
time.sleep(600)
"""

CLOSED = f"""\
{IN_C}
import os, sys, time, lockkit
locks = lockkit.connect(sys.argv[1], ttl=600)
locks.lock("before").acquire().release()
fork = fork_in_c if sys.argv[2] == "c" else os.fork
has_locked, locked = os.pipe()
has_closed, closed = os.pipe()
if fork() == 0:
    first = locks.lock("first").acquire()
    os.write(locked, b".")
    os.read(has_closed, 1)
    second = locks.lock("second").acquire()
    print(os.getpid(), flush=True)
    time.sleep(600)
os.read(has_locked, 1)
locks.close()
os.write(closed, b".")
time.sleep(600)
"""

BOTH = f"""\
{IN_C}
import os, sys, lockkit
locks = lockkit.connect(sys.argv[1], ttl=600)
locks.lock("before").acquire().release()
fork = fork_in_c if sys.argv[2] == "c" else os.fork
told, tells = os.pipe()
child = fork()
if child == 0:
    os.read(told, 1)
    print(locks.lock("one").try_acquire())
    sys.exit()
lease = locks.lock("one").acquire()
os.write(tells, b".")
os.waitpid(child, 0)
lease.release()
"""

RESTORED = f"""\
{IN_C}
import os, sys
pid = os.getpid()
os.getpid = lambda: pid
import lockkit
with lockkit.connect(sys.argv[1], ttl=600) as locks:
    locks.lock("before").acquire().release()
lock = locks.lock("one", reentrant=sys.argv[2] == "reentrant")
told, tells = os.pipe()
clone = fork_in_c()
if clone == 0:
    os.read(told, 1)
    print(lock.try_acquire(), flush=True)
    os._exit(0)
lease = lock.acquire()
os.write(tells, b".")
os.waitpid(clone, 0)
print(lease.release())
"""

READS = f"""\
{IN_C}
import os, sys, lockkit
locks = lockkit.connect(sys.argv[1])
locks.lock("before").acquire().release()
parents = locks._wire._connections._idle[-1]
fork = fork_in_c if sys.argv[2] == "c" else os.fork
if (child := fork()) == 0:
    locks.inspect("before")
    print(locks._wire._connections._idle[-1] is parents)
    sys.exit()
os.waitpid(child, 0)
"""

LOOPS = f"""\
{IN_C}
import asyncio, os, sys
from lockkit import aio
locks = aio.connect(sys.argv[1])
async def visit():
    async with locks.lock("before"):
        print("inside", flush=True)
asyncio.run(visit())
fork = fork_in_c if sys.argv[2] == "c" else os.fork
if (child := fork()) == 0:
    asyncio.run(visit())
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

FIRST = f"""\
{IN_C}
import os, sys, lockkit
locks = lockkit.connect(sys.argv[1], ttl=600)
entered = locks.lock("entered", reentrant=True)
named = locks.lock("named", reentrant=True, owner="us")
written = locks.rwlock("written").write()
leases = [lock.acquire() for lock in (entered, entered, named, written)]
outer, inner, of_us, writers = leases
fork = fork_in_c if sys.argv[2] == "c" else os.fork
if (child := fork()) == 0:
    try:
        print(eval(sys.argv[3]))
    except lockkit.LeaseLost as loss:
        print(loss)
    sys.exit()
os.waitpid(child, 0)
print(all(lease.release() for lease in leases))
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'locks.sqlite3'}"


@pytest.fixture
def client(url: str) -> Iterator[LockClient]:
    with lockkit.connect(url, ttl=TTL, acquire_timeout=5) as found:
        yield found


@contextmanager
def running(script: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process, and the first line that it wrote."""
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().strip()
        finally:
            child.kill()


def owner_here(pid: int, **facts: str) -> Owner:
    return process.owner("job")._replace(pid=pid, started=process.started(pid), **facts)


def is_free(client: LockClient, name: str) -> bool:
    lease = client.lock(name).try_acquire()
    return lease is not None and lease.release()


def test_its_space_is_that_of_pids_and_of_moments(client: LockClient) -> None:
    with client.lock("job"):
        info = client.inspect("job")
    assert info is not None
    assert info.owner is not None
    pids, moments = (Path("/proc/self/ns", kind).stat().st_ino for kind in ("pid", "time"))
    assert info.owner.space.split(".")[1:] == [f"{pids:x}", f"{moments:x}"]


def test_it_is_taken_over_at_once(client: LockClient, url: str) -> None:
    with running(HOLD, url, "job") as (holder, _):
        assert not is_free(client, "job")
        holder.kill()
        holder.wait()
        with client.lock("job").acquire(timeout=0) as lease:
            info = client.inspect("job")
            assert info is not None
            assert info.fence == lease.fencing_token
    (words,) = client.last_words("job")
    assert words.owner is not None
    assert words.owner.pid == holder.pid


def test_a_waiter_gets_it(client: LockClient, url: str) -> None:
    with running(HOLD, url, "job") as (holder, _), ThreadPoolExecutor() as threads:
        waiting = threads.submit(lambda: client.lock("job").acquire(timeout=10).release())
        until(lambda: (info := client.inspect("job")) and info.waiters_alive)
        holder.kill()
        holder.wait()
        assert waiting.result()


def test_the_dead_do_not_wait(client: LockClient) -> None:
    with running("print()") as (gone, _):
        dead = owner_here(gone.pid)
        gone.communicate()
    first = hold(client, "job", owner=owner_here(os.getpid()))
    behind = first._replace(token="d" * 32, mode=Mode.ENQUEUE, owner=dead.encode())
    client.perform(client.store.acquire(behind))
    client.perform(client.store.release(first))
    assert is_free(client, "job")


def test_the_switch(url: str) -> None:
    with (
        lockkit.connect(url, ttl=TTL, options={"take_over_dead": False}) as client,
        running(HOLD, url, "job") as (holder, _),
    ):
        holder.kill()
        holder.wait()
        assert not is_free(client, "job")
    with pytest.raises(ConfigurationError, match="take_over_dead"):
        lockkit.connect(url, options={"take_over_dead": "no"})


@pytest.mark.parametrize("server", ["postgresql", "mysql", "mariadb"])
def test_a_table_on_a_server_takes_over_nothing(server: str) -> None:
    """Settings for SQLite that turn it off are good for a server as well."""
    lockkit.connect(f"{server}://h/shop", options={"take_over_dead": False})
    with pytest.raises(ConfigurationError, match=r"it must be False: a table on a server"):
        lockkit.connect(f"{server}://h/shop", options={"take_over_dead": True})


def test_another_process_has_its_pid_now(client: LockClient) -> None:
    hold(client, "mine", owner=owner_here(os.getpid()))
    assert not is_free(client, "mine")
    hold(client, "reused", owner=owner_here(os.getpid())._replace(started="1"))
    assert is_free(client, "reused")


@pytest.mark.parametrize(
    "facts",
    [{"host": "web-2"}, {"space": "another boot.1.0"}, {"space": ""}],
    ids=["host", "namespace", "unknown"],
)
def test_of_another_host_or_namespace_nothing_is_known(
    client: LockClient, facts: dict[str, str]
) -> None:
    with running("print()") as (gone, _):
        gone.wait()
    hold(client, "job", owner=owner_here(gone.pid)._replace(**facts))  # type: ignore[arg-type]
    assert not is_free(client, "job")


def test_a_zombie_is_not_known_to_be_gone() -> None:
    """Its other threads may still run."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = owner_here(child.pid)
    child.kill()
    until(lambda: b") Z" in Path(f"/proc/{child.pid}/stat").read_bytes())
    assert not process.is_dead(owner)
    child.communicate()
    assert process.is_dead(owner)


@pytest.mark.parametrize("how", ["python", "c"])
def test_each_process_after_a_fork_for_itself(client: LockClient, url: str, how: str) -> None:
    """A fork that is made in C, such as uWSGI's, tells Python nothing."""
    with running(FORK, url, how) as (parent, child):
        assert not is_free(client, "parents")
        parent.kill()
        parent.wait()
        assert is_free(client, "parents")
        assert not is_free(client, "childs")
        os.kill(int(child), signal.SIGKILL)
        until(lambda: is_free(client, "childs"))


@pytest.mark.parametrize("how", ["python", "c"])
def test_what_a_child_holds_is_held_after_its_parent_has_closed(
    client: LockClient, url: str, how: str
) -> None:
    """SQLite notes in memory which files and which of their locks it has, and the child of a fork
    that is made in C inherits the notes."""
    with running(CLOSED, url, how) as (_, child):
        try:
            assert not is_free(client, "first")
            assert not is_free(client, "second")
        finally:
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize("how", ["python", "c"])
def test_a_child_has_none_of_the_tokens_that_its_parent_has_drawn(url: str, how: str) -> None:
    """With the token of a lease it would share the lease."""
    program = [sys.executable, "-c", BOTH, url, how]
    said = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert said.stdout.split() == ["None"]


@pytest.mark.parametrize("kind", ["mutex", "reentrant"])
def test_processes_restored_from_one_snapshot_exclude_one_another(url: str, kind: str) -> None:
    """Their memory is the same, and so is their pid. Nothing tells them that they are two."""
    program = [sys.executable, "-c", RESTORED, url, kind]
    said = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert said.stdout.split() == ["None", "True"]


ITS_PARENTS = "belongs to the process that this one was forked from"


@pytest.mark.parametrize("how", ["python", "c"])
@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("entered.try_acquire()", "None"),
        ("written.try_acquire()", "None"),
        ("named.acquire(timeout=0).token == of_us.token", "False"),
        ("inner.release()", "False"),
        ("outer.extend(900)", ITS_PARENTS),
        ("writers.downgrade()", ITS_PARENTS),
    ],
)
def test_a_child_neither_enters_nor_extends_its_parents(
    url: str, how: str, first: str, said: str
) -> None:
    """Whatever it does first: of a fork that is made in C it finds out by that."""
    program = [sys.executable, "-W", "ignore", "-c", FIRST, url, how, first]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    child, parent = done.stdout.splitlines()
    assert said in child
    assert parent == "True"


@pytest.mark.parametrize("how", ["python", "c"])
def test_a_child_that_only_looks_has_a_connection_of_its_own(redis_url: str, how: str) -> None:
    """Of two that write to one socket, each may read the reply to the other."""
    program = [sys.executable, "-W", "ignore", "-c", READS, redis_url, how]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("how", ["python", "c"])
def test_a_child_goes_on_in_a_loop_of_its_own(redis_url: str, how: str) -> None:
    program = [sys.executable, "-W", "ignore", "-c", LOOPS, redis_url, how]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert done.stdout == "inside\ninside\n"


def in_child(change: Callable[[], object], owner: Owner) -> bool:
    """Whether it is dead, for a process that has changed itself."""
    pid = os.fork()
    if pid == 0:
        change()
        os._exit(int(process.is_dead(owner)))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_the_system_does_not_tell_is_not_known(tmp_path: Path) -> None:
    other = owner_here(os.getpid())._replace(started="1")
    assert in_child(lambda: None, other)
    assert not in_child(lambda: os.setuid(65534), other), "EPERM"
    assert not in_child(lambda: os.chroot(tmp_path), other), "no /proc"


def test_run_is_alive_as_long_as_its_program(client: LockClient, url: str) -> None:
    program = (  # it is told to end with run
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(os.getpid(), flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-m", "lockkit", "--url", url, "locks", "run", "job", "--"]
    with subprocess.Popen(
        [*command, sys.executable, "-c", program], stdout=subprocess.PIPE
    ) as runner:
        assert runner.stdout is not None
        child = int(runner.stdout.readline())
        runner.kill()
        runner.wait()
        assert not is_free(client, "job")
        os.kill(child, signal.SIGKILL)
        until(lambda: is_free(client, "job"))


def test_a_program_that_waits_for_its_lock_ends_with_run(client: LockClient, url: str) -> None:
    command = [sys.executable, "-m", "lockkit", "--url", url, "locks", "run", "job", "--"]
    with (
        client.lock("job").acquire(),
        subprocess.Popen([*command, "echo", "ran"], stdout=subprocess.PIPE) as runner,
    ):
        until(lambda: (info := client.inspect("job")) and info.waiters_alive)
        runner.kill()
        assert runner.stdout is not None
        assert runner.stdout.read() == b""
