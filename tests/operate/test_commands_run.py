"""``locks run``: a program of any kind, under a lock."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import pty
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from command_line import DEADLINE, dead_port, hold, locks, locks_process, start, until

import lockkit
from lockkit.leases.client import Lease, LockClient
from lockkit.model.types import LockInfo
from lockkit.operate import program
from lockkit.operate.commands import run
from lockkit.operate.inspect import safe_to_break, stuck
from lockkit.operate.text import escape
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

T = TypeVar("T")

READY = "import sys; print('ready', flush=True); "


@pytest.fixture
def client(url: str) -> Iterator[LockClient]:
    found = lockkit.connect(url)
    yield found
    found.close()


def python(program: str) -> tuple[str, ...]:
    return ("--", sys.executable, "-c", program)


def test_the_lock_is_held_while_the_program_runs(client: LockClient, url: str) -> None:
    program = python(READY + "sys.stdin.read()")
    command = [sys.executable, "-m", "lockkit", "--url", url, "locks", "run", "job", *program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        info = client.inspect("job")
        assert info is not None
        assert info.owner is not None
        parent = Path(f"/proc/{info.owner.pid}/stat").read_text().rpartition(")")[2].split()[1]
        assert int(parent) == process.pid, "it is the program's"
        assert info.owner.label.startswith("run python")
        process.stdin.close()
        assert process.wait(DEADLINE) == 0
    assert client.inspect("job") is None


@pytest.mark.parametrize(
    "given",
    [
        ["job", "echo", "--timeout", "x"],
        ["job", "--timeout", "0", "echo", "--timeout", "x"],
        ["--ttl", "5", "job", "--timeout", "0", "--", "echo", "--timeout", "x"],
    ],
)
def test_two_dashes_are_not_needed(given: list[str], url: str) -> None:
    command = [sys.executable, "-m", "lockkit", "locks", "--url", url, "run", *given]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "--timeout x\n", "")


def test_two_dashes_of_the_program_are_its_own(url: str) -> None:
    command = [sys.executable, "-m", "lockkit", "locks", "--url", url, "run", "job", "sh", "-c"]
    ran = subprocess.check_output([*command, 'echo "$@"', "--", "--url", "--", "x"], text=True)
    assert ran == "--url -- x\n"


def test_a_name_that_begins_with_a_dash(client: LockClient) -> None:
    """Two dashes begin the program, so they are no way to say it."""
    says = ["sh", "-c", 'test "$LOCKKIT_NAME" = -job']
    assert locks(client, "run", r"\x2djob", *says).status == 0
    assert locks(client, "run", "--", "-job", *says).status == 2
    with client.lock("-job"):
        assert locks(client, "show", "--", "-job").out.startswith("name:     -job\n")


@pytest.mark.parametrize(
    ("option", "value"), [("--ttl", "0"), ("--max-hold", "9999999999"), ("--timeout", "9" * 400)]
)
def test_values_that_make_no_sense_are_usage_errors(
    option: str, value: str, client: LockClient
) -> None:
    ended = locks(client, "run", "job", option, value, "true")
    assert ended.status == 2
    assert option.strip("-") in ended.err


def test_a_job_without_a_standard_input_gives_the_program_none(url: str) -> None:
    """It must not wait for the end of a pipe of ours instead."""
    program = python("import os\ntry: os.fstat(0)\nexcept OSError: print('closed')")
    command = [sys.executable, "-m", "lockkit", "--url", url, "locks", "run", "job", *program]
    ran = subprocess.check_output(["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command], text=True)
    assert ran == "closed\n"


@pytest.mark.parametrize(
    "program",
    [("env",), ("ls", "/proc/self/fd"), ("grep", "Sig[BIC]", "/proc/self/status")],
    ids=["environment", "descriptors", "signals"],
)
def test_the_program_finds_what_it_would_find_without_the_command(
    program: tuple[str, ...], url: str
) -> None:
    """Also variables whose names no shell accepts, or which a shell obeys; and descriptors that it
    inherits, such as those of a job server of make."""
    odd = {"spring.profile": "a", "a-b": "c", "BASH_FUNC_x%%": "() { :; }", "OPTIND": "abc"}
    command = [sys.executable, "-m", "lockkit", "--url", url, "locks", "run", "job", *program]
    inherited = os.open(os.devnull, os.O_RDONLY)
    environment = {**os.environ, **odd}
    found, ours = (
        map(
            _plain,
            subprocess.check_output(
                each, env=environment, pass_fds=[inherited], text=True
            ).splitlines(),
        )
        for each in (program, command)
    )
    os.close(inherited)
    told = ("LOCKKIT_NAME=", "LOCKKIT_FENCE=")
    assert sorted(line for line in ours if not line.startswith(told)) == sorted(found)


def _plain(line: str) -> str:
    """The line; of a set of signals without the C library's own, which it sets as it likes."""
    title, _, signals = line.partition(":\t")
    if not title.startswith("Sig"):
        return line
    return f"{title}: {int(signals, 16) & ~(0b11 << 31):x}"


