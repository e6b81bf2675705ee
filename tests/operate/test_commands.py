"""``locks list`` and ``show``: their contents, formats and exit statuses."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from command_line import Screen, dead_port, hold, locks, locks_process, start, until

import lockkit
from lockkit.leases.client import LockClient
from lockkit.model.types import Finding, Owner
from lockkit.operate.commands import run
from lockkit.operate.text import duration, escape, seconds
from lockkit.runtime import process
from lockkit.testing.conformance.base import at_least_once

HOSTILE = "a\u202eb\u200fc\\d é日 "


def abandon(client: LockClient, name: str) -> None:
    hold(client, name, ttl=0.01)
    until(lambda: (found := client.inspect(name)) and found.state is lockkit.LockState.ABANDONED)


def leave(client: LockClient, name: str) -> None:
    """Held by a process of this host that is gone."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    hold(client, name, owner=process.owner("job")._replace(pid=child.pid))


def test_the_columns(client: LockClient) -> None:
    lease = client.lock("stock:42", label="POST /stock/42").acquire()
    waiting = threading.Thread(target=lambda: client.lock("stock:42").acquire().release())
    waiting.start()
    until(lambda: (found := client.inspect("stock:42")) and found.waiters_alive)
    shown, told = locks(client), locks(client, "show", "stock:42").out
    lease.release()
    waiting.join()
    assert re.search(r"^break: .*; 1 has waited for \d", told, re.MULTILINE)
    title, line = shown.out.splitlines()
    assert title.split() == [
        "ALIAS", "NAME", "STATE", "VERDICT", "OWNER", "AGE", "LEFT", "WAITERS", "FENCE"
    ]  # fmt: skip
    assert re.fullmatch(
        r"default +stock:42 +held +ok +\S+:\d+ POST /stock/42 +\d\.\ds +[23]\d\.\ds +1 +"
        rf"{lease.fencing_token}",
        line,
    )
    assert shown.status == 0


def test_stuck_with_the_reason(client: LockClient) -> None:
    hold(client, "fine")
    leave(client, "order:A-17")
    everything = locks(client)
    assert {row[1]: row[2:4] for row in everything.rows} == {
        "fine": ["held", "ok"], "order:A-17": ["held", "STUCK"]
    }  # fmt: skip
    _, line, reason = locks(client, "--stuck").out.splitlines()
    assert "order:A-17" in line
    assert reason.strip() == "the holder's process is gone"


def test_a_holder_that_was_killed_is_stuck_at_once(url: str) -> None:
    program = (
        "import lockkit, signal, sys; "
        f"lease = lockkit.connect({url!r}).lock('job', ttl=60).acquire(); "
        "print('held', flush=True); signal.pause()"
    )
    client = lockkit.connect(url)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert locks(client, "--stuck").status == 0
        process.kill()
    until(lambda: locks(client, "--fail-on-stuck").status == 3)
    (lock,) = locks(client, "--stuck", "--format", "json").locks
    client.close()
    assert (lock["name"], lock["stuck"]) == ("job", "process-gone")


def test_fail_on_stuck(client: LockClient) -> None:
    hold(client, "fine")
    assert locks(client, "--fail-on-stuck").status == 0
    abandon(client, "abandoned")
    assert locks(client, "--fail-on-stuck").status == 0, "it blocks nobody"
    leave(client, "order:A-17")
    assert locks(client, "--fail-on-stuck").status == 3
    assert locks(client, "--fail-on-stuck", "--match", "fine").status == 0
    assert locks(client, "--stuck").status == 0


def test_fail_on_stuck_looks_beyond_the_limit(memory: LockClient) -> None:
    for number in range(100):
        hold(memory, f"fine:{number}")
    leave(memory, "last")
    shown = locks(memory, "--limit", "1", "--fail-on-stuck")
    assert len(shown.rows) == 1
    assert shown.status == 3


