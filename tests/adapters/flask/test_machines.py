"""Two gunicorn processes, one database: a double click on both machines is one order."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from flask_project import Order, create_app, db
from places import KIT

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADERS = {"X-User": "alice", "X-Order-ID": "A-1"}


def test_ten_clicks_on_two_machines_are_one_order(tmp_path: Path) -> None:
    """With nothing but files."""
    lock_url = f"sqlite:///{tmp_path / 'locks.sqlite3'}"
    database = f"sqlite:///{tmp_path / 'shop.sqlite3'}"
    app = create_app(SQLALCHEMY_DATABASE_URI=database, LOCKKIT_URL=lock_url)
    with app.app_context():
        db.create_all()
    with ExitStack() as stack:
        ports = [stack.enter_context(gunicorn(database, lock_url, tmp_path)) for _ in range(2)]
        answers = click(ports * 5)
    assert {status for status, _, _ in answers} == {200}
    assert len({body for _, body, _ in answers}) == 1
    assert sum(replayed for _, _, replayed in answers) == 9
    with app.app_context():
        assert db.session.execute(sa.select(sa.func.count()).select_from(Order)).scalar() == 1
    with app.app_context():  # in which no session has a connection any more
        db.engine.dispose()


def click(ports: list[int]) -> list[tuple[int, bytes, bool]]:
    answers: list[tuple[int, bytes, bool]] = []

    def post(port: int) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/slow", data=b"", headers=HEADERS, method="POST"
        )
        try:
            response = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            replayed = "Idempotent-Replayed" in response.headers
            answers.append((response.status, response.read(), replayed))

    threads = [threading.Thread(target=post, args=[port]) for port in ports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@contextmanager
def gunicorn(database: str, lock_url: str, directory: Path) -> Iterator[int]:
    """The port of a running server with five threads."""
    command = [
        sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:0", "--threads", "5",
        "--worker-tmp-dir", str(directory), "--chdir", str(KIT), "--no-control-socket",
        "flask_project:create_app()",
    ]  # fmt: skip
    environment = {**os.environ, "SHOP_DATABASE": database, "LOCKKIT_URL": lock_url}
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        yield _port(server)
    finally:
        server.terminate()
        server.communicate()


def _port(server: subprocess.Popen[str]) -> int:
    assert server.stderr is not None
    port = None
    for line in server.stderr:
        if "Listening at" in line:
            port = int(line.partition("127.0.0.1:")[2].split()[0])
        if "Booting worker" in line and port is not None:
            return port
    raise AssertionError("gunicorn did not start")
