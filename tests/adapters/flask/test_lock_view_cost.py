"""What ``@lock_view`` adds to a view that takes the same lock by hand, counted in our own calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from entered import calls_of_ours, is_calm

from lockkit.testing.conformance.base import eventually
from lockkit_flask import lock_view, locks

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Flask

MOST_CALLS = 50


def test_a_locked_view_adds_few_calls_to_its_lock(make_app: Callable[..., Flask]) -> None:
    app = make_app()

    @app.post("/locked/<sku>")
    @lock_view("stock:{sku}")
    def locked(sku: str) -> str:
        return ""

    with app.app_context():
        lock = locks["default"].lock("stock:42")

    @app.post("/by-hand/<sku>")
    def by_hand(sku: str) -> str:
        with lock:
            return ""

    client = app.test_client()
    client.post("/locked/42")
    with app.app_context():
        eventually(lambda: is_calm(locks["default"]))
    calls = {}
    for path in ("/locked/42", "/by-hand/42"):
        calls[path] = calls_of_ours(lambda path=path: client.post(path))  # type: ignore[misc]
    assert calls["/locked/42"] - calls["/by-hand/42"] <= MOST_CALLS, calls
