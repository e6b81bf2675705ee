"""docs/stores.md: its Python runs, on a real PostgreSQL without lockkit's table."""

from __future__ import annotations

import re
from typing import Any

from places import ROOT

from lockkit.testing import servers

PAGE = (ROOT / "docs" / "stores.md").read_text(encoding="utf-8")
URL = "postgresql+psycopg://user@host/shop"


def test_every_block_runs(postgres_server: servers.PostgresServer) -> None:
    database = postgres_server.create_database()
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert blocks
    names: dict[str, Any] = {}
    try:
        for block in blocks:
            assert URL in block
            here = block.replace(URL, database.replace("postgresql://", "postgresql+psycopg://"))
            exec(compile(here, "docs/stores.md", "exec"), names)
        names["engine"].dispose()
    finally:
        postgres_server.drop_database(database)
