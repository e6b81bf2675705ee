"""``lockkit_flask.locked``: tasks and commands hold the same locks as views."""

from __future__ import annotations

import asyncio

import pytest
from flask import Flask

from lockkit.model.errors import LockHeld
from lockkit_flask import LockKit, locked, locks


@locked("stock:{sku}", timeout=0)
def count(sku: str) -> list[str]:
    return [info.name for info in locks["default"].holders()]


@locked("stock:{sku}", timeout=0)
async def acount(sku: str) -> list[str]:
    return [info.name for info in locks["default"].holders()]


def test_a_task_holds_the_lock_of_the_current_app() -> None:
    app = Flask("tasks")
    app.config["LOCKKIT_URL"] = "memory://tasks"
    LockKit(app)
    with app.app_context():
        assert count("A:1") == asyncio.run(acount("A:1")) == ["stock:A%3A1"]
        with locks["default"].lock("stock:A%3A1").acquire(), pytest.raises(LockHeld):
            count("A:1")


def test_without_an_app_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="application context"):
        count("a")
