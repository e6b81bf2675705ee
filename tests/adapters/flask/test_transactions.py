"""Locks enclose transactions: Flask-SQLAlchemy's session around ``@lock_view``, without orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from flask_project import Order, User, db

import lockkit
from lockkit_flask import lock_view, locked, locks
from lockkit_flask.state import app_locks

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Flask

    MakeApp = Callable[..., Flask]


@pytest.fixture
def shop(make_shop: MakeApp) -> Flask:
    return make_shop(LOCKKIT_ORDERS=None)


def rows(app: Flask) -> int:
    """As another connection sees them."""
    with app.app_context(), db.engine.connect() as other:
        return int(other.execute(sa.select(sa.func.count()).select_from(Order)).scalar_one())


@pytest.fixture
def at_release(shop: Flask, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that a second connection sees at the instant of each release."""
    backend = app_locks(shop)["default"].store
    release, seen = backend.release, []

    def releasing(request: Any) -> Any:
        seen.append(rows(shop))
        return release(request)

    monkeypatch.setattr(backend, "release", releasing)
    return seen


@pytest.mark.parametrize("moment", ["view", "after_request", "teardown_request", "appcontext"])
def test_whenever_the_app_commits_the_lock_is_released_later(
    shop: Flask, at_release: list[int], moment: str
) -> None:
    def commit(value: Any = None) -> Any:
        db.session.commit()
        return value

    def view() -> str:
        db.session.add(Order(name="x"))
        if moment == "view":
            commit()
        return "ok"

    shop.add_url_rule("/", view_func=lock_view("a")(view), methods=["POST"])
    if moment == "after_request":
        shop.after_request(commit)
    elif moment == "teardown_request":
        shop.teardown_request(lambda error: commit())
    elif moment == "appcontext":
        shop.teardown_appcontext(lambda error: commit())
    assert shop.test_client().post("/").status_code == 200
    assert at_release == [1]


def failing_once() -> Callable[[object], None]:
    left = ["one"]

    def fail(error: object) -> None:
        if left:
            raise ConnectionError(left.pop())

    return fail


@pytest.mark.parametrize("hook", ["teardown_request", "teardown_appcontext"])
@pytest.mark.parametrize("orders", [None, {"PATHS": ["^/"]}], ids=["lock_view", "order"])
def test_a_teardown_that_raises_leaves_no_lock_and_no_transaction(
    make_shop: MakeApp, hook: str, orders: dict[str, Any] | None
) -> None:
    """Flask leaves out what should follow it; the watchdog would renew for MAX_HOLD."""
    shop = make_shop(LOCKKIT_ORDERS=orders, PROPAGATE_EXCEPTIONS=True)
    getattr(shop, hook)(failing_once())

    def view() -> str:
        db.session.add(Order(name="x"))
        db.session.flush()
        raise RuntimeError

    shop.add_url_rule("/", view_func=lock_view("a")(view), methods=["POST"])
    headers = {"X-User": "alice", "Idempotency-Key": "A-1"}
    with pytest.raises((ConnectionError, RuntimeError)):
        shop.test_client().post("/", headers=headers)
    with shop.app_context():
        assert not list(locks["default"].holders())
        assert rows(shop) == 0


def by_lock_view() -> Callable[[], str]:
    return lock_view("a")(flushing)


def until_commit() -> Callable[[], str]:
    return locked("a", until="commit")(flushing)


def until_commit_of_nothing() -> Callable[[], str]:
    return locked("a", until="commit")(reading)


def reading() -> str:
    db.session.get(User, 1)
    return "ok"


def flushing() -> str:
    db.session.add(Order(name="x"))
    db.session.flush()
    return "ok"


@pytest.mark.parametrize("make_view", [by_lock_view, until_commit])
def test_a_teardown_that_raises_before_the_session_ends_ends_it(
    make_shop: MakeApp, make_view: Callable[[], Callable[[], str]]
) -> None:
    """The next request would find the lock free, and what is under it still open."""
    shop = make_shop(LOCKKIT_ORDERS=None, PROPAGATE_EXCEPTIONS=True)
    shop.teardown_appcontext(failing_once())
    shop.add_url_rule("/", view_func=make_view(), methods=["POST"])
    with pytest.raises(ConnectionError):
        shop.test_client().post("/")
    with shop.app_context():
        assert not list(locks["default"].holders())
        pool: Any = db.engine.pool
        assert pool.checkedout() == 0
        assert rows(shop) == 0
    assert shop.test_client().post("/").status_code == 200


