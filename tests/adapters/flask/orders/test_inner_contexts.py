"""What an app context within the view of an order commits, beside the session of the view."""

from __future__ import annotations

import asyncio
import threading
import warnings
from contextvars import copy_context
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from flask import Flask, copy_current_request_context
from flask_project import Order, db, put

from lockkit.model.errors import ConfigurationError
from lockkit.orders.rows import TABLE as TABLE_NAME
from lockkit_flask import current_order, locks

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask.typing import ResponseReturnValue
    from werkzeug.test import TestResponse

A_1 = {"X-User": "alice", "X-Order-ID": "A-1"}


@pytest.fixture
def shop(make_shop: Callable[..., Flask]) -> Flask:
    return make_shop()


def post(app: Flask, view: Callable[[], ResponseReturnValue]) -> TestResponse:
    if "order" not in app.view_functions:
        app.add_url_rule("/order", "order", view_func=view, methods=["POST"])
    return app.test_client().post("/order", headers=A_1)


def names(app: Flask) -> list[str]:
    with app.app_context():
        return sorted(db.session.scalars(sa.select(Order.name)))


def records(app: Flask) -> int:
    with app.app_context():
        query = sa.select(sa.func.count()).select_from(db.metadata.tables[TABLE_NAME])
        return int(db.session.execute(query).scalar_one())


def read() -> None:
    db.session.scalars(sa.select(Order)).all()


def commit_inside(app: Flask, name: str = "inner") -> None:
    """As an eager task of Celery does."""
    with app.app_context():
        put(name)
        db.session.commit()


def leaves() -> None:
    pass


ENDS = pytest.mark.parametrize(
    "end",
    [
        leaves,
        db.session.rollback,
        db.session.close,
        db.session.remove,
    ],
    ids=["leaves", "rolls back", "closes", "removes"],
)


@pytest.mark.parametrize("status", [201, 409])
@ENDS
@pytest.mark.parametrize("begin", ["reads", "commits and reads"])
def test_what_an_inner_app_context_has_committed_stays_where_the_view_only_reads(
    shop: Flask, begin: str, end: Callable[[], None], status: int
) -> None:
    """Such as ``current_user``, before an eager task. The savepoint of the reads is around it."""

    def order() -> ResponseReturnValue:
        if begin == "commits and reads":
            put("outer")
            db.session.commit()
        read()
        commit_inside(shop)
        end()
        return "ok", status

    assert post(shop, order).status_code == status
    assert names(shop) == (["inner", "outer"] if begin == "commits and reads" else ["inner"])
    assert records(shop) == (status == 201)


