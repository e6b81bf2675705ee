"""docs/sessions.md: its Python runs on real servers."""

from __future__ import annotations

import re
from typing import Any

from places import ROOT

import lockkit

PAGE = (ROOT / "docs" / "sessions.md").read_text(encoding="utf-8")
POSTGRES = "postgresql://user@host/shop"


def test_every_block_runs(postgres_url: str) -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for block in blocks:
        assert POSTGRES in block
        here = block.replace(POSTGRES, postgres_url)
        exec(compile(here, "docs/sessions.md", "exec"), names)
    settings = names["LOCKKIT"]["default"]
    options = settings["OPTIONS"]
    with lockkit.connect(settings["LOCATION"], ttl=settings["TTL"], options=options) as locks:
        locks.lock("a").acquire().release()
