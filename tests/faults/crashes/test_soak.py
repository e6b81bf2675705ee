"""A small soak; and the same with wrong guards, which it must find out."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from crashing.books import Sold, Verdict, judge
from crashing.configuration import Configuration
from crashing.customers import Answer
from places import KIT

pytestmark = pytest.mark.timeout(360)  # seconds; most of a test is waiting

SEED = "7"


def soak(place: Configuration, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "soak", "--seed", SEED, *options]
    command += ["--database", place.database, "--locks", place.locks]
    path = os.pathsep.join([str(KIT), os.environ.get("PYTHONPATH", "")]).strip(":")
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


class TestSoak:
    def test_of_lockkit(self, on_postgres: Configuration) -> None:
        run = soak(on_postgres, "--requests", "80")
        print(run.stdout, run.stderr)
        assert run.returncode == 0
        assert "oversold 0, duplicated 0, lost 0, answered differently 0" in run.stdout


class TestRecordAfter:
    def test_is_caught(self, on_postgres: Configuration) -> None:
        often = ("--requests", "30", "--killed", "0.4", "--points", "committing")
        _is_caught(soak(on_postgres, "--guard", "record-after", *often))


class TestReleasedBeforeCommit:
    def test_is_caught(self, on_postgres: Configuration) -> None:
        often = ("--requests", "40", "--lingering", "0.9", "--points", "committing")
        _is_caught(soak(on_postgres, "--guard", "released-before-commit", *often))


def _is_caught(run: subprocess.CompletedProcess[str]) -> None:
    print(run.stdout, run.stderr)
    assert run.returncode == 1
    assert "duplicated" in run.stdout
    assert "duplicated 0" not in run.stdout


DONE, GONE, DOWN = Answer(201, False, b"1"), Answer(410, False, b""), Answer(503, False, b"")
OTHER = Answer(201, True, b"2")
ELSEWHERE = Answer(201, True, b"1", headers=(("Location", "/2"),))


@pytest.mark.parametrize(
    ("units", "sales", "answers", "expected"),
    [
        (9, ["a"], [DONE], Verdict(0, 0, 0, 0)),
        (10, [], [GONE], Verdict(0, 0, 0, 0)),
        (8, ["a"], [DONE], Verdict(1, 0, 0, 0)),
        (10, ["a"], [DONE], Verdict(1, 0, 0, 0)),
        (8, ["a", "a"], [DONE], Verdict(1, 1, 0, 0)),
        (10, [], [DONE], Verdict(0, 0, 1, 0)),
        (9, ["a"], [GONE], Verdict(0, 0, 1, 0)),
        (9, ["a"], [], Verdict(0, 0, 1, 0)),
        (10, [], [], Verdict(0, 0, 1, 0)),
        (9, ["a"], [DONE, OTHER], Verdict(0, 0, 0, 1)),
        (9, ["a"], [DONE, ELSEWHERE], Verdict(0, 0, 0, 1)),
        (-1, list("abcdefghijk"), [DONE], Verdict(1, 0, 10, 0)),
    ],
)
def test_the_verdict(
    units: int, sales: list[str], answers: list[Answer], expected: Verdict
) -> None:
    sold = Sold([(sale, "book") for sale in sales], {"book": units})
    assert judge({"book": 10}, sold, {"a": answers}) == expected
