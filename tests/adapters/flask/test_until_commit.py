"""Locks by hand and ``@locked`` in Flask: refused inside a transaction, or held until its end."""

from __future__ import annotations

import functools
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, Event, Timer
from typing import TYPE_CHECKING, Any

import flask
import pytest
import sqlalchemy as sa
from flask import Flask, Response, abort
from flask_project import Order, User, db

import lockkit
from lockkit.model.errors import ConfigurationError, LeaseLost
from lockkit_flask import (
    LockKit,
    OpenTransaction,
    alocks,
    idempotent,
    lock_view,
    locked,
    locks,
)
from lockkit_flask.leases import db_session
from lockkit_flask.state import app_locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeApp = Callable[..., Flask]

INSERT = "INSERT INTO \"order\" (name) SELECT 'x'"
WRITES: dict[str, Callable[[], object]] = {
    "new": lambda: db.session.add(Order(name="pending")),
    "flushed": lambda: (db.session.add(Order(name="flushed")), db.session.flush()),
    "core": lambda: db.session.execute(sa.insert(Order).values(name="core")),
    "bulk": lambda: db.session.bulk_insert_mappings(Order, [{"name": "bulk"}]),
    "objects": lambda: db.session.bulk_save_objects([Order(name="objects")]),
    "connection": lambda: db.session.connection().execute(sa.insert(Order).values(name="x")),
    "driver": lambda: db.session.connection().exec_driver_sql(INSERT),
    "comment": lambda: db.session.execute(sa.text(f"/* SELECT */ {INSERT}")),
    "cte": lambda: db.session.execute(sa.text(f"WITH a AS (SELECT 1) {INSERT} FROM a")),
    "dirty": lambda: setattr(db.session.get(User, 1), "seen", 7),
    "deleted": lambda: db.session.delete(db.session.get(User, 1)),
}


@pytest.fixture
def shop(make_shop: MakeApp) -> Flask:
    return make_shop()


@pytest.fixture
def context(shop: Flask) -> Iterator[Flask]:
    """As in a task or a command: an app context without a request."""
    with shop.app_context():
        db.session.add(User(id=1, name="alice"))
        db.session.commit()
        yield shop


