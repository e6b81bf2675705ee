"""``manage.py demo`` tells the whole story and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockkit.testing.conformance.base import eventually

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def demo(start: Callable[..., subprocess.Popen[str]]) -> subprocess.Popen[str]:
    return start("demo")


def masters(process: subprocess.Popen[str]) -> dict[int, int]:
    """Descriptors of both gunicorn masters, by process ID, as soon as the demo races."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("none:"):
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


def test_twice_in_a_row(manage: Callable[..., Any], surroundings: dict[str, str]) -> None:
    for _ in range(2):
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
    finished = manage("demo", "--workers", "gthread", DATABASE_URL=postgres_url,
                      LOCKKIT_URL=redis_url)  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert redis_url in finished.stdout


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


def test_a_machine_that_dies_fails_the_demo(demo: subprocess.Popen[str]) -> None:
    descriptors = masters(demo)
    os.killpg(next(iter(descriptors)), signal.SIGKILL)
    demo.communicate(timeout=120)
    assert demo.returncode == 1
    assert_ended(descriptors, within=0)
