"""A refusal keeps what its view committed, as without orders, so that no header can undo it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from flask import Flask, Response, abort, redirect, request
from flask_project import Order, Refused, db, put
from werkzeug.exceptions import Forbidden

from lockkit.orders.rows import TABLE as TABLE_NAME
from lockkit_flask import idempotent, locks

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask.typing import ResponseReturnValue

STATUSES = [401, 403, 408, 409, 423, 425, 429]


def guess() -> None:
    """One that counts, one that the view undoes, and one that it forgets to commit."""
    put("guess")
    db.session.commit()
    put("undone")
    db.session.flush()
    db.session.rollback()
    put("forgotten")
    db.session.flush()


def status() -> int:
    return int(request.args.get("status", "403"))


def returns() -> ResponseReturnValue:
    guess()
    return "wrong", status()


def aborts() -> ResponseReturnValue:
    guess()
    abort(status() if status() != 425 else Response("wrong", 425))


def forbidden() -> ResponseReturnValue:
    guess()
    raise Forbidden("not you")


async def coroutine() -> ResponseReturnValue:
    guess()
    abort(429)


def breaks() -> ResponseReturnValue:
    """Of which an error handler makes a refusal."""
    guess()
    raise Refused("busy", 409)


VIEWS = [returns, aborts, forbidden, coroutine, breaks]


@pytest.fixture
def shop(make_shop: Callable[..., Flask]) -> Flask:
    app = make_shop()
    for view in VIEWS:
        app.add_url_rule(f"/bare-{view.__name__}", f"{view}", view, methods=["POST"])
        inside = f"/inside-{view.__name__}"
        app.add_url_rule(inside, inside, idempotent(view), methods=["POST"])
    return app


def send(app: Flask, path: str, order_id: str | None) -> Any:
    headers = {"Authorization": "x"}  # nobody has verified it
    if order_id is not None:
        headers["X-Order-ID"] = order_id
    return app.test_client().post(path, headers=headers)


def saved(app: Flask) -> list[str]:
    with app.app_context():
        return list(db.session.scalars(sa.select(Order.name).order_by(Order.name)))


def records(app: Flask) -> int:
    with app.app_context():
        return int(db.session.scalar(sa.text(f"SELECT count(*) FROM {TABLE_NAME}")) or 0)


@pytest.mark.parametrize("place", ["bare", "inside"])
@pytest.mark.parametrize(
    "view",
    [
        *(f"{view}?status={status}" for view in ("returns", "aborts") for status in STATUSES),
        "forbidden",
        "coroutine",
    ],
)
def test_a_refusal_keeps_what_it_keeps_without_lockkit(shop: Flask, view: str, place: str) -> None:
    without = send(shop, f"/bare-{view}", None)
    assert saved(shop) == ["guess"]
    refused = send(shop, f"/{place}-{view}", "A-1")
    assert (refused.status_code, refused.data) == (without.status_code, without.data)
    assert (saved(shop), records(shop)) == (["guess"] * 2, 0)
    with shop.app_context():
        assert not list(locks["default"].holders())


@pytest.mark.parametrize("answer", [("go away", 404), ("please log in", 200), redirect("/login")])
def test_a_refusal_is_one_whatever_page_is_made_of_it(shop: Flask, answer: Any) -> None:
    shop.register_error_handler(403, lambda _: answer)
    for number in (1, 2):
        refused = send(shop, "/bare-aborts", "A-1")
        assert "Idempotent-Replayed" not in refused.headers
        assert (saved(shop), records(shop)) == (["guess"] * number, 0)


def test_what_an_error_handler_commits_after_a_refusal_stays_too(shop: Flask) -> None:
    def note(error: Exception) -> ResponseReturnValue:
        db.session.rollback()
        put("noted")
        db.session.commit()
        return "no", 403

    shop.register_error_handler(403, note)
    send(shop, "/bare-aborts", "A-1")
    assert saved(shop) == ["guess", "noted"]


def test_a_refusal_whose_error_handler_fails_is_rolled_back(shop: Flask) -> None:
    def fail(error: Exception) -> ResponseReturnValue:
        raise KeyError

    shop.register_error_handler(403, fail)
    assert send(shop, "/bare-aborts", "A-1").status_code == 500
    assert (saved(shop), records(shop)) == ([], 0)


@pytest.mark.parametrize("place", ["bare", "inside"])
def test_other_exceptions_roll_back_whatever_is_made_of_them(shop: Flask, place: str) -> None:
    assert send(shop, f"/{place}-breaks", "A-1").status_code == 409
    assert (saved(shop), records(shop)) == ([], 0)


def test_a_refused_order_and_what_its_view_committed_are_one_commit(
    make_shop: Callable[..., Flask],
) -> None:
    """In a second one, a crash in between would leave a record that refuses every retry."""
    app = make_shop()
    app.add_url_rule("/guess", view_func=returns, methods=["POST"])
    commits: list[sa.Connection] = []
    with app.app_context():
        sa.event.listen(db.engine, "commit", commits.append)
    answer = app.test_client().post("/guess", headers={"X-User": "alice", "X-Order-ID": "A-1"})
    assert (answer.status_code, len(commits)) == (403, 1)


def deducts() -> ResponseReturnValue:
    with locks["default"].lock("stock", timeout=0, until="commit"):
        put("sold")
        db.session.commit()
        return "sold", 201


def test_what_is_said_of_a_busy_lock_is_never_repeated(make_shop: Callable[..., Flask]) -> None:
    """Not even if its status is one that orders store."""
    app = make_shop(LOCKKIT_VIEWS={"BUSY_STATUS": 422})
    app.add_url_rule("/sell", view_func=deducts, methods=["POST"])
    with app.app_context(), locks["default"].lock("stock"):
        refused = [send(app, "/sell", "A-1") for _ in range(2)]
    assert [each.status_code for each in refused] == [422, 422]
    assert "Idempotent-Replayed" not in refused[1].headers
    assert (send(app, "/sell", "A-1").status_code, saved(app)) == (201, ["sold"])