def test_older_than_selects_and_counts_as_stuck(client: LockClient) -> None:
    hold(client, "old")
    until(lambda: (found := client.inspect("old")) and (found.age or 0) > 0.3)

    def only_the_old_one() -> bool:
        with client.lock("new"):
            shown = locks(client, "--older-than", "300ms", "--format", "json")
        return [(lock["name"], lock["stuck"]) for lock in shown.locks] == [("old", "older-than")]

    at_least_once(only_the_old_one)
    assert locks(client, "--older-than", "2h", "--fail-on-stuck").status == 0
    assert locks(client, "--older-than", "0.3", "--fail-on-stuck").status == 3


def test_older_than_with_stuck_adds_a_reason(memory: LockClient) -> None:
    hold(memory, "old")
    leave(memory, "left")
    shown = locks(memory, "--stuck", "--older-than", "1h", "--format", "json")
    assert shown.names == ["left"]
    both = locks(memory, "--stuck", "--older-than", "0", "--format", "json")
    assert sorted(both.names) == ["left", "old"]


def test_match_is_a_glob_over_whole_names(client: LockClient) -> None:
    for name in ("stock:1", "stock:12", "mystock:1", "stock:[x]"):
        hold(client, name)
    assert sorted(locks(client, "--match", "stock:1*", "--format", "json").names) == [
        "stock:1",
        "stock:12",
    ]
    assert locks(client, "--match", "stock:[[]x]", "--format", "json").names == ["stock:[x]"]
    assert locks(client, "--match", "STOCK:1", "--format", "json").names == []


@pytest.mark.parametrize("glob", ["web-1", "web-1:7", "POST /a*", "*:7 POST*"])
def test_owner_is_a_glob_over_host_pid_and_label(memory: LockClient, glob: str) -> None:
    hold(memory, "his", owner=Owner("web-1", 7, "t", "POST /a"))
    hold(memory, "hers", owner=Owner("web-2", 8, "t", "GET /a"))
    assert locks(memory, "--owner", glob, "--format", "json").names == ["his"]


def test_limit(client: LockClient) -> None:
    for name in "abc":
        hold(client, name)
    assert len(locks(client, "--limit", "2").rows) == 2


def test_json_is_one_document_with_exact_values(client: LockClient) -> None:
    request = hold(client, HOSTILE, ttl=50.0, max_hold=90.0)
    shown = locks(client, "--format", "json")
    document = json.loads(shown.out)
    assert (document["version"], document["down"]) == (1, {})
    (lock,) = document["locks"]
    assert list(lock) == [
        "alias", "name", "state", "verdict", "stuck", "reason", "owner", "age", "left",
        "renewed", "ttl", "max_hold", "waiters", "waiters_alive", "fence", "kind", "permits",
        "shared", "process", "safe_to_break", "broken_by", "waiting", "queue",
    ]  # fmt: skip
    assert (lock["alias"], lock["name"], lock["state"]) == ("default", HOSTILE, "held")
    assert lock["owner"] == {
        "host": "elsewhere", "pid": 4121, "thread": "MainThread", "label": "POST /stock/42"
    }  # fmt: skip
    assert (lock["ttl"], lock["max_hold"], lock["stuck"]) == (50.0, 90.0, None)
    assert 40 < lock["left"] <= 50
    assert isinstance(lock["fence"], int)
    assert request.token not in shown.out


def test_json_of_nothing() -> None:
    empty = lockkit.connect("memory://")
    assert json.loads(locks(empty, "--format", "json").out) == {
        "version": 1, "locks": [], "stores": {"default": {
            "location": "memory://", "database": "", "key_prefix": "lockkit", "other_prefixes": {},
            "this_process_only": True
        }}, "down": {}
    }  # fmt: skip


def test_json_lines(client: LockClient) -> None:
    hold(client, "a")
    hold(client, "b")
    lines = locks(client, "--format", "jsonl").out.splitlines()
    assert {json.loads(line)["name"] for line in lines} == {"a", "b"}


def test_wide_shows_more(memory: LockClient) -> None:
    hold(memory, "stock:42", max_hold=600.0)
    title, line = locks(memory, "--format", "wide").out.splitlines()
    assert title.split()[9:] == ["THREAD", "RENEWED", "TTL", "MAX-HOLD", "KIND"]
    assert re.search(r"MainThread +\d+\.\ds +1m00s +10m00s +mutex$", line)


