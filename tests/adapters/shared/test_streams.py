"""A lock that a streaming body holds, on real servers, with a client that leaves within it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lockkit
from lockkit.testing.conformance.base import eventually

GUNICORN = "gunicorn --bind 127.0.0.1:0 --threads 4 --no-control-socket streaming:{}"
UVICORN = "uvicorn --host 127.0.0.1 --port 0 --lifespan off streaming:{}"

STREAMING = """
import asyncio, os, time

def rows(lease):
    with lease:
        while True:
            lease.check()
            yield b"row" * 1000
            time.sleep(0.01)

def flask():
    from flask import Flask, Response
    from lockkit_flask import LockKit, locks
    app = Flask("streaming", instance_path=os.getcwd())
    LockKit(app)

    @app.get("/")
    def export():
        lease = locks["default"].lock("export", timeout=0).acquire()
        return Response(rows(lease))

    return app

def configure():
    import django
    from django.conf import settings
    settings.configure(
        SECRET_KEY="x", ALLOWED_HOSTS=["*"], ROOT_URLCONF="streaming",
        INSTALLED_APPS=["django.contrib.contenttypes", "lockkit_django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        LOCKKIT={"default": os.environ["LOCKKIT_URL"]},
    )
    django.setup()

def wsgi():
    configure()
    from django.core.wsgi import get_wsgi_application
    from django.http import StreamingHttpResponse
    from django.urls import path
    from lockkit_django import locks

    def export(request):
        lease = locks["default"].lock("export", timeout=0).acquire()
        return StreamingHttpResponse(rows(lease))

    urlpatterns.append(path("", export))
    return get_wsgi_application()

def asgi():
    configure()
    from django.core.asgi import get_asgi_application
    from django.http import StreamingHttpResponse
    from django.urls import path
    from lockkit_django import alocks

    async def arows(lease):
        async with lease:
            while True:
                lease.check()
                yield b"row" * 1000
                await asyncio.sleep(0.01)

    async def export(request):
        lease = await alocks["default"].lock("export", timeout=0).acquire()
        return StreamingHttpResponse(arows(lease))

    urlpatterns.append(path("", export))
    return get_asgi_application()

urlpatterns = []
"""
SERVERS = {
    "flask": GUNICORN.format("flask()"),
    "django-wsgi": GUNICORN.format("wsgi()"),
    "django-asgi": UVICORN.format("asgi") + " --factory",
}


@pytest.mark.parametrize("server", SERVERS)
def test_a_client_that_leaves_within_the_body(server: str, redis_url: str, tmp_path: Path) -> None:
    client = lockkit.connect(redis_url)
    with serving(SERVERS[server], redis_url, tmp_path) as port:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as browser:
                browser.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                received = b""
                while b"rowrow" not in received:
                    received += browser.recv(4096)
                assert client.inspect("export") is not None
            eventually(lambda: client.inspect("export") is None)
    client.close()


@contextmanager
def serving(command: str, url: str, directory: Path) -> Iterator[int]:
    """The port of a server that is up."""
    (directory / "streaming.py").write_text(STREAMING)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", *command.split()],
        env={**os.environ, "LOCKKIT_URL": url, "PYTHONPATH": str(directory)},
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield port_of(process)
    finally:
        process.terminate()
        process.communicate()


def port_of(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    log = []
    for line in process.stderr:
        log.append(line)
        if "http://127.0.0.1:" in line:
            return int(line.partition("127.0.0.1:")[2].split()[0])
    raise AssertionError("".join(log))
