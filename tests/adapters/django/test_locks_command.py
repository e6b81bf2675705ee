"""``manage.py locks`` runs the command, which test_commands*.py test."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from command_line import Screen, dead_port, hold
from database_settings import postgresql
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import override_settings
from places import KIT

import lockkit
from lockkit.leases.client import LockClient
from lockkit_django import locks


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.sqlite3"


@pytest.fixture
def held(url: str) -> Iterator[LockClient]:
    client = lockkit.connect(url)
    hold(client, "stock:42")
    yield client
    client.close()


def manage(*argv: str, url: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As ``manage.py`` does it: Django's own command line, in a process of its own."""
    tests = str(KIT)
    return subprocess.run(
        [sys.executable, "-m", "django", *argv],
        env={
            **os.environ,
            "LOCKKIT_URL": url,
            "PYTHONPATH": tests,
            "DJANGO_SETTINGS_MODULE": "django_project.settings",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def called(*argv: str, **options: Any) -> str:
    out = io.StringIO()
    call_command("locks", *argv, stdout=out, stderr=io.StringIO(), **options)
    return out.getvalue()


def test_it_lists_what_the_settings_name() -> None:
    with locks["default"].lock("stock:42").acquire():
        assert "stock:42" in called()
        assert "stock:42" in called("show", "stock:42")
    assert called() == ""


def test_every_alias(url: str) -> None:
    aliases = {"default": "memory://", "reports": url}
    with override_settings(LOCKKIT=aliases):
        hold(locks["default"], "a")
        hold(locks["reports"], "b")
        lines = [json.loads(line) for line in called("--format", "jsonl").splitlines()]
        assert [(lock["alias"], lock["name"]) for lock in lines] == [
            ("default", "a"),
            ("reports", "b"),
        ]
        assert "reports" in called("--alias", "reports")


@override_settings(LOCKKIT={"default": "memory://"})
def test_a_program_is_not_run_under_a_lock_within_this_process() -> None:
    with pytest.raises(CommandError) as raised:
        called("run", "nightly", "--", "true")
    assert raised.value.returncode == 1


def test_options_as_keywords() -> None:
    hold(locks["default"], "a")
    hold(locks["default"], "b")
    assert called(match="a", format="jsonl").count("\n") == 1
    assert called("list", stuck=True, match="a") == ""
    assert called("--stuck", match="a") == ""
    assert called("release", "a", yes=True).endswith("released; its holder was not stopped\n")


def test_a_status_is_an_error_to_a_caller() -> None:
    hold(locks["default"], "a")
    with pytest.raises(CommandError) as raised:
        called("--older-than", "0", "--fail-on-stuck")
    assert raised.value.returncode == 3
    with pytest.raises(CommandError) as raised:
        called("--no-such-option")
    assert raised.value.returncode == 2


def test_wrong_settings_are_one_line() -> None:
    with (
        override_settings(LOCKKIT={"default": {"TTLL": 3}}),
        pytest.raises(CommandError, match="did you mean 'TTL'"),
    ):
        called()


def test_colour_options() -> None:
    hold(locks["default"], "a")
    for option, colored in (("no_color", False), ("force_color", True)):
        screen = Screen()
        call_command("locks", "--older-than", "0", stdout=screen, **{option: True})
        assert ("\x1b[1;31mSTUCK" in screen.getvalue()) == colored


def test_djangos_options_work_before_and_after(held: LockClient, url: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("from django_project.settings import *\n")
    ours = ["--settings", "elsewhere", f"--pythonpath={tmp_path}", "--no-color", "-v", "0"]
    for argv in (
        ["locks", *ours, "--format", "json"],
        ["locks", "list", "--format", "json", *ours],
        ["locks", *ours, "list", "--match", "stock:*", "--format=json"],
    ):
        ended = manage(*argv, url=url, DJANGO_SETTINGS_MODULE="none")
        assert ended.returncode == 0, ended.stderr
        assert [lock["name"] for lock in json.loads(ended.stdout)["locks"]] == ["stock:42"]


def test_exit_statuses(held: LockClient, url: str) -> None:
    usage = manage("locks", "--no-such-option", url=url)
    assert usage.returncode == 2
    assert "locks" in usage.stderr.splitlines()[0], "it says how it was called"
    assert "Traceback" not in usage.stderr
    assert manage("locks", "--older-than", "0", "--fail-on-stuck", url=url).returncode == 3
    down = manage("locks", url=f"redis://127.0.0.1:{dead_port()}/0")
    assert down.returncode == 69
    assert "alias default: its store is down" in down.stderr


def test_run_leaves_the_programs_options_alone(url: str) -> None:
    program = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--settings", "-v", "--"]
    ended = manage("locks", "--no-color", "run", "job", "--", *program, url=url)
    assert ended.stdout == "['--settings', '-v', '--']\n"
    assert ended.returncode == 0


@pytest.mark.parametrize("argv", [["locks", "--help"], ["help", "locks"]])
def test_help(argv: list[str], url: str) -> None:
    ended = manage(*argv, url=url)
    assert "--fail-on-stuck" in ended.stdout
    assert ended.returncode == 0


def test_it_works_in_a_project_that_fails_its_checks(held: LockClient, url: str) -> None:
    failing = {"DJANGO_SETTINGS_MODULE": "django_project.failing"}
    assert manage("check", url=url, **failing).returncode == 1
    ended = manage("locks", url=url, **failing)
    assert "stock:42" in ended.stdout, ended.stderr
    assert ended.returncode == 0


@pytest.mark.parametrize("program", [["echo", "-v", "2"], ["--", "echo", "--settings", "x"]])
def test_a_program_keeps_its_arguments(program: list[str], url: str) -> None:
    """Also those that Django has; without the two dashes all but ``--settings``, which Django
    reads before it asks any command."""
    given = ["--settings", "django_project.settings", "-v", "0", "run", "job"]
    ran = manage("locks", *given, *program, url=url)
    shown = " ".join(program[program.index("echo") + 1 :])
    assert (ran.returncode, ran.stdout) == (0, f"{shown}\n"), ran.stderr


@pytest.fixture
def at_another_server(postgres_url: str, django_db_blocker: Any) -> Iterator[Callable[..., None]]:
    """Gives the project a database ``away``, with the records of its orders."""
    with ExitStack() as stack:

        def go(**place: object) -> None:
            away = {**connections.settings["default"], **postgresql(postgres_url), **place}
            stack.enter_context(django_db_blocker.unblock())
            stack.enter_context(patch.dict(connections.settings, away=away))
            stack.callback(connections.__delitem__, "away")
            rules = {"PATHS": [], "USING": "away"}
            stack.enter_context(override_settings(LOCKKIT_ORDERS=rules))

        yield go


@pytest.mark.parametrize("refuses", [True, False])
def test_a_database_of_orders_that_refuses_is_told_from_one_that_is_down(
    refuses: bool, at_another_server: Callable[..., None]
) -> None:
    port = {} if refuses else {"PORT": dead_port()}
    at_another_server(USER="nobody", PASSWORD="canary", **port)
    err = io.StringIO()
    with pytest.raises(CommandError) as failed:
        call_command("locks", "prune", stdout=io.StringIO(), stderr=err)
    (line,) = err.getvalue().splitlines()
    assert failed.value.returncode == (1 if refuses else 69)
    assert line.startswith("database away: the database of the order records ")
    assert ('role "nobody" does not exist' if refuses else "refused") in line
    assert "canary" not in line
