"""Every Python block of docs/flask.md runs, from top to bottom."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

PAGE = ROOT / "docs" / "flask.md"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Has its level back afterwards, because the page sets it."""
    found = logging.getLogger("lockkit")
    level = found.level
    yield found
    found.setLevel(level)


@pytest.mark.usefixtures("logger")
def test_every_block_runs(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    hold_lock: Any,
) -> None:
    monkeypatch.chdir(tmp_path)  # an app of no module has its instance folder there
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) > 5
    names: dict[str, Any] = {"__name__": "shop"}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    with names["shop"].app_context():
        names["db"].engine.dispose()
    with hold_lock("export", app=names["exports"]):
        names["exports"].test_client().get("/export")
    assert "GET /export gets 423 lock-busy" in caplog.text