def test_each_who_shares_a_name_has_a_row(client: LockClient) -> None:
    pool = client.semaphore("pool", 3)
    with pool.acquire() as first, pool.acquire() as second:
        rows = locks(client).rows
        assert [row[1:3] for row in rows] == [["pool", "permit"]] * 2
        fences = {str(lease.fencing_token) for lease in (first, second)}
        assert {row[-1] for row in rows} == fences
        wide = locks(client, "--format", "wide").rows
        assert all(row[-2:] == ["semaphore", "3"] for row in wide)
        document = json.loads(locks(client, "--format", "json").out)
        found = [(lock["kind"], lock["permits"], lock["shared"]) for lock in document["locks"]]
        assert found == [("semaphore", 3, True)] * 2
        shown = locks(client, "show", "pool").out
        assert shown.count("kind:     semaphore 3") == 2


def test_readers_and_writers_are_told_apart(client: LockClient) -> None:
    with client.rwlock("a").read(), client.rwlock("b").write():
        rows = locks(client).rows
        assert sorted(row[1:3] for row in rows) == [["a", "read"], ["b", "write"]]


def test_nothing_held_is_said_and_not_listed(memory: LockClient) -> None:
    where = "memory://, key prefix 'lockkit'; it is within one process: "
    where += "the locks of other processes are not shown\n"
    assert locks(memory) == (0, "", f"nothing is held in {where}")
    assert locks(memory, "--stuck") == (0, "", f"nothing matches in {where}")


def test_names_and_owners_cannot_act_on_a_terminal(
    client: LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(client, HOSTILE, owner=Owner("web\x1b[2J", 1, "t", "GET /\r\nfake\x9b31m\u2028"))
    monkeypatch.setenv("COLUMNS", "160")
    for form in ("table", "wide"):
        shown = locks(client, "--format", form, terminal=True, color=False).out
        assert r"a\u202eb\u200fc\\d é日\x20" in shown
        assert r"web\x1b[2J:1 GET /\r" not in shown
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e\u200f]", shown)
        assert len(shown.splitlines()) == 2
    shown = locks(client, "show", HOSTILE, terminal=True, color=False).out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e\u200f]", shown)


def test_two_names_never_look_alike() -> None:
    names = ["a", "a ", " a", "a\u200b", r"a\u200b", r"a\\", "a\\", "a\xa0", "\\x20a"]
    assert len({escape(name) for name in names}) == len(names)


