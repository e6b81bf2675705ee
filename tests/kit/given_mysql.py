"""MySQL, which Debian does not have: a server that runs already, see CONTRIBUTING.md."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

URL = os.environ.get("LOCKKIT_TEST_MYSQL_URL")
NOT_OURS = "the server runs already, for others as well: the tests do not stop it"


@contextmanager
def a_database() -> Iterator[str]:
    """The URL of a new one. Meanwhile another session runs a statement with a 4-byte character."""
    assert URL is not None
    name = f"lockkit_{secrets.token_hex(6)}"
    over = threading.Event()

    def speak() -> None:
        with connected() as connection:
            while not over.is_set():
                connection.cursor().execute("select sleep(0.2), '\U0001f512'")

    do(f"CREATE DATABASE {name}")
    with ThreadPoolExecutor(1) as threads:
        speaking = threads.submit(speak)
        try:
            yield urlsplit(URL)._replace(path=f"/{name}").geturl()
        finally:
            over.set()
            speaking.result()
            do(f"DROP DATABASE {name}")


def do(statement: str) -> None:
    with connected() as connection:
        connection.cursor().execute(statement)


def connected() -> Any:
    at = urlsplit(URL or "")
    user, password = unquote(at.username or ""), unquote(at.password or "")
    return pymysql.connect(host=at.hostname, port=at.port or 3306, user=user, password=password)
