"""The table fits the terminal, and a name can be typed as the table shows it."""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Screen, hold, locks
from hypothesis import given
from hypothesis import strategies as st

import lockkit
from lockkit.leases.client import LockClient
from lockkit.model.types import Mode, Owner, Request
from lockkit.operate.commands import run
from lockkit.operate.text import clipped, columns, escape, unescape

HOSTILE = "a\u202eb\u200fc\\d é日 "
LONG = "order:" + "0123456789abcdef" * 4


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[LockClient]:
    monkeypatch.setenv("COLUMNS", "80")
    found = lockkit.connect("memory://")
    yield found
    found.close()


@pytest.fixture
def two(memory: LockClient) -> dict[str, object]:
    other = lockkit.connect("memory://")
    return {"default": lambda: memory, "reports": lambda: other}


def crowd(client: LockClient) -> None:
    """Rows of every kind, with long and wide texts."""
    owner = Owner("a-host-with-a-long-name.example.com", 4194304, "t", "POST /orders/ order A-17")
    hold(client, LONG, owner=owner)
    hold(client, "日本" * 30, owner=owner._replace(label="日本" * 40))
    hold(client, "e\u0301" * 60, ttl=7200.0)
    for name in ("short", LONG):
        waiting = Request(name, f"{name:0>32.32}", 60.0, "", Mode.ENQUEUE)
        client.perform(client.store.acquire(waiting))


@pytest.mark.parametrize("argv", [[], ["--older-than", "0"]])
def test_it_fits_80_columns(memory: LockClient, argv: list[str]) -> None:
    crowd(memory)
    shown = locks(memory, *argv, terminal=True, color=False).out
    assert max(map(columns, shown.splitlines())) <= 80
    assert "…" in shown


class Old(Screen):
    """A terminal that lacks most characters."""

    encoding = "latin-1"


def test_it_fits_if_characters_are_escaped(memory: LockClient) -> None:
    """The name can be typed as it is shown."""
    crowd(memory)
    hold(memory, "x")
    reason = "客户打电话说订单卡住了" * 9
    assert locks(memory, "release", "x", "--yes", "--reason", reason).status == 0
    out = Old()
    assert run(["--lost"], {"default": lambda: memory}, stdout=out, color=False) == 0
    shown = out.getvalue().splitlines()
    assert max(map(len, shown)) <= 80
    (name,) = [line.split()[0] for line in shown if line.startswith("\\u65e5")]
    assert name.endswith("\\u2026")
    assert "日本" in locks(memory, "show", name).out


def test_with_two_aliases_it_fits_too(two: dict[str, object], memory: LockClient) -> None:
    crowd(memory)
    shown = locks(two, terminal=True, color=False).out  # type: ignore[arg-type]
    assert max(map(columns, shown.splitlines())) <= 80
    assert "default" in shown


def test_a_long_name_without_an_owner_fits_too(memory: LockClient) -> None:
    """A narrow column of owners leaves its room to the names."""
    memory.perform(memory.store.acquire(Request(LONG, "t", 60.0, "", Mode.ENQUEUE)))
    hold(memory, LONG * 2, owner=Owner("", 0, "", ""))
    shown = locks(memory, terminal=True, color=False).out
    assert "…" in shown
    assert max(map(columns, shown.splitlines())) == 80


def test_a_wide_reason_fits_too(memory: LockClient) -> None:
    reason = "客户打电话说订单卡住了经过确认后由值班人员手动释放" * 4
    hold(memory, "x")
    assert locks(memory, "release", "x", "--yes", "--reason", reason).status == 0
    shown = locks(memory, "--lost", terminal=True, color=False).out
    assert max(map(columns, shown.splitlines())) <= 80
    assert reason in "".join(line.strip() for line in shown.splitlines()[2:])


@pytest.mark.parametrize("name", [LONG, "日本" * 25, "a  b  c " + "x" * 60, "it's"])
def test_a_command_in_a_reason_can_be_pasted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "locks.sqlite3"
    with lockkit.connect(f"sqlite:///{path}") as client:
        client.lock(name).acquire().release()
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE lockkit_lock SET state = '{', version = version + 1")
        shown = locks(client, terminal=True, color=False).out.splitlines()
        assert max(map(columns, shown[:-1])) <= 80
        assert shlex.split(shown[-1]) == ["locks", "release", "--damaged", name]
        assert locks(client, *shlex.split(shown[-1])[1:], "--yes").status == 0


def test_a_wider_terminal_is_used(memory: LockClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "320")
    crowd(memory)
    shown = locks(memory, terminal=True, color=False).out
    assert LONG in shown
    assert "FENCE" in shown


def test_in_a_pipe_and_in_wide_nothing_is_clipped(memory: LockClient) -> None:
    crowd(memory)
    assert LONG in locks(memory).out
    assert LONG in locks(memory, "--format", "wide", terminal=True).out


def test_a_reason_has_a_line_of_its_own(memory: LockClient) -> None:
    hold(memory, "old")
    title, row, reason = locks(memory, "--older-than", "0", terminal=True, color=False).out.split(
        "\n"
    )[:3]
    assert title.split()[1:3] == ["STATE", "VERDICT"]
    assert row.split()[:3] == ["old", "held", "STUCK"]
    assert reason == "    held longer than 0s"


@pytest.mark.parametrize("name", [HOSTILE, "a\\x20b", "\\", " a", "日本" * 40, LONG])
@pytest.mark.parametrize("terminal", [True, False])
def test_a_name_that_is_shown_can_be_typed_back(
    memory: LockClient, name: str, terminal: bool
) -> None:
    hold(memory, name)
    row = locks(memory, terminal=terminal, color=False).out.splitlines()[1]
    typed = row.split("  ")[0 if terminal else 1]
    assert locks(memory, "show", typed, "--format", "json").names == [name]
    assert locks(memory, "release", typed, stdin=Screen("y\n"), terminal=True).status == 0
    assert memory.inspect(name) is None


def test_a_clipped_name_that_may_be_several_is_not_released(memory: LockClient) -> None:
    hold(memory, LONG + ":a")
    hold(memory, LONG + ":b")
    typed = clipped(LONG + ":a", 20)
    refused = locks(memory, "release", typed, "--yes")
    assert refused.status == 2
    assert f"{LONG}:a, {LONG}:b" in refused.err
    assert locks(memory, "show", typed).out.count(f"name:     {LONG}:") == 2


def test_a_clipped_name_is_not_released_unseen(memory: LockClient) -> None:
    hold(memory, LONG)
    fence = memory.inspect(LONG).fence  # type: ignore[union-attr]
    typed = clipped(LONG, 20)
    refused = locks(memory, "release", typed, "--yes")
    assert refused.status == 2
    assert LONG in refused.err
    assert locks(memory, "release", typed, "--yes", "--fence", str(fence)).status == 0


def test_a_name_that_ends_as_if_clipped_is_a_name(memory: LockClient) -> None:
    hold(memory, "stock…")
    hold(memory, "stock:1")
    assert locks(memory, "show", "stock…", "--format", "json").names == ["stock…"]


@given(st.text(), st.integers(1, 40))
def test_escapes_are_read_back_and_never_cut(text: str, width: int) -> None:
    shown = escape(text)
    assert unescape(shown) == text
    cut = clipped(shown, width)
    assert columns(cut) <= width
    if cut != shown:
        assert text.startswith(unescape(cut.removesuffix("…")))
