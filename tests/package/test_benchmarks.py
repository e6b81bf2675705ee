"""What the benchmarks print is what the README and the page on planning have."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from types import ModuleType

import pytest
from places import ROOT

from lockkit.stores.registry import SCHEMES

ROW = re.compile(r"^\| (\S+) \| (.+) \| (lower|higher) \| [\d.,]+ \| (.*) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    """The tests do not see the checkout's packages, so it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("figures", ROOT / "benchmarks" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_row_of_the_readme_says_which_way_is_better(figures: ModuleType) -> None:
    measured = (ROOT / "README.md").read_text().partition("## Measured\n\n")[2]
    table = measured.partition("\n\n")[0].splitlines()[2:]
    rows = ROW.findall("\n".join(table))
    assert len(rows) == len(table) > 0
    for store, title, better, _ in rows:
        keys = [key for key, figure in figures.FIGURES.items() if figure.title == title]
        assert [figures.FIGURES[key].better for key in keys] == [better]
        assert keys[0] in figures.IN_README[store]


def test_figures_have_names_of_their_own(figures: ModuleType) -> None:
    titles = [figure.title for figure in figures.FIGURES.values()]
    assert len(set(titles)) == len(titles)
    shown = {key for keys in figures.IN_README.values() for key in keys}
    assert shown <= set(figures.FIGURES)


def test_each_curve_is_on_the_page() -> None:
    source = (ROOT / "benchmarks" / "planning.py").read_text()
    curves = re.findall(r'^    "(\w+)": \w+,$', source.partition("CURVES:")[2], re.MULTILINE)
    page = (ROOT / "docs" / "planning.md").read_text()
    found = re.findall(r"<!-- measured: (\w+) -->\n((?:\|.*\|\n){3,})<!-- end -->", page)
    assert [name for name, _ in found] == curves
    assert len(curves) > 3


def test_each_figure_that_is_behind_has_its_reason() -> None:
    """Both handoffs of a store have one reason, and so have both numbers of processes. Another way
    to a store has no row."""
    page = (ROOT / "docs" / "planning.md").read_text()
    behind, _, reasons = page.partition("<!-- behind -->\n")[2].partition("<!-- end -->")
    because = {store: cells for store, *cells in _cells(reasons)}
    needed = {
        (store, REASON[title])
        for (_, *titles), *rows in [_cells(behind)]
        for store, *cells in rows
        for title, cell in zip(titles, cells, strict=True)
        if cell.strip("-")
    }
    assert len(needed) > 10
    like = "`django://` is as the same database without Django, and every other way to Redis is as"
    assert like in page
    reasons = {store: because[AS_WITH.get(store, store)] for store, _ in needed}
    assert [each for each in needed if reasons[each[0]][each[1]] in ("", "-")] == []


AS_WITH = {
    "`django:// on SQLite`": "`sqlite://`",
    "`django:// on PostgreSQL`": "`postgresql://`",
    "`django:// on MariaDB`": "`mariadb://`",
    "`django-redis://`": "`redis://`",
    "`django-cache://`": "`redis://`",
    "`?protocol=plain`": "`redis://`",
    "`redis:// of Valkey`": "`redis://`",
    "`redis+sentinel://`": "`redis://`",
    "`redis+cluster://`": "`redis://`",
}


REASON = {
    "acquire + release": 0,
    "handoff": 1,
    "handoff after about 1 s": 1,
    "8 processes": 2,
    "24 processes": 2,
}


def _cells(text: str) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if set(row[0]) != {"-"}]


def test_where_a_peer_is_quicker_it_is_behind() -> None:
    program = """
from benchmarks.tables import behind
ours = {"pair_us": 3.0, "handoff_p50_ms": 1.0, "per_second": 90, "many_per_second": 5}
peer = {"pair_us": 2.0, "handoff_p50_ms": 2.0, "per_second": 100, "many_per_second": 5}
found = behind({"a://": {"lockkit": ours, "peer": peer, "raw socket": peer},
                "b://": {"lockkit": peer, "peer": peer}})
print(list(found)[2:])
"""
    assert _printed(program) == "[('`a://`', 'peer 1.50', '-', '-', 'peer 0.90', '-')]\n"


def _printed(program: str) -> str:
    """What a program prints that sees the checkout's packages."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    return ran.stdout


def test_each_store_has_a_row() -> None:
    """If several schemes lead to one class, one of them is measured."""
    schemes = _printed("""
from benchmarks.stores import STORES
print(*(name.partition(" ")[0].replace("://", "") for name in STORES))
""").split()
    measured = {SCHEMES["redis" + name if name[0] == "?" else name] for name in schemes}
    assert set(SCHEMES.values()) - measured == {SCHEMES["redis+sentinel?protocol=plain"]}


def test_a_figure_that_does_not_apply_says_why() -> None:
    printed = _printed("""
from benchmarks.tables import rows
print(*rows({"memory://": {"lockkit": {"pair_us": 3.0}, "peer": {"pair_us": 2.0}}}), sep="\\n")
""")
    assert printed.splitlines() == [
        "('memory://', 'acquire + release, µs', 'lower', '3', 'peer 2 (1.50)')",
        "('memory://', '8 processes: acquired/s', 'higher', '-', 'one process only')",
    ]


def test_a_suite_that_fails_does_not_end_the_others() -> None:
    """Without a PATH there are no servers."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"} | {"PATH": ""}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--only", "pair", "takeover"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "pair failed: " in done.stderr
    assert "takeover failed: " in done.stderr
    assert done.stdout.startswith("store")
