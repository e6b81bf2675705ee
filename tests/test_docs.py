"""Every Python block of the pages that need no framework runs, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGES = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["leases.md"])
def test_every_block_runs(page: str) -> None:
    text = (PAGES / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    names["locks"].close()
