"""While a deploy rolls, processes of the old release and of the new one lock the same things."""

from __future__ import annotations

import subprocess
import sys

import pytest
import redis
from places import KIT

from lockkit.testing.conformance.base import at_least_once

CYCLES = 150


@pytest.mark.parametrize("releases", [("old", "new"), ("old", "lockkit"), ("new", "lockkit")])
def test_processes_of_both_exclude_one_another(redis_url: str, releases: tuple[str, str]) -> None:
    assert count(redis_url, releases) == 2 * CYCLES


def test_without_a_lock_updates_are_lost(redis_url: str) -> None:
    """The control: the count can tell."""

    def lost() -> bool:
        with redis.Redis.from_url(redis_url) as client:
            client.flushdb()
        return count(redis_url, ("none", "none")) < 2 * CYCLES

    at_least_once(lost)


def count(url: str, releases: tuple[str, str]) -> int:
    program = [sys.executable, str(KIT / "counting.py"), url]
    running = [subprocess.Popen([*program, release, str(CYCLES)]) for release in releases]
    assert [each.wait(60) for each in running] == [0, 0]
    with redis.Redis.from_url(url) as client:
        return int(client.get("count"))