@pytest.fixture
def at_release(shop: Flask, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that a second connection sees at the instant of each release of ``stock``."""
    backend = app_locks(shop)["default"].store
    release, seen = backend.release, []

    def releasing(request: Any) -> Any:
        if request.name.startswith("stock"):
            seen.append(rows(shop))
        return release(request)

    monkeypatch.setattr(backend, "release", releasing)
    return seen


def rows(app: Flask) -> int:
    with app.app_context(), db.engine.connect() as other:
        return int(other.execute(sa.select(sa.func.count()).select_from(Order)).scalar_one())


def sell(name: str = "stock:42", **options: Any) -> lockkit.Lease:
    """A service deep in the code: it commits, as such services do."""
    options = {"until": "commit", "timeout": 0, **options}
    with locks["default"].lock(name, **options) as lease:
        db.session.add(Order(name=name))
        db.session.commit()
        return lease


def is_free(name: str = "stock:42") -> bool:
    return locks["default"].inspect(name) is None


def send(shop: Flask, view: Callable[[], Any], **more: str) -> Any:
    shop.add_url_rule("/it", view_func=view, methods=["POST"])
    headers = {"X-User": "alice", "X-Order-ID": "1", **more}
    return shop.test_client().post("/it", headers=headers)


@locked("stock:42")
def deduct() -> None:
    raise AssertionError


BY_HAND: dict[str, Callable[[], object]] = {
    "lock": lambda: locks["default"].lock("stock:42").acquire(),
    "try": lambda: locks["default"].lock("stock:42").try_acquire(),
    "several": lambda: locks["default"].multi("stock:42", "stock:43").acquire(),
    "locked": deduct,
}


@pytest.mark.parametrize("how", BY_HAND)
def test_a_lock_by_hand_inside_an_order_is_refused(shop: Flask, how: str) -> None:
    def view() -> str:
        with pytest.raises(OpenTransaction, match=r"the lock 'stock:42' was .*until='commit'"):
            BY_HAND[how]()
        assert is_free()
        return "ok"

    assert send(shop, view).text == "ok"


def is_pending(app: Flask, write: str) -> bool:
    """Python's driver of SQLite begins no transaction for this, so it is committed at once."""
    return write != "cte" or app.config["SQLALCHEMY_DATABASE_URI"].startswith("postgresql")


@idempotent
def buy() -> tuple[str, int]:
    db.session.add(Order(name="bought"))
    db.session.commit()
    if "X-Fail" in flask.request.headers:
        raise ZeroDivisionError
    return "sold", 201


def by_hand(**options: Any) -> Callable[[], Any]:
    """As a decorator that somebody has written with ``with``."""

    @functools.wraps(buy)
    def view() -> Any:
        with locks["default"].lock("stock:42", timeout=0, **options):
            return buy()

    return view


ABOVE = {
    "with": by_hand(),
    "until": by_hand(until="commit"),
    "locked": locked("stock:42")(buy),
    "locked until": locked("stock:42", until="commit")(buy),
}


@pytest.mark.parametrize("view", ABOVE)
def test_above_an_order_it_is_held_until_the_orders_commit(
    shop: Flask, at_release: list[int], view: str
) -> None:
    assert send(shop, ABOVE[view]).status_code == 201
    assert at_release == [1]


@pytest.mark.parametrize("view", ABOVE)
def test_above_an_order_it_is_held_until_the_orders_rollback(make_shop: MakeApp, view: str) -> None:
    shop = make_shop(PROPAGATE_EXCEPTIONS=False)
    assert send(shop, ABOVE[view], **{"X-Fail": "1"}).status_code == 500
    with shop.app_context():
        assert is_free()
    assert rows(shop) == 0


def test_around_an_order_by_hooks_it_is_held_until_the_orders_commit(
    shop: Flask, at_release: list[int]
) -> None:
    """The hook that releases it is called before the COMMIT."""
    taken: list[lockkit.MultiLease] = []
    shop.before_request(
        lambda: taken.append(locks["default"].multi("stock:42", "stock:43").acquire())
    )
    shop.after_request(lambda response: (taken[0].release(), response)[1])
    assert send(shop, buy).status_code == 201
    assert at_release == [1, 1]


async def in_a_block() -> Any:
    async with alocks["default"].lock("stock:42"):
        return buy()


async def in_a_block_of_several() -> Any:
    async with alocks["default"].multi("stock:42", "stock:43"):
        return buy()


async def in_a_handler() -> Any:
    """Of an error that has nothing to do with it."""
    try:
        return {}["cached"]
    except KeyError:
        return await in_a_block()


async def without_a_block() -> Any:
    lease = await alocks["default"].lock("stock:42").acquire()
    bought = buy()
    await lease.release()
    return bought


@pytest.mark.parametrize("held", [in_a_block, in_a_block_of_several, in_a_handler, without_a_block])
def test_one_of_asyncio_above_an_order_is_refused(
    make_shop: MakeApp, held: Callable[[], Any]
) -> None:
    """Its event loop ends before the order does."""

    @functools.wraps(buy)
    async def view() -> Any:
        return await held()

    shop = make_shop(TESTING=True)
    with pytest.raises(OpenTransaction, match=r"'stock:4\d' was released .*@lock_view"):
        send(shop, view)
    with shop.app_context():
        assert is_free()
    assert rows(shop) == 0


def test_one_of_asyncio_that_was_released_before_the_order_is_no_matter(make_shop: MakeApp) -> None:
    @functools.wraps(buy)
    async def view() -> Any:
        lease = await alocks["default"].lock("stock:42").acquire()
        await lease.release()
        bought = buy()
        await lease.release()
        return bought

    shop = make_shop(TESTING=True)
    assert send(shop, view).status_code == 201
    assert rows(shop) == 1


def test_above_an_order_it_is_released_at_once_if_that_is_allowed(
    shop: Flask, at_release: list[int]
) -> None:
    assert send(shop, by_hand(in_atomic="allow")).status_code == 201
    assert at_release == [0]


def test_an_order_does_not_commit_when_a_lease_above_it_is_lost(shop: Flask) -> None:
    taken: list[lockkit.Lease] = []
    shop.before_request(lambda: taken.append(locks["default"].lock("stock:42").acquire()))

    @shop.after_request
    def lose(response: Response) -> Response:
        taken[0].release()
        locks["default"].break_("stock:42", fence=taken[0].fencing_token)
        with suppress(LeaseLost):
            taken[0].extend()
        return response

    refused = send(shop, buy)
    assert (refused.status_code, refused.json["code"]) == (503, "order-lease-lost")
    assert rows(shop) == 0


@pytest.mark.parametrize("write", WRITES)
def test_a_lock_by_hand_after_a_change_is_refused(context: Flask, write: str) -> None:
    WRITES[write]()
    if not is_pending(context, write):
        assert rows(context) == 1
        return
    for asks in BY_HAND.values():
        with pytest.raises(
            OpenTransaction, match=r"the lock 'stock:42' was .*until='commit'"
        ) as error:
            asks()
        assert error.value.name == "stock:42"
    assert is_free()
    db.session.rollback()
    with locks["default"].lock("stock:42"):
        pass


@pytest.mark.parametrize("opened", ["begin", "begin_nested"])
def test_a_lock_by_hand_inside_a_block_of_the_session_is_refused(
    context: Flask, opened: str
) -> None:
    with getattr(db.session, opened)():
        for asks in BY_HAND.values():
            with pytest.raises(OpenTransaction, match=rf"inside {opened}\(\).*until='commit'"):
                asks()
        db.session.add(Order(name="the block goes on"))
    db.session.commit()
    assert rows(context) == 1


@pytest.mark.parametrize("opened", ["begin", "begin_nested"])
def test_a_block_of_the_session_goes_on_under_a_lock_until_its_commit(
    context: Flask, at_release: list[int], opened: str
) -> None:
    with getattr(db.session, opened)():
        db.session.get(User, 1)
        with locks["default"].lock("stock:42", until="commit"):
            db.session.add(Order(name="x"))
    db.session.commit()
    assert at_release == [1]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_rows_that_are_locked_stay_locked(context: Flask) -> None:
    assert db.session.scalar(sa.select(User.seen).with_for_update()) == 0
    with pytest.raises(OpenTransaction, match="locked rows"):
        locks["default"].lock("stock:42").acquire()
    with locks["default"].lock("stock:42", until="commit"):
        pass
    assert not is_free()
    db.session.rollback()
    assert is_free()


def refused(match: str, **options: Any) -> None:
    with pytest.raises(OpenTransaction, match=match):
        locks["default"].lock("stock:42", **options).acquire()
    assert is_free()
    assert db.session().in_transaction()
    db.session.rollback()


USER = "`user`"
WROTE = {
    "explain": f"ANALYZE FORMAT=JSON DELETE FROM {USER}",
    "into": f"SELECT seen INTO @seen FROM {USER}",
    "executed": f"/*!50000 DELETE FROM {USER} */",
    "call": "CALL sell()",
    "program": f"BEGIN NOT ATOMIC UPDATE {USER} SET seen = 2; END",
    "setting": f"SET STATEMENT max_statement_time = 5 FOR DELETE FROM {USER}",
}
LOCKED = {
    "comment": f"SELECT seen FROM {USER} FOR UPDATE /*" + "traceparent" * 20 + "*/",
    "share": f"SELECT * FROM {USER} AS " + "u" * 60 + " LOCK IN SHARE  MODE",
}
HARMLESS = {
    "cte": f"WITH u AS (SELECT * FROM {USER}) SELECT * FROM u",
    "values": "VALUES (1)",
    "words": "SELECT 1 AS information_shared_into",
    "comment": "/* traced: 7 */ -- INSERT\n SELECT 1",
    "explain": f"EXPLAIN SELECT * FROM {USER}",
    "setting": "SET @seen = 1",
    "semicolon": f"SELECT GROUP_CONCAT(seen SEPARATOR ';') FROM {USER} ; ",
}


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_database_that_does_not_tell_is_not_asked_but_read_about(context: Flask) -> None:
    """A statement counts by its text."""
    db.session.execute(sa.text("DROP PROCEDURE IF EXISTS sell"))
    sell = f"CREATE PROCEDURE sell() UPDATE {USER} SET seen = 1"
    db.session.execute(sa.text(sell))
    db.session.commit()
    for texts, why in ((WROTE, "has changes"), (LOCKED, "has locked rows")):
        for sql in texts.values():
            db.session.connection().exec_driver_sql(sql)
            refused(why)
    for sql in HARMLESS.values():
        db.session.connection().exec_driver_sql(sql)
        with locks["default"].lock("stock:42"):
            assert not db.session().in_transaction()


ELSEWHERE = {
    "several": ("SELECT 1;\n UPDATE stock SET n = 0", True),
    "savepoint": ("SAVEPOINT a; DELETE FROM stock", True),
    "psycopg2": ("SET LOCAL lock_timeout = '2s'; UPDATE stock SET n = 0", True),
    "oracle": ("BEGIN shop.sell(:x); END;", True),
    "sql server": ("SET NOCOUNT ON\nEXEC sell 42", True),
    "begin": ("BEGIN", False),
    "transaction": ("begin transaction;", False),
    "level": ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED;", False),
}


@pytest.mark.parametrize(("sql", "is_change"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_text_for_a_driver_that_is_not_here(sql: str, is_change: bool) -> None:
    assert db_session.changes(sql) is is_change


SELLS = {
    "select": "SELECT sell()",
    "values": "VALUES (sell())",
    "cte": "WITH sold AS (SELECT sell()) SELECT * FROM sold",
    "explain": 'EXPLAIN ANALYZE DELETE FROM "user"',
    "into": 'SELECT * INTO TEMPORARY x FROM "order"',
}


@pytest.mark.parametrize("sql", SELLS.values(), ids=SELLS)
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_change_that_looks_like_a_read_stays(context: Flask, sql: str) -> None:
    sell = 'UPDATE "user" SET seen = seen + 1 RETURNING seen'
    db.session.execute(
        sa.text(f"CREATE OR REPLACE FUNCTION sell() RETURNS int LANGUAGE sql AS '{sell}'")
    )
    db.session.commit()
    db.session.execute(sa.text(sql))
    refused("has changes")


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_locked_table_and_a_drawn_number_stay_though_nothing_is_numbered(context: Flask) -> None:
    db.session.execute(sa.text('LOCK TABLE "order" IN EXCLUSIVE MODE'))
    refused("has changes")
    db.session.rollback()
    db.session.execute(sa.text('UPDATE "order" SET name = name WHERE false'))
    with locks["default"].lock("stock:42"):
        assert not db.session().in_transaction()
    db.session.execute(sa.text("CREATE SEQUENCE IF NOT EXISTS invoice"))
    db.session.commit()
    for _ in range(40):  # one in about 33 writes to the log
        db.session.execute(sa.text("SELECT nextval('invoice')"))
        refused("has changes")


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_notices_and_advisory_locks_of_a_transaction_cannot_be_seen(context: Flask) -> None:
    for sql in ("NOTIFY sold", "SELECT pg_advisory_xact_lock(42)"):
        db.session.execute(sa.text(sql))
        with locks["default"].lock("stock:42"):
            assert not db.session().in_transaction()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_what_a_serializable_transaction_has_read_is_no_change(make_shop: MakeApp) -> None:
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"isolation_level": "SERIALIZABLE"})
    with shop.app_context():
        for _ in range(2):  # what it has read is kept in the list of locks
            db.session.execute(sa.select(Order)).all()
            with locks["default"].lock("stock:42"):
                assert not db.session().in_transaction()


@pytest.fixture
def begun(make_shop: MakeApp, database: str) -> Iterator[Flask]:
    """SQLite as SQLAlchemy's docs set it up, so that reads are in a transaction, too. The app does
    so in a context: it has been one without, until then."""
    shop = make_shop()
    with shop.app_context():
        engine = db.engine

        @sa.event.listens_for(engine, "connect")
        def be_quiet(connection: Any, _: object) -> None:
            connection.isolation_level = None

        @sa.event.listens_for(engine, "begin")
        def begin(connection: sa.Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        engine.dispose()
    with shop.app_context():
        db.session.add(User(id=1, name="alice"))
        db.session.commit()
        yield shop


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_where_reads_begin_a_transaction_it_is_read_about_as_well(begun: Flask) -> None:
    for write in WRITES.values():
        write()
        refused("has changes")
    for read in READS.values():
        read()
        with locks["default"].lock("stock:42"):
            assert not db.session().in_transaction()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_transaction_that_somebody_has_begun_may_have_changed_something(context: Flask) -> None:
    db.session.connection().exec_driver_sql("BEGIN")
    db.session.get(User, 1)
    refused("has changes")


@pytest.fixture
def executes() -> Iterator[None]:
    """The app executes each statement itself, as to try it again after a lost connection. What
    comes after its listener hears nothing."""

    def execute(cursor: Any, sql: str, values: Any, _: object) -> bool:
        cursor.execute(sql, values)
        return True

    sa.event.listen(sa.Engine, "do_execute", execute)
    yield
    sa.event.remove(sa.Engine, "do_execute", execute)


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_what_the_app_executes_itself_may_have_changed_something(
    context: Flask, executes: None
) -> None:
    db.session.get(User, 1)
    refused("has changes")


@pytest.mark.parametrize("database", ["sqlite", "mariadb"], indirect=True)
def test_an_order_that_would_not_hear_what_the_app_executes_is_an_error(
    make_shop: MakeApp, executes: None, caplog: pytest.LogCaptureFixture
) -> None:
    shop = make_shop(LOCKKIT_ORDERS={"ORDER_ID": ["header:X-Order-ID"], "PATHS": ["^/order$"]})
    shop.add_url_rule("/order", view_func=lambda: "sold", methods=["POST"])
    headers = {"X-User": "alice", "X-Order-ID": "A-1"}
    assert shop.test_client().post("/order", headers=headers).status_code == 500
    assert "your listener of do_execute" in caplog.text


def test_first_orders_at_once_hear_their_statements() -> None:
    all_four, before = Barrier(4), sys.getswitchinterval()

    def is_heard(dialect: Any) -> bool:
        all_four.wait(60)
        db_session.listen_to(dialect)
        return db_session.is_heard(dialect)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(200):
                dialect = sa.create_engine("sqlite://").dialect
                assert all(pool.map(is_heard, [dialect] * 4))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_transaction_in_which_nothing_was_said_has_changed_nothing(context: Flask) -> None:
    db.session.connection()
    with locks["default"].lock("stock:42"):
        assert not db.session().in_transaction()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_engine_outside_of_the_extension_may_have_changed_something(context: Flask) -> None:
    other = sa.create_engine("sqlite://")
    sa.event.listen(other, "begin", lambda connection: None)
    for _ in range(2):  # to ask is no reason to listen from then on
        db.session.connection(bind_arguments={"bind": other}).execute(sa.text("SELECT 1"))
        refused("has changes")
    other.dispose()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_however_much_a_transaction_has_said_its_changes_count(begun: Flask) -> None:
    def read_much() -> None:
        for number in range(300):
            db.session.scalar(sa.text(f"SELECT {number}"))

    db.session.execute(sa.insert(Order).values(name="x"))
    read_much()
    refused("has changes")
    read_much()
    with locks["default"].lock("stock:42"):
        pass


@pytest.mark.parametrize("first", [sa.insert(Order).values(name="x"), sa.text("SELECT 1")])
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_more_texts_than_are_kept_may_have_changed_something(begun: Flask, first: Any) -> None:
    db.session.execute(first)
    for number in range(11):
        db.session.connection().exec_driver_sql(f"SELECT {number} /* {'x' * 1_000_000} */")
    refused("has changes")
    with locks["default"].lock("stock:42"):  # it was rolled back
        assert not db.session().in_transaction()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_transaction_that_has_failed_is_for_the_app_to_roll_back(context: Flask) -> None:
    with pytest.raises(sa.exc.ProgrammingError):
        db.session.execute(sa.text("SELECT * FROM nothing"))
    refused("has changes")
    with pytest.raises(sa.exc.ProgrammingError):
        db.session.execute(sa.text("SELECT * FROM nothing"))
    refused("a statement has failed.*Roll back", until="commit")
    db.session.add(User(id=1, name="the ID is taken"))
    with pytest.raises(sa.exc.IntegrityError):
        db.session.flush()
    refused("has changes")


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_what_a_test_has_changed_around_its_session_is_not_asked(context: Flask) -> None:
    """A session within a transaction of the test's own, whose COMMIT makes nothing final. What it
    has flushed stays; what it has loaded is read again."""
    session = db.session()
    with db.engine.connect() as outer, outer.begin() as around:
        outer.execute(sa.insert(Order).values(name="of the test"))
        session.join_transaction_mode = "create_savepoint"
        session.connection(bind_arguments={"bind": outer}).execute(sa.select(Order)).all()
        alice = session.get(User, 1, bind_arguments={"bind": outer})
        session.add(Order(name="flushed"))
        session.flush()
        for options in ({}, {"until": "commit"}):
            with locks["default"].lock("stock:42", **options):
                assert alice in session and "seen" in sa.inspect(alice).unloaded
                names = outer.scalars(sa.select(Order.name).order_by(Order.id)).all()
                assert names == ["of the test", "flushed"]
        session.add(Order(name="pending"))
        with pytest.raises(OpenTransaction, match="has changes"):
            locks["default"].lock("stock:42").acquire()
        session.rollback()
        around.rollback()


def test_what_a_test_has_flushed_around_a_locked_request_stays(context: Flask) -> None:
    context.add_url_rule("/stock", "stock", lock_view("stock:42")(lambda: "ok"))
    session = db.session()
    with db.engine.connect() as outer, outer.begin() as around:
        session.join_transaction_mode = "create_savepoint"
        session.connection(bind_arguments={"bind": outer})
        session.add(Order(name="flushed"))
        session.flush()
        assert context.test_client().get("/stock").text == "ok"
        assert outer.scalars(sa.select(Order.name)).all() == ["flushed"]
        session.rollback()
        around.rollback()


@pytest.mark.filterwarnings("ignore:transaction already deassociated")
def test_what_follows_the_commit_of_a_connection_is_not_lost(context: Flask) -> None:
    for _ in range(2):
        connection = db.session.connection()
        connection.commit()
        connection.execute(sa.insert(Order).values(name="x"))
        refused("has changes")
        db.session.connection().commit()
        with locks["default"].lock("stock:42"):
            assert not db.session().in_transaction()


def test_a_lock_by_hand_ends_what_has_only_read(make_shop: MakeApp, database: str) -> None:
    """Else a snapshot would hide what the last holder has committed."""
    level = "SERIALIZABLE" if database.startswith("sqlite") else "REPEATABLE READ"
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"isolation_level": level})
    count = sa.select(sa.func.count()).select_from(Order)
    with shop.app_context():
        for options in ({}, {"until": "commit"}):
            assert db.session.scalar(count) == 0
            with db.engine.begin() as other:
                other.execute(sa.insert(Order).values(name="sold by somebody else"))
            with locks["default"].lock("stock:42", **options):
                assert db.session.scalar(count) == 1
            db.session.execute(sa.delete(Order))
            db.session.commit()


