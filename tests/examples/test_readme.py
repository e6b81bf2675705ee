"""A newcomer can type what the README shows: its Python runs, its links lead somewhere."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def test_every_python_block_of_the_readme_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    names["locks"].close()


def test_the_readme_names_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(re.findall(r"`([a-z-]+)`", installing())) == set(extras)


def test_the_readme_has_the_lowest_version_of_each_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = " ".join(each for extra in project["optional-dependencies"].values() for each in extra)
    lowest = set(re.findall(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", needed))
    told = installing().partition("The lowest versions are ")[2].partition(".\n")[0]
    assert set(re.findall(r"([\w-]+)\s([\d.]+)", told)) == lowest


def installing() -> str:
    return (ROOT / "README.md").read_text().split("## Install")[1].split("##")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_section_leads_to_one(page: Path) -> None:
    for target, section in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", page.read_text()):
        assert section in sections(page.parent / target if target else page), f"{target}#{section}"


@cache
def sections(page: Path) -> set[str]:
    """As GitHub names them."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


def test_every_page_is_in_the_list_of_all_pages() -> None:
    listed = re.findall(r"\]\((docs/[a-z-]+\.md)\)", (ROOT / "README.md").read_text())
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert pages - {*listed} == {"docs/guarantees-tests.md"}  # a page of docs/guarantees.md


@pytest.mark.parametrize("page", ["README.md", "docs/orders.md", "docs/flask.md"])
def test_no_pattern_makes_an_order_of_an_update(page: str) -> None:
    """The pages show ``@lock_view`` for ``/orders/7/pay``, which has no order ID."""
    patterns = re.findall(r'"PATHS": \[r?"([^"]*)"\]', (ROOT / page).read_text(encoding="utf-8"))
    assert patterns
    for pattern in patterns:
        assert re.search(pattern, "/orders/")
        assert not re.search(pattern, "/orders/7/pay")


@pytest.mark.parametrize(
    "shown", [*PAGES, *sorted((ROOT / "lockkit_flask").glob("**/*.py"))], ids=lambda page: page.name
)
def test_no_example_gives_the_name_of_the_package_to_something_else(shown: Path) -> None:
    """``except lockkit.LockHeld`` would be an AttributeError, and only when the lock is busy."""
    assert not re.search(r"^\W*lockkit = ", shown.read_text(), re.MULTILINE)


def test_the_acl_line_of_the_documentation_is_the_one_that_is_tested() -> None:
    """tests/stores/test_redis.py runs the whole protocol as a user with just these permissions."""
    tested = (ROOT / "tests" / "stores" / "test_redis.py").read_text()
    page = (ROOT / "docs" / "redis.md").read_text()
    line = re.search(r"^user shop on >… (.*)$", page, re.MULTILINE)
    assert line is not None
    rules = re.search(r'"shop": "on >secret (.*?)",\n', tested, re.DOTALL)
    assert rules is not None
    assert re.sub(r'"\s*"', "", rules[1]).split() == line[1].split()


def test_every_python_block_about_the_kinds_runs() -> None:
    text = (ROOT / "docs" / "kinds.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/kinds.md", "exec"), names)
