"""A program that gevent has patched: its threads are greenlets, but not the watchdog."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from five_nodes import five_nodes
from lock_tables import make_table

import lockkit

SOON = 100.0

PATCHED = """
from gevent import monkey
monkey.patch_all()
import sys, threading, time
import gevent
import lockkit

def compute_until_renewed(lease):
    \"\"\"Gives no other greenlet a turn.\"\"\"
    sleep = monkey.get_original("time", "sleep")
    last = lease.remaining()
    while not lease.lost:
        sleep(0.01)  # as if it computed, but others may have the processor
        left = lease.remaining()
        if left > last:
            return True
        last = left
    return False

locks = lockkit.connect(sys.argv[1], ttl=4.5)
"""


LISTED = ["redis", "postgresql", "mariadb", "sqlite", "temporary", "memory"]
SESSIONS = ["advisory", "get_lock"]


@pytest.fixture(params=[*LISTED, *SESSIONS, "redlock"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "redis":
            yield request.getfixturevalue("redis_url")
        case "postgresql":
            yield request.getfixturevalue("lock_table_url")
        case "mariadb":
            make_table(found := request.getfixturevalue("mariadb_url"))
            yield found
        case "advisory":
            yield f"{request.getfixturevalue('postgres_url')}?mode=advisory"
        case "get_lock":
            yield f"{request.getfixturevalue('mariadb_url')}?mode=advisory"
        case "redlock":
            with five_nodes(count=3) as nodes:
                yield nodes.url()
        case "sqlite":
            yield f"sqlite:///{tmp_path / 'locks.sqlite3'}"
        case kind:
            yield {"temporary": "sqlalchemy+sqlite://", "memory": "memory://"}[kind]


def run(program: str, url: str) -> str:
    process = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-W",
            "ignore::ResourceWarning",
            "-c",
            PATCHED + program,
            url,
        ],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert not process.stderr
    return process.stdout


def test_a_lease_is_renewed_while_a_greenlet_computes(url: str) -> None:
    program = """
with locks.lock("first") as lease:
    print(compute_until_renewed(lease))
    lease.extend()
with locks.lock("first") as lease:
    lease.extend()
    print(compute_until_renewed(lease))
    lease.extend()
locks.close()
with locks.lock("after close") as lease:
    print(compute_until_renewed(lease))
"""
    assert run(program, url).split() == ["True"] * 3


def test_greenlets_exclude_one_another_and_wait_for_one_another(url: str) -> None:
    program = """
inside = []

def work(number):
    with locks.lock("one", timeout=60, ttl=60) as lease:
        inside.append(number)
        gevent.sleep(0.001)
        assert inside == [number]
        lease.check()
        inside.clear()
    return 1

greenlets = [gevent.spawn(work, number) for number in range(20)]
gevent.joinall(greenlets, raise_error=True)
print(sum(greenlet.value for greenlet in greenlets))
"""
    assert run(program, url).split() == ["20"]


def test_greenlets_do_not_enter_what_another_has_if_gevent_patches_after_the_import() -> None:
    """As gunicorn does with ``--preload``."""
    program = """
import lockkit
locks = lockkit.connect("memory://")
from gevent import monkey
monkey.patch_all()
import gevent

lock = locks.lock("one", reentrant=True)
with lock, lock:
    print(gevent.spawn(lock.try_acquire).get())
"""
    text = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=SOON)
    assert text.split() == ["None"]


@pytest.mark.parametrize("url", LISTED, indirect=True)
def test_a_greenlet_that_computes_is_told(url: str) -> None:
    program = """
stop = threading.Event()
with locks.lock("lost", ttl=60) as short:
    locks._watchdog.unwatch(short._hold)
lease = locks.lock("lost", ttl=60, on_lost=lambda lease: stop.set()).acquire()
locks.break_("lost", fence=lease.fencing_token)
lease._hold.due = 0
locks._watchdog._hurry()
while not stop.is_set():
    pass
print(lease.lost)
lease.release()
"""
    assert run(program, url).split() == ["True"]


def test_what_is_held_at_the_end_is_released(redis_url: str) -> None:
    program = """
lease = locks.lock("kept", ttl=600).acquire()
import warnings
warnings.simplefilter("ignore")
"""
    run(program, redis_url)
    with lockkit.connect(redis_url).lock("kept", timeout=0).acquire() as lease:
        lease.check()