@pytest.mark.parametrize("options", [{}, {"until": "commit"}], ids=["lock", "until-commit"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_what_outlives_a_commit_is_read_again_under_the_lock(
    context: Flask, end: str, options: dict[str, Any]
) -> None:
    db.session().expire_on_commit = False
    user = db.session.get(User, 1)
    assert user is not None
    assert user.seen == 0
    getattr(db.session, end)()
    with db.engine.begin() as other:
        other.execute(sa.update(User).values(seen=5))
    with locks["default"].lock("stock:42", **options):
        assert user.seen == 5
    db.session.commit()


def test_an_order_reads_again_what_outlives_a_commit(make_shop: MakeApp) -> None:
    shop = make_shop()

    @shop.before_request
    def log_in() -> None:
        db.session().expire_on_commit = False
        flask.g.user = User(id=7, name="carol")
        db.session.add(flask.g.user)
        db.session.commit()
        with db.engine.begin() as other:
            other.execute(sa.update(User).values(seen=5))

    assert send(shop, lambda: str(flask.g.user.seen)).text == "5"


READS: dict[str, Callable[[], object]] = {
    "query": lambda: db.session.get(User, 1),
    "cte": lambda: db.session.scalar(sa.select(sa.select(User).cte().c.seen)),
    "union": lambda: db.session.scalar(sa.union(sa.select(User.id), sa.select(User.seen))),
    "driver": lambda: db.session.connection().exec_driver_sql("SELECT 1").all(),
    "explain": lambda: db.session.execute(sa.text("EXPLAIN SELECT 1")).all(),
    "words": lambda: db.session.scalar(sa.text("SELECT 1 AS information_shared_into")),
    "comment": lambda: db.session.scalar(sa.text("/* traced: 7 */ -- INSERT\n SELECT 1")),
}


@pytest.mark.parametrize("read", READS)
def test_whatever_has_only_read_is_ended(context: Flask, read: str) -> None:
    READS[read]()
    with locks["default"].lock("stock:42"):
        assert not db.session().in_transaction()


@pytest.mark.parametrize("read", READS)
def test_what_an_order_reads_after_its_commit_is_no_change(shop: Flask, read: str) -> None:
    def view() -> str:
        db.session.add(Order(name="x"))
        db.session.commit()
        READS[read]()
        return "ok"

    assert send(shop, view).text == "ok"
    assert rows(shop) == 1


UNFINISHED = {
    "explain": 'EXPLAIN (ANALYZE) DELETE FROM "order"',
    "into": 'WITH o AS (SELECT * FROM "order") SELECT * INTO TEMPORARY x FROM o',
    "cte": 'WITH o AS (DELETE FROM "order" RETURNING id) SELECT * FROM o',
    "several": """SET LOCAL lock_timeout = '2s'; DELETE FROM "order" """,
}


@pytest.mark.parametrize("sql", UNFINISHED.values(), ids=UNFINISHED)
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_what_an_order_changes_after_its_commit_is_an_error(shop: Flask, sql: str) -> None:
    def view() -> str:
        db.session.execute(sa.text(sql))
        return "ok"

    shop.config["PROPAGATE_EXCEPTIONS"] = False
    assert send(shop, view).status_code == 500


def test_what_is_not_in_the_database_may_be_locked_anywhere(shop: Flask) -> None:
    def view() -> str:
        db.session.add(Order(name="x"))
        with locks["default"].lock("a file", in_atomic="allow"):
            db.session.commit()
        return "ok"

    assert send(shop, view).text == "ok"


def test_in_an_order_it_is_held_until_the_orders_commit(shop: Flask, at_release: list[int]) -> None:
    def view() -> str:
        assert sell() is sell()  # the view's commit() ended a savepoint
        assert not is_free()
        with suppress(ZeroDivisionError), db.session.begin_nested():
            sell("stock:43")
            raise ZeroDivisionError
        assert not is_free("stock:43")
        return "ok"

    assert send(shop, view).text == "ok"
    assert set(at_release) == {3}
    assert len(at_release) == 2


@pytest.mark.parametrize("end", ["raise", "abort", "500"])
def test_in_an_order_it_is_held_until_the_orders_rollback(
    shop: Flask, at_release: list[int], end: str
) -> None:
    def view() -> Any:
        sell()
        if end == "raise":
            raise ZeroDivisionError
        return abort(410) if end == "abort" else ("broken", 500)

    shop.config["PROPAGATE_EXCEPTIONS"] = False
    send(shop, view)
    assert at_release == [0]
    with shop.app_context():
        assert is_free()


def test_an_order_does_not_commit_when_its_lease_is_lost(shop: Flask) -> None:
    def view() -> str:
        lease = sell()
        locks["default"].break_("stock:42", fence=lease.fencing_token)
        with suppress(LeaseLost):
            lease.extend()
        return "ok"

    assert send(shop, view).status_code == 503
    assert rows(shop) == 0


ENDS = {"commit": 1, "rollback": 0, "close": 0, "remove": 0}
"""Methods of the session, and what is left then."""


@pytest.mark.parametrize("end", ENDS)
def test_in_a_session_it_is_held_until_its_transaction_ends(
    context: Flask, at_release: list[int], end: str
) -> None:
    with locks["default"].lock("stock:42", until="commit") as lease:
        db.session.add(Order(name="x"))
        assert lease.release()  # leaves it to the transaction
    with suppress(ZeroDivisionError), db.session.begin_nested():
        with locks["default"].lock("stock:42", until="commit", timeout=0) as again:
            assert again is lease
        raise ZeroDivisionError
    assert not is_free()
    assert not lease.lost
    getattr(db.session, end)()
    assert at_release == [ENDS[end]]
    assert lease.released
    with locks["default"].lock("stock:42", timeout=0):
        pass


@pytest.fixture
def renewed(shop: Flask, monkeypatch: pytest.MonkeyPatch) -> dict[str, Event]:
    """Is set when the lease of that name is renewed."""
    backend = app_locks(shop)["default"].store
    extend, events = backend.extend, {name: Event() for name in ("stock:1", "stock:2")}

    def extending(requests: Any) -> Any:
        for request in requests:
            events[request.name].set()
        return extend(requests)

    monkeypatch.setattr(backend, "extend", extending)
    return events


def test_a_second_one_after_a_read_joins_the_transaction(
    context: Flask, at_release: list[int], renewed: dict[str, Event]
) -> None:
    with locks["default"].lock("stock:1", until="commit", ttl=6) as first:
        user = db.session.get(User, 1)
        assert user is not None
        left = user.seen
        with locks["default"].lock("stock:2", until="commit", ttl=6) as second:
            user.seen = left - 1
            db.session.add(Order(name="x"))
    for event in renewed.values():
        assert event.wait(30)
    assert at_release == []
    assert not (first.lost or second.lost)
    db.session.commit()
    assert at_release == [1, 1]
    assert first.released
    assert second.released


def test_a_second_one_after_a_read_is_renewed_if_the_first_was_released(
    context: Flask, renewed: dict[str, Event]
) -> None:
    with locks["default"].lock("stock:1", until="commit"):
        pass
    db.session.get(User, 1)
    with locks["default"].lock("stock:2", until="commit", ttl=6) as second:
        assert renewed["stock:2"].wait(30)
        db.session.add(Order(name="x"))
    db.session.commit()
    assert second.released


@pytest.mark.parametrize("how", BY_HAND)
def test_a_lock_by_hand_does_not_end_what_keeps_a_lock(
    context: Flask, at_release: list[int], how: str
) -> None:
    with locks["default"].lock("stock:1", until="commit") as lease:
        db.session.get(User, 1)
        with pytest.raises(OpenTransaction, match=r"keeps a lock until its COMMIT.*'commit'"):
            BY_HAND[how]()
        assert not lease.lost
        db.session.add(Order(name="x"))
    assert at_release == []
    db.session.commit()
    assert at_release == [1]


def test_a_lock_by_hand_before_a_read_is_taken_beside_one_until_the_commit(context: Flask) -> None:
    with locks["default"].lock("stock:1", until="commit") as lease, locks["default"].lock("a"):
        db.session.add(Order(name="x"))
        assert not lease.lost
        db.session.commit()
        assert lease.released


@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
def test_a_second_one_does_not_join_an_older_snapshot(make_shop: MakeApp) -> None:
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"isolation_level": "REPEATABLE READ"})
    with shop.app_context():
        with locks["default"].lock("stock:1", until="commit") as lease:
            db.session.get(User, 1)
            with pytest.raises(OpenTransaction, match="READ COMMITTED"):
                locks["default"].lock("stock:2", until="commit").acquire()
            assert not lease.lost
            assert is_free("stock:2")
        db.session.rollback()
        assert lease.released


