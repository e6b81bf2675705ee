"""SQLite: whoever hands a lock over sends a hint to the next holder's socket; the table decides."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import secrets
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import hold
from forking import in_child
from garbage import collected

import lockkit
from lockkit import aio
from lockkit.leases.client import LockClient
from lockkit.model.clock import now
from lockkit.model.settings import settings_from_url
from lockkit.runtime import process
from lockkit.stores.registry import load_store
from lockkit.stores.sql import hints, inbox
from lockkit.testing.conformance.base import PROMPT, at_least_once, eventually, queued
from lockkit.testing.faulty import FaultyExchange, give_faulty_wires

TTL = 60.0
"""So a waiter that is not woken asks every 1.5 seconds."""

WAITER = """\
import sys, time, lockkit
locks = lockkit.connect(sys.argv[1], ttl=60)
locks.lock(sys.argv[2]).acquire(timeout=60)
print("granted", flush=True)
time.sleep(600)
"""

MANY = """\
import sys, threading, lockkit
locks = lockkit.connect(sys.argv[1], ttl=60)
def work(number):
    locks.lock(f"n{number}").acquire(timeout=60).release()
threads = [threading.Thread(target=work, args=(n,)) for n in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("all", flush=True)
"""

FORKS = """\
import os, sys, lockkit
locks = lockkit.connect(sys.argv[1], ttl=60)
locks.lock(sys.argv[2]).acquire(timeout=60).release()
child = os.fork()
if child:
    os.waitpid(child, 0)
    print("ended", flush=True)
    sys.stdin.readline()
"""

Locks = Callable[..., LockClient]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.sqlite3"


@pytest.fixture
def locks(path: Path) -> Iterator[Locks]:
    clients: list[LockClient] = []

    def connected(where: Path = path, fault: FaultyExchange | None = None) -> LockClient:
        settings = settings_from_url(f"sqlite:///{where}", ttl=TTL, acquire_timeout=30)
        store = load_store(settings)
        if fault is not None:
            give_faulty_wires(store, fault)
        clients.append(LockClient(store, settings))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


def inbox_of(client: Any) -> inbox.Inbox:
    found: inbox.Inbox = client.store._inbox
    return found


def sockets(directory: Path) -> set[str]:
    """Files that go away meanwhile are none."""
    return {name for name in os.listdir(directory) if _is_socket(directory / name)}


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def socket_of(client: Any, directory: Path) -> str:
    return str(directory / f".{inbox_of(client).channel}")


@contextmanager
def running(script: str, path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process of the machine, which is killed at the end."""
    command = [sys.executable, "-W", "ignore", "-c", script, f"sqlite:///{path}", *arguments]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as started:
        try:
            yield started
        finally:
            started.kill()


def line_of(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def said(address: str, *texts: bytes) -> None:
    """What any process of the machine can send."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for text in texts:
            sender.sendto(text, address)


def state_of(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        found: str = connection.execute("SELECT max(state) FROM lockkit_lock").fetchone()[0]
        return found
    finally:
        connection.close()


def listening(client: Any) -> None:
    eventually(lambda: inbox_of(client).is_open)


def woken(waiter: LockClient, releaser: LockClient, name: str = "a") -> bool:
    """Whether a waiter that sleeps is granted long before it would have asked."""
    lease = releaser.lock(name).acquire()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(waiter.lock(name).acquire)
        queued(releaser, name, 1)
        listening(waiter)
        released = now()
        lease.release()
        waiting.result(10).release()
    return now() - released < PROMPT


# A hint wakes


def test_a_handoff_takes_three_requests_however_long_it_is_held(locks: Locks) -> None:
    """One to queue, one when it is told, one to release; by polling there are dozens."""
    fault = FaultyExchange()
    client, other = locks(fault=fault), locks()
    at_least_once(lambda: woken(client, other))

    def three() -> bool:
        with fault:
            asked = fault.asked
            return woken(client, other) and fault.asked - asked <= 3

    at_least_once(three)


def test_tasks_are_woken_as_threads_are(path: Path) -> None:
    async def scene() -> bool:
        url = f"sqlite:///{path}"
        async with aio.connect(url, ttl=TTL) as client, aio.connect(url, ttl=TTL) as other:
            lease = await other.lock("a").acquire()
            waiting = asyncio.create_task(client.lock("a").acquire())
            while not inbox_of(client).is_open:  # noqa: ASYNC110  it has no event for tasks
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            released = now()
            await lease.release()
            await (await waiting).release()
            return now() - released < PROMPT

    at_least_once(lambda: asyncio.run(scene()))


def test_more_hints_than_a_socket_holds(locks: Locks, path: Path) -> None:
    """Those that are not told ask, once others have been. Here a process that was paused."""
    other = locks()

    def scene() -> bool:
        leases = [other.lock(f"n{number}").acquire() for number in range(40)]
        with running(MANY, path, "40") as crew:
            for number in range(40):
                queued(other, f"n{number}", 1)
            os.kill(crew.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, crew.pid, os.WSTOPPED | os.WNOWAIT)
            for lease in leases:
                lease.release()
            released = now()
            os.kill(crew.pid, signal.SIGCONT)
            assert line_of(crew) == "all"
            took = now() - released
        return took < PROMPT / 2

    at_least_once(scene)


def test_a_waiter_whose_holder_is_killed_need_not_ask_to_know(locks: Locks, path: Path) -> None:
    """Nobody tells it. Here the one that dies was itself granted while the other one slept."""
    client, other = locks(), locks()

    def scene() -> bool:
        lease = other.lock("a").acquire()
        with running(WAITER, path, "a") as killed, ThreadPoolExecutor() as threads:
            queued(other, "a", 1)
            waiting = threads.submit(client.lock("a").acquire)
            queued(other, "a", 2)
            listening(client)
            lease.release()
            assert line_of(killed) == "granted"
            killed.kill()
            killed.wait()
            died = now()
            waiting.result(10).release()
        return now() - died < PROMPT

    at_least_once(scene)


# A hint that does not come


def test_a_hint_that_is_lost(locks: Locks, path: Path) -> None:
    """Its socket file is gone: the waiter is granted when it says that it is alive."""
    client, other = locks(), locks()
    lease = other.lock("a").acquire()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.lock("a").acquire)
        queued(other, "a", 1)
        listening(client)
        os.unlink(socket_of(client, path.parent))
        lease.release()
        assert waiting.result(10).release()


def test_a_socket_that_was_deleted_is_made_anew(
    locks: Locks, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "PULSE", 0.2)
    client, other = locks(), locks()
    lease = other.lock("a").acquire()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.lock("a").acquire)
        listening(client)
        os.unlink(socket_of(client, path.parent))
        eventually(lambda: os.path.exists(socket_of(client, path.parent)))
        listening(client)
        lease.release()
        assert waiting.result(10).release()


def test_those_who_wait_behind_another_machine_or_container_poll(locks: Locks) -> None:
    """A hint may not reach them from there."""
    fault = FaultyExchange()
    client, other = locks(fault=fault), locks()
    at_least_once(lambda: woken(client, other))  # it is told by others
    elsewhere = process.owner("job")._replace(space="another.container")
    claim = hold(other, "a", owner=elsewhere)
    with ThreadPoolExecutor() as threads, fault:
        waiting = threads.submit(client.lock("a").acquire)
        queued(other, "a", 1)
        started, asked = now(), fault.asked
        eventually(lambda: fault.asked - asked >= 10)
        assert now() - started < 10, "asleep it would ask every 1.5 s"
        other.perform(other.store.release(claim))
        assert waiting.result(10).release()


def test_behind_one_who_cannot_send_waiters_poll_after_the_first_time(locks: Locks) -> None:
    """A sandbox may forbid it, or SELinux between two services."""
    client, other, mute = locks(), locks(), locks()
    at_least_once(lambda: woken(client, other))
    vars(mute.store.connector).update(tell=lambda *_: None)  # type: ignore[attr-defined]
    woken(client, mute)
    at_least_once(lambda: all(woken(client, mute) for _ in range(4)))
    at_least_once(lambda: woken(client, other))


def test_whoever_waits_as_the_client_is_closed_is_told_later_on(locks: Locks) -> None:
    client, other = locks(), locks()
    lease = other.lock("a").acquire()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.lock("a").acquire)
        queued(other, "a", 1)
        listening(client)
        first = inbox_of(client)._connection
        client.close()
        eventually(lambda: inbox_of(client)._connection not in (None, first))
        listening(client)
        lease.release()
        assert waiting.result(10).release()


def test_without_sockets_it_polls_and_says_so(
    locks: Locks, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a sandbox that forbids them, or on a file system that has none."""
    client, other = locks(), locks()
    lease = other.lock("a").acquire()
    monkeypatch.setattr(socket, "AF_UNIX", 999)
    with caplog.at_level(logging.INFO, "lockkit"), ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.lock("a").acquire)
        queued(other, "a", 1)
        eventually(lambda: f"waiters for locks poll {path}: no socket" in caplog.text)
        lease.release()
        assert waiting.result(10).release()
    assert not inbox_of(client).is_open
    assert not sockets(path.parent)


def test_a_socket_that_cannot_be_made_for_a_while(
    locks: Locks, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where too many files are open."""
    client, other = locks(), locks()
    lease = other.lock("a").acquire()

    def refused(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with ThreadPoolExecutor() as threads:
        with monkeypatch.context() as patch:
            patch.setattr(hints, "_unix_socket", refused)
            waiting = threads.submit(client.lock("a").acquire)
            eventually(lambda: inbox_of(client)._pause)
        listening(client)
        lease.release()
        assert waiting.result(10).release()


# A hint that is not one


def test_a_forged_hint_grants_nothing(locks: Locks, path: Path) -> None:
    """Not even one with what the table knows of the waiter."""
    fault = FaultyExchange()
    client, other = locks(fault=fault), locks()
    lease = other.lock("a").acquire()
    with ThreadPoolExecutor() as threads, fault:
        waiting = threads.submit(client.lock("a").acquire)
        queued(other, "a", 1)
        listening(client)
        (token,) = inbox_of(client)._claims
        assert token in state_of(path)
        fence, ticket = lease.fencing_token, json.loads(state_of(path))["queue"][0][2]
        for forged in (f"{token} {ticket} {fence} {8 * 10**15}", f"{token} {ticket}", token):
            asked = fault.asked
            said(socket_of(client, path.parent), forged.encode())
            eventually(lambda asked=asked: waiting.done() or fault.asked > asked)  # type: ignore[misc]
            assert not waiting.done()
        info = other.inspect("a")
        assert info is not None
        assert info.fence == lease.fencing_token
        assert not waiting.done()
        assert lease.release()
        assert waiting.result(10).release()


def test_other_datagrams_are_ignored(locks: Locks, path: Path) -> None:
    client, other = locks(), locks()
    at_least_once(lambda: woken(client, other))

    def scene() -> bool:
        address = socket_of(client, path.parent)
        noise = [b"", b"\xff\xfe", b"x" * 50_000, secrets.token_hex(16).encode(), b"\0" * 64]
        lease = other.lock("a").acquire()
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(client.lock("a").acquire)
            queued(other, "a", 1)
            for _ in range(100):
                said(address, *noise)
            assert not waiting.done()
            released = now()
            assert lease.release()
            waiting.result(10).release()
        return now() - released < PROMPT

    at_least_once(scene)


def test_a_row_cannot_name_another_socket(locks: Locks, path: Path) -> None:
    """Anybody who writes the table could have this process write there."""
    (path.parent / ".x").mkdir()
    client, other = locks(), locks()
    lease = other.lock("a").acquire()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as trap,
        ThreadPoolExecutor() as threads,
    ):
        trap.bind(str(path.parent / ".trap"))
        trap.setblocking(False)
        waiting = threads.submit(client.lock("a").acquire)
        queued(other, "a", 1)
        with sqlite3.connect(path, isolation_level=None) as connection:
            channel = inbox_of(client).channel
            connection.execute(
                "UPDATE lockkit_lock SET state = replace(state, ?, ?), version = version + 1",
                (channel, "x/../.trap"),
            )
        connection.close()
        assert "x/../.trap" in state_of(path)
        lease.release()
        assert waiting.result(10).release()
        with pytest.raises(BlockingIOError):
            trap.recv(64)


# Sockets


def test_nobody_has_a_socket_who_has_not_waited(locks: Locks, path: Path) -> None:
    client, other = locks(), locks()
    at_least_once(lambda: woken(client, other))
    assert len(sockets(path.parent)) == 1
    client.close()
    eventually(lambda: not sockets(path.parent))


@pytest.mark.filterwarnings("ignore:.*sqlite3.Connection:pytest.PytestUnraisableExceptionWarning")
def test_a_client_that_is_dropped_leaves_no_socket(path: Path) -> None:
    """It is closed, though its thread may not come to it: an open one would be warned of."""
    client = lockkit.connect(f"sqlite:///{path}", ttl=TTL)
    with client.lock("a").acquire():
        while not sockets(path.parent):
            with pytest.raises(lockkit.AcquireTimeout):
                client.lock("a").acquire(timeout=0.05)
    del client
    eventually(lambda: collected() or not sockets(path.parent))


def test_a_process_that_ends_removes_its_socket(locks: Locks, path: Path) -> None:
    script = WAITER.replace("time.sleep(600)", "")
    other = locks()
    lease = other.lock("a").acquire()
    with running(script, path, "a") as waiter:
        eventually(lambda: sockets(path.parent))
        lease.release()
        assert waiter.wait(30) == 0
    assert not sockets(path.parent)


def test_the_next_removes_the_socket_of_a_process_that_was_killed(locks: Locks, path: Path) -> None:
    """And no other one."""
    client, other, third = locks(), locks(), locks()
    at_least_once(lambda: woken(client, other))
    lease = other.lock("a").acquire()
    with running(WAITER, path, "a"):
        eventually(lambda: len(sockets(path.parent)) == 2)
    assert lease.release()
    assert len(sockets(path.parent)) == 2
    at_least_once(lambda: woken(third, other))
    assert sockets(path.parent) == {f".{inbox_of(one).channel}" for one in (client, third)}


@pytest.mark.parametrize(("mode", "socket_mode"), [(0o600, 0o600), (0o660, 0o666)])
def test_those_who_may_lock_may_wake(locks: Locks, path: Path, mode: int, socket_mode: int) -> None:
    path.touch()
    path.chmod(mode)
    client = locks()
    at_least_once(lambda: woken(client, locks()))
    assert stat.S_IMODE(os.stat(socket_of(client, path.parent)).st_mode) == socket_mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_waiter_of_root_is_told_by_the_database_s_user(locks: Locks, path: Path) -> None:
    """As an operator's ``locks run`` beside the service."""
    path.touch()
    os.chown(path, 1234, 1234)
    client = locks()
    at_least_once(lambda: woken(client, locks()))
    status = os.stat(socket_of(client, path.parent))
    assert (status.st_uid, status.st_gid) == (1234, 1234)


def test_a_link_in_the_place_of_the_socket_gives_no_other_file_away(
    locks: Locks, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is another user's, who makes one just after the socket was bound."""
    path.touch()
    if os.geteuid() == 0:  # else only its mode could be given away
        os.chown(path, 1234, 1234)
    path.chmod(0o660)
    victim = tmp_path / "victim"
    victim.touch()
    victim.chmod(0o600)
    address_of = hints._address

    @contextmanager
    def swapped(wanted: str) -> Iterator[str]:
        with address_of(wanted) as address:
            yield address
        if stat.S_ISSOCK(os.lstat(wanted).st_mode):
            os.unlink(wanted)
            os.symlink(victim, wanted)

    monkeypatch.setattr(hints, "_address", swapped)
    monkeypatch.setattr(inbox, "PROOF_SECONDS", 15.0)
    client, other = locks(), locks()
    lease = other.lock("a").acquire()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.lock("a").acquire)
        eventually(lambda: inbox_of(client)._connection)
        assert os.path.islink(socket_of(client, path.parent))
        assert (victim.stat().st_uid, stat.S_IMODE(victim.stat().st_mode)) == (os.geteuid(), 0o600)
        lease.release()
        assert waiting.result(10).release()


def test_a_path_that_is_too_long_for_a_socket(locks: Locks, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    client, other = locks(deep / "locks.sqlite3"), locks(deep / "locks.sqlite3")
    at_least_once(lambda: woken(client, other))
    assert len(sockets(deep)) == 1


def test_a_forked_child_listens_for_itself(locks: Locks, path: Path) -> None:
    client, other = locks(), locks()
    at_least_once(lambda: woken(client, other))
    channel = inbox_of(client).channel

    def child() -> None:
        at_least_once(lambda: woken(client, other, "b"))
        assert inbox_of(client).channel != channel
        client.close()
        eventually(lambda: sockets(path.parent) == {f".{channel}"})

    in_child(child)
    at_least_once(lambda: woken(client, other))
    assert inbox_of(client).channel == channel
    assert sockets(path.parent) == {f".{channel}"}


def test_a_forked_child_that_ends_leaves_its_parent_s_socket(locks: Locks, path: Path) -> None:
    other = locks()
    lease = other.lock("a").acquire()
    with running(FORKS, path, "a") as parent:
        (made,) = eventually(lambda: sockets(path.parent))
        lease.release()
        assert line_of(parent) == "ended"
        assert sockets(path.parent) == {made}
