"""Orders on PostgreSQL: the messages to the server, and what must hold although they are so few."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from flask_project import Order, db, put
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Flask
    from werkzeug.test import TestResponse

pytestmark = pytest.mark.parametrize("database", ["postgresql"], indirect=True)

OF_ONE = {"pool_size": 1, "max_overflow": 0}
MESSAGE = re.compile(r" ms  (?:statement|execute [^:]*): (.*)", re.DOTALL)


@pytest.fixture
def shop(make_shop: Callable[..., Flask]) -> Flask:
    orders = {"ORDER_ID": ["header:X-Order-ID"], "PATHS": ["^/order"]}
    return make_shop(LOCKKIT_ORDERS=orders, SQLALCHEMY_ENGINE_OPTIONS=OF_ONE)


def add(app: Flask, *views: Callable[[], Any]) -> None:
    for view in views:
        for path in ("order", "bare"):
            name = f"{path}/{view.__name__}"
            app.add_url_rule(f"/{name}", name, view, methods=["POST"])
    app.add_url_rule("/order", view_func=lambda: "nothing", methods=["POST"])
    post(app, "/order", "warm")  # the first one looks for the table of an earlier release


def post(app: Flask, path: str, order_id: str = "A-1") -> TestResponse:
    headers = {"X-User": "alice", "X-Order-ID": order_id}
    return app.test_client().post(path, headers=headers)


def names(app: Flask) -> list[str]:
    with app.app_context():
        return sorted(db.session.scalars(sa.select(Order.name)))


def said(app: Flask, path: str, order_id: str = "A-1") -> list[str]:
    """The messages that a request sends to the server: that tells how long each took."""
    heard: list[str] = []

    def note(notice: Any) -> None:
        heard.extend(MESSAGE.findall(notice.message_primary))

    with app.app_context(), db.engine.connect() as connection:
        connection.exec_driver_sql("SET client_min_messages = log")
        connection.exec_driver_sql("SET log_min_duration_statement = 0")
        connection.commit()
        driver: Any = connection.connection.driver_connection
    driver.add_notice_handler(note)
    assert post(app, path, order_id).status_code == 201
    driver.remove_notice_handler(note)
    return heard


def buys() -> tuple[str, int]:
    put("bought")
    db.session.commit()
    return "sold", 201


def test_a_first_order_is_as_many_messages_as_its_bare_view(shop: Flask) -> None:
    add(shop, buys)
    words = [each.split()[0] for each in said(shop, "/bare/buys")]
    assert words == ["BEGIN", "INSERT", "COMMIT"]
    begin, sale, end = said(shop, "/order/buys")
    assert begin.startswith("BEGIN;INSERT INTO lockkit_order")
    assert begin.endswith(";SAVEPOINT sa_savepoint_1")
    assert sale.startswith("INSERT")
    assert end.startswith("INSERT INTO lockkit_order")
    assert end.endswith(";COMMIT")


def buys_twice() -> tuple[str, int]:
    put("first")
    db.session.commit()
    put("second")
    db.session.commit()
    put("dropped")
    db.session.flush()
    db.session.rollback()
    return "sold", 201


def test_what_a_view_commits_later_is_in_a_savepoint_of_its_own(shop: Flask) -> None:
    add(shop, buys_twice)
    words = [each.split(";")[0].split()[:3] for each in said(shop, "/order/buys_twice")]
    marks = [" ".join(each) for each in words if each[0] in {"SAVEPOINT", "RELEASE", "ROLLBACK"}]
    assert marks == [
        "SAVEPOINT sa_savepoint_2",
        "RELEASE SAVEPOINT sa_savepoint_2",
        "SAVEPOINT sa_savepoint_3",
        "ROLLBACK TO SAVEPOINT",
    ]
    assert names(shop) == ["first", "second"]
    assert "Idempotent-Replayed" in post(shop, "/order/buys_twice").headers


@pytest.mark.parametrize("sql", ["SELECT 1 / 0", "ROLLBACK"], ids=["failed", "ended"])
def test_a_commit_of_what_has_failed_or_ended_is_an_error_at_once(shop: Flask, sql: str) -> None:
    """The view must not go on as if it had committed."""
    went_on = []

    def hides() -> tuple[str, int]:
        put("bought")
        db.session.flush()
        with suppress(SQLAlchemyError):
            db.session.execute(sa.text(sql))
        db.session.commit()
        went_on.append("mail")
        return "sold", 201

    shop.config["PROPAGATE_EXCEPTIONS"] = False
    add(shop, hides)
    assert post(shop, "/order/hides").status_code == 500
    assert (went_on, names(shop)) == ([], [])


def test_a_view_that_reads_and_never_commits_is_an_order(shop: Flask) -> None:
    def reads() -> tuple[str, int]:
        return str(db.session.scalar(sa.select(sa.func.count()).select_from(Order))), 201

    add(shop, reads)
    begin, *_, end = said(shop, "/order/reads")
    assert begin.startswith("BEGIN;INSERT INTO lockkit_order")
    assert end.endswith(";COMMIT")
    assert "Idempotent-Replayed" in post(shop, "/order/reads").headers


def test_an_inner_savepoint_may_be_followed_by_a_cursor_of_the_server(shop: Flask) -> None:
    def streams() -> tuple[str, int]:
        with db.session.begin_nested():
            put("bought")
        found = db.session.scalars(sa.select(Order.name).execution_options(yield_per=9)).all()
        db.session.commit()
        return str(found), 201

    add(shop, streams)
    assert post(shop, "/order/streams").text == "['bought']"
    assert names(shop) == ["bought"]


def test_an_inner_savepoint_may_be_followed_by_an_error_that_is_rolled_back(shop: Flask) -> None:
    """An error of the driver itself, of which the session does not know."""

    def fails() -> tuple[str, int]:
        with db.session.begin_nested():
            put("lost")
        cursor = db.session.connection().connection.cursor()
        with pytest.raises(Exception, match="division by zero"):
            cursor.execute("SELECT 1 / 0")
        db.session.rollback()
        put("bought")
        db.session.commit()
        return "sold", 201

    add(shop, fails)
    assert post(shop, "/order/fails").status_code == 201
    assert names(shop) == ["bought"]


def test_a_listener_may_add_a_comment_to_each_statement(shop: Flask) -> None:
    """As tracers do."""

    def reads_again() -> tuple[str, int]:
        put("bought")
        db.session.commit()
        put("dropped")
        db.session.flush()
        db.session.rollback()
        return str(db.session.scalars(sa.select(Order.name)).all()), 201

    add(shop, reads_again)
    with shop.app_context():

        @sa.event.listens_for(db.engine, "before_cursor_execute", retval=True)
        def add_a_comment(_: Any, __: Any, sql: str, values: Any, *___: Any) -> tuple[str, Any]:
            return f"{sql} -- traced", values

    answer = post(shop, "/order/reads_again")
    assert (answer.status_code, answer.text, names(shop)) == (201, "['bought']", ["bought"])


def test_a_view_that_ends_the_transaction_and_goes_on_saves_nothing(shop: Flask) -> None:
    def ends_it() -> tuple[str, int]:
        put("bought")
        db.session.execute(sa.text("ROLLBACK"))
        put("sold")
        db.session.commit()
        return "sold", 201

    shop.config["PROPAGATE_EXCEPTIONS"] = False
    add(shop, ends_it)
    assert post(shop, "/order/ends_it").status_code == 503
    assert names(shop) == []
