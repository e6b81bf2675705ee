"""Under a real ASGI server: fifty waiting requests, and the one that lets them go."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from places import KIT

from lockkit.testing.conformance.base import at_least_once, eventually
from lockkit.testing.servers.base import free_port

WAITERS = 50


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/locks.sqlite3"}[request.param]


@contextmanager
def serving(url: str) -> Iterator[int]:
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "lock_app:app", f"--port={port}",
         "--log-level=warning"],
        env={**os.environ, "LOCK_APP_URL": url, "PYTHONPATH": str(KIT)},
    )  # fmt: skip
    try:
        eventually(lambda: server.poll() is not None or _answers(port))
        yield port
    finally:
        server.terminate()
        server.wait(20)


def _answers(port: int) -> bool:
    try:
        return get(port, "/order") == ""
    except OSError:
        return False


def get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=150)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_fifty_waiting_requests_and_one_that_releases(url: str) -> None:
    with serving(url) as port, ThreadPoolExecutor(WAITERS) as threads:

        def in_order() -> bool:
            assert get(port, "/hold") == "held"
            waiting = []
            for number in range(WAITERS):
                waiting.append(threads.submit(get, port, f"/wait?{number}"))
                eventually(lambda expected=number + 1: get(port, "/waiters") == str(expected))  # type: ignore[misc]
            assert get(port, "/release") == "True"
            assert [future.result() for future in waiting] == [str(n) for n in range(WAITERS)]
            assert get(port, "/waiters") == "0"
            return get(port, "/order") == ",".join(map(str, range(WAITERS)))

        at_least_once(in_order)