def test_a_name_that_the_locale_cannot_express_is_a_usage_error(url: str) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    told = locks_process("run", r"a\u4e2d", "true", url=url, **ascii_only)
    assert told.status == 2
    assert r"the locale cannot express 'a\u4e2d'" in told.err


def test_a_script_without_a_first_line_is_one_of_the_shell(
    client: LockClient, tmp_path: Path
) -> None:
    script = tmp_path / "job"
    script.write_text("exit $1\n")
    script.chmod(0o755)
    assert locks(client, "run", "job", str(script), "7").status == 7


def test_its_exit_status_is_the_programs(client: LockClient) -> None:
    assert locks(client, "run", "job", *python("raise SystemExit(42)")).status == 42
    assert locks(client, "run", "job", "sh", "-c", "kill -9 $$").status == 128 + 9
    assert locks(client, "run", "job", "--", "no-such-program").status == 127
    assert locks(client, "run", "job", "--", "/").status == 126
    assert client.inspect("job") is None


def test_it_learns_the_name_and_the_fence(client: LockClient, tmp_path: Path) -> None:
    told = tmp_path / "told"
    status = locks(
        client, "run", "job", "--", "sh", "-c", f'echo "$LOCKKIT_NAME $LOCKKIT_FENCE" > {told}'
    ).status
    name, fence = told.read_text().split()
    assert (status, name) == (0, "job")
    with client.lock("job").acquire() as lease:
        assert int(fence) < lease.fencing_token


def test_it_runs_without_a_fence_where_the_store_has_none(postgres_url: str) -> None:
    command = [sys.executable, "-m", "lockkit", "locks", "--url", f"{postgres_url}?mode=advisory"]
    told = subprocess.check_output(
        [*command, "run", "job", "sh", "-c", 'echo "$LOCKKIT_NAME ${LOCKKIT_FENCE-none}"'],
        env={**os.environ, "LOCKKIT_FENCE": "7"},  # of a lock outside of this one
        text=True,
    )
    assert told == "job none\n"


def test_held_by_somebody_else(client: LockClient, tmp_path: Path) -> None:
    hold(client, "job")
    ran = tmp_path / "ran"
    shown = locks(client, "run", "job", "--timeout", "0", "--", "touch", str(ran))
    assert shown.status == 75
    assert "'job' is held by elsewhere:4121" in shown.err
    assert not ran.exists()


def test_held_by_somebody_else_and_nobody_to_tell(client: LockClient, url: str) -> None:
    hold(client, "job")
    with start("run", "job", "--timeout", "0", "--", "true", url=url) as process:
        assert process.stderr is not None
        process.stderr.close()
        assert process.wait(DEADLINE) == 75


