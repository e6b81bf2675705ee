"""docs/redlock.md: its Python runs, on three real nodes."""

from __future__ import annotations

import re
from typing import Any

from five_nodes import five_nodes
from places import ROOT

import lockkit
from lockkit.model.settings import read_settings
from lockkit.stores.registry import load_store

PAGE = (ROOT / "docs" / "redlock.md").read_text(encoding="utf-8")
NODES = "10.0.0.1:6379,10.0.0.2:6379,10.0.0.3:6379/0"


def test_every_block_runs() -> None:
    """The nodes have just been started, so the restart delay is left out."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    with five_nodes() as nodes:
        for block in blocks:
            here = block.replace(
                NODES, nodes.url(socket_timeout=5, socket_connect_timeout=5).partition("://")[2]
            )
            exec(compile(here, "docs/redlock.md", "exec"), names)
    settings = read_settings(names["LOCKKIT"], default_location="memory://", environ={})
    store = load_store(settings["default"])
    assert store.database() == "database 0 of 3 nodes"


def test_the_acl_line_is_the_one_that_is_tested() -> None:
    (line,) = re.findall(r"^user locks on >… (.*)$", PAGE, re.MULTILINE)
    tests = (ROOT / "tests" / "stores" / "test_redlock_settings.py").read_text(encoding="utf-8")
    assert f'"on >secret {line}"' in tests


def test_the_default_delay() -> None:
    client = lockkit.connect("redlock://h1,h2,h3")
    assert "The default is 60; no TTL may be longer" in PAGE
    assert client.store._nodes.restart_delay == 60  # type: ignore[attr-defined]
