"""Every Python block of docs/flask.md runs, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

PAGE = ROOT / "docs" / "flask.md"


def test_every_block_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # an app of no module has its instance folder there
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) > 5
    names: dict[str, Any] = {"__name__": "shop"}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    with names["shop"].app_context():
        names["db"].engine.dispose()
