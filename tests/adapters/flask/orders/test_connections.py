"""An order takes one connection only, and the view's statements are on it."""

from __future__ import annotations

import sqlite3
from contextlib import closing, nullcontext, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from flask import Flask, abort, current_app, redirect, request, request_finished
from flask_project import Order, db, put
from flask_sqlalchemy import SQLAlchemy
from flask_sqlalchemy.session import Session
from jinja2 import DictLoader

from lockkit.model.errors import ConfigurationError, LeaseLost
from lockkit.orders.rows import TABLE as TABLE_NAME
from lockkit_flask import (
    LockKit,
    current_order,
    idempotent,
    lock_view,
    locks,
    new_order_id,
    on_commit,
)
from lockkit_flask.operate.checks import every_finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flask.typing import ResponseReturnValue
    from werkzeug.test import TestResponse

A_1 = {"X-User": "alice", "X-Order-ID": "A-1"}
POOL_OF_ONE = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 1}

on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@pytest.fixture
def shop(make_shop: Callable[..., Flask]) -> Flask:
    return make_shop()


@pytest.fixture
def small_shop(make_shop: Callable[..., Flask]) -> Flask:
    return make_shop(SQLALCHEMY_ENGINE_OPTIONS=POOL_OF_ONE)


def post(app: Flask, path: str, **headers: str) -> TestResponse:
    return app.test_client().post(path, headers={**A_1, **headers})


def count(app: Flask, table: str = "order") -> int:
    with app.app_context():
        query = sa.select(sa.func.count()).select_from(db.metadata.tables[table])
        return int(db.session.execute(query).scalar_one())


def replayed(answer: TestResponse) -> bool:
    return "Idempotent-Replayed" in answer.headers


# A pool that has no second connection


def handles(_: object) -> ResponseReturnValue:
    return "no", 410


def reads(_: object) -> ResponseReturnValue:
    db.session.execute(sa.select(Order)).all()
    return "no", 410


def writes(_: object) -> ResponseReturnValue:
    put("refused")
    db.session.commit()
    return "no", 410