def test_a_damaged_name_is_no_store_that_is_down(
    client: LockClient, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = r"it's \x41"  # not "it's A"
    client.lock(name).acquire().release()
    with contextlib.closing(sqlite3.connect(tmp_path / "locks.sqlite3")) as database, database:
        database.execute("UPDATE lockkit_lock SET state = '{', version = version + 1")
    refused = locks(client, "run", escape(name), *python("print('begun')"))
    assert refused.status == 1
    assert refused.err.count("cannot be read") == 1
    show = shlex.split(refused.err.rpartition(": see ")[2])
    assert show == ["locks", "show", escape(name)]
    (command,) = re.findall("locks release .*", locks(client, *show[1:]).out)
    assert capfd.readouterr().out == "", "the program never began"
    assert locks(client, *shlex.split(command)[1:], "--yes").status == 0
    assert locks(client, "run", escape(name), *python("")).status == 0


def test_store_down(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    url = f"redis://127.0.0.1:{dead_port()}/0"
    shown = locks_process("run", "job", "--", "touch", str(ran), url=url)
    assert shown.status == 69
    assert not ran.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(client: LockClient, url: str, number: signal.Signals) -> None:
    waits = (
        f"import signal; signal.signal({int(number)}, lambda *_: sys.exit(33)); "
        "print('ready', flush=True); signal.pause()"
    )
    with start("run", "job", *python("import sys; " + waits), url=url) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(DEADLINE) == 33
    assert client.inspect("job") is None


STOPS = "import os; print(os.getpid(), os.getppid(), flush=True); "


@contextlib.contextmanager
def stopped(url: str, program: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A script that has called this program. The command was told to stop, and all three have."""
    command = ("run", *options, "job", *by_a_script(STOPS + program))
    with start(*command, url=url) as process:
        assert process.stdout is not None
        pids = *map(int, process.stdout.readline().split()), process.pid
        process.send_signal(signal.SIGTSTP)
        try:
            until(lambda: [state_of(pid) for pid in pids] == ["T", "T", "T"])
            yield process
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            process.terminate()


def test_the_program_stops_and_goes_on_with_the_command(url: str, go: Path) -> None:
    with stopped(url, f"open({str(go)!r}).close(); print('went on')") as process:
        process.send_signal(signal.SIGCONT)
        os.close(os.open(go, os.O_WRONLY))
        assert process.wait(DEADLINE) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "went on\n"


def test_a_program_that_was_stopped_for_too_long_does_not_go_on(
    client: LockClient, url: str, go: Path
) -> None:
    """What it did until then, it did under the lock."""
    waits = f"open({str(go)!r}).close(); print('went on')"
    with stopped(url, waits, "--ttl", "1") as process, client.lock("job", timeout=DEADLINE):
        opened = os.open(go, os.O_RDWR)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=DEADLINE)
        os.close(opened)
        assert (process.returncode, out) == (1, "")
        assert "the lease on 'job' is lost: " in err


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_that_is_stopped_can_be_ended(
    client: LockClient, url: str, end: signal.Signals
) -> None:
    with stopped(url, "import signal; signal.pause()") as process:
        program = pid_of_owner(client)
        process.send_signal(end)
        if end == signal.SIGTERM:
            process.send_signal(signal.SIGCONT)
        process.wait(DEADLINE)
        until(lambda: is_gone(program))


def pid_of_owner(client: LockClient) -> int:
    """The process of the program, which owns the lease."""
    info = client.inspect("job")
    assert info is not None
    assert info.owner is not None
    return int(info.owner.pid)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_waiting_leaves_nothing_behind(
    client: LockClient, url: str, number: signal.Signals, status: int
) -> None:
    hold(client, "job")
    with start("run", "job", "--timeout", "60", *python(READY), url=url) as process:
        until(lambda: (found := client.inspect("job")) and found.waiters_alive)
        process.send_signal(number)
        out, _ = process.communicate(timeout=40)
    assert (process.returncode, out) == (status, "")
    info = client.inspect("job")
    assert info is not None
    assert info.waiters == 0


def test_a_lost_lease_ends_the_program(client: LockClient, url: str, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    program = (
        "import signal; "
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(ended)!r}, 'w'), sys.exit(0))); "
        "print('ready', flush=True); signal.pause()"
    )
    with start("run", "job", "--ttl", "3", *python("import sys; " + program), url=url) as process:
        assert process.stdout is not None
        process.stdout.readline()
        break_job(client)
        _, err = process.communicate(timeout=40)
    assert process.returncode == 1
    assert "the lease on 'job' is lost: " in err
    assert ended.exists(), "it was asked to end"


def test_a_lost_lease_ends_the_program_also_if_nobody_can_be_told(
    client: LockClient, url: str
) -> None:
    """Who read standard error has gone, or its disk is full."""
    program = READY + "import signal; signal.pause()"
    with start("run", "job", "--ttl", "3", *python(program), url=url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stderr.close()
        break_job(client)
        try:
            assert process.wait(DEADLINE) == 1
        finally:
            process.terminate()


def by_a_script(program: str) -> tuple[str, ...]:
    """A shell calls it, and would go on after it."""
    return ("--", "/bin/sh", "-c", '"$0" -c "$1"; exit 0', sys.executable, program)


LINGERS = (
    "import os, signal, sys\n"
    "def end(*_):\n"
    "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # it may be told so twice
    "    print('ending', flush=True)\n"
    "    open({go!r}).close()\n"
    "    sys.exit()\n"
    "signal.signal(signal.SIGTERM, end); print(os.getpid(), flush=True); signal.pause()"
)
"""When it is to end, it takes until somebody has written to this pipe."""


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """A pipe that a program waits for."""
    os.mkfifo(tmp_path / "go")
    return tmp_path / "go"


@contextlib.contextmanager
def beside(work: Callable[[], T], go: Path) -> Iterator[Future[T]]:
    """Do it in another thread. It ends with the block, also if no program opens the pipe."""
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(work)
        try:
            yield done
        finally:
            while not done.done():
                os.close(os.open(go, os.O_RDWR))
                time.sleep(0.01)


@pytest.fixture
def network(redis_server: RedisServer, proxy: Callable[[RedisServer], FaultProxy]) -> FaultProxy:
    redis_server.flush()
    return proxy(redis_server)


def break_job(client: LockClient) -> None:
    info = client.inspect("job")
    assert info is not None
    assert info.fence is not None
    assert client.break_("job", fence=info.fence)


def is_gone(pid: int) -> bool:
    """Or nobody has asked how it has ended."""
    return state_of(pid) in ("", "Z")


def state_of(pid: int) -> str:
    """A letter of the system. Empty: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_the_lock_is_held_until_what_a_script_has_called_has_ended(
    client: LockClient, url: str, go: Path
) -> None:
    """A signal ends the shell at once, and not what it waits for."""
    with start("run", "job", *by_a_script(LINGERS.format(go=str(go))), url=url) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.terminate()
        assert process.stdout.readline() == "ending\n"
        info = client.inspect("job")
        assert info is not None
        assert info.owner is not None
        shell = info.owner.pid
        until(lambda: is_gone(shell))
        assert client.lock("job").try_acquire() is None
        assert safe_to_break(info).safe is None, "what it has called goes on"
        assert stuck(info) is None
        go.write_text("")
        assert process.wait(DEADLINE) == 143
    assert is_gone(pid)
    assert client.inspect("job") is None


def test_a_lost_lease_ends_what_a_script_has_called(client: LockClient, url: str, go: Path) -> None:
    program = by_a_script(LINGERS.format(go=str(go)))
    with start("run", "job", "--ttl", "3", *program, url=url) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        break_job(client)
        assert process.stdout.readline() == "ending\n"
        go.write_text("")
        assert process.wait(DEADLINE) == 1
    assert is_gone(pid)


def test_the_program_ends_with_a_command_that_is_killed(url: str, go: Path) -> None:
    """Nobody renews its lease any more."""
    with start("run", "job", *by_a_script(LINGERS.format(go=str(go))), url=url) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        assert process.stdout.readline() == "ending\n"
        go.write_text("")
        until(lambda: is_gone(pid))


def test_a_lost_lease_ends_a_program_that_has_left_for_a_session_of_its_own(
    client: LockClient, url: str
) -> None:
    leaves = "import os, signal; os.setsid(); print('ready', flush=True); signal.pause()"
    with start("run", "job", "--ttl", "3", *python(leaves), url=url) as process:
        assert process.stdout is not None
        process.stdout.readline()
        break_job(client)
        assert process.wait(DEADLINE) == 1


def test_a_program_that_does_not_end_is_killed(
    client: LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "GRACE", 0.2)
    ignores = ("--", "/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    short = ("--ttl", "0.5", "--max-hold", "0.1")
    assert locks(client, "run", "job", *short, *ignores).status == 1


def test_nobody_gets_the_lock_between_the_end_of_the_program_and_the_release(
    client: LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease of a process that is known to be gone is free at once."""
    release, tries = Lease.release, []

    def release_late(lease: Lease) -> bool:
        tries.append(client.lock("job").try_acquire())
        return release(lease)

    monkeypatch.setattr(Lease, "release", release_late)
    assert locks(client, "run", "job", "true").status == 0
    assert tries == [None]


def test_another_part_of_the_process_may_reap_the_program_meanwhile(
    client: LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a handler of SIGCHLD does in some projects: the exit status is known by then."""
    release = Lease.release

    def release_late(lease: Lease) -> bool:
        info = client.inspect("job")
        assert info is not None
        assert info.owner is not None
        os.waitpid(info.owner.pid, 0)
        return release(lease)

    monkeypatch.setattr(Lease, "release", release_late)
    assert locks(client, "run", "job", *python("raise SystemExit(4)")).status == 4
    assert client.inspect("job") is None


@pytest.mark.parametrize(
    ("script", "status"), [("kill -9 0", 137), ("trap '' USR1; kill -USR1 0; exit 5", 5)]
)
def test_what_a_program_does_to_its_group_is_its_own(script: str, status: int, url: str) -> None:
    assert locks_process("run", "job", "--", "/bin/sh", "-c", script, url=url).status == status


def test_the_exit_status_under_a_parent_that_wants_to_know_none(url: str) -> None:
    command = [sys.executable, "-m", "lockkit", "--url", url, "locks", "run", "job"]
    ignoring = ["/bin/sh", "-c", 'trap "" CHLD; exec "$@"', "sh"]
    done = subprocess.run([*ignoring, *command, *python("raise SystemExit(4)")], check=False)
    assert done.returncode == 4


def test_what_a_program_leaves_behind_on_purpose_stays(url: str) -> None:
    leaves = ("--", "/bin/sh", "-c", "sleep 300 > /dev/null 2>&1 & echo $!")
    shown = locks_process("run", "job", *leaves, url=url)
    assert shown.status == 0
    os.kill(int(shown.out), signal.SIGKILL)  # it is there


def test_it_stays_also_if_the_command_is_killed_during_its_release(
    network: FaultProxy, go: Path
) -> None:
    waits = (
        "import signal; both = {signal.SIGTERM, signal.SIGRTMAX}\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, both)\n"
        "print(__import__('os').getpid(), flush=True)\n"
        "print(int(signal.sigwait(both)), flush=True)"  # the lowest of those that were sent
    )
    leaves = ("sh", "-c", '"$0" -c "$1" & : < "$2"', sys.executable, waits, str(go))
    url = f"redis://127.0.0.1:{network.port}/0"
    with start("run", "job", "--ttl", "60", *leaves, url=url) as process:
        assert process.stdout is not None
        left = int(process.stdout.readline())
        guard = os.getpgid(left)
        release = network.delay_requests(matching=b"EVALSHA")
        go.write_text("")
        assert release.arrived.wait(30)
        process.kill()
        until(lambda: is_gone(guard))
        os.kill(left, signal.SIGRTMAX)
        assert int(process.stdout.readline()) == signal.SIGRTMAX


def refuse_signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As if the program were another user's. The signals that were refused."""
    refused = []

    def kill(_: int, number: int) -> None:
        if number:
            refused.append(number)
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(program.os, "kill", kill)
    monkeypatch.setattr(program.os, "killpg", kill)
    return refused


def test_the_lock_is_held_while_a_program_of_another_user_runs(
    client: LockClient, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as sudo's. A signal that it cannot be given ends nothing."""
    refused = refuse_signals(monkeypatch)

    def resize_the_terminal() -> LockInfo | None:
        go.read_text()  # it runs
        try:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGWINCH)
            until(lambda: refused)
            return client.inspect("job")
        finally:
            go.write_text("")

    with beside(resize_the_terminal, go) as held:
        shown = locks(client, "run", "job", "sh", "-c", ': > "$0"; : < "$0"', str(go))
        assert held.result(DEADLINE) is not None
    assert (shown.status, shown.err) == (0, "")


def test_a_lost_lease_is_told_if_the_program_goes_on(
    client: LockClient, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = refuse_signals(monkeypatch)
    monkeypatch.setattr(program, "GRACE", 0.1)
    out, err = io.StringIO(), io.StringIO()

    def let_it_end() -> None:
        try:
            until(lambda: "the program goes on without the lock" in err.getvalue())
        finally:
            go.write_text("")

    command = ["run", "job", "--ttl", "0.5", "--max-hold", "0.1", "sh", "-c", ': < "$0"', str(go)]
    with beside(let_it_end, go):
        assert run(command, {"default": lambda: client}, stdout=out, stderr=err) == 1
    assert {signal.SIGTERM, signal.SIGKILL} <= set(refused)


def test_a_loss_that_the_program_did_not_live_to_hear_of(
    client: LockClient, url: str, go: Path
) -> None:
    waits = READY + f"open({str(go)!r}).close()"
    with start("run", "job", "--ttl", "60", *python(waits), url=url) as process:
        assert process.stdout is not None
        process.stdout.readline()
        break_job(client)
        go.write_text("")
        _, err = process.communicate(timeout=40)
    assert process.returncode == 1
    assert "the lease on 'job' was lost meanwhile" in err


@pytest.mark.parametrize("is_over", [True, False])
def test_the_store_is_away_at_the_end(
    network: FaultProxy, go: Path, is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock was lost if its TTL had passed before, as that of a command that was paused."""

    def go_away() -> None:
        with lockkit.connect(url) as other:
            go.read_text()  # the program runs
            if is_over:
                other.lock("job", timeout=None).acquire().release()
        network.refuse()
        network.cut()
        go.write_text("")

    url = f"redis://127.0.0.1:{network.port}/0"
    ttl = "0.3" if is_over else "60"
    with lockkit.connect(url) as client, beside(go_away, go) as gone:
        monkeypatch.setattr(client._watchdog, "watch", lambda _: None)  # nor is it told
        program = f"open({str(go)!r}, 'w').close(); open({str(go)!r}).close()"
        shown = locks(client, "run", "job", "--ttl", ttl, *python(program))
        gone.result(DEADLINE)
    assert shown.status == (1 if is_over else 0)
    assert "the release was not confirmed" in shown.err
    assert ("the lease on 'job' was lost meanwhile" in shown.err) is is_over


def test_ctrl_c_at_a_terminal_reaches_the_program_once(url: str) -> None:
    counts = (
        "import signal\nsignal.signal(signal.SIGINT, lambda *_: print('interrupted', flush=True))\n"
        "print('ready', flush=True)\nwhile True: signal.pause()"
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lockkit", "--url", url, "locks", "run", "job"]
    takes_terminal = ["/bin/sh", "-c", ': < "$0"; exec "$@"', os.ttyname(theirs)]
    with subprocess.Popen(
        [*takes_terminal, *command, *python(counts)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.write(ours, b"\x03")
        assert process.stdout.readline() == "interrupted\n"
        process.terminate()
        assert process.stdout.read() == ""
    os.close(ours)
    os.close(theirs)


def test_a_signal_that_another_thread_gets_reaches_the_program(url: str) -> None:
    """The system gives it to any, such as while the main thread has one already."""
    with start("run", "job", *python(READY + "import signal; signal.pause()"), url=url) as process:
        assert process.stdout is not None
        process.stdout.readline()
        threads = Path(f"/proc/{process.pid}/task")
        until(lambda: len(os.listdir(threads)) > 1)
        other = next(each for each in map(int, os.listdir(threads)) if each != process.pid)
        assert ctypes.CDLL(None).tgkill(process.pid, other, signal.SIGTERM) == 0
        assert process.wait(DEADLINE) == 143


def test_it_hears_of_the_end_also_if_it_inherits_a_mask(url: str) -> None:
    """Whoever starts it may have blocked the signal that tells of a child's end."""
    masks = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD]); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    run = ["-m", "lockkit", "--url", url, "locks", "run", "job", *python("input()")]
    command = [sys.executable, "-c", masks, *run]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        status = Path(f"/proc/{process.pid}/status")
        until(lambda: catches(status.read_text(), signal.SIGCHLD))  # it waits for the program
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait(DEADLINE) == 0


HANDLES = """
#include <signal.h>
static void handle(int number) {}
__attribute__((constructor)) static void begin(void) {
    signal(SIGHUP, handle);
    signal(SIGCHLD, handle);
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs gcc and libc6-dev")
def test_handlers_that_were_not_installed_by_python_are_left_alone(
    url: str, tmp_path: Path
) -> None:
    """As in a program that embeds it: it has no object for them, and cannot set them again."""
    (tmp_path / "handles.c").write_text(HANDLES)
    library = str(tmp_path / "handles.so")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, str(tmp_path / "handles.c")], check=True
    )
    command = [sys.executable, "-m", "lockkit", "--url", url, "locks", "run", "job", "true"]
    environment = {**os.environ, "LD_PRELOAD": library}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def catches(status: str, number: int) -> bool:
    """What /proc says of a process: whether it has a handler for this signal."""
    caught = status.partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_max_hold_ends_a_program_that_takes_too_long(url: str) -> None:
    program = python("import signal; signal.pause()")
    short = ("--ttl", "0.5", "--max-hold", "0.1")
    with start("run", "job", *short, *program, url=url) as process:
        _, err = process.communicate(timeout=40)
    assert process.returncode == 1
    assert "the lease on 'job' is lost: " in err


def test_max_hold_none(client: LockClient) -> None:
    status = locks(client, "run", "job", "--max-hold", "none", "--ttl", "5m", "--", "true").status
    assert status == 0


@pytest.mark.parametrize(
    "url", ["memory://", "sqlalchemy+sqlite://", "sqlalchemy+sqlite+pysqlite:///:memory:"]
)
def test_a_store_within_this_process_is_refused(url: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    ended = locks(lockkit.connect(url), "run", "job", "--", "touch", str(ran))
    assert ended.status == 1
    assert f"{url} (lock alias 'default') is within one process, so this would ex" in ended.err
    assert not ran.exists()


def test_alias(client: LockClient) -> None:
    try_to_run = "run", "job", "--timeout", "0"
    with lockkit.connect(f"{client.settings.location}.other") as other, client.lock("job"):
        both = {"default": lambda: other, "jobs": lambda: client}
        assert locks(both, *try_to_run, "--", "true").status == 0
        assert locks(both, *try_to_run, "--alias", "jobs", "--", "true").status == 75


def test_the_token_is_not_handed_on(client: LockClient, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    locks(client, "run", "job", "--", "sh", "-c", f"env > {seen}")
    ours = {line.partition("=")[0] for line in seen.read_text().splitlines()} - set(os.environ)
    assert {name for name in ours if name.startswith("LOCKKIT")} == {
        "LOCKKIT_FENCE",
        "LOCKKIT_NAME",
    }
