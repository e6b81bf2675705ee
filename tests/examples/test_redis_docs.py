"""docs/redis.md: its Python runs, over a real server."""

from __future__ import annotations

import re

from places import ROOT

PAGE = (ROOT / "docs" / "redis.md").read_text(encoding="utf-8")
URL = "redis://127.0.0.1:6379/0"


def test_a_client_that_you_have_already(redis_url: str) -> None:
    (block,) = (block for block in blocks("python") if "client=" in block)
    names: dict[str, object] = {}
    exec(compile(block.replace(URL, redis_url), "docs/redis.md", "exec"), names)
    names["client"].close()  # type: ignore[attr-defined]
    assert names["lease"].fencing_token > 0  # type: ignore[attr-defined]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