def test_colour_only_on_a_terminal(memory: LockClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    leave(memory, "x")
    assert "\x1b[1;31mSTUCK" in locks(memory, terminal=True).out
    assert "\x1b" not in locks(memory).out
    assert "\x1b" not in locks(memory, terminal=True, color=False).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in locks(memory, terminal=True).out


def test_columns_are_straight_for_wide_characters(memory: LockClient) -> None:
    hold(memory, "日本")
    hold(memory, "e\u0301")
    title, first, second = locks(memory).out.splitlines()
    assert title.index("STATE") == first.index("held") + 2 == second.index("held") - 1


def test_show(client: LockClient) -> None:
    hold(client, "stock:42", max_hold=600.0)
    shown = locks(client, "show", "stock:42")
    facts = dict(line.split(":", 1) for line in shown.out.splitlines() if line)
    assert facts["name"].strip() == "stock:42"
    assert facts["owner"].strip() == "elsewhere:4121 POST /stock/42"
    assert facts["max hold"].strip() == "10m00s"
    assert locks(client, "show", "stock:42", "--format", "json").names == ["stock:42"]
    free = locks(client, "show", "stock:*")
    assert (free.status, free.err) == (0, "")
    assert re.match(r"stock:\* is free in \S+( \(.*\))?, key prefix 'lockkit'", free.out)


@pytest.mark.parametrize(("form", "told"), [("wide", True), ("jsonl", True), ("json", False)])
def test_a_free_name_is_told_in_every_format(memory: LockClient, form: str, told: bool) -> None:
    """JSON shows it."""
    shown = locks(memory, "show", "stock:42", "--format", form)
    assert (shown.status, bool(shown.out)) == (0, not told)
    assert ("stock:42 is free in memory://" in shown.err) is told


def test_show_looks_in_every_alias(memory: LockClient) -> None:
    other = lockkit.connect("memory://")
    hold(memory, "x")
    hold(other, "x")
    both = {"default": lambda: memory, "reports": lambda: other}
    shown = locks(both, "show", "x").out
    assert "alias:    default" in shown
    assert "alias:    reports" in shown
    assert [r[0] for r in locks(both).rows] == ["default", "reports"]
    assert [r[0] for r in locks(both, "--alias", "reports").rows] == ["reports"]


def test_a_store_that_is_down_does_not_hide_the_others(memory: LockClient) -> None:
    gone = lockkit.connect(f"redis://user:canary@127.0.0.1:{dead_port()}/0")
    hold(memory, "stock:42")
    both = {"reports": lambda: gone, "default": lambda: memory}
    shown = locks(both)
    assert [row[1] for row in shown.rows] == ["stock:42"]
    assert shown.err.startswith("alias reports: its store is down: ")
    assert shown.status == 69
    document = json.loads(locks(both, "--format", "json").out)
    assert [lock["name"] for lock in document["locks"]] == ["stock:42"]
    assert list(document["down"]) == ["reports"]
    assert locks(both, "--alias", "default").status == 0
    assert locks(both, "show", "nothing").status == 69
    assert locks(both, "--fail-on-stuck").status == 69
    assert "canary" not in shown.out + shown.err + json.dumps(document)


def test_an_alias_with_wrong_settings_does_not_hide_the_others(memory: LockClient) -> None:
    hold(memory, "stock:42")
    both = {"reports": lambda: lockkit.connect("nonsense://x"), "default": lambda: memory}
    shown = locks(both)
    assert [row[1] for row in shown.rows] == ["stock:42"]
    assert shown.err.startswith("alias reports: no store has the scheme 'nonsense'")
    assert shown.status == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["stock:42"], "did you mean: show stock:42"),
        (["relaese", "x"], "did you mean release?"),
        (["doctor"], "there are list, show, release"),
        (["show"], "NAME"),
        (["show", "a\nb"], "control character"),
        (["show", ""], "must not be empty"),
        (["show", "x" * 256], "at most 255 fit"),
        (["--older-than", "soon"], "not a duration"),
        (["--older-than", "5x"], "not a duration"),
        (["--limit", "0"], "not a number of 1 or more"),
        (["--limit", "²"], "not a number of 1 or more"),
        (["--watch", "0"], "shortest interval"),
        (["--watch", "99999999999d"], "longest interval"),
        (["--format", "xml"], "invalid choice"),
        (["--alias", "nope"], "there are: default"),
        (["--no-such-option"], "unrecognized"),
        (["--stuc"], "unrecognized"),
        (["release", "x", "--match", "*"], "unrecognized"),
        (["release", "x", "--fence", "-1"], "fence"),
        (["run", "x"], "say what to run"),
        (["--match", ""], "argument --match: an empty pattern matches nothing"),
        (["--owner", ""], "argument --owner: an empty pattern matches nothing"),
        (["--alias", ""], "there is no lock alias ''"),
        (["run", "--alias", "", "x", "true"], "there is no lock alias ''"),
        (["release", "--alias", "", "x", "--yes"], "there is no lock alias ''"),
        (["resolve", "--alias", "", "x", "--done", "--yes"], "there is no lock alias ''"),
    ],
)
def test_usage_errors(memory: LockClient, argv: list[str], says: str) -> None:
    shown = locks(memory, *argv)
    assert shown.status == 2
    assert says in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["release", "--help"], ["run", "-h"]])
def test_help_goes_to_standard_output(memory: LockClient, argv: list[str]) -> None:
    shown = locks(memory, *argv)
    assert shown.out.startswith("usage: locks")
    assert (shown.status, shown.err) == (0, "")