@pytest.mark.parametrize("write", WRITES)
def test_after_a_change_it_is_held_until_the_commit(context: Flask, write: str) -> None:
    WRITES[write]()
    with locks["default"].lock("stock:42", until="commit"):
        pass
    assert is_free() is not is_pending(context, write)
    db.session.commit()
    assert is_free()


def test_a_session_does_not_commit_when_its_lease_is_lost(context: Flask) -> None:
    def lose_it() -> None:
        with locks["default"].lock("stock:42", until="commit") as lease:
            db.session.add(Order(name="x"))
            locks["default"].break_("stock:42", fence=lease.fencing_token)
            with suppress(LeaseLost):
                lease.extend()
            db.session.commit()

    with pytest.raises(LeaseLost):
        lose_it()
    db.session.rollback()
    assert rows(context) == 0


def test_a_session_does_not_commit_when_its_lease_is_lost_in_the_last_flush(context: Flask) -> None:
    """A statement of the flush may wait for a row, for longer than the lease lives."""

    def lose_it(*_: object) -> None:
        locks["default"].break_("stock:42", fence=lease.fencing_token)
        with suppress(LeaseLost):
            lease.extend()

    with locks["default"].lock("stock:42", until="commit") as lease:
        db.session.add(Order(name="x"))
    sa.event.listen(db.session(), "before_flush", lose_it)
    with pytest.raises(LeaseLost):
        db.session.commit()
    db.session.rollback()
    assert rows(context) == 0


