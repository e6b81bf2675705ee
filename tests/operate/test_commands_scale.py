"""``locks`` over a Redis that holds 100,000: counted in requests and bytes, not in seconds."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator

import pytest
from command_line import listed

import lockkit
from lockkit.leases.client import LockClient
from lockkit.model.types import Mode, Owner, Request
from lockkit.operate.commands import run
from lockkit.stores.redis import RedisStore
from lockkit.stores.redis.connections import exchange
from lockkit.stores.redis.protocol import NO_CHANNEL
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

MANY = 100_000
BATCH = 2_000
MEGABYTE = 1 << 20

FIRST_PAGE = 8
"""Requests: the connection's greeting, one page of names and one of facts, with room."""


@pytest.fixture(scope="module")
def crowded() -> Iterator[RedisServer]:
    with RedisServer() as server:
        fill(server.url)
        yield server


@pytest.fixture
def proxied(crowded: RedisServer) -> Iterator[tuple[LockClient, FaultProxy]]:
    with FaultProxy("127.0.0.1", crowded.port) as network:
        client = lockkit.connect(f"redis://127.0.0.1:{network.port}/0")
        yield client, network
        client.close()


def fill(url: str) -> None:
    client = lockkit.connect(url)
    backend = client.store
    assert isinstance(backend, RedisStore)
    owner = Owner("web-1", 4121, "MainThread", "POST /stock").encode()
    loading = Request("loads the script", "f" * 32, 1.0, owner)
    client.perform(backend.acquire(loading))
    client.perform(backend.release(loading))
    for first in range(0, MANY, BATCH):
        requests = (
            Request(f"stock:{n}", f"{n:032x}", 86_400.0, owner) for n in range(first, first + BATCH)
        )
        commands = [backend._protocol.acquire(r, Mode.TRY, NO_CHANNEL).packed for r in requests]
        exchange(backend._connections, commands)
    client.close()


class Paper(io.StringIO):
    """Counts lines instead of keeping them; tells when the first ones came."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.lines = 0
        self._on_first = on_first

    def write(self, text: str) -> int:
        if not self.lines:
            self._on_first()
        self.lines += text.count("\n")
        return len(text)


def test_the_first_page_takes_a_few_requests(proxied: tuple[LockClient, FaultProxy]) -> None:
    client, network = proxied
    counts: list[int] = []
    paper = Paper(lambda: counts.append(network.requests))
    assert run(["--limit", "50"], {"default": lambda: client}, stdout=paper) == 0
    assert paper.lines == 51
    assert 0 < counts[0] <= FIRST_PAGE
    assert network.requests <= FIRST_PAGE, "a limit ends the reading, too"


@pytest.mark.timeout(360)
def test_all_are_listed_in_little_memory(crowded: RedisServer) -> None:
    one, least = listed(crowded.url, "--limit", "1")
    everything, most = listed(crowded.url)
    assert (one, everything) == (2, MANY + 1)
    assert most - least < 8 * MEGABYTE


def test_a_store_that_goes_down_in_the_middle(proxied: tuple[LockClient, FaultProxy]) -> None:
    """What was read is shown, the document is whole, and it says that it is not complete."""
    client, network = proxied
    paper, err = io.StringIO(), io.StringIO()

    class Cutting(io.StringIO):
        def write(self, text: str) -> int:
            if "stock:" in text:
                network.refuse()
                network.cut()
            return paper.write(text)

    arguments = ["--format", "json"]
    status = run(arguments, {"default": lambda: client}, stdout=Cutting(), stderr=err)
    document = json.loads(paper.getvalue())
    assert status == 69
    assert 0 < len(document["locks"]) < MANY
    assert list(document["down"]) == ["default"]
    assert "alias default: its store is down" in err.getvalue()
