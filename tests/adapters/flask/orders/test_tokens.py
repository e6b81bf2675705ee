"""CSRF tokens of Flask-WTF in answers that are kept: none is stored."""

from __future__ import annotations

import base64
import time
import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

import flask
import pytest
import sqlalchemy as sa
from flask_project import db, put
from itsdangerous import TimestampSigner

from lockkit.orders.rows import TABLE as TABLE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flask import Flask

csrf = import_module("flask_wtf.csrf")  # without types


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.sqlite3'}"


@pytest.fixture(params=["everywhere", "in its form"])
def shop(make_shop: Callable[..., Flask], request: pytest.FixtureRequest) -> Flask:
    """Flask-WTF checks tokens before each view, or in the forms of those that have one."""
    app = make_shop()
    if request.param == "everywhere":
        csrf.CSRFProtect(app)
    else:
        app.before_request(check_form)

    def page() -> str:
        put("sold")
        db.session.commit()
        return f"token {csrf.generate_csrf()} sent {flask.request.form['csrf_token']}"

    app.add_url_rule("/token", view_func=csrf.generate_csrf)
    app.add_url_rule("/page", view_func=page, methods=["POST"])
    return app


def check_form() -> None:
    if flask.request.method != "POST":
        return
    try:
        csrf.validate_csrf(flask.request.form["csrf_token"])
    except ValueError:
        flask.abort(400)


def test_each_asker_gets_a_token_of_its_own(shop: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"X-User": "alice", "X-Order-ID": "A-1"}
    first, later = shop.test_client(), shop.test_client()
    answers = []
    for client in (first, later):
        with monkeypatch.context() as earlier:  # else the view makes the same token
            earlier.setattr(TimestampSigner, "get_timestamp", lambda _: int(time.time()) - 60)
            form = {"csrf_token": client.get("/token").text}
        answers.append(client.post("/page", headers=headers, data=form))
    assert answers[1].headers["Idempotent-Replayed"] == "true"
    _, mine, _, sent = answers[1].text.split()
    assert mine == sent
    assert mine not in answers[0].text
    assert len(set(answers[0].text.split()[1::2])) == 2
    with shop.app_context():
        stored = db.session.scalar(sa.text(f"SELECT body FROM {TABLE_NAME}"))
    for token in answers[0].text.split()[1::2]:
        assert token not in bytes(stored or b"").decode()
    again = {"headers": {**headers, "X-Order-ID": "A-2"}, "data": {"csrf_token": mine}}
    assert later.post("/page", **again).status_code == 200
    assert first.post("/page", **again).status_code == 400


@pytest.mark.parametrize("place", ["X-CSRFToken", "X-CSRF-Token", "cart-csrf_token"])
def test_a_token_that_came_elsewhere_is_not_stored(
    make_shop: Callable[..., Flask], place: str
) -> None:
    """Flask-WTF also looks at these headers, and at the fields of a form with a prefix."""
    shop = make_shop()
    csrf.CSRFProtect(shop)

    def echo() -> str:
        return flask.request.headers.get(place) or flask.request.form[place]

    shop.add_url_rule("/token", view_func=csrf.generate_csrf)
    shop.add_url_rule("/echo", view_func=echo, methods=["POST"])
    client = shop.test_client()
    token, headers = client.get("/token").text, {"X-User": "alice", "X-Order-ID": "A-1"}
    sent: dict[str, Any] = {"headers": {**headers, place: token}}
    if place.startswith("cart"):
        sent = {"headers": headers, "data": {place: token}}
    first, again = (client.post("/echo", **sent) for _ in range(2))
    assert first.text == token
    assert again.headers["Idempotent-Replayed"] == "true"
    with shop.test_request_context(), client.session_transaction() as session:
        flask.session.update(session)
        csrf.validate_csrf(again.text)
    with shop.app_context():
        stored = db.session.scalar(sa.text(f"SELECT body FROM {TABLE_NAME}"))
    assert token not in bytes(stored or b"").decode()


@pytest.mark.parametrize(
    ("name", "place"),
    [("csrf_token", "cart-csrf_token"), ("_csrf", "_csrf"), ("_csrf", "cart-_csrf")],
)
@pytest.mark.parametrize("fields", [{}, {"sku": "1"}])
def test_a_form_with_a_new_token_is_the_same_form(
    make_shop: Callable[..., Flask],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    place: str,
    fields: Any,
) -> None:
    shop = make_shop(WTF_CSRF_FIELD_NAME=name)
    shop.add_url_rule("/token", view_func=csrf.generate_csrf)
    shop.add_url_rule("/sell", view_func=lambda: "sold", methods=["POST"])
    client, headers = shop.test_client(), {"X-User": "alice", "X-Order-ID": "A-1"}
    with monkeypatch.context() as earlier:
        earlier.setattr(TimestampSigner, "get_timestamp", lambda _: int(time.time()) - 60)
        old = client.get("/token").text
    tokens = [old, client.get("/token").text, "of the app"]
    answers = [
        client.post("/sell", headers=headers, data={**fields, place: token}) for token in tokens
    ]
    assert len(set(tokens)) == 3
    assert [answer.status_code for answer in answers] == [200, 200, 422]


def test_a_token_that_is_not_signed_is_not_unpacked(
    make_shop: Callable[..., Flask], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes may be many then."""
    shop, unpacked = make_shop(), []
    shop.add_url_rule("/sell", view_func=lambda: "sold", methods=["POST"])
    monkeypatch.setattr("itsdangerous.url_safe.zlib.decompress", unpacked.append)
    packed = f".{base64.urlsafe_b64encode(zlib.compress(bytes(1000))).decode()}.a.b"
    headers = {"X-User": "alice", "X-Order-ID": "A-1"}
    answer = shop.test_client().post("/sell", headers=headers, data={"csrf_token": packed})
    assert (answer.status_code, unpacked) == (200, [])


@pytest.mark.parametrize("secret", ["s", None])
def test_a_text_that_a_client_calls_a_token_is_not_taken_for_one(
    make_shop: Callable[..., Flask], secret: str | None
) -> None:
    shop = make_shop(SECRET_KEY=secret)
    shop.add_url_rule("/sell", view_func=lambda: "sold", methods=["POST"])
    headers = {"X-User": "alice", "X-Order-ID": "A-1"}
    client = shop.test_client()
    sent: dict[str, Any] = {"headers": {**headers, "X-CSRFToken": "l"}, "data": {"csrf_token": "o"}}
    answers = [client.post("/sell", **sent) for _ in range(2)]
    assert [answer.text for answer in answers] == ["sold", "sold"]
    assert answers[1].headers["Idempotent-Replayed"] == "true"
    assert not any("Set-Cookie" in answer.headers for answer in answers)


def own_page() -> str:
    flask.g.csrf_token = flask.session.setdefault("own", "token-of-the-app")
    return f"token {flask.g.csrf_token}"


def test_a_token_of_the_apps_own_is_a_part_of_the_answer(make_shop: Callable[..., Flask]) -> None:
    """Nobody but the app can make another one."""
    shop = make_shop()
    shop.add_url_rule("/page", view_func=own_page, methods=["POST"])
    headers = {"X-User": "alice", "X-Order-ID": "A-1"}
    answers = [shop.test_client().post("/page", headers=headers) for _ in range(2)]
    assert [answer.text for answer in answers] == ["token token-of-the-app"] * 2
    assert answers[1].headers["Idempotent-Replayed"] == "true"
