"""``locks release`` releases exactly what it showed, asks first, and logs it."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import DEADLINE, Screen, dead_port, hold, locks, start

import lockkit
from lockkit.leases.client import LockClient
from lockkit.model.errors import BackendUnavailable, LayoutMismatch, LeaseLost
from lockkit.model.types import Owner
from lockkit.runtime import process


def fence_of(client: LockClient, name: str) -> int | None:
    info = client.inspect(name)
    return info.fence if info else None


def test_without_a_terminal_it_needs_yes(client: LockClient) -> None:
    hold(client, "order:A-17")
    refused = locks(client, "release", "order:A-17")
    assert refused.status == 2
    assert "use --yes" in refused.err
    assert fence_of(client, "order:A-17")
    done = locks(client, "release", "order:A-17", "--yes")
    assert done.status == 0
    assert "elsewhere:4121" in done.out, "it shows what it releases"
    assert fence_of(client, "order:A-17") is None


def test_it_releases_also_if_nobody_reads_what(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.sqlite3"
    client = lockkit.connect(url)
    hold(client, "job")
    with start("release", "job", "--yes", url=url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "outcome=released" in process.stderr.read()
    assert process.returncode == 0
    assert client.inspect("job") is None
    client.close()


def test_of_a_process_that_is_gone_nobody_is_left_to_stop(client: LockClient) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    for pid, says in (child.pid, "\nreleased\n"), (os.getpid(), "its holder was not stopped\n"):
        hold(client, "job", owner=process.owner("job")._replace(pid=pid))
        done = locks(client, "release", "job", "--yes")
        assert done.status == 0
        assert done.out.endswith(says)


def test_one_permit_of_several(client: LockClient) -> None:
    pool = client.semaphore("pool", 3)
    first, second = pool.acquire(), pool.acquire()
    unclear = locks(client, "release", "pool", "--yes")
    assert unclear.status == 2
    assert "held by 2 at once: choose one with --fence" in unclear.err
    fence = str(second.fencing_token)
    assert locks(client, "release", "pool", "--yes", "--fence", "1").status == 1
    assert locks(client, "release", "pool", "--yes", "--fence", fence).status == 0
    assert [first.release(), second.release()] == [True, False]


def test_all_that_one_owner_holds(client: LockClient, caplog: pytest.LogCaptureFixture) -> None:
    """By one fencing token, so nothing is to be chosen: in another process, or entered twice."""
    leases = [
        client.lock("job", reentrant=True, owner="job-17", label=label).acquire()
        for label in ("first", "second")
    ]
    leases[1].release()
    leases[1] = twin(client, "job", "second")
    with caplog.at_level(logging.WARNING, "lockkit.audit"):
        done = locks(client, "release", "job", "--yes")
    assert done.status == 0, done.err
    assert [word in done.out for word in ("first", "second")] == [True, True]
    assert len(caplog.messages) == 2
    assert client.inspect("job") is None
    assert leases[0].release() is False


def twin(client: LockClient, name: str, label: str) -> object:
    """What another process of the same owner holds."""
    other = lockkit.leases.client.LockClient(client.store, client.settings)
    lock = other.lock(name, reentrant=True, owner="job-17", label=label)
    lease = lock.acquire()
    lease.released = True  # nobody will
    return lease


def test_the_holder_hears_of_it(client: LockClient) -> None:
    lease = client.lock("x", ttl=30).acquire()
    assert locks(client, "release", "x", "--yes").status == 0
    with pytest.raises(LeaseLost):
        lease.extend()
    assert lease.release() is False


@pytest.mark.parametrize(
    ("typed", "released"),
    [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False), ("yo\n", False)],
)
def test_on_a_terminal_it_asks(memory: LockClient, typed: str, released: bool) -> None:
    hold(memory, "x")
    shown = locks(memory, "release", "x", stdin=Screen(typed), terminal=True)
    assert "[y/N]" in shown.err
    assert shown.status == (0 if released else 1)
    assert (fence_of(memory, "x") is None) == released


def test_on_a_real_terminal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.sqlite3"
    client = lockkit.connect(url)
    hold(client, "x")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lockkit", "--url", url, "locks", "release", "x"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(ours, 1024)
        assert b"elsewhere:4121" in shown
        os.write(ours, b"y\n")
        assert process.wait(DEADLINE) == 0
    os.close(ours)
    assert fence_of(client, "x") is None
    client.close()


def test_what_changed_meanwhile_is_not_released(client: LockClient) -> None:
    """The name is given back and taken by somebody else while the operator thinks."""
    first = hold(client, "x")

    class Slow(Screen):
        def readline(self, *_: object) -> str:
            client.perform(client.store.release(first))
            hold(client, "x", owner=Owner("another", 1, "t"))
            return "y\n"

    shown = locks(client, "release", "x", stdin=Slow(), terminal=True)
    assert shown.status == 1
    assert "no longer the lease that was shown" in shown.err
    info = client.inspect("x")
    assert info is not None
    assert info.owner is not None
    assert info.owner.host == "another"


def test_fence_says_which(client: LockClient) -> None:
    hold(client, "x")
    fence = fence_of(client, "x")
    assert fence is not None
    other = locks(client, "release", "x", "--yes", "--fence", str(fence - 1))
    assert other.status == 1
    assert f"its fencing token is {fence}" in other.err
    assert fence_of(client, "x") == fence
    assert locks(client, "release", "x", "--yes", "--fence", str(fence)).status == 0


def test_a_pattern_never_releases(client: LockClient) -> None:
    hold(client, "stock:1")
    hold(client, "stock:2")
    shown = locks(client, "release", "stock:*", "--yes")
    assert shown.status == 1
    assert "not a pattern" in shown.err
    assert fence_of(client, "stock:1")
    assert fence_of(client, "stock:2")


def test_a_name_that_looks_like_a_pattern_is_a_name(client: LockClient) -> None:
    hold(client, "stock:*")
    hold(client, "stock:1")
    assert locks(client, "release", "stock:*", "--yes").status == 0
    assert fence_of(client, "stock:1")
    assert fence_of(client, "stock:*") is None


def test_dry_run(memory: LockClient) -> None:
    hold(memory, "x")
    shown = locks(memory, "release", "x", "--yes", "--dry-run")
    assert shown.status == 0
    assert "dry run" in shown.err
    assert fence_of(memory, "x")


def test_a_free_name(client: LockClient) -> None:
    shown = locks(client, "release", "x", "--yes")
    assert shown.status == 1
    assert shown.err.startswith("nothing to release: x is free in ")


def test_held_in_several_aliases(memory: LockClient) -> None:
    other = lockkit.connect("memory://")
    hold(memory, "x")
    hold(other, "x")
    both = {"default": lambda: memory, "reports": lambda: other}
    refused = locks(both, "release", "x", "--yes")
    assert refused.status == 2
    assert "--alias" in refused.err
    assert locks(both, "release", "x", "--yes", "--alias", "reports").status == 0
    assert fence_of(memory, "x")
    assert fence_of(other, "x") is None


def test_another_alias_that_is_down_may_hold_it_too(memory: LockClient) -> None:
    gone = lockkit.connect(f"redis://127.0.0.1:{dead_port()}/0")
    hold(memory, "x")
    both = {"default": lambda: memory, "reports": lambda: gone}
    assert locks(both, "release", "x", "--yes").status == 69
    assert fence_of(memory, "x")
    assert locks(both, "release", "x", "--yes", "--alias", "default").status == 0


def test_every_attempt_is_on_record(memory: LockClient, caplog: pytest.LogCaptureFixture) -> None:
    hold(memory, "a\u202eb", owner=Owner("web-1", 7, "t", "POST /a\nforged"))
    fence = fence_of(memory, "a\u202eb")
    with caplog.at_level(logging.WARNING, "lockkit.audit"):
        locks(memory, "release", "a\u202eb", "--yes", "--dry-run")
        assert not caplog.records, "nothing was attempted"
        locks(memory, "release", "a\u202eb", "--yes")
    (line,) = caplog.messages
    assert rf'alias=default name=a\u202eb fence={fence} owner="web-1:7 POST /a\x0aforged"' in line
    assert line.startswith("locks release: outcome=released operator=")
    assert f":{os.getpid()} " in line, "who did it"
    assert "\n" not in line


def test_what_is_on_record_cannot_be_forged(
    memory: LockClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "ann uid=7")
    hold(memory, 'x" owner=bob', owner=Owner("web-1", 7, "t", 'POST /a" state=free'))
    locks(memory, "release", 'x" owner=bob', "--yes", "--reason", "a=b")
    (line,) = caplog.messages
    bare = re.sub('"[^"]*"', "…", line)
    assert [word.partition("=")[0] for word in bare.split()[2:]] == [
        "outcome", "operator", "uid", "sudo_user", "alias", "name", "fence", "owner", "state",
        "stuck", "reason",
    ]  # fmt: skip
    assert r'name="x\x22 owner=bob"' in line


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BackendUnavailable("connection refused"), 69),
        (LayoutMismatch("another release wrote it"), 1),
        (KeyboardInterrupt(), 130),
    ],
    ids=["down", "layout", "Ctrl-C"],
)
def test_a_step_that_fails_in_between_is_on_record(
    error: BaseException, status: int, memory: LockClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease may be released all the same."""
    hold(memory, "x")

    class Failing(LockClient):
        def break_(self, name: str, *, fence: int, by: str = "") -> bool:
            raise error

    failing = Failing(memory.store, memory.settings)
    shown = locks(failing, "release", "x", "--yes")
    assert shown.status == status
    assert str(error) in shown.err
    (line,) = caplog.messages
    assert line.startswith(f'locks release: outcome="unknown: {type(error).__name__}" operator=')


def test_two_repairs_at_once_are_refused(memory: LockClient) -> None:
    both = locks(memory, "release", "x", "--damaged", "--missing-ttl", "--yes")
    assert both.status == 2
    assert "--missing-ttl: not allowed with argument --damaged" in both.err


def test_without_logging_set_up_the_record_is_printed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.sqlite3"
    client = lockkit.connect(url)
    hold(client, "x")
    client.close()
    command = [sys.executable, "-m", "lockkit", "--url", url, "locks", "release", "x", "--yes"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "operator=" in ended.stderr
    assert "outcome=released" in ended.stderr


def test_no_question_when_input_is_not_a_terminal(memory: LockClient) -> None:
    hold(memory, "x")
    shown = locks(memory, "release", "x", stdin=io.StringIO("y\n"), terminal=True)
    assert shown.status == 2
    assert fence_of(memory, "x")