def does_not_commit(_: object) -> ResponseReturnValue:
    put("refused")
    db.session.flush()
    return "no", 410


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_commit_that_fails_leaves_no_transaction_in_the_pool(
    make_shop: Callable[..., Flask],
) -> None:
    """It would keep all others from writing, and be committed with the next order."""
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"connect_args": {"timeout": 0.01}})
    with shop.app_context():
        file = db.engine.url.database
    assert file is not None
    with closing(sqlite3.connect(file, timeout=0.01, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute('SELECT * FROM "order"').fetchall()  # who reads lets nobody commit
        refused = post(shop, "/one")
        other.execute("ROLLBACK")
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    assert (refused.status_code, refused.json["code"]) == (503, "order-not-saved")
    assert count(shop) == 0
    assert (post(shop, "/one").status_code, count(shop)) == (201, 1)


@on_postgresql
@pytest.mark.parametrize("handler", [handles, reads, writes, does_not_commit])
def test_a_refusal_takes_one_connection(small_shop: Flask, handler: Any) -> None:
    """Else as many at once as the pool has connections would wait for one another."""
    small_shop.register_error_handler(410, handler)
    answers = [post(small_shop, "/aborts") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [410, 410]
    assert [replayed(answer) for answer in answers] == [False, True]
    assert count(small_shop) == (handler is writes)


@on_postgresql
def test_a_failure_takes_one_connection(small_shop: Flask) -> None:
    """An error page that says who is logged in, for instance."""
    small_shop.config["PROPAGATE_EXCEPTIONS"] = False
    small_shop.register_error_handler(500, lambda error: (reads(error)[0], 500))
    small_shop.after_request(lambda response: reads(response) and response)
    assert post(small_shop, "/fails").text == "no"
    assert (count(small_shop), count(small_shop, TABLE_NAME)) == (0, 0)


@on_postgresql
@pytest.mark.parametrize("nested", [False, True])
def test_a_bind_that_is_named_for_a_connection_joins_the_order(shop: Flask, nested: bool) -> None:
    """Else its changes would be committed before the order, and again by each repeat."""
    fails = [True, False]

    def buy() -> ResponseReturnValue:
        with db.session.begin_nested() if nested else nullcontext():
            connection = db.session.connection(bind_arguments={"bind": db.engine})
            connection.execute(sa.insert(Order).values(name="bought"))
        db.session.commit()
        return ("failed", 500) if fails.pop(0) else ("bought", 201)

    shop.add_url_rule("/buy", view_func=buy, methods=["POST"])
    assert [post(shop, "/buy").status_code for _ in range(2)] == [500, 201]
    assert count(shop) == 1


# A connection in the place of the engine, as tests have it that roll back at their end


@pytest.fixture
def joined(shop: Flask) -> Iterator[Flask]:
    with shop.app_context():
        engines = db.engines
    engine = engines[None]
    shop.testing = True
    with engine.connect() as connection:
        connection.begin()
        engines[None] = connection  # type: ignore[assignment]
        yield shop
        engines[None] = engine


def test_an_order_on_a_connection_of_a_test_is_told_to_have_the_engine(joined: Flask) -> None:
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="leave the engine there"):
            post(joined, "/one")
    with joined.app_context():
        assert not list(locks["default"].holders())


def test_a_lock_on_a_connection_of_a_test_is_as_any(joined: Flask) -> None:
    def sell() -> ResponseReturnValue:
        put("sold")
        db.session.commit()
        return "ok"

    joined.add_url_rule(
        "/sell", view_func=idempotent.exempt(lock_view("a")(sell)), methods=["POST"]
    )
    assert [post(joined, "/sell").status_code for _ in range(2)] == [200, 200]
    assert count(joined) == 2


# What is set for one transaction only


def tenant() -> str:
    return str(db.session.scalar(sa.text("SELECT current_setting('shop.tenant', true)")))


def set_tenant(_: object = None, __: object = None, connection: Any = None) -> None:
    (connection or db.session).execute(sa.text("SELECT set_config('shop.tenant', 'a', true)"))


@on_postgresql
def test_what_a_hook_sets_for_its_transaction_is_set_again_by_a_listener_of_the_session(
    make_shop: Callable[..., Flask],
) -> None:
    shop = make_shop()
    shop.before_request(set_tenant)

    def read() -> str:
        before = tenant()
        db.session.rollback()
        return f"{before} {tenant()}"

    shop.add_url_rule("/order", view_func=read, methods=["POST"])
    view = idempotent.exempt(lock_view("a")(read))
    shop.add_url_rule("/lock", "lock", view_func=view, methods=["POST"])
    gone = [post(shop, path).text for path in ("/order", "/lock")]
    assert not any("a" in text for text in gone)
    sa.event.listen(db.session, "after_begin", set_tenant)
    try:
        repeated = {**A_1, "X-Order-ID": "A-2"}
        found = {post(shop, path, **repeated).text for path in ("/order", "/lock")}
    finally:
        sa.event.remove(db.session, "after_begin", set_tenant)
    assert found == {"a a"}


# A connection that dies at the end


@on_postgresql
def test_the_page_that_tells_of_a_dead_connection_may_ask_the_database(shop: Flask) -> None:
    def buy() -> ResponseReturnValue:
        put("bought")
        db.session.commit()
        return str(db.session.scalar(sa.text("SELECT pg_backend_pid()"))), 201

    def end(answer: Any) -> Any:
        with db.engine.connect() as other:
            other.execute(sa.text(f"SELECT pg_terminate_backend({answer.get_data(True)}, 5000)"))
        return answer

    shop.add_url_rule("/buy", view_func=buy, methods=["POST"])
    shop.after_request(end)
    shop.context_processor(
        lambda: {"orders": db.session.scalar(sa.select(sa.func.count(Order.id)))}
    )
    page = {"lockkit/refusal.html": "{{ refusal.code }} {{ orders }}"}
    shop.jinja_env.loader = DictLoader(page)
    refused = post(shop, "/buy", Accept="text/html")
    assert (refused.status_code, refused.text) == (503, "order-outcome-unknown 0")
    assert "Retry-After" in refused.headers


# What the view has committed


def loses_its_lease() -> None:
    (lease,) = current_order.leases
    assert locks["default"].break_(lease.name, fence=lease.fencing_token)
    with suppress(LeaseLost):
        lease.extend()


def rolls_back() -> None:
    put("undone")
    db.session.flush()
    db.session.rollback()


@on_postgresql
@pytest.mark.parametrize(
    ("then", "status", "seen"),
    [
        (rolls_back, 201, [1]),
        (lambda: abort(403), 403, [1]),
        (lambda: abort(404), 404, []),
        (loses_its_lease, 503, []),
    ],
)
def test_on_commit_is_called_when_others_see_the_order_and_only_then(
    small_shop: Flask, then: Callable[[], None], status: int, seen: list[int]
) -> None:
    """The pool has one connection: the order's has been given back."""
    found: list[int] = []

    def buy() -> ResponseReturnValue:
        put("bought")
        db.session.commit()
        on_commit(lambda: on_commit(lambda: found.append(count(small_shop))))
        then()
        return "bought", 201

    small_shop.add_url_rule("/buy", view_func=buy, methods=["POST"])
    assert post(small_shop, "/buy").status_code == status
    assert found == seen


@pytest.mark.parametrize(
    ("path", "seen"), [("/one", [1, 1]), ("/fails", []), ("/aborts", []), ("/refuses", [])]
)
def test_on_commit_after_the_order_calls_at_once_if_that_is_saved(
    shop: Flask, path: str, seen: list[int]
) -> None:
    found: list[int] = []

    def registers(_: object, **__: object) -> None:
        on_commit(lambda: found.append(count(shop)))

    shop.config["PROPAGATE_EXCEPTIONS"] = False
    shop.add_url_rule("/refuses", view_func=lambda: ("no", 409), methods=["POST"])
    shop.register_error_handler(410, lambda error: registers(error) or ("gone", 410))
    shop.teardown_request(registers)
    with request_finished.connected_to(registers, shop):
        post(shop, path)
    assert found == seen


def test_on_commit_during_the_commit_is_called_after_it(small_shop: Flask) -> None:
    found: list[int] = []
    with small_shop.app_context():

        @sa.event.listens_for(db.engine, "commit")
        def commits(_: object) -> None:
            if request:
                on_commit(lambda: found.append(count(small_shop)))

    assert post(small_shop, "/one").status_code == 201
    assert found == [1]


def test_on_commit_is_not_called_for_a_refusal_that_has_saved_nothing(shop: Flask) -> None:
    found: list[str] = []

    def buy() -> ResponseReturnValue:
        put("undone")
        on_commit(lambda: found.append("called"))
        return "sold out", 409

    shop.add_url_rule("/buy", view_func=buy, methods=["POST"])
    assert post(shop, "/buy").status_code == 409
    assert (found, count(shop)) == ([], 0)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_refusal_after_sql_that_commits_is_told(
    shop: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    """The record stays as one that runs: repeats are told that the end is not known."""

    def buy() -> ResponseReturnValue:
        db.session.execute(sa.text("SELECT 1"))
        db.session.connection().connection.driver_connection.executescript("SELECT 1")
        return "sold out", 409

    shop.add_url_rule("/buy", view_func=buy, methods=["POST"])
    assert post(shop, "/buy").text == "sold out"
    assert "its transaction has ended before it" in caplog.text
    assert "order-orphaned" in post(shop, "/buy").text


of_an_ended_savepoint = pytest.mark.filterwarnings("ignore:nested transaction already")


def ends_by(way: str) -> None:
    connection = db.session.connection()
    if way == "transaction":
        connection = connection.get_transaction()
    connection.commit() if way == "commit" else connection.rollback()


@of_an_ended_savepoint
@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("way", ["rollback", "transaction", "commit"])
def test_a_view_that_ends_the_orders_transaction_saves_nothing_more(shop: Flask, way: str) -> None:
    """The session would begin another one, and its commit() would be a real COMMIT."""

    def buy() -> ResponseReturnValue:
        ends_by(way)
        db.session.rollback()
        put("bought")
        db.session.commit()
        return "bought", 201

    shop.config["PROPAGATE_EXCEPTIONS"] = False
    shop.add_url_rule("/buy", view_func=buy, methods=["POST"])
    codes = [post(shop, "/buy").json["code"] for _ in range(2)]
    assert codes == ["order-not-saved", "order-orphaned" if way == "commit" else "order-not-saved"]
    assert count(shop) == 0


@on_postgresql
@of_an_ended_savepoint
@pytest.mark.parametrize(("status", "answered"), [(201, 503), (409, 409)])
def test_a_view_that_has_ended_the_orders_transaction_may_refuse_and_has_not_ordered(
    shop: Flask, status: int, answered: int
) -> None:
    def buy() -> ResponseReturnValue:
        ends_by("rollback")
        return "sold out", status

    shop.add_url_rule("/buy", view_func=buy, methods=["POST"])
    assert [post(shop, "/buy").status_code for _ in range(2)] == [answered] * 2


def test_without_an_order_on_commit_calls_at_once(shop: Flask) -> None:
    found: list[str] = []

    async def mail() -> None:
        found.append("called")

    def buy() -> ResponseReturnValue:
        put("bought")
        db.session.commit()
        on_commit(mail)
        return str(found)

    shop.add_url_rule("/buy", view_func=buy, methods=["POST"])
    assert shop.test_client().post("/buy").text == "['called']"
    on_commit(lambda: found.append("in a task"))
    assert found == ["called", "in a task"]


@on_postgresql
def test_an_error_of_on_commit_undoes_nothing(shop: Flask) -> None:
    shop.config["PROPAGATE_EXCEPTIONS"] = False

    def buy() -> ResponseReturnValue:
        put("bought")
        db.session.commit()
        on_commit([].pop)
        return "bought", 201

    shop.add_url_rule("/buy", view_func=buy, methods=["POST"])
    answers = [post(shop, "/buy") for _ in range(2)]
    assert [(answer.status_code, replayed(answer)) for answer in answers] == [
        (500, False),
        (201, True),
    ]
    assert count(shop) == 1


INSERT = "INSERT INTO \"order\" (name) VALUES ('bought')"


@pytest.fixture
def guests(make_shop: Callable[..., Flask]) -> Flask:
    orders = {"ORDER_ID": ["form:order_id"], "PATHS": ["^/buy"]}
    shop = make_shop(LOCKKIT_USER=None, LOCKKIT_ORDERS=orders)
    shop.add_url_rule("/page", view_func=new_order_id)
    return shop


def buy_twice(guests: Flask, view: Callable[[], Any]) -> list[TestResponse]:
    def buy() -> ResponseReturnValue:
        current_app.config["BUY"]()
        db.session.commit()
        return redirect("/thanks", 303)

    guests.config["BUY"] = view
    guests.add_url_rule("/buy", view_func=buy, methods=["POST"])
    guest = guests.test_client()
    form = {"order_id": guest.get("/page").text}
    return [guest.post("/buy", data=form) for _ in range(2)]


def execute(app: Flask, statement: str) -> None:
    with app.app_context(), db.engine.begin() as connection:
        connection.execute(sa.text(statement))


def by_a_function() -> None:
    db.session.execute(sa.text("SELECT place_order()"))


def by_a_cursor() -> None:
    connection: Any = db.session.connection().connection
    connection.cursor().execute(INSERT)


@on_postgresql
def test_a_function_of_the_database_may_have_bought_for_a_guest(guests: Flask) -> None:
    execute(guests, f"CREATE FUNCTION place_order() RETURNS void LANGUAGE sql AS $${INSERT}$$")
    answers = buy_twice(guests, by_a_function)
    execute(guests, "DROP FUNCTION place_order")
    assert [replayed(answer) for answer in answers] == [False, True]
    assert count(guests) == 1


def test_a_cursor_of_the_driver_may_have_bought_for_a_guest(guests: Flask) -> None:
    answers = buy_twice(guests, by_a_cursor)
    assert [replayed(answer) for answer in answers] == [False, True]
    assert count(guests) == 1


def test_what_a_guest_has_bought_in_another_database_is_bought(
    guests: Flask, tmp_path: Path
) -> None:
    """As by a model with a bind key of its own."""
    other = sa.create_engine(f"sqlite:///{tmp_path / 'other.sqlite3'}")
    sale = sa.Table("sale", sa.MetaData(), sa.Column("n", sa.Integer))
    sale.create(other)

    def sell() -> None:
        db.session.execute(sa.insert(sale), {"n": 1}, bind_arguments={"bind": other})

    answers = buy_twice(guests, sell)
    assert [replayed(answer) for answer in answers] == [False, True]
    with other.connect() as connection:
        assert len(connection.execute(sa.select(sale)).all()) == 1
    other.dispose()


def test_a_view_that_deletes_its_record_is_an_error_and_no_order_without_one(
    shop: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    def delete() -> ResponseReturnValue:
        put("sold")
        db.session.execute(sa.delete(db.metadata.tables[TABLE_NAME]))
        db.session.commit()
        return "ok"

    shop.add_url_rule("/delete", view_func=delete, methods=["POST"])
    assert post(shop, "/delete").status_code == 503
    assert "the record of this order was changed" in caplog.text
    assert count(shop) == 0


# App contexts within the view's


@pytest.mark.parametrize("status", [201, 503])
def test_an_app_context_within_the_view_belongs_to_the_order(shop: Flask, status: int) -> None:
    """As an eager task of Celery has it. It gives nothing back that the view still needs."""

    def order() -> ResponseReturnValue:
        put("outer")
        db.session.commit()
        with shop.app_context():
            put("inner")
            db.session.commit()
            put("not committed")
            db.session.flush()
        put("outer")
        db.session.commit()
        return "ok", status

    shop.add_url_rule("/order", view_func=order, methods=["POST"])
    answers = [post(shop, "/order") for _ in range(2)]
    assert [replayed(answer) for answer in answers] == [False, status == 201]
    assert count(shop) == (3 if status == 201 else 0)


def test_a_request_within_the_view_is_told_that_a_transaction_is_open(shop: Flask) -> None:
    """Also in an app context of its own: its lock would end before the order's COMMIT."""

    def order() -> ResponseReturnValue:
        with shop.app_context():
            return post(shop, "/locked", **{"X-Order-ID": "A-2"}).data

    shop.add_url_rule("/order", view_func=order, methods=["POST"])
    shop.testing = True
    with pytest.raises(ConfigurationError, match="transaction of an order is open"):
        post(shop, "/order")
    assert count(shop) == 0


@on_postgresql
@pytest.mark.parametrize("status", [201, 503])
def test_another_apps_order_within_the_view_is_its_own(
    make_shop: Callable[..., Flask], status: int
) -> None:
    shop, other = make_shop(), make_shop()

    def order() -> ResponseReturnValue:
        put("outer")
        db.session.commit()
        assert post(other, "/two", **{"X-Order-ID": "A-2"}).status_code == 200
        put("outer")
        db.session.commit()
        return "ok", status

    shop.add_url_rule("/order", view_func=order, methods=["POST"])
    assert post(shop, "/order").status_code == status
    assert replayed(post(other, "/two", **{"X-Order-ID": "A-2"}))
    assert count(shop) == (4 if status == 201 else 2)


# Who was overtaken


@pytest.mark.parametrize("status", [201, 410])
def test_whose_order_another_has_made_meanwhile_answers_that(
    make_shop: Callable[..., Flask], status: int
) -> None:
    """Its lock was lost unnoticed, and the transaction is rolled back when a handler is called."""
    shop, other = make_shop(), make_shop()
    others: list[TestResponse] = []

    def overtaken(_: object) -> ResponseReturnValue:
        others.append(post(other, f"/answers?status={status}"))
        return "gone", 410

    def answers() -> ResponseReturnValue:
        put("sold")
        db.session.commit()
        return "of the other", status

    shop.add_url_rule("/answers", view_func=lambda: abort(410), methods=["POST"])
    other.add_url_rule("/answers", view_func=answers, methods=["POST"])
    shop.register_error_handler(410, overtaken)
    answer = post(shop, f"/answers?status={status}")
    assert not replayed(others[0])
    assert (answer.status_code, answer.text, replayed(answer)) == (status, "of the other", True)
    assert (count(shop), count(shop, TABLE_NAME)) == (1, 1)


def test_a_session_that_replaces_that_of_the_extension_joins_too(
    shop: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a test, or another extension, may do after LockKit was set up."""
    with shop.app_context():
        monkeypatch.setattr(db, "session", db._make_scoped_session({"expire_on_commit": False}))
    assert post(shop, "/fails").status_code == 500
    assert (count(shop), count(shop, TABLE_NAME)) == (0, 0)
    assert [replayed(post(shop, "/one")) for _ in range(2)] == [False, True]
    assert count(shop) == 1


def test_a_session_that_cannot_join_is_an_error(
    shop: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it commits would stay, whatever becomes of the order."""
    shop.testing = True
    with monkeypatch.context() as replaced, shop.app_context():
        replaced.setattr(db, "session", sa.orm.scoped_session(sa.orm.Session))
        with pytest.raises(ConfigurationError, match=r"db\.session"):
            post(shop, "/one")
    assert (count(shop), count(shop, TABLE_NAME)) == (0, 0)


# A connection that commits each statement at once

AT_ONCE = {"connect_args": {"autocommit": True}}


@pytest.mark.parametrize(
    ("database", "options"),
    [
        ("sqlite", {"isolation_level": "AUTOCOMMIT"}),
        ("sqlite", {"execution_options": {"isolation_level": "AUTOCOMMIT"}}),
        ("sqlite", {"connect_args": {"isolation_level": None}}),
        ("postgresql", {"isolation_level": "AUTOCOMMIT"}),
        ("postgresql", AT_ONCE),
        ("mariadb", AT_ONCE),
    ],
    indirect=["database"],
)
def test_a_database_that_commits_at_once_is_an_error(
    make_shop: Callable[..., Flask], options: dict[str, Any]
) -> None:
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS=options, TESTING=True)
    with pytest.raises(ConfigurationError, match="autocommit"):
        post(shop, "/one")
    assert (count(shop), count(shop, TABLE_NAME)) == (0, 0)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_listener_that_begins_makes_orders_possible_where_the_driver_begins_nothing(
    make_shop: Callable[..., Flask],
) -> None:
    """As SQLAlchemy's documentation has it for SQLite."""
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"connect_args": {"isolation_level": None}})
    with shop.app_context():
        sa.event.listen(db.engine, "begin", lambda each: each.exec_driver_sql("BEGIN") and None)
    assert [replayed(post(shop, "/one")) for _ in range(2)] == [False, True]
    assert post(shop, "/fails", **{"X-Order-ID": "A-2"}).status_code == 500
    assert (count(shop), count(shop, TABLE_NAME)) == (1, 1)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_driver_whose_errors_cannot_be_read_is_refused(make_shop: Callable[..., Flask]) -> None:
    """A timeout of pg8000 would be taken for a missing table."""
    shop = make_shop(TESTING=True)
    with shop.app_context():
        driver = ModuleType("pg8000")
        vars(driver).update(vars(sqlite3), __name__="pg8000")
        engine = sa.create_engine("postgresql+pg8000://", module=driver)
        db.engines[None], own = engine, db.engines[None]
    try:
        refused = pytest.raises(ConfigurationError, match="psycopg, psycopg2, PyMySQL or mysqlcl")
        with refused, shop.app_context():
            [*every_finding(shop)]
        with refused:
            post(shop, "/one")
    finally:
        with shop.app_context():
            db.engines[None] = own
    assert count(shop) == 0


def test_a_rule_of_the_table_that_is_broken_is_no_earlier_try(
    make_shop: Callable[..., Flask], caplog: pytest.LogCaptureFixture
) -> None:
    """A table that was changed by hand. The client would be told to wait, again and again."""
    shop = make_shop(TESTING=True)
    with shop.app_context():
        ours = db.metadata.tables[TABLE_NAME]
        stricter = ours.to_metadata(sa.MetaData())
        stricter.append_constraint(sa.CheckConstraint("expires = 0"))
        ours.drop(db.engine)
        stricter.create(db.engine)
    try:
        with pytest.raises(ConfigurationError, match="cannot be used"):
            post(shop, "/one")
    finally:
        with shop.app_context():
            ours.drop(db.engine)
            ours.create(db.engine)
    assert "the order records cannot be used" in caplog.text
    assert [replayed(post(shop, "/one")) for _ in range(2)] == [False, True]


class OfTenant(Session):
    """Chooses the schema of a tenant, as an application with many of them does."""

    def get_bind(self, *args: Any, **kwargs: Any) -> Any:
        bind = super().get_bind(*args, **kwargs)
        return bind.execution_options(schema_translate_map={"tenant": None})


SALE = sa.table("sale", sa.column("id"))
SOLD = sa.insert(SALE).values(id=1)


@pytest.mark.parametrize(
    "writes",
    [
        lambda session: session.execute(SOLD),
        lambda session: session.connection().execute(SOLD),
        lambda session: session.connection().exec_driver_sql("INSERT INTO sale VALUES (1)"),
        lambda session: session.scalars(sa.select(SOLD.returning(SALE.c.id).cte("sold").c.id)),
        lambda session: session.scalars(sa.text(f"{SOLD} RETURNING id").columns(SALE.c.id)),
    ],
    ids=["insert", "connection", "text on the connection", "CTE", "text with columns"],
)
def test_a_session_whose_engine_has_options_of_its_own_may_only_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, writes: Callable[[Any], object]
) -> None:
    """It does not join the order, and would save what the order rolls back."""
    app, own = Flask("tenants"), SQLAlchemy(session_options={"class_": OfTenant})
    app.config.update(
        SQLALCHEMY_DATABASE_URI=f"sqlite:///{tmp_path / 'shop.sqlite3'}",
        SECRET_KEY="s",
        LOCKKIT_URL="memory://",
        LOCKKIT_USER=lambda: "alice",
        LOCKKIT_ORDERS={"PATHS": ["^/order"], "ORDER_ID": ["header:X-Order-ID"]},
    )
    own.init_app(app)
    LockKit(app)
    sale = sa.Table("sale", own.metadata, sa.Column("id", sa.Integer, primary_key=True))

    @app.post("/order")
    def order() -> ResponseReturnValue:
        assert own.session.scalars(sa.select(sale.c.id).where(sa.text("id > 0"))).all() == []
        if "reads" not in request.args:
            writes(own.session)
            own.session.commit()
        return "sold", 201

    with app.app_context():
        own.create_all()
    assert post(app, "/order").status_code == 500
    assert "execution options of its own" in caplog.text
    with app.app_context(), own.engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(sale)) == 0
        assert connection.scalar(sa.text(f"select count(*) from {TABLE_NAME}")) == 0
    assert post(app, "/order?reads").status_code == 201
    with app.app_context():
        own.engine.dispose()
