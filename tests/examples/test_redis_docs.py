"""docs/redis.md: its Python runs, over a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from redis_family import ClusterGroup, SentinelGroup

import lockkit
from lockkit.testing.servers import RedisServer, ValkeyServer

PAGE = (ROOT / "docs" / "redis.md").read_text(encoding="utf-8")
URL = "redis://127.0.0.1:6379/0"


def test_tls() -> None:
    with RedisServer(tls=True) as server:
        address, certificate = f"127.0.0.1:{server.tls_port}", str(server.certificate)
        run_block(
            "rediss://redis",
            {"redis.example.com:6380": address, "/etc/ssl/shop/ca.pem": certificate},
        )


def test_a_socket(redis_server: RedisServer, redis_url: str) -> None:
    run_block("unix://", {"/run/redis/redis.sock": str(redis_server.socket_path)})


def test_a_valkey_server_has_the_same_urls(valkey_server: ValkeyServer, valkey_url: str) -> None:
    run_block("unix://", {"/run/redis/redis.sock": str(valkey_server.socket_path)})
    run_block("client=client", {URL: valkey_url})["client"].close()


CACHES = """
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["lockkit_django"], CACHES=CACHES, LOCKKIT=LOCKKIT)
django.setup()
{block}
other = aliases["orders"].lock("stock:42")
with aliases["default"].lock("stock:42"):
    assert other.try_acquire() is None
print(*{{type(aliases[alias].store).__name__ for alias in aliases}})
"""


def test_the_redis_of_a_django_cache(redis_url: str) -> None:
    """Over both pools they lock the same keys, because it is the same database."""
    settings, block = (each for each in blocks("python") if "django-" in each or "alias" in each)
    assert settings.count("redis://127.0.0.1:6379/0") == 2
    program = settings.replace("redis://127.0.0.1:6379/0", redis_url) + CACHES.format(block=block)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    assert set(ran.stdout.split()) == {"CacheStore"}


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
