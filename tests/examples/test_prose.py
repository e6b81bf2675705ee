"""The documentation reads easily: short lines, and no sentence that must be read twice."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from tokenize import COMMENT

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
]
PACKAGES = ("lockkit", "lockkit_django", "lockkit_flask")
MODULES = [path for each in PACKAGES for path in sorted((ROOT / each).rglob("*.py"))]
SCRIPTS = sorted(path for path in (ROOT / "lockkit").rglob("*") if path.suffix in {".lua", ".sql"})
WIDEST = 160
CODE = r"^ *```.*?^ *```$"
HARD = (
    r"(?:^|[.:;|] |^[-*] )(?:Who|Of a|Of an|Of the|What is)\b[^.?|]*"
    r"|(?<!there )\b(?:is|are|was|were) no (?!longer)[a-z]+|belongs? into"
    r"|\b(?:[Hh]e|[Hh]im|[Hh]is)\b"
)
"""Openings that delay the subject, and negations and prepositions that are not English. A client is
not a man."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_line_outside_of_tables_fits_a_screen(page: Path) -> None:
    text = re.sub(CODE, "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    wide = [line for line in text.splitlines() if len(line) > WIDEST and not line.startswith("|")]
    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_must_be_read_twice(page: Path) -> None:
    text = re.sub(CODE, "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(HARD, text, re.MULTILINE) == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_docstring_comment_or_error_must_be_read_twice(module: Path) -> None:
    source = module.read_text(encoding="utf-8")
    with module.open("rb") as file:
        comments = [t.string for t in tokenize.tokenize(file.readline) if t.type == COMMENT]
    assert [each for text in (*sentences(source), *comments) for each in hard(text)] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_comment_of_a_script_must_be_read_twice(script: Path) -> None:
    comments = re.findall(r"--(.*)", script.read_text(encoding="utf-8"))
    assert [each for text in comments for each in hard(text)] == []


def sentences(source: str) -> Iterator[str]:
    """All strings that have a space: docstrings, errors, and others."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value


def hard(text: str) -> list[str]:
    return re.findall(HARD, re.sub(r"\s+", " ", text.lstrip("#: ")), re.MULTILINE)
