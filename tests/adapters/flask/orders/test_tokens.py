"""CSRF tokens of Flask-WTF in answers that are kept: none is stored."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from flask import Flask, request
from flask_project import db, put

from lockkit.orders.rows import TABLE as TABLE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

csrf = import_module("flask_wtf.csrf")  # without types


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.sqlite3'}"


@pytest.fixture
def shop(make_shop: Callable[..., Flask]) -> Flask:
    app = make_shop()
    csrf.CSRFProtect(app)

    def page() -> str:
        put("sold")
        db.session.commit()
        return f"token {csrf.generate_csrf()} sent {request.form['csrf_token']}"

    app.add_url_rule("/token", view_func=csrf.generate_csrf)
    app.add_url_rule("/page", view_func=page, methods=["POST"])
    return app


def test_each_asker_gets_a_token_of_its_own(shop: Flask) -> None:
    headers = {"X-User": "alice", "X-Order-ID": "A-1"}
    first, later = shop.test_client(), shop.test_client()
    answers = []
    for client in (first, later):
        form = {"csrf_token": client.get("/token").text}
        answers.append(client.post("/page", headers=headers, data=form))
    assert answers[1].headers["Idempotent-Replayed"] == "true"
    _, mine, _, sent = answers[1].text.split()
    assert mine == sent
    assert mine not in answers[0].text
    with shop.app_context():
        stored = db.session.scalar(sa.text(f"SELECT body FROM {TABLE_NAME}"))
    for token in answers[0].text.split()[1::2]:
        assert token not in bytes(stored or b"").decode()
    again = {"headers": {**headers, "X-Order-ID": "A-2"}, "data": {"csrf_token": mine}}
    assert later.post("/page", **again).status_code == 200
    assert first.post("/page", **again).status_code == 400