@pytest.mark.parametrize(
    ("text", "value"),
    [("90", 90), ("0", 0), ("5m", 300), ("2h", 7200), ("1h30m", 5400), ("1.5d", 129600)],
)
def test_durations_are_read(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "m", "5 m", "-5", "5m!", "1e3", "inf", "nan", "٣"])
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        seconds(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.84, "0.8s"), (29.2, "29.2s"), (59.97, "1m00s"), (125, "2m05s"),
     (11520, "3h12m"), (183600, "2d03h"), (-12.0, "-12.0s")],
)  # fmt: skip
def test_durations_are_written(value: float | None, text: str) -> None:
    assert duration(value) == text


def test_as_a_process(url: str) -> None:
    client = lockkit.connect(url)
    with client.lock("stock:42").acquire():
        shown = locks_process("--format", "json", url=url)
    client.close()
    assert shown.names == ["stock:42"]
    assert (shown.status, shown.err) == (0, "")


def test_a_terminal_that_knows_only_ascii(url: str) -> None:
    client = lockkit.connect(url)
    hold(client, "日本")
    client.close()
    shown = locks_process(url=url, PYTHONIOENCODING="ascii")
    assert r"\u65e5\u672c" in shown.out
    assert shown.status == 0


def test_watch_goes_on_until_it_is_interrupted(url: str) -> None:
    client = lockkit.connect(url)
    hold(client, "first")
    with start("--watch", "0.1", "--format", "jsonl", url=url) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["name"] == "first"
        hold(client, "second")
        while json.loads(process.stdout.readline())["name"] != "second":
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=40)
    client.close()
    assert (process.returncode, err) == (130, "")


@pytest.mark.parametrize(("terminal", "is_cleared"), [("xterm", True), ("dumb", False)])
def test_watch_ends_when_something_is_stuck(
    terminal: str, is_cleared: bool, memory: LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", terminal)
    hold(memory, "x")
    watch = ("--watch", "0.1", "--fail-on-stuck", "--older-than", "0.3")
    shown = locks(memory, *watch, terminal=True)
    assert shown.status == 3
    assert ("\x1b[H\x1b[2J" in shown.out) is is_cleared, "for each look"


def test_a_reader_that_has_enough_is_no_error(url: str) -> None:
    client = lockkit.connect(url)
    hold(client, "x")
    client.close()
    with start(url=url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, "")


def test_output_that_cannot_be_written_is_an_error(url: str) -> None:
    client = lockkit.connect(url)
    hold(client, "x")
    client.close()
    command = [sys.executable, "-m", "lockkit", "--url", url, "locks"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode != 0
    assert "lockkit locks: [Errno 28] No space left on device" in ended.stderr


def test_interrupted(memory: LockClient) -> None:
    class Interrupted(Screen):
        def write(self, text: str) -> int:
            raise KeyboardInterrupt

    hold(memory, "x")
    clients = {"default": lambda: memory}
    assert run([], clients, stdout=Interrupted(), stderr=io.StringIO()) == 130


def test_routes_are_checked_where_there_are_some(client: LockClient) -> None:
    refused = locks(client, "check")
    assert refused.status == 1
    assert "use 'flask locks check', or 'manage.py check' in Django" in refused.err


def test_a_fault_is_shown_before_the_next_is_looked_for() -> None:
    """That may take as long as a store that is down."""
    shown: list[str] = []

    class Piped(io.StringIO):
        def flush(self) -> None:
            shown[:] = [self.getvalue()]

    def found() -> Iterator[Finding]:
        yield Finding("x", "this is wrong", "mend it")
        assert shown == ["this is wrong.\n    mend it\n"]

    assert run(["check"], {}, stdout=Piped(), stderr=io.StringIO(), findings=found) == 1


def test_nor_are_records_pruned_where_there_is_no_application(memory: LockClient) -> None:
    """A job that runs each day must not end well and do nothing."""
    refused = locks(memory, "prune")
    assert refused.status == 1
    assert "'manage.py locks prune'" in refused.err
