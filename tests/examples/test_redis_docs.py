"""docs/redis.md: its Python runs, over a real server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from redis_family import ClusterGroup, SentinelGroup

import lockkit
from lockkit.testing.servers import RedisServer

PAGE = (ROOT / "docs" / "redis.md").read_text(encoding="utf-8")
URL = "redis://127.0.0.1:6379/0"


def test_a_client_that_you_have_already(redis_url: str) -> None:
    names = run_block("client=client", {URL: redis_url})
    names["client"].close()
    assert names["lease"].fencing_token > 0


def test_passwords_that_change(tmp_path: Path) -> None:
    secret = tmp_path / "redis"
    users = {"shop": "on >first ~* &* +@all"}
    with RedisServer(users=users) as server:
        here = {"127.0.0.1:6379": f"127.0.0.1:{server.port}", "/run/secrets/redis": str(secret)}
        locks = run_block("lambda", here)["locks"]
        for password in ("first", "second"):
            secret.write_text(f"{password}\n")
            with server.client() as admin:
                admin.acl_setuser("shop", enabled=True, passwords=f"+{password}")
            locks.lock("stock:42").acquire().release()
            locks.close()
            with server.client() as admin:
                admin.acl_setuser("shop", enabled=True, passwords=f"-{password}")


def test_sentinel() -> None:
    with SentinelGroup(guarded=True) as group:
        servers = "redis+sentinel://sentinel1:26379,sentinel2:26379,sentinel3:26379/shop"
        url = group.url.replace(":of-servers@", "")
        options = f'"ssl_ca_certs": {str(group.master.certificate)!r}, "password"'
        words = {servers: url, "of-the-servers": "of-servers", '"password"': options}
        names = run_block("redis+sentinel", {**words, "of-the-sentinels": "of-sentinels"})
        assert names["lease"].fencing_token > 0


def test_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    with ClusterGroup() as group:
        run_block(
            "redis+cluster", {"redis+cluster://redis1:6379,redis2:6379,redis3:6379": group.url}
        )
    assert capsys.readouterr().out == "['stock:42', 'stock:7', 'stock:8']\n"


def run_block(mark: str, here: dict[str, str]) -> dict[str, Any]:
    (block,) = (block for block in blocks("python") if mark in block)
    for word, other in here.items():
        assert word in block
        block = block.replace(word, other, 1)
    names: dict[str, Any] = {"lockkit": lockkit}
    exec(compile(block, "docs/redis.md", "exec"), names)
    return names


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
