"""Planning: the measured curves of docs/planning.md, ``python -m benchmarks --only planning``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import load, pair, stores
from benchmarks.hot import served
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import PostgresServer, RedisServer

__all__ = ["CURVES", "PAGE", "main"]

PAGE = Path(__file__).parents[1] / "docs" / "planning.md"

LATENCIES = (0.0, 0.0005, 0.001, 0.0025, 0.005, 0.01)
"""Seconds by which each request and each reply is delayed."""

NEAR = 0.0005
HOLD = 0.005
NAMES = (1, 2, 4, 8)
PROCESSES = 8
WAITERS = {"redis://": (0, 100, 400, 1000), "postgresql://": (0, 20, 40)}
HELD = {"redis://": (1000, 10_000), "postgresql://": (100, 1000)}
GOOD = ("sqlite://", "postgresql://", "postgresql://?mode=advisory", "mariadb://", "redlock://")
FEW = 10
WIDTH = 30

Row = Sequence[str]


def main(names: Iterable[str], *, writes: bool) -> int:
    """Print these curves as tables; put them into the page, if asked to."""
    for name in names:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        table = "\n".join(f"| {' | '.join(row)} |" for row in CURVES[name]())
        print(f"{name}\n{table}\n", flush=True)
        if writes:
            _write(name, table)
    return 0


def _write(name: str, table: str) -> None:
    marked = re.compile(rf"(<!-- measured: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    before, begin, end, after = marked.split(PAGE.read_text())
    PAGE.write_text(f"{before}{begin}{table}\n{end}{after}")


def handoffs() -> Iterator[Row]:
    """Handoffs of one name that four processes always want, by the time that the network takes."""
    yield "a raw socket's request, ms", "redis://", "postgresql://", "redis://, as bars"
    yield "---:", "---:", "---:", "---"
    found = []
    with RedisServer() as redis, PostgresServer(*stores.ON_DISK) as postgresql:
        stores.with_table(postgresql.url)
        for latency in LATENCIES:
            with _far(redis.url, latency) as (near, url), _far(postgresql.url, latency) as (_, sql):
                found.append((near, served(url), served(sql)))
    most = max(rate for _, rate, _ in found)
    for near, rate, other in found:
        yield f"{near:.2f}", f"{rate:.0f}/s", f"{other:.0f}/s", "█" * round(rate / most * WIDTH)


class _far:  # noqa: N801  used as a function
    """A server behind a slower network: the milliseconds of a request (Redis only), and the URL."""

    def __init__(self, url: str, latency: float) -> None:
        parts = urlsplit(url)
        self._proxy = FaultProxy(parts.hostname or "", parts.port)
        self._proxy.latency = latency
        self._parts = parts

    def __enter__(self) -> tuple[float, str]:
        self._proxy.start()
        address = self._parts.netloc.replace(f":{self._parts.port}", f":{self._proxy.port}")
        url = self._parts._replace(netloc=address).geturl()
        if self._parts.scheme != "redis":
            return 0.0, url
        raw = pair.measure(url, ("raw socket",), FEW, turns=FEW)
        return raw["raw socket"]["pair_us"] / 2e3, url

    def __exit__(self, *_: object) -> None:
        self._proxy.stop()


def shards() -> Iterator[Row]:
    """Eight processes that serve orders of 5 ms each, by the number of names that they share."""
    yield "names", *(f"{name}" for name in ("redis://", "of that, each name"))
    yield "---:", "---:", "---:"
    with RedisServer() as redis, _far(redis.url, NEAR) as (_, url):
        for names in NAMES:
            rate = served(url, processes=PROCESSES, names=names, hold=HOLD)
            yield f"{names}", f"{rate:.0f}/s", f"{rate / names:.0f}/s"


def waiters() -> Iterator[Row]:
    """What a store does while all waiters wait and nothing happens."""
    yield "store", "waiters on one name", "requests/s", "of each", "CPU of the store"
    yield "---", "---:", "---:", "---:", "---:"
    for store, most, loaded in _loaded(WAITERS):
        found = load.waiting(loaded, most)
        each = f"{found.requests / most:.2f}" if most else "-"
        yield store, f"{most:,}", f"{found.requests:.0f}", each, f"{found.cpu:.1%}"


def held() -> Iterator[Row]:
    """What it costs a store to renew names with a TTL of 30 s."""
    yield "store", "held names", "requests/s", "CPU of the store", "bytes of each in the store"
    yield "---", "---:", "---:", "---:", "---:"
    for store, most, loaded in _loaded(HELD):
        found, size = load.held(loaded, most)
        yield store, f"{most:,}", f"{found.requests:.1f}", f"{found.cpu:.1%}", f"{size:.0f}"


def _loaded(sizes: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, int, load.Loaded]]:
    with (
        RedisServer() as redis,
        PostgresServer(*stores.ON_DISK) as postgresql,
        load.redis_(redis) as one,
        load.postgresql(postgresql) as other,
    ):
        found = {"redis://": one, "postgresql://": other}
        for store, many in sizes.items():
            for most in many:
                yield store, most, found[store]


def each_store() -> Iterator[Row]:
    """An uncontended pair, and handoffs of one hot name, all on one machine."""
    yield "store", "acquire + release, µs", "handoffs of one name"
    yield "---", "---:", "---:"
    with RedisServer() as redis:
        peers = ("raw socket", "lockkit")
        found = pair.measure(redis.url, peers, FEW)
        yield "(a raw socket's pair)", f"{found['raw socket']['pair_us']:.0f}", "-"
        yield "redis://", f"{found['lockkit']['pair_us']:.0f}", f"{served(redis.url):.0f}/s"
    for store in GOOD:
        with stores.STORES[store].start() as url:
            took = pair.measure(url, ("lockkit",), FEW, turns=FEW)["lockkit"]["pair_us"]
            yield store, f"{took:.0f}", f"{served(url):.0f}/s"


CURVES: dict[str, Callable[[], Iterator[Row]]] = {
    "handoffs": handoffs,
    "shards": shards,
    "waiters": waiters,
    "held": held,
    "stores": each_store,
}