def test_a_listener_of_the_last_flush_may_have_a_savepoint(context: Flask) -> None:
    def write(session: Any, *_: object) -> None:
        with session.begin_nested():
            session.execute(sa.insert(Order).values(name="by a listener"))

    with locks["default"].lock("stock:42", until="commit") as lease:
        db.session.add(Order(name="x"))
    sa.event.listen(db.session(), "after_flush", write)
    db.session.commit()
    assert lease.released
    assert rows(context) == 2


def test_without_a_query_it_is_a_lock_like_others(context: Flask) -> None:
    with locks["default"].lock("stock:42", until="commit") as lease:
        pass
    assert lease.released


def test_the_end_of_the_context_is_the_end(shop: Flask) -> None:
    with shop.app_context():
        lease = locks["default"].lock("stock:42", until="commit").acquire()
    assert lease.released
    with shop.app_context():
        assert is_free()
        lease = locks["default"].lock("stock:42", until="commit").acquire()
        db.session.add(Order(name="forgotten"))
        db.session.flush()
    assert lease.released
    assert rows(shop) == 0


def test_the_end_of_a_context_within_a_request_is_the_end(shop: Flask) -> None:
    with shop.test_request_context():
        with shop.app_context():
            lease = locks["default"].lock("stock:42", until="commit").acquire()
        assert lease.released


