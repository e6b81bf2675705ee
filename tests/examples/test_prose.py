"""The documentation reads easily: short lines, and no sentence that must be read twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
]
WIDEST = 160
CODE = r"^ *```.*?^ *```$"
HARD = (
    r"(?:^|[.:;|] |^[-*] )(?:Who|Of a|Of an|Of the|What is)\b[^.?|]*"
    r"|(?<!there )\b(?:is|are|was|were) no (?!longer)[a-z]+|belongs? into"
)
"""Openings that delay the subject, and negations and prepositions that are not English."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_line_outside_of_tables_fits_a_screen(page: Path) -> None:
    text = re.sub(CODE, "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    wide = [line for line in text.splitlines() if len(line) > WIDEST and not line.startswith("|")]
    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_must_be_read_twice(page: Path) -> None:
    text = re.sub(CODE, "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(HARD, text, re.MULTILINE) == []