def test_what_a_savepoint_of_the_view_has_undone_is_not_left_uncommitted(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        begun = db.session.begin_nested()
        put("undone")
        db.session.flush()
        begun.rollback()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert (names(shop), records(shop)) == ([], 1)


def test_a_savepoint_that_the_view_names_itself_is_gone_back_to_twice(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        db.session.execute(sa.text("SAVEPOINT mine"))
        for name in ("undone", "undone, too"):
            put(name)
            db.session.flush()
            db.session.execute(sa.text("ROLLBACK TO SAVEPOINT mine"))
        put("kept")
        db.session.flush()
        db.session.execute(sa.text("RELEASE SAVEPOINT mine"))
        db.session.commit()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["kept"]


def test_a_savepoint_of_the_view_that_has_only_read_undoes_nothing(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        put("outer")
        db.session.flush()
        begun = db.session.begin_nested()
        read()
        commit_inside(shop)
        begun.rollback()
        db.session.commit()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["inner", "outer"]


def test_a_view_that_only_reads_may_go_on_after_it_has_rolled_back(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        for _ in range(2):
            read()
            commit_inside(shop)
            db.session.rollback()
            put("outer")
            db.session.flush()
            db.session.rollback()  # after the inner COMMIT, but not around it
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["inner", "inner"]


def test_three_sessions_one_in_another(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        read()
        with shop.app_context():
            read()
            commit_inside(shop)
        db.session.rollback()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["inner"]


def test_an_inner_app_context_reads_within_what_the_view_has_not_committed(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        made = put("outer")
        db.session.flush()
        with shop.app_context():
            read()
            db.session.commit()
        made.name = "changed"
        db.session.commit()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["changed"]


def test_an_inner_app_context_that_only_reads_leaves_the_view_its_rollback(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        put("outer")
        db.session.flush()
        with shop.app_context():
            read()
            db.session.commit()
        db.session.rollback()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == []


def test_an_inner_app_context_commits_and_then_the_view_does(shop: Flask) -> None:
    """The view has flushed for the ID of its row."""

    def order() -> ResponseReturnValue:
        made = put("outer")
        db.session.flush()
        commit_inside(shop, f"inner {made.id is not None}")
        db.session.commit()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["inner True", "outer"]


def test_an_inner_app_context_commits_inside_the_begin_of_the_view(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        with db.session.begin():
            read()
            commit_inside(shop)
            put("outer")
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["inner", "outer"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@ENDS
def test_an_inner_app_context_commits_beside_a_locked_row(
    shop: Flask, end: Callable[[], None]
) -> None:
    with shop.app_context():
        put("before")
        db.session.commit()

    def order() -> ResponseReturnValue:
        locked = db.session.scalars(sa.select(Order).with_for_update()).one()
        commit_inside(shop)
        locked.name = "changed"
        if end is leaves:
            db.session.commit()
        end()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == sorted(["inner", "changed" if end is leaves else "before"])


def test_an_inner_app_context_commits_for_each_row_that_the_view_streams(shop: Flask) -> None:
    with shop.app_context():
        db.session.add_all([Order(name="before") for _ in range(5)])
        db.session.commit()

    def order() -> ResponseReturnValue:
        streamed = (
            sa.select(Order.name).where(Order.name == "before").execution_options(yield_per=2)
        )
        for _ in db.session.execute(streamed).scalars():
            commit_inside(shop)
        db.session.commit()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["before"] * 5 + ["inner"] * 5


def on_the_views_connection(app: Flask) -> None:
    """The connection is kept over the statements of another session."""
    connection = db.session.connection()
    with app.app_context():
        read()
    connection.execute(sa.insert(Order).values(name="outer"))


def test_what_the_view_rolls_back_is_not_committed(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        on_the_views_connection(shop)
        db.session.rollback()
        return "no", 409

    assert post(shop, order).status_code == 409
    assert (names(shop), records(shop)) == ([], 0)


def test_what_the_view_has_not_committed_is_told(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        on_the_views_connection(shop)
        return "ok", 201

    shop.testing = True
    with pytest.raises(ConfigurationError, match="are not committed"):
        post(shop, order)
    assert (names(shop), records(shop)) == ([], 0)


@pytest.mark.parametrize(
    ("end", "status"), [*((end, 201) for end in ["rollback", "close", "remove"]), ("flush", 409)]
)
def test_what_was_committed_inside_of_what_the_view_rolls_back_is_no_order(
    shop: Flask, end: str, status: int
) -> None:
    """An answer that is a refusal rolls the view's session back, too."""
    changes = ["outer", ""]

    def order() -> ResponseReturnValue:
        read()
        if changes.pop(0):
            put("outer")
            db.session.flush()
        commit_inside(shop)
        getattr(db.session, end)()
        return "ok", status

    shop.testing = True
    with pytest.raises(ConfigurationError, match="Commit the changes of the view before"):
        post(shop, order)
    assert (names(shop), records(shop)) == ([], 0)
    again = post(shop, order)
    assert (again.status_code, names(shop)) == (status, ["inner"])


def test_what_was_committed_in_a_begin_nested_that_is_rolled_back_is_no_order(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        with db.session.begin_nested() as begun:
            put("outer")
            db.session.flush()
            commit_inside(shop)
            begun.rollback()
        db.session.commit()
        return "ok", 201

    shop.testing = True
    with pytest.raises(ConfigurationError, match="Commit the changes of the view before"):
        post(shop, order)
    assert (names(shop), records(shop)) == ([], 0)


def test_what_was_committed_before_a_statement_that_fails_stays(shop: Flask) -> None:
    """PostgreSQL then lets nothing be kept that came after the savepoint."""

    def order() -> ResponseReturnValue:
        read()
        commit_inside(shop)
        with pytest.raises(sa.exc.SQLAlchemyError):
            db.session.execute(sa.text("SELECT nothing FROM nowhere"))
        db.session.rollback()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["inner"]


def test_what_the_view_changes_after_that_is_its_own(shop: Flask) -> None:
    """Its rollback undoes that, and nothing else."""

    def order() -> ResponseReturnValue:
        read()
        commit_inside(shop)
        db.session.add_all([Order(id=7, name="twice"), Order(id=7, name="twice")])
        with pytest.raises(sa.exc.IntegrityError):
            db.session.commit()
        db.session.rollback()
        return "there already", 409

    assert post(shop, order).status_code == 409
    assert (names(shop), records(shop)) == (["inner"], 0)


def test_what_a_cursor_of_the_driver_wrote_inside_stays(shop: Flask) -> None:
    """Nobody sees that it is a change, as with COPY, or a function that a SELECT calls."""

    def order() -> ResponseReturnValue:
        read()
        with shop.app_context():
            driver = db.session.connection().connection
            driver.cursor().execute("INSERT INTO \"order\" (id, name) VALUES (7, 'inner')")
            db.session.commit()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["inner"]


def test_begin_nested_inside_is_no_commit(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        put("outer")
        db.session.flush()
        with shop.app_context():
            with db.session.begin_nested():
                put("inner")
            db.session.rollback()
        db.session.rollback()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == []


def test_two_sessions_of_a_view_are_told_apart(shop: Flask) -> None:
    """What one of them has flushed is not kept as if it had only read."""

    def order() -> ResponseReturnValue:
        with db.session.session_factory() as other:
            other.add(Order(name="other"))
            other.flush()
            put("inner")
            db.session.commit()
            other.rollback()
        return "ok", 201

    shop.testing = True
    with pytest.raises(ConfigurationError, match="Commit the changes of the view before"):
        post(shop, order)
    assert (names(shop), records(shop)) == ([], 0)


def test_a_session_that_is_closed_before_one_inside_it(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        read()
        commit_inside(shop)
        other = db.session.session_factory()
        other.add(Order(name="other"))
        other.flush()
        db.session.close()
        other.close()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["inner"]


def test_a_session_that_only_reads_undoes_nothing_of_the_view(shop: Flask) -> None:
    """What the view flushes meanwhile lies inside the savepoint of those reads."""

    def order() -> ResponseReturnValue:
        read()
        with db.session.session_factory() as other:
            other.scalars(sa.select(Order)).all()
            put("kept")
            db.session.flush()
        db.session.commit()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["kept"]


def test_the_view_commits_while_another_session_reads(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        read()
        with db.session.session_factory() as other:
            other.scalars(sa.select(Order)).all()
            put("kept")
            db.session.commit()
        put("after")
        db.session.commit()
        return "ok", 201

    with pytest.warns(sa.exc.SAWarning, match="already deassociated"):
        assert post(shop, order).status_code == 201
    assert names(shop) == ["after", "kept"]


def test_two_sessions_that_both_change_something_and_one_rolls_back(shop: Flask) -> None:
    def order() -> ResponseReturnValue:
        read()
        with db.session.session_factory() as other:
            other.add(Order(name="other"))
            other.flush()
            put("lost")
            db.session.flush()
            other.rollback()
        db.session.commit()
        return "ok", 201

    shop.testing = True
    with pytest.raises(ConfigurationError, match="has undone what another one"):
        post(shop, order)
    assert (names(shop), records(shop)) == ([], 0)


@pytest.mark.parametrize("begin", [read, lambda: put("inner") and db.session.flush()])
@pytest.mark.parametrize("commits", [False, True])
def test_an_object_of_the_view_is_read_inside_an_app_context(
    shop: Flask, begin: Callable[[], object], commits: bool
) -> None:
    """It has expired, so the view's session begins anew there."""

    def order() -> ResponseReturnValue:
        made = put("outer")
        db.session.commit()
        with shop.app_context():
            begin()
            put(f"for {made.name}")
            if commits:
                db.session.commit()
        made.name = "changed"
        db.session.commit()
        return "ok", 201

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nested transaction already", sa.exc.SAWarning)
        answer = post(shop, order)
    inner = [] if begin is read else ["inner"]
    assert answer.status_code == 201
    assert names(shop) == sorted(["changed", *([*inner, "for outer"] if commits else [])])


def test_the_rollback_of_the_view_undoes_nothing_that_came_before_its_own_reads(
    shop: Flask,
) -> None:
    def order() -> ResponseReturnValue:
        made = put("outer")
        db.session.commit()
        view = db.session()
        with shop.app_context():
            read()
            assert made.name == "outer"
            put("kept")
            db.session.flush()
            view.rollback()
            db.session.commit()
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["kept", "outer"]


@pytest.mark.parametrize("way", ["called", "in a thread"])
def test_a_copy_of_the_request_context_does_not_end_the_order(shop: Flask, way: str) -> None:
    """Such as of what ``copy_current_request_context`` has a thread do."""

    async def order() -> ResponseReturnValue:
        put("first")
        db.session.commit()
        work = copy_current_request_context(lambda: current_order.order_id)
        done = work() if way == "called" else await asyncio.to_thread(work)
        put(done)
        db.session.commit()
        return str(len(list(locks["default"].holders()))), 201

    answers = [post(shop, order) for _ in "12"]
    assert [(answer.status_code, answer.text) for answer in answers] == [(201, "1")] * 2
    assert "Idempotent-Replayed" in answers[1].headers
    assert (names(shop), records(shop)) == (["A-1", "first"], 1)


def change(app: Flask, name: str, end: Callable[[], None], *events: threading.Event) -> None:
    """Change something in an app context, tell so, and end it once told to."""
    changed, go = events
    with app.app_context():
        try:
            put(name)
            db.session.flush()
        finally:
            changed.set()
        assert go.wait(20)
        end()


@pytest.mark.parametrize("end", [db.session.rollback, db.session.commit])
def test_two_threads_do_not_change_something_in_one_order_at_once(
    shop: Flask, end: Callable[[], None]
) -> None:
    """Else one of them could undo, or save, what the other one has done."""
    errors: list[BaseException | None] = []

    async def order() -> ResponseReturnValue:
        changed, go, late, at_once = (threading.Event() for _ in range(4))
        at_once.set()
        first = asyncio.create_task(asyncio.to_thread(change, shop, "first", end, changed, go))
        await asyncio.to_thread(changed.wait, 20)
        args = ("second", db.session.commit, late, at_once)
        second = asyncio.create_task(asyncio.to_thread(change, shop, *args))
        await asyncio.to_thread(late.wait, 20)
        go.set()
        errors.extend(await asyncio.gather(first, second, return_exceptions=True))
        await asyncio.to_thread(commit_inside, shop, "after")
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert errors[0] is None
    assert "at once" in str(errors[1])
    assert isinstance(errors[1], ConfigurationError)
    assert names(shop) == (["after", "first"] if end == db.session.commit else ["after"])


def test_threads_may_work_in_one_order_one_after_another(shop: Flask) -> None:
    async def order() -> ResponseReturnValue:
        read()
        db.session.commit()
        await asyncio.to_thread(commit_inside, shop)
        connection = db.session.connection()
        await asyncio.to_thread(connection.execute, sa.insert(Order).values(name="by hand"))
        put("outer")
        db.session.commit()
        await asyncio.to_thread(commit_inside, shop)
        return "ok", 201

    assert post(shop, order).status_code == 201
    assert names(shop) == ["by hand", "inner", "inner", "outer"]


@pytest.mark.parametrize("status", [201, 409])
def test_what_a_thread_has_not_committed_at_the_end_of_an_order_is_told(
    shop: Flask, status: int
) -> None:
    changed, go = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def roll_back() -> None:
        with pytest.warns(sa.exc.SAWarning, match="already deassociated"):
            db.session.rollback()

    def order() -> ResponseReturnValue:
        put("outer")
        db.session.commit()
        args = (change, shop, "inner", roll_back, changed, go)
        threads.append(threading.Thread(target=copy_context().run, args=args))
        threads[0].start()
        assert changed.wait(20)
        return "ok", status

    shop.testing = True
    try:
        with pytest.raises(ConfigurationError, match="are not committed"):
            post(shop, order)
    finally:
        go.set()
        threads[0].join()
    assert (names(shop), records(shop)) == ([], 0)