def test_locked_inside_a_session_with_changes(context: Flask) -> None:
    @locked("stock:{sku}", until="commit")
    def restock(sku: str) -> None:
        db.session.add(Order(name=sku))

    db.session.add(Order(name="before"))
    restock("42")
    assert not is_free()
    db.session.commit()
    assert is_free()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_lost_connection_ends_it(make_shop: MakeApp) -> None:
    shop = make_shop()
    with shop.app_context():
        with locks["default"].lock("stock:42", until="commit") as lease:
            who = db.session.scalar(sa.text("SELECT pg_backend_pid()"))
            db.session.add(Order(name="x"))
            db.session.flush()
        with db.engine.connect() as other:
            other.execute(sa.text(f"SELECT pg_terminate_backend({who})"))
        with pytest.raises(sa.exc.DBAPIError):
            db.session.commit()
        db.session.rollback()
        assert lease.released
        assert is_free()
        assert rows(shop) == 0


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
def test_a_snapshot_that_is_older_than_the_grant_is_refused(make_shop: MakeApp, level: str) -> None:
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"isolation_level": level})

    def view() -> str:
        with pytest.raises(OpenTransaction, match="READ COMMITTED"):
            sell()
        return "ok"

    assert send(shop, view).text == "ok"
    with shop.app_context():
        db.session.add(Order(name="x"))
        db.session.flush()
        with pytest.raises(OpenTransaction, match="READ COMMITTED"):
            sell()
        assert is_free()
        db.session.rollback()
        sell()
    assert rows(shop) == 1


