"""Names that are stuck, and names that must not be called stuck."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import hold, until

import lockkit
from lockkit.leases.client import LockClient
from lockkit.model.types import LockInfo, LockState, Owner
from lockkit.operate.inspect import Process, remark, safe_to_break, stuck
from lockkit.runtime import process


@pytest.fixture
def client() -> Iterator[LockClient]:
    found = lockkit.connect("memory://")
    yield found
    found.close()


@pytest.fixture
def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def held(**facts: object) -> LockInfo:
    """A lease of 30 s, renewed 5 s ago, of a holder elsewhere."""
    usual = {"owner": Owner("elsewhere", 1, "t"), "fence": 7, "age": 45.0, "left": 25.0,
             "renewed": 5.0, "ttl": 30.0, "max_hold": 600.0}  # fmt: skip
    return LockInfo("stock:42", LockState.HELD, **{**usual, **facts})  # type: ignore[arg-type]


def code(info: LockInfo, older_than: float | None = None) -> str | None:
    found = stuck(info, older_than)
    return found and found.code


def owner_here(pid: int, **facts: str) -> Owner:
    return process.owner("job")._replace(pid=pid, started=process.started(pid), **facts)


def test_a_lease_that_is_renewed_is_not_stuck() -> None:
    assert stuck(held()) is None
    assert stuck(held(age=599.0, renewed=9.9, left=20.1)) is None
    assert stuck(held(max_hold=None, age=1e6)) is None


def test_no_ttl() -> None:
    info = held(left=None, ttl=None, renewed=None)
    assert stuck(info) == ("no-ttl", "no TTL")


def test_two_missed_renewals() -> None:
    assert code(held(renewed=20.5, left=9.5)) is None, "late by less than a second"
    assert code(held(renewed=22.0, left=8.0)) == "renewals-missed"


def test_a_lease_extended_by_more_is_renewed_less_often() -> None:
    assert code(held(renewed=60.0, left=240.0)) is None
    assert code(held(renewed=202.0, left=98.0)) == "renewals-missed"


def test_a_short_lease_is_given_a_moment() -> None:
    assert code(held(ttl=0.6, renewed=0.55, left=0.05)) is None


def test_held_beyond_its_own_maximum() -> None:
    found = stuck(held(age=601.0))
    assert found == ("max-hold", "held longer than its maximum of 600s")


def test_a_lease_that_is_never_renewed_misses_no_renewal() -> None:
    assert stuck(held(max_hold=0.0, age=29.0, renewed=29.0, left=1.0)) is None


def test_held_beyond_what_the_operator_says() -> None:
    assert code(held(age=45.0), older_than=44.0) == "older-than"
    assert code(held(age=45.0), older_than=46.0) is None


def test_a_holder_here_whose_process_is_gone(dead_pid: int) -> None:
    assert code(held(owner=owner_here(dead_pid))) == "process-gone"


def test_a_holder_that_was_killed_and_not_yet_reaped() -> None:
    """Other threads of it, or what it has started, may still run."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    info = held(owner=owner_here(child.pid))
    assert safe_to_break(info).safe is False
    child.kill()
    until(lambda: b") Z" in Path(f"/proc/{child.pid}/stat").read_bytes())
    until(lambda: safe_to_break(info).safe is None)
    assert code(info) is None
    child.communicate()
    until(lambda: safe_to_break(info).safe)
    assert code(info) == "process-gone"


def test_a_stopped_process_is_not_safe_to_break() -> None:
    """It may go on at any time, as if it still held the name."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        info = held(owner=owner_here(child.pid))
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        until(lambda: "stopped" in safe_to_break(info).why)
        assert safe_to_break(info).safe is False
    finally:
        child.kill()
        child.communicate()


def test_each_state_of_a_process_says_whether_it_is_safe_to_break(dead_pid: int) -> None:
    said = {
        Process.RUNNING: safe_to_break(held(owner=owner_here(os.getpid()))),
        Process.GONE: safe_to_break(held(owner=owner_here(dead_pid))),
        Process.ELSEWHERE: safe_to_break(held()),
        Process.UNKNOWN: safe_to_break(held(owner=None)),
    }
    assert {state: (safety.safe, safety.why.split(",")[0]) for state, safety in said.items()} == {
        Process.RUNNING: (False, "not safe"),
        Process.GONE: (True, "safe"),
        Process.ELSEWHERE: (None, "not known"),
        Process.UNKNOWN: (None, "not known"),
    }


def test_a_holder_here_whose_pid_is_now_that_of_another_process() -> None:
    assert code(held(owner=owner_here(os.getpid()))) is None
    assert code(held(owner=owner_here(os.getpid())._replace(started="1"))) == "process-gone"


@pytest.mark.parametrize("elsewhere", [{"host": "web-2"}, {"space": "other-boot.1"}])
def test_a_pid_of_another_machine_or_container_says_nothing(
    dead_pid: int, elsewhere: dict[str, str]
) -> None:
    assert code(held(owner=owner_here(dead_pid, **elsewhere))) is None


@pytest.mark.parametrize("pid", [0, 1, 10**30])
def test_odd_pids_are_let_be(pid: int) -> None:
    assert code(held(owner=owner_here(pid))) is None


def test_a_queue_is_stuck_only_when_nobody_in_it_is_alive() -> None:
    assert code(LockInfo("x", LockState.QUEUED, waiters=2, waiters_alive=1)) is None
    assert code(LockInfo("x", LockState.QUEUED, waiters=2, waiters_alive=0)) == "queue-dead"


def test_dead_waiters_behind_a_holder_are_no_reason() -> None:
    assert code(held(waiters=3, waiters_alive=0)) is None


def test_an_expired_lease_is_abandoned_until_somebody_takes_the_name(client: LockClient) -> None:
    hold(client, "stock:42", ttl=0.01)

    def told() -> str | None:
        info = client.inspect("stock:42")
        return info and remark(info)

    until(lambda: re.search(r"expired \ds ago", told() or ""))
    info = client.inspect("stock:42")
    assert info is not None
    assert stuck(info) is None, "it blocks nobody"
    with client.lock("stock:42").acquire():
        assert told() is None


def test_what_a_client_holds_and_waits_for(client: LockClient) -> None:
    """Label, age, fence and waiters as the store has them; and nothing of it is stuck."""
    lease = client.lock("stock:42", ttl=5, label="POST /stock/42").acquire()
    waiting = threading.Thread(target=lambda: client.lock("stock:42").acquire().release())
    waiting.start()
    until(lambda: (found := client.inspect("stock:42")) and found.waiters_alive)
    info = client.inspect("stock:42")
    lease.release()
    waiting.join()
    assert info is not None
    assert stuck(info) is None
    assert info.owner == process.owner("POST /stock/42")
    assert info.fence == lease.fencing_token
    assert info.left is not None
    assert 0 < info.left <= 5
    assert client.inspect("stock:42") is None


def test_owners_survive_their_encoding() -> None:
    owner = Owner("web-1", 4121, "worker", "POST /a", "boot.ns")
    assert Owner.decode(owner.encode()) == owner
    assert Owner.decode("web-1") == Owner("web-1", 0, "")
    assert str(owner) == "web-1:4121 POST /a"


def test_where_the_system_names_no_boot_a_pid_says_nothing(
    dead_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, where several machines may also have one name."""
    monkeypatch.setattr(process._process, "space", "")
    info = held(owner=owner_here(dead_pid, space=""))
    assert code(info) is None
    assert safe_to_break(info).safe is None
