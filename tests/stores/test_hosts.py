"""URLs that name several servers, and what is wrong with them: nothing is connected here."""

from __future__ import annotations

from typing import Any

import pytest

import lockkit
from lockkit import aio

SENTINEL = "redis+sentinel://"
CLUSTER = "redis+cluster://"


@pytest.mark.parametrize(
    "url",
    [
        f"{SENTINEL}h1,h2:26380,[::1]:26381,[::2]/shop",
        f"{SENTINEL}user:password@h1/shop/3",
        "rediss+sentinel://h1/shop",
        f"{CLUSTER}user:password@h1,h2:6380,[::1]:6381",
        f"{CLUSTER}h1/0?wait_replicas=1",
        "rediss+cluster://h1/",
    ],
)
@pytest.mark.parametrize("module", [lockkit, aio])
def test_a_good_url(module: Any, url: str) -> None:
    assert "password" not in repr(module.connect(url))


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        (f"{SENTINEL}h1,h2", {}, "service"),
        (f"{SENTINEL}h1/shop/1/2", {}, "service"),
        (f"{SENTINEL}h1/shop/one", {}, "number of a database"),
        (f"{SENTINEL}:canary@/shop", {}, "servers"),
        (f"{SENTINEL}:canary@h1,/shop", {}, "servers"),
        (f"{SENTINEL}:canary@h1:port/shop", {}, "servers"),
        (f"{SENTINEL}:canary@h1:0/shop", {}, "servers"),
        (f"{SENTINEL}:canary@h1:66000/shop", {}, "servers"),
        (f"{SENTINEL}:canary@h1@/shop", {}, "servers"),
        (f"{SENTINEL}h1/shop?protocol=plane", {}, "protocol"),
        (f"{SENTINEL}:canary@h1/shop?timeout=3", {}, "not a Redis URL; that of one server"),
        (f"{SENTINEL}h1/shop", {"sentinels": {}}, "sentinels"),
        (f"{SENTINEL}h1/shop", {"sentinel": "password"}, "sentinel"),
        (f"{SENTINEL}h1/shop", {"sentinel": {"pasword": "canary"}}, "pasword"),
        (f"{SENTINEL}h1/shop", {"sentinel": {"tls": "no"}}, "tls"),
        (f"{SENTINEL}h1/shop", {"sentinel": {"ssl_ca_certs": "/ca"}}, r"rediss\+sentinel://"),
        (f"{SENTINEL}h1/shop", {"socket_timeout": "2"}, "socket_timeout"),
        (f"{CLUSTER}h1/1", {}, "no database but 0"),
        (f"{CLUSTER}h1", {"db": 1}, "no database but 0"),
        (f"{CLUSTER}:canary@h1?db=1", {}, "no database but 0"),
        (f"{CLUSTER}:canary@", {}, "servers"),
        (f"{CLUSTER}h1?protocol=plain", {}, "protocol"),
        (f"{CLUSTER}h1", {"sentinel": {}}, "sentinel"),
        (f"{CLUSTER}h1", {"ssl_ca_certs": "/ca"}, r"rediss\+cluster://"),
        (f"{CLUSTER}h1", {"address_remap": "h2"}, "address_remap"),
        (f"{SENTINEL}h1/shop", {"address_remap": {}}, "address_remap"),
    ],
)
@pytest.mark.parametrize("module", [lockkit, aio])
def test_a_bad_one(module: Any, url: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(lockkit.ConfigurationError, match=told) as caught:
        module.connect(url, options=options)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (f"{SENTINEL}:canary@127.0.0.1:1,127.0.0.1:2/shop", "'shop': 127.0.0.1:2: .*refused"),
        (f"{CLUSTER}:canary@127.0.0.1:1,127.0.0.1:2", "127.0.0.1:2: .*refused"),
    ],
)
def test_nobody_there(url: str, told: str) -> None:
    with (
        lockkit.connect(url) as client,
        pytest.raises(lockkit.BackendUnavailable, match=told) as caught,
    ):
        client.lock("stock:42").acquire()
    assert "canary" not in str(caught.value)
