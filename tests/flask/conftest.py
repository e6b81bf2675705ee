"""Apps for the tests: each with locks of its own, and a shop on a real database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from flask import Flask

from lockkit_flask import LockKit
from lockkit_flask.extension import app_locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def make_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Flask]]:
    """``make_app(LOCKKIT_VIEWS={...})``: an app whose instance folder is empty, with LockKit."""
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    apps: list[Flask] = []

    def make(**config: object) -> Flask:
        app = Flask(f"app{len(apps)}", instance_path=str(tmp_path / "instance"))
        app.config.update({"LOCKKIT_URL": "memory://", "SECRET_KEY": "s", **config})
        LockKit(app)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app_locks(app).close()
