"""Under a real ASGI server many requests wait, and none of them delays the one that releases."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from places import KIT

REQUESTS = 50


@contextmanager
def uvicorn(**environment: str) -> Iterator[int]:
    """The counter, served. Its port takes connections before the server does, so nobody waits."""
    with socket.create_server(("127.0.0.1", 0), backlog=2 * REQUESTS) as listener:
        descriptor = listener.fileno()
        command = ["uvicorn", "django_project.asgi:application", "--fd", str(descriptor)]
        process = subprocess.Popen(
            [sys.executable, "-m", *command, "--log-level", "error", "--lifespan", "off"],
            env={**os.environ, "PYTHONPATH": str(KIT), **environment},
            pass_fds=[descriptor],
        )
        try:
            yield listener.getsockname()[1]
        finally:
            process.terminate()
            process.wait(60)


def get(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200
        return int(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/sync", "/async"])
def test_fifty_waiters(path: str) -> None:
    with uvicorn() as port, ThreadPoolExecutor(REQUESTS) as clients:
        counts = sorted(clients.map(lambda _: get(port, path), range(REQUESTS)))
    assert counts == list(range(1, REQUESTS + 1))


def test_the_counter_loses_updates_without_the_lock() -> None:
    with uvicorn(COUNTER="unlocked") as port, ThreadPoolExecutor(REQUESTS) as clients:
        counts = list(clients.map(lambda _: get(port, "/async"), range(REQUESTS)))
    assert max(counts) < REQUESTS