@pytest.mark.parametrize("begins", [True, False], ids=["listener", "by hand"])
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_on_sqlite_only_a_snapshot_that_is_older_than_the_grant_is_refused(
    make_shop: MakeApp, begins: bool
) -> None:
    shop = make_shop()
    with shop.app_context():
        engine = db.engine
        sa.event.listen(engine, "connect", lambda each, _: setattr(each, "isolation_level", None))
        if begins:
            sa.event.listen(engine, "begin", lambda each: each.exec_driver_sql("BEGIN"))
        engine.dispose()
        with engine.connect() as other:
            other.connection.execute("PRAGMA journal_mode = WAL")  # type: ignore[attr-defined]

    def read() -> int:
        if not begins:
            db.session.connection().exec_driver_sql("BEGIN")
        counted = db.session.scalar(sa.select(sa.func.count()).select_from(Order))
        db.session.add(Order(name="pending"))
        return int(counted or 0)

    def sell_elsewhere() -> None:
        with shop.app_context():
            sell()

    with shop.app_context(), ThreadPoolExecutor(1) as pool:
        assert read() == 0
        pool.submit(sell_elsewhere).result()
        refused("BEGIN IMMEDIATE", until="commit")
        assert read() == 1
        sell()
        if begins:  # one that has read nothing waits for a writer, as its first change would
            writer = sqlite3.connect(str(db.engine.url.database), check_same_thread=False)
            writer.execute("BEGIN IMMEDIATE")
            db.session.connection()
            db.session.add(Order(name="pending"))
            Timer(0.3, writer.close).start()
            sell()
    assert rows(shop) == (5 if begins else 3)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_the_snapshot_of_sql_server_is_refused_as_well(
    context: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sa.Connection, "get_isolation_level", lambda _: "SNAPSHOT")
    db.session.add(Order(name="x"))
    db.session.flush()
    refused("READ COMMITTED", until="commit")


