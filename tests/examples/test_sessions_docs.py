"""docs/sessions.md: its Python runs on real servers."""

from __future__ import annotations

import re
from typing import Any

from places import ROOT

import lockkit

PAGE = (ROOT / "docs" / "sessions.md").read_text(encoding="utf-8")
POSTGRES, MARIADB = (f"{scheme}://user@host/shop" for scheme in ("postgresql", "mariadb"))
MODES = {f"{url}?mode={mode}" for url in (POSTGRES, MARIADB) for mode in ("advisory", "row")}


def test_every_block_runs(postgres_url: str, mariadb_url: str) -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert {url for block in blocks for url in re.findall(r'connect\("([^"]+)', block)} == MODES
    for block in blocks:
        here = block.replace(POSTGRES, postgres_url)
        here = here.replace(MARIADB, mariadb_url.replace("mysql:", "mariadb:"))
        exec(compile(here, "docs/sessions.md", "exec"), names)
    settings = names["LOCKKIT"]["default"]
    options = settings["OPTIONS"]
    with lockkit.connect(settings["LOCATION"], ttl=settings["TTL"], options=options) as locks:
        locks.lock("a").acquire().release()