@pytest.mark.parametrize("first", ["lockkit", "sqlalchemy"])
def test_extensions_may_be_set_up_in_either_order(
    database: str, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The session's transaction has ended when the lock is free, whoever came first."""
    from flask import Flask as App

    from lockkit_flask import LockKit

    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    app = App("late")
    app.config.update(LOCKKIT_URL="memory://", SQLALCHEMY_DATABASE_URI=database)
    extensions = [LockKit().init_app, db.init_app]
    for init_app in extensions if first == "lockkit" else reversed(extensions):
        init_app(app)
    active = []

    @app.post("/")
    @lock_view("a")
    def view() -> str:
        db.session.execute(sa.text("SELECT 1"))
        return "ok"

    backend = app_locks(app)["default"].store
    release = backend.release

    def releasing(request: Any) -> Any:
        active.append(db.session.registry.has())
        return release(request)

    monkeypatch.setattr(backend, "release", releasing)
    assert app.test_client().post("/").status_code == 200
    assert active == [False]
    with app.app_context():
        db.engine.dispose()


def test_a_read_transaction_ends_before_the_lock_is_asked_for(
    make_shop: MakeApp, database: str
) -> None:
    """Under REPEATABLE READ its snapshot would hide what the last holder has committed."""
    level = "SERIALIZABLE" if database.startswith("sqlite") else "REPEATABLE READ"
    options = {"isolation_level": level}
    shop = make_shop(LOCKKIT_ORDERS=None, SQLALCHEMY_ENGINE_OPTIONS=options)
    users = []

    @shop.before_request
    def authenticate_while_somebody_sells() -> None:
        users.append(db.session.get(User, 1))
        with db.engine.begin() as other:
            other.execute(sa.insert(Order).values(name="sold by somebody else"))

    @shop.post("/")
    @lock_view("a")
    def view() -> str:
        assert users[0].name == "alice"  # the object stays usable
        return str(db.session.execute(sa.select(sa.func.count()).select_from(Order)).scalar())

    with shop.app_context():
        db.session.add(User(id=1, name="alice"))
        db.session.commit()
    assert shop.test_client().post("/").text == "1"


@pytest.mark.parametrize(
    "write",
    [
        lambda: db.session.add(Order(name="pending")),
        lambda: (db.session.add(Order(name="flushed")), db.session.flush()),
        lambda: db.session.execute(sa.insert(Order).values(name="core")),
        lambda: db.session.execute(sa.text('UPDATE "user" SET seen = 1')),
        lambda: setattr(db.session.get(User, 1), "seen", 7),
        lambda: db.session.delete(db.session.get(User, 1)),
    ],
)  # fmt: skip
def test_changes_that_are_not_committed_are_an_error(
    shop: Flask, write: Callable[[], object]
) -> None:
    @shop.before_request
    def before() -> None:
        write()

    @shop.post("/")
    @lock_view("a")
    def view() -> str:
        raise AssertionError

    with shop.app_context():
        db.session.add(User(id=1, name="alice"))
        db.session.commit()
    shop.testing = True
    with pytest.raises(lockkit.ConfigurationError, match="Commit or roll back"):
        shop.test_client().post("/")


@pytest.mark.parametrize(
    "options", [{"isolation_level": "SERIALIZABLE"}, {"schema_translate_map": {None: "tenant"}}]
)
def test_options_of_a_connection_are_not_lost_silently(
    shop: Flask, options: dict[str, Any]
) -> None:
    """The rollback would give the connection back, which resets them."""
    with shop.app_context():
        connection = db.session.connection(execution_options=options)
        with (
            pytest.raises(lockkit.OpenTransaction, match="would be lost"),
            locks["default"].lock("a"),
        ):
            pass
        assert db.session.connection() is connection
        db.session.rollback()
        db.session.execute(sa.select(Order))
        with locks["default"].lock("a"):
            pass


HAVE_OPTIONS = [
    sa.Engine,
    *([sa.orm.Session] if hasattr(sa.orm.Session, "execution_options") else []),
]
"""Sessions from SQLAlchemy 2.1 on."""


@pytest.mark.parametrize("of", HAVE_OPTIONS)
def test_options_that_each_transaction_has_are_not_lost(
    make_shop: Callable[..., Flask], monkeypatch: pytest.MonkeyPatch, of: type
) -> None:
    options = {"execution_options": {"isolation_level": "SERIALIZABLE"}}
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS=options if of is sa.Engine else {})
    with shop.app_context():
        if of is sa.orm.Session:
            monkeypatch.setattr(db, "session", db._make_scoped_session(options))
        db.session.execute(sa.select(Order))
        with locks["default"].lock("a"):
            assert db.session.connection().get_isolation_level() == "SERIALIZABLE"


