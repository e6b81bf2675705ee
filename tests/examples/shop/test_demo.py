"""``manage.py demo`` tells the whole story and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import re
import select
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockkit.testing.conformance.base import eventually

pytestmark = pytest.mark.timeout(360)


@pytest.fixture
def demo(start: Callable[..., subprocess.Popen[str]]) -> subprocess.Popen[str]:
    return start("demo", "--workers", "gthread", "--processes", "1")


def masters(process: subprocess.Popen[str], says: str = "none:") -> dict[int, int]:
    """Descriptors of both gunicorn masters, by process ID, as soon as they race."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.lstrip().startswith(says):
            break
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = [int(c) for c in children if b"gunicorn" in Path(f"/proc/{c}/cmdline").read_bytes()]
    assert len(found) == 2
    return {pid: os.pidfd_open(pid) for pid in found}


def assert_ended(descriptors: dict[int, int], within: float) -> None:
    for pid, descriptor in descriptors.items():
        assert select.select([descriptor], [], [], within)[0], f"{pid} is still there"
        os.close(descriptor)
        eventually(partial(_group_is_gone, pid))  # its workers, ended, may wait for init


def _group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def left_in(surroundings: dict[str, str]) -> list[str]:
    return os.listdir(surroundings["TMPDIR"])


def test_it_tells_all_and_leaves_nothing(
    manage: Callable[..., Any], surroundings: dict[str, str]
) -> None:
    finished = manage("demo")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    verdicts = re.findall(r"^(\w+): .*\n  sold .* - (\w+)", finished.stdout, re.MULTILINE)
    assert dict(verdicts) == {
        "none": "wrong", "naive": "wrong", "lockkit": "right", "row": "right",
        "paused": "wrong", "fenced": "right",
    }  # fmt: skip
    assert len(re.findall(r"^  yes: ", finished.stdout, re.MULTILINE)) == 6
    assert "make serve" in finished.stdout
    assert finished.stderr == ""
    assert left_in(surroundings) == []


def test_on_postgresql_with_redis(
    manage: Callable[..., Any], postgres_url: str, redis_url: str
) -> None:
    finished = manage("demo", "--workers", "gthread", SHOP_DATABASE_URL=postgres_url,
                      LOCKKIT_URL=redis_url)  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert redis_url in finished.stdout


def test_what_is_in_the_shell_for_another_project_is_left_alone(
    manage: Callable[..., Any], tmp_path: Path
) -> None:
    """``race`` begins as ``demo`` does."""
    theirs = tmp_path / "theirs.sqlite3"
    finished = manage(
        *("race", "--mode", "lockkit", "--orders", "4", "--stock", "2", "--processes", "1"),
        DATABASE_URL=f"sqlite:///{theirs}",
        DJANGO_SETTINGS_MODULE="theirs.settings",
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stderr == "DATABASE_URL is not followed; SHOP_DATABASE_URL is.\n"
    assert not theirs.exists()


def test_a_database_that_cannot_be_the_shops_is_one_line(
    manage: Callable[..., Any], tmp_path: Path
) -> None:
    other = tmp_path / "other.sqlite3"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE shop_product (name TEXT)")
    for url, reason in (
        ("oracle://root@127.0.0.1/shop", "mysql:// or mariadb://, not oracle://"),
        ("canary", "mysql:// or mariadb://; what it says is not a URL"),
        (f"sqlite:///{other}", "must name an empty one"),
        ("postgresql://127.0.0.1:1/shop", "must name an empty one"),
    ):
        finished = manage("demo", SHOP_DATABASE_URL=url)
        assert finished.returncode == 1
        assert reason in finished.stderr
        assert "canary" not in finished.stderr
        assert len(finished.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_of_it(
    demo: subprocess.Popen[str], surroundings: dict[str, str], number: signal.Signals
) -> None:
    descriptors = masters(demo)
    demo.send_signal(number)
    said, _ = demo.communicate(timeout=30)
    assert demo.returncode == (130 if number == signal.SIGINT else 128 + number)
    assert "Traceback" not in said
    assert_ended(descriptors, within=0)
    assert left_in(surroundings) == []


def test_a_killed_demo_takes_its_machines_with_it(demo: subprocess.Popen[str]) -> None:
    descriptors = masters(demo)
    demo.kill()
    for descriptor in descriptors.values():
        assert select.select([descriptor], [], [], 20)[0]
        os.close(descriptor)


def test_a_machine_that_dies_fails_the_race(start: Callable[..., Any]) -> None:
    """And so the demo, which judges by the same faults."""
    race = start("race", "--mode", "row", "--orders", "400", "--processes", "1")
    descriptors = masters(race, says="mode")
    os.killpg(next(iter(descriptors)), signal.SIGKILL)
    said, _ = race.communicate(timeout=120)
    assert race.returncode == 1
    assert "requests failed" in said
    assert_ended(descriptors, within=0)
