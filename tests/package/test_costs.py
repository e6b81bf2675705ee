"""The table of the slowest files, which every run prints."""

from __future__ import annotations

import pytest
from costs import SHOWN, slowest_files


def report(nodeid: str, seconds: float, cpu: float) -> pytest.TestReport:
    made = pytest.TestReport(nodeid, ("", 0, ""), {}, "passed", None, "call", duration=seconds)
    made.cpu_seconds = cpu
    return made


def test_what_took_longest_comes_first() -> None:
    reports = [report("a.py::x", 1, 0.5), report("b.py::y", 3, 1), report("a.py::z", 2.5, 0)]
    assert [line.split() for line in slowest_files(reports)[1:]] == [
        ["3.5", "0.5", "2", "a.py"],
        ["3.0", "1.0", "1", "b.py"],
    ]


def test_it_has_ten_files() -> None:
    reports = [report(f"{n}.py::x", n, 0) for n in range(20)]
    assert SHOWN == 10
    assert [line.split()[3] for line in slowest_files(reports)[1:]] == [
        f"{n}.py" for n in range(19, 9, -1)
    ]
