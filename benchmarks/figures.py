"""The figures: what each is called, and whether a lower or a higher one is better."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FIGURES", "IN_README", "NOT_MEASURED", "Results", "Tables"]

Results = dict[str, dict[str, float]]
"""The figures of each peer, by their keys."""

Tables = dict[str, Results]
"""The results, by the store in which they were found."""

LOWER, HIGHER = "lower", "higher"


class Figure(NamedTuple):
    title: str
    better: str


FIGURES = {
    "pair_us": Figure("acquire + release, µs", LOWER),
    "pair_cpu_us": Figure("acquire + release: CPU of the process, µs", LOWER),
    "handoff_p50_ms": Figure("handoff p50, ms", LOWER),
    "handoff_p99_ms": Figure("handoff p99, ms", LOWER),
    "long_p50_ms": Figure("handoff p50 after about 1 s, ms", LOWER),
    "tried_us": Figure("10,000 waiters: a try, µs", LOWER),
    "refused_us": Figure("10,000 waiters: a refusal by MAX_QUEUE, µs", LOWER),
    "alone_us": Figure("a mutex beside them: acquire + release, µs", LOWER),
    "semaphore_us": Figure("1,000 holders of a semaphore: one more, and its release, µs", LOWER),
    "reader_us": Figure("1,000 readers: one more, and its release, µs", LOWER),
    "takeover_p95_ms": Figure("takeover after SIGKILL: p95 past the TTL, ms", LOWER),
    "per_second": Figure("8 processes: acquired/s", HIGHER),
    "wait_p50_ms": Figure("8 processes: wait p50, ms", LOWER),
    "wait_p99_ms": Figure("8 processes: wait p99, ms", LOWER),
    "wait_max_ms": Figure("8 processes: wait max, ms", LOWER),
    "most_to_least": Figure("8 processes: most/least served", LOWER),
    "cpu_ms": Figure("8 processes: CPU per acquisition, ms", LOWER),
    "many_per_second": Figure("24 processes: acquired/s", HIGHER),
    "requests": Figure("8 processes: requests per acquisition", LOWER),
    "asyncio_pair_us": Figure("asyncio: acquire + release, µs", LOWER),
    "asyncio_pair_cpu_us": Figure("asyncio: CPU of acquire + release, µs", LOWER),
    "asyncio_per_second": Figure("asyncio, 1,000 tasks on 100 names: acquired/s", HIGHER),
    "asyncio_task_cpu_us": Figure("asyncio, 1,000 tasks: CPU per acquisition, µs", LOWER),
    "asyncio_lost": Figure("asyncio, 1,000 tasks: leases lost", LOWER),
    "uvloop_pair_us": Figure("uvloop: acquire + release, µs", LOWER),
    "uvloop_pair_cpu_us": Figure("uvloop: CPU of acquire + release, µs", LOWER),
    "uvloop_per_second": Figure("uvloop, 1,000 tasks on 100 names: acquired/s", HIGHER),
    "uvloop_task_cpu_us": Figure("uvloop, 1,000 tasks: CPU per acquisition, µs", LOWER),
    "uvloop_lost": Figure("uvloop, 1,000 tasks: leases lost", LOWER),
    "order_first": Figure("orders/s: first request", HIGHER),
    "order_cost": Figure("a first order, times its bare view", LOWER),
    "order_replay": Figure("orders/s: replay", HIGHER),
    "order_replay_cost": Figure("a replay, times django-idempotency-key's", LOWER),
    "flask_first": Figure("Flask: orders/s: first request", HIGHER),
    "flask_cost": Figure("Flask: a first order, times its bare view", LOWER),
    "flask_replay": Figure("Flask: orders/s: replay", HIGHER),
    "installed_cost": Figure("lockkit_django installed: any query, times the same without", LOWER),
    "one_row_us": Figure("lockkit_django installed: CPU of any SELECT, µs", LOWER),
    "many_ids_us": Figure("lockkit_django installed: CPU of IN (10,000 IDs), µs", LOWER),
    "flask_installed_cost": Figure(
        "lockkit_flask set up: any query, times the same without", LOWER
    ),
    "flask_one_row_us": Figure("lockkit_flask set up: CPU of any SELECT, µs", LOWER),
    "flask_many_ids_us": Figure("lockkit_flask set up: CPU of IN (10,000 IDs), µs", LOWER),
    "django_view_us": Figure("Django: a request of a view with a lock, µs", LOWER),
    "django_own_us": Figure("Django: what lock_view adds to the lock: CPU, µs", LOWER),
    "flask_view_us": Figure("Flask: a request of a view with a lock, µs", LOWER),
    "flask_own_us": Figure("Flask: what lock_view adds to the lock: CPU, µs", LOWER),
    "import_ms": Figure("import: CPU above a bare interpreter's, ms", LOWER),
    "client_ms": Figure("import of its client: CPU above a bare interpreter's, ms", LOWER),
    "first_redis_ms": Figure("the first lock of a process on Redis: CPU, ms", LOWER),
    "first_sqlite_ms": Figure("the first lock of a process on SQLite: CPU, ms", LOWER),
    "flask_ms": Figure("import of lockkit_flask: CPU, ms", LOWER),
    "django_ms": Figure("import of lockkit_django: CPU, ms", LOWER),
    "command_ms": Figure("import of the command line: CPU, ms", LOWER),
    "renewal_ms": Figure("10,000 leases: a renewal of all, ms", LOWER),
    "renewal_cpu_ms": Figure("10,000 leases: CPU of the process for a renewal, ms", LOWER),
    "least_left_s": Figure("10,000 leases: the least that was left of 30 s", HIGHER),
    "leases_lost": Figure("10,000 leases: lost", LOWER),
    "lease_bytes": Figure("10,000 leases: memory of each, bytes", LOWER),
    "idle_requests": Figure("500 waiters: requests each and second", LOWER),
    "subscriptions": Figure("500 waiters in 4 processes: subscriptions", LOWER),
    "waiter_bytes": Figure("500 waiters: allocated for each beyond its thread, bytes", LOWER),
    "waiter_resident": Figure("500 waiters: memory of each with its thread, bytes", LOWER),
    "served_per_second": Figure("500 waiters: served/s", HIGHER),
    "out_of_order": Figure("500 waiters: served out of order", LOWER),
    "names_per_second": Figure("100,000 names: taken and released/s", HIGHER),
    "names_kept": Figure("100,000 names: keys and fields left in the store", LOWER),
    "names_bytes": Figure("100,000 names: memory left in the process, bytes a name", LOWER),
    "lost_ns": Figure("lease.lost, ns", LOWER),
    "check_ns": Figure("lease.check(), ns", LOWER),
}

NOT_MEASURED = {("memory://", "per_second"): "one process only"}
"""Why a store does not have a figure."""

IN_README = {
    "redis://": (
        "pair_us",
        "handoff_p50_ms",
        "takeover_p95_ms",
        "wait_max_ms",
        "most_to_least",
        "asyncio_per_second",
        "order_cost",
        "order_replay_cost",
        "flask_cost",
        "django_own_us",
    ),
    "sqlite://": ("pair_us", "handoff_p50_ms"),
    "postgresql://": ("pair_us", "per_second"),
    "mariadb://": ("pair_us", "per_second"),
}
"""The rows that matter to a reader, by store."""
