"""``python -m benchmarks [--format table|markdown|json] [--only pair …] [--minutes 10]``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial

from benchmarks import contention, handoff, orders, pair, scale, stores, takeover, views
from lockkit.testing.servers import RedisServer

Results = dict[str, dict[str, float]]

MINUTE = 60.0

COMPARED: dict[str, Callable[[str], Results]] = {
    "pair": pair.measure,
    "handoff": handoff.measure,
    "takeover": takeover.measure,
    "contention": contention.measure,
    "orders": orders.measure,
    "views": views.measure,
}

SUITES = (*COMPARED, "scale", *stores.STORES)

COLUMNS = {
    "pair_us": "acquire + release, µs",
    "handoff_p50_ms": "handoff p50, ms",
    "handoff_p99_ms": "handoff p99, ms",
    "long_p50_ms": "handoff p50 after about 1 s, ms",
    "takeover_p95_ms": "takeover after SIGKILL: p95 past the TTL, ms",
    "per_second": "8 processes: acquired/s",
    "wait_p50_ms": "wait p50, ms",
    "wait_p99_ms": "wait p99, ms",
    "wait_max_ms": "wait max, ms",
    "most_to_least": "most/least served",
    "cpu_ms": "their CPU per acquisition, ms",
    "many_per_second": "24 processes: acquired/s",
    "requests": "requests per acquisition",
    "order_first": "orders/s: first request",
    "order_replay": "orders/s: replay",
    "django_view_us": "Django: a request of a view with a lock, µs",
    "django_own_us": "Django: what lock_view adds to the lock, µs",
    "flask_view_us": "Flask: a request of a view with a lock, µs",
    "flask_own_us": "Flask: what lock_view adds to the lock, µs",
    "renewal_ms": "10,000 leases: a renewal of all, ms",
    "least_left_s": "the least that was left of 30 s",
    "leases_lost": "lost",
    "lease_bytes": "memory per lease, bytes",
    "idle_requests": "500 waiters: requests each and second",
    "subscriptions": "subscriptions of 4 processes",
    "waiter_bytes": "memory per waiter, bytes",
    "served_per_second": "served/s",
    "out_of_order": "served out of order",
    "lost_ns": "lease.lost, ns",
    "check_ns": "lease.check(), ns",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("benchmarks", description=__doc__)
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    parser.add_argument("--only", nargs="+", choices=SUITES, default=SUITES)
    parser.add_argument("--minutes", type=float, default=1.0, help="of renewing 10,000 leases")
    options = parser.parse_args(arguments)
    suites = COMPARED | {"scale": partial(scale.measure, seconds=options.minutes * MINUTE)}
    tables: dict[str, Results] = {}
    with RedisServer() as server:
        for suite in options.only:
            print(f"measuring {suite} …", file=sys.stderr, flush=True)
            is_store = suite in stores.STORES
            found = stores.measure(suite) if is_store else suites[suite](server.url)
            results = tables.setdefault(suite if is_store else "redis://", {})
            for peer, figures in found.items():
                results.setdefault(peer, {}).update(figures)
    if options.format == "json":
        both = {of: {"results": each, "ratios": ratios(each)} for of, each in tables.items()}
        print(json.dumps(both, indent=2))
    else:
        shown = (
            f"{of}\n{table(each, markdown=options.format == 'markdown')}"
            for of, each in tables.items()
        )
        print(*shown, sep="\n\n")
    return 0


def ratios(results: Results) -> Results:
    """Figures of lockkit divided by each peer's."""
    ours = results["lockkit"]
    return {
        peer: {key: ours[key] / value for key, value in figures.items() if value}
        for peer, figures in results.items()
        if peer != "lockkit"
    }


def table(results: Results, *, markdown: bool = False) -> str:
    """A row per figure, a column per peer; in brackets lockkit's figure divided by the peer's."""
    peers = list(results)
    rows = [["", *peers]]
    for key, title in COLUMNS.items():
        if any(key in figures for figures in results.values()):
            rows.append([title, *(_cell(results, peer, key) for peer in peers)])
    if markdown:
        rows.insert(1, ["---", *("---:" for _ in peers)])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _cell(results: Results, peer: str, key: str) -> str:
    value = results[peer].get(key)
    if value is None:
        return "-"
    text = f"{value:.0f}" if value >= 100 else f"{value:.2f}"
    return text if peer == "lockkit" else f"{text} ({results['lockkit'][key] / value:.2f})"


if __name__ == "__main__":
    sys.exit(main())
