"""Where the command looks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lockkit
from lockkit.leases.client import LockClient


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.sqlite3"


@pytest.fixture(params=["memory", "sqlite", "redis"])
def client(request: pytest.FixtureRequest) -> Iterator[LockClient]:
    found = lockkit.connect(
        "memory://"
        if request.param == "memory"
        else request.getfixturevalue("url" if request.param == "sqlite" else "redis_url")
    )
    yield found
    found.close()