@pytest.mark.parametrize(
    "harmless",
    [
        lambda: db.session.execute(sa.text("SELECT 1")),
        lambda: setattr(db.session.get(User, 1), "name", "alice"),
        lambda: (db.session.add(Order(name="x")), db.session.commit()),
        lambda: (db.session.add(Order(name="x")), db.session.flush(), db.session.rollback()),
    ],
)
def test_what_is_read_or_committed_is_none(shop: Flask, harmless: Callable[[], object]) -> None:
    @shop.before_request
    def before() -> None:
        harmless()

    @shop.post("/")
    @lock_view("a")
    def view() -> str:
        return "ok"

    with shop.app_context():
        db.session.add(User(id=1, name="alice"))
        db.session.commit()
    assert shop.test_client().post("/").text == "ok"


def test_a_teardown_that_raises_keeps_no_lock_of_a_view_that_has_only_read(
    make_shop: MakeApp,
) -> None:
    """Its session goes on, and another context may find it."""
    shop = make_shop(LOCKKIT_ORDERS=None, PROPAGATE_EXCEPTIONS=True)
    shop.teardown_appcontext(failing_once())
    left = []

    @shop.post("/")
    @locked("a", until="commit")
    def view() -> str:
        left.append(db.session())
        return reading()

    with pytest.raises(ConnectionError):
        shop.test_client().post("/")
    with shop.app_context():
        assert not list(locks["default"].holders())
    [session] = left
    session.close()  # unless that context has found it, by the same id, and has closed it


@pytest.mark.parametrize("make_view", [by_lock_view, until_commit, until_commit_of_nothing])
def test_an_app_context_around_requests_keeps_no_lock_of_them(
    shop: Flask, make_view: Callable[[], Callable[[], str]]
) -> None:
    shop.add_url_rule("/", view_func=make_view(), methods=["POST"])
    shop.add_url_rule("/next", "next", lock_view("a", timeout=0)(reading), methods=["POST"])
    with shop.app_context():
        for path in ("/", "/next", "/"):
            assert shop.test_client().post(path).text == "ok"
            assert not list(locks["default"].holders())


def test_the_end_of_a_request_leaves_the_lock_and_the_rows_of_a_test_around_it(shop: Flask) -> None:
    """A test's session works in savepoints of a transaction of the test's own."""
    shop.add_url_rule("/", view_func=until_commit_of_nothing(), methods=["POST"])
    with shop.app_context(), db.engine.connect() as outer, outer.begin() as around:
        session = db.session()
        session.join_transaction_mode = "create_savepoint"
        session.connection(bind_arguments={"bind": outer})
        with locks["default"].lock("of the test", until="commit"):
            session.add(Order(name="flushed"))
            session.flush()
        assert shop.test_client().post("/").text == "ok"
        assert [held.name for held in locks["default"].holders()] == ["of the test"]
        assert outer.scalars(sa.select(Order.name)).all() == ["flushed"]
        session.rollback()
        around.rollback()


def test_an_app_context_around_the_request_drops_what_was_not_committed(shop: Flask) -> None:
    """As the end of the request's own context would."""

    @shop.post("/")
    @lock_view("a")
    def view() -> str:
        db.session.add(Order(name="forgotten"))
        db.session.flush()
        return "ok"

    with shop.app_context():
        assert shop.test_client().post("/").text == "ok"
        assert not list(locks["default"].holders())
        db.session.commit()
        assert rows(shop) == 0


def test_a_lock_hidden_from_its_order_is_an_error_with_the_remedy(make_shop: MakeApp) -> None:
    shop = make_shop()

    @lock_view("a")
    def inner() -> str:
        raise AssertionError

    def hidden() -> str:
        return inner() + ""

    shop.add_url_rule("/hidden", view_func=hidden, methods=["POST"])
    shop.testing = True
    with pytest.raises(lockkit.ConfigurationError, match=r"functools\.wraps"):
        shop.test_client().post("/hidden", headers={"X-User": "a", "X-Order-ID": "1"})
