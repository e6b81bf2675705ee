"""docs/zookeeper.md: its Python runs, over a real server."""

from __future__ import annotations

import re
from typing import Any

import pytest
from places import ROOT

from lockkit.leases.client import LockClient
from lockkit.model.settings import read_settings
from lockkit.stores.registry import load_store
from lockkit.stores.zookeeper.settings import OPTIONS
from lockkit.testing.servers import ZooKeeperServer

PAGE = (ROOT / "docs" / "zookeeper.md").read_text(encoding="utf-8")
HOSTS = "10.0.0.1:2181,10.0.0.2:2181,10.0.0.3:2181"


def test_every_block_runs(other_servers: None, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    with ZooKeeperServer() as server:
        for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
            here = block.replace(HOSTS, f"127.0.0.1:{server.port}").replace("/shop", "/a/shop", 1)
            exec(compile(here, "docs/zookeeper.md", "exec"), names)
        assert int(capsys.readouterr().out) > 2**52
        del names["locks"]
        names["LOCKKIT"]["default"]["LOCATION"] += "/of-its-user"
        found = read_settings(names["LOCKKIT"], default_location="memory://", environ={})
        with LockClient(load_store(found["default"]), found["default"]) as client:
            assert client.lock("stock:42").acquire().release()


def test_every_option_is_documented() -> None:
    assert [option for option in OPTIONS if f"`{option}`" not in PAGE] == []
