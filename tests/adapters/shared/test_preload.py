"""Clients that were made, and used, before the fork of the workers that share a port."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import lockkit
from lockkit.model.clock import now
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

SOON = 60.0
WORKERS = 2
BATCH = 40
AT_ONCE = 8

PRELOADED = """
import json, os, threading, time
import lockkit

locks = lockkit.connect(os.environ["LOCKKIT_URL"], ttl=60, acquire_timeout=60)
kept = locks.lock("of the master").acquire()       # used before the fork, and held all the time

def application(environ, start_response):
    counter = os.environ["COUNTER"]
    with locks.lock("counter") as lease:
        with open(counter) as file:
            number = int(file.read())
        time.sleep(0.005)
        with open(counter, "w") as file:
            file.write(str(number + 1))
        lease.check()
        fence = lease.fencing_token
    document = {"pid": os.getpid(), "master": os.getppid(), "fence": fence}
    document |= {"kept": not kept.lost, "given": kept.release()}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(document).encode()]
"""


@pytest.fixture(params=["redis", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return f"sqlite:///{tmp_path / 'locks.sqlite3'}"


def test_workers_of_a_preloaded_application_exclude_one_another(url: str, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    with gunicorn(url, tmp_path) as port:
        documents = answers_of_all(port)
        assert not any(document["kept"] or document["given"] for document in documents)
        assert int(counter.read_text()) == len(documents)
        assert len({document["fence"] for document in documents}) == len(documents)
        client = lockkit.connect(url)
        assert client.inspect("of the master") is not None  # still the master's, who holds it
        client.close()


def test_no_two_processes_share_a_socket(redis_server: RedisServer, tmp_path: Path) -> None:
    """Each worker has connections of its own to Redis, and the master keeps its."""
    redis_server.flush()
    (tmp_path / "counter").write_text("0")
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        with gunicorn(url, tmp_path) as port:
            documents = answers_of_all(port)
            pids = {document["pid"] for document in documents}
            sockets = [sockets_to(proxy.port, pid) for pid in (*pids, documents[0]["master"])]
            assert all(sockets)
            assert len(set.union(*sockets)) == sum(len(of_one) for of_one in sockets)


def test_a_fork_after_use_of_a_client(url: str) -> None:
    """As uwsgi does it: import, use, fork; without exec, and with waiters in both processes."""
    program = """
import os, sys, threading, time, warnings
import lockkit
warnings.simplefilter("ignore", DeprecationWarning)
locks = lockkit.connect(sys.argv[1], ttl=60, acquire_timeout=60)
with locks.lock("one"):                        # a waiter, so that there is a subscription, too
    waiter = threading.Thread(target=lambda: locks.lock("one").acquire().release())
    waiter.start()
    while locks.inspect("one").waiters == 0:
        time.sleep(0.001)
waiter.join()
kept = locks.lock("kept").acquire()
children = []
for _ in range(4):
    child = os.fork()
    if not child:
        try:
            assert kept.lost and not kept.release()
            assert locks.lock("kept").try_acquire() is None
            for _ in range(20):
                with locks.lock("one") as lease:
                    lease.check()
            os._exit(0)
        finally:
            os._exit(1)
    children.append(child)
for _ in range(20):
    with locks.lock("one") as lease:
        lease.check()
print([os.waitpid(child, 0)[1] for child in children], kept.release())
"""
    process = subprocess.run(
        [sys.executable, "-c", program, url],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert process.stdout == "[0, 0, 0, 0] True\n", process.stderr


def answers_of_all(port: int) -> list[dict[str, Any]]:
    """Requests, many at a time, until each worker has answered one."""
    documents: list[dict[str, Any]] = []
    deadline = now() + SOON
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while len({document["pid"] for document in documents}) < WORKERS:
            assert now() < deadline
            documents += pool.map(ask, [port] * BATCH)
    return documents


def ask(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=SOON) as response:
        document: dict[str, Any] = json.load(response)
        return document


@contextmanager
def gunicorn(url: str, directory: Path) -> Iterator[int]:
    """The port of a server whose workers are forked from a process that has used its client."""
    (directory / "preloaded.py").write_text(PRELOADED)
    command = [
        sys.executable, "-W", "ignore", "-m", "gunicorn", "--preload", "--workers", str(WORKERS),
        "--bind", "127.0.0.1:0", "--worker-tmp-dir", str(directory), "--chdir", str(directory),
        "--no-control-socket", "preloaded:application",
    ]  # fmt: skip
    environment = {**os.environ, "LOCKKIT_URL": url, "COUNTER": str(directory / "counter")}
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        yield port_of(server)
    finally:
        server.terminate()
        server.communicate()


def port_of(server: subprocess.Popen[str]) -> int:
    assert server.stderr is not None
    for line in server.stderr:
        if "Listening at" in line:
            return int(line.partition("127.0.0.1:")[2].split()[0])
    raise AssertionError("gunicorn did not start")


def sockets_to(port: int, pid: int) -> set[str]:
    """The sockets of a process that are connected to this port of this machine, and that it was not
    handed down from this one, as its standard streams can be."""
    there = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[2].partition(":")[2], 16) == port:
            there.add(f"socket:[{fields[9]}]")
    return there & open_files(pid) - open_files(os.getpid())


def open_files(pid: int) -> set[str]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(entry.readlink()))
    return found