@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
def test_without_a_statement_there_is_no_snapshot_yet(make_shop: MakeApp) -> None:
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"isolation_level": "REPEATABLE READ"})
    count = sa.select(sa.func.count()).select_from(Order)
    with shop.app_context():
        db.session.add(Order(name="pending"))
        with locks["default"].lock("stock:42", until="commit"), db.session.no_autoflush:
            with db.engine.begin() as other:
                other.execute(sa.insert(Order).values(name="x"))
            assert db.session.scalar(count) == 1
        db.session.rollback()


def test_what_it_is_not_for(context: Flask) -> None:
    with pytest.raises(ConfigurationError, match="'commit'"):
        locks["default"].lock("a", until="rollback")  # type: ignore[arg-type]

    async def in_loop() -> None:
        alocks["default"].lock("a", until="commit")  # type: ignore[call-arg]

    with pytest.raises(ConfigurationError, match="blocking client"):
        locked("a", until="commit")(in_loop)
    with pytest.raises(ConfigurationError, match="blocking client"):
        context.ensure_sync(in_loop)()
    bare = Flask("bare")
    bare.config["LOCKKIT_URL"] = "memory://"
    LockKit(bare)
    with bare.app_context(), pytest.raises(ConfigurationError, match="Flask-SQLAlchemy"):
        sell()


def test_an_async_lock_by_hand_is_refused_as_well(context: Flask) -> None:
    async def ask() -> None:
        await alocks["default"].lock("stock:42").acquire()

    db.session.add(Order(name="x"))
    with pytest.raises(OpenTransaction):
        context.ensure_sync(ask)()


def test_a_copy_of_the_request_context_ends_no_transaction_of_the_request(
    shop: Flask, at_release: list[int]
) -> None:
    def view() -> str:
        def take() -> None:
            with locks["default"].lock("stock", until="commit"):
                db.session.add(Order(name="in the copy"))
                db.session.flush()

        flask.copy_current_request_context(take)()
        db.session.commit()
        return "ok"

    shop.add_url_rule("/take", view_func=view, methods=["POST"])
    assert shop.test_client().post("/take").text == "ok"
    assert at_release == [1]
