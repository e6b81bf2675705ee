"""Every Python block of the pages that need no framework runs, from top to bottom."""

from __future__ import annotations

import inspect
import re
import sqlite3
import tomllib
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

import lockkit.testing.conformance
import lockkit_django
from lockkit.stores.registry import SCHEMES

PAGES = ROOT / "docs"


@pytest.mark.parametrize("page", ["leases.md"])
def test_every_block_runs(page: str) -> None:
    text = (PAGES / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    names["locks"].close()


SAME = {"mysql": "mariadb", "rediss+sentinel": "redis+sentinel", "rediss+cluster": "redis+cluster"}
"""Schemes of the same store, with other words before the hosts."""


def test_every_store_is_shown_by_a_block() -> None:
    """That they run is for the tests of each page."""
    texts = [page.read_text() for page in PAGES.glob("*.md")]
    found = [re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE) for text in texts]
    shown = "".join(block for blocks in found for block in blocks)
    for scheme, _, query in (key.partition("?") for key in SCHEMES):
        assert f'"{SAME.get(scheme, scheme)}://' in shown
        assert query in shown


def test_fenced_writes(tmp_path: Path) -> None:
    """Those of docs/stores.md, but for Django's: tests/adapters/django/test_docs.py."""
    with closing(sqlite3.connect(tmp_path / "stock.sqlite3")) as database:
        database.execute("CREATE TABLE stock (sku TEXT PRIMARY KEY, count INT, fence INT)")
        database.execute("INSERT INTO stock VALUES ('42', 2, 0)")
        database.commit()
        text = (PAGES / "stores.md").read_text().replace("/var/lib/shop/", f"{tmp_path}/")
        names: dict[str, Any] = {"__name__": "page"}
        written = []
        for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            if not block.startswith("# "):
                exec(compile(block, "docs/stores.md", "exec", dont_inherit=True), names)
                written += database.execute("SELECT count, fence FROM stock").fetchall()
    names["locks"].close()
    names["database"].close()
    names["engine"].dispose()
    shown, fences = zip(*written, strict=True)
    assert shown == (1, 5, 15)
    assert 0 < fences[0] < fences[1] < fences[2]


def test_what_troubleshooting_names_is_there() -> None:
    """Each code of a refusal, and each error; of a lock every code."""
    text = (PAGES / "troubleshooting.md").read_text()
    codes, told = {*english()}, {*re.findall(r"`((?:lock|order)-[a-z-]+)`", text)}
    assert told <= codes
    assert {code for code in codes - told if code.startswith("lock-")} == set()
    table = text.partition("## Errors")[2].partition("## ")[0]
    seen = " ".join(re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE))
    named = re.findall(r"`([A-Z]\w+)`", seen)
    assert len(named) > 10
    assert all(issubclass(getattr(lockkit, name), lockkit.LockError) for name in named)


def english() -> dict[str, Any]:
    return tomllib.loads((resources.files("lockkit.texts") / "en.toml").read_text("utf-8"))


CLAIM = re.compile(r"`((?:conformance|tests)/[\w/]+\.py)`: ((?:`test_\w+`(?:, )?)+)")
PLACES = {
    "conformance": Path(lockkit.testing.conformance.__file__).parents[1],
    "tests": PAGES.parent,
}


def test_each_proof_is_there() -> None:
    claims = CLAIM.findall((PAGES / "proofs.md").read_text())
    assert len(claims) > 20
    for path, tests in claims:
        source = (PLACES[path.split("/")[0]] / path).read_text()
        for test in re.findall(r"test_\w+", tests):
            assert re.search(rf"def {test}\(", source), f"{path} has no {test}"


def test_the_table_of_lock_view_has_its_arguments() -> None:
    table = (PAGES / "django.md").read_text().partition("| argument | |\n|---|---|\n")[2]
    told = re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], re.MULTILINE)
    takes = inspect.signature(lockkit_django.lock_view).parameters.values()
    options = {each.name for each in takes if each.kind is each.KEYWORD_ONLY}
    assert {*told, "permits"} == options  # permits: in the row of kind
