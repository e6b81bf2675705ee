"""Locks that a view takes by hand and does not get: the same answers as of ``lock_view``."""

from __future__ import annotations

import logging
import threading
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from flask import Blueprint, Flask, request
from flask_babel import Babel
from werkzeug.exceptions import Locked

import lockkit
from lockkit.stores.memory import MemoryStore
from lockkit.testing.conformance.base import eventually
from lockkit_flask import LockKit, alocks, lock_view, locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flask.typing import ResponseReturnValue

    from lockkit.testing.plugin import HoldLock

    MakeApp = Callable[..., Flask]

NAME = "stock:A1"


def add_views(app: Flask) -> Flask:
    @app.get("/by-hand")
    def by_hand() -> str:
        with locks["default"].lock(NAME, timeout=0):
            return "got it"

    @app.get("/down")
    def down() -> str:
        raise lockkit.BackendUnavailable("the store cannot be reached", name=NAME)

    @app.post("/releases")
    def releases() -> str:
        """The store goes down after the sale."""
        lease = locks["default"].lock(NAME).acquire()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryStore, "release", lambda *_: down())
            lease.release()
        return "sold"

    @app.get("/loses")
    def loses() -> str:
        raise lockkit.LeaseLost("lost", name=NAME)

    return app


@pytest.fixture
def app(make_app: MakeApp) -> Iterator[Flask]:
    app = add_views(make_app())
    with app.app_context():
        yield app


def test_a_busy_lock_by_hand_is_423(app: Flask) -> None:
    with locks["default"].lock(NAME):
        response = app.test_client().get("/by-hand")
    assert (response.status_code, response.headers["Retry-After"]) == (423, "1")
    assert response.get_json(force=True)["code"] == "lock-busy"
    assert app.test_client().get("/by-hand").text == "got it"


def test_a_flask_that_hands_its_context_over(make_app: MakeApp) -> None:
    """As Flask 3.2 will do with these methods."""

    class Later(Flask):
        def handle_user_exception(self, *args: Any) -> Any:
            return super().handle_user_exception(args[-1])

        def handle_http_exception(self, *args: Any) -> Any:
            return super().handle_http_exception(args[-1])

        def full_dispatch_request(self, *_: Any) -> Any:
            try:
                answer: Any = self.dispatch_request()
            except Exception as error:  # noqa: BLE001  as Flask does
                answer = cast("Any", self.handle_user_exception)(None, error)
            return self.finalize_request(answer)

    app = add_views(make_app(Later))
    with app.app_context(), locks["default"].lock(NAME):
        assert app.test_client().get("/by-hand").status_code == 423
        assert app.test_client().get("/nowhere").status_code == 404


def test_what_takes_the_place_of_flasks_answer_later_is_asked(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = []
    answer: Any = app.handle_http_exception

    def noted(*args: Any) -> Any:
        answers.append(args[-1])
        return answer(*args)

    monkeypatch.setattr(app, "handle_http_exception", noted)
    with locks["default"].lock(NAME):
        assert app.test_client().get("/by-hand").status_code == 423
    assert [type(each) for each in answers] == [Locked]


def test_the_busy_status_is_that_of_views(make_app: MakeApp) -> None:
    app = add_views(make_app(LOCKKIT_VIEWS={"BUSY_STATUS": 409}))
    with app.app_context(), locks["default"].lock(NAME):
        assert app.test_client().get("/by-hand").status_code == 409


def test_a_store_that_is_down_is_503_and_a_lost_lease_stays_an_error(
    app: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "lockkit"):
        response = app.test_client().get("/down")
    assert response.status_code == 503
    assert f"GET /down gets 503 lock-store-unavailable for {NAME!r}: the store" in caplog.text
    assert app.test_client().get("/loses").status_code == 500
    assert app.test_client().post("/releases").status_code == 500, "it would be sold again"


@pytest.mark.parametrize(
    "error",
    [lockkit.LockHeld, lockkit.AcquireTimeout, lockkit.LockError, TimeoutError, Exception],
)
@pytest.mark.parametrize("in_blueprint", [False, True])
def test_the_app_s_own_handlers_go_first(
    app: Flask, error: type[Exception], in_blueprint: bool
) -> None:
    blueprint = Blueprint("shop", __name__)
    blueprint.add_url_rule("/by-hand-too", view_func=app.view_functions["by_hand"])

    def sorry(error: Exception) -> ResponseReturnValue:
        return f"sorry: {type(error).__name__}", 418

    (blueprint if in_blueprint else app).register_error_handler(error, sorry)
    app.register_blueprint(blueprint)
    with locks["default"].lock(NAME):
        response = app.test_client().get("/by-hand-too")
    assert (response.status_code, response.text) == (418, "sorry: LockHeld")


def test_a_handler_that_was_there_before_lockkit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Flask("before")
    app.config["LOCKKIT_URL"] = "memory://"
    app.register_error_handler(lockkit.AcquireTimeout, lambda error: ("sorry", 418))
    LockKit(app)
    add_views(app)
    with app.app_context(), locks["default"].lock(NAME):
        assert app.test_client().get("/by-hand").status_code == 418


def test_a_handler_of_the_status_sees_it(app: Flask) -> None:
    @app.errorhandler(423)
    def sorry(error: Locked) -> ResponseReturnValue:
        return f"locked for {vars(error)['retry_after']} s", 423

    with locks["default"].lock(NAME):
        response = app.test_client().get("/by-hand")
    assert (response.text, response.headers["Retry-After"]) == ("locked for 1 s", "1")


def test_who_was_refused_what_is_logged(
    app: Flask, hold_lock: HoldLock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "lockkit"), hold_lock(NAME):
        app.test_client().get("/by-hand?card=4111")
    (told,) = [r for r in caplog.records if " gets " in r.getMessage()]
    assert told.levelname == "INFO"
    refused = f"GET /by-hand gets 423 lock-busy: {NAME!r} is held by another-host:1 hold_lock"
    assert told.getMessage() == refused


def test_a_wait_is_logged_for_whoever_looks_closely(
    app: Flask, hold_lock: HoldLock, caplog: pytest.LogCaptureFixture
) -> None:
    view = lock_view(NAME, timeout=0.01)(lambda: "got it")
    app.add_url_rule("/waits/<sku>", "waits", view)
    with caplog.at_level(logging.DEBUG, "lockkit"), hold_lock(NAME):
        assert app.test_client().get("/waits/A1?card=4111").status_code == 423
    (told,) = [r for r in caplog.records if " waits for " in r.getMessage()]
    assert told.levelname == "DEBUG"
    who, _, what = told.getMessage().partition(" waits for ")
    assert who.endswith(" GET /waits/A1")
    assert what == f"{NAME!r}, held by another-host:1 hold_lock"


def test_a_view_that_waits_for_itself_is_warned(
    app: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    """That is a defect of the view: the log says so without being set up."""
    with locks["default"].lock(NAME, label="POST /first"):
        app.test_client().get("/by-hand?card=4111")
    (told,) = [r for r in caplog.records if " gets " in r.getMessage()]
    assert told.levelname == "WARNING"
    assert f"{NAME!r} is held by " in told.getMessage()
    assert "POST /first: that is this thread or task itself" in told.getMessage()


def test_a_view_that_locks_its_own_name_elsewhere_is_warned(
    app: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    """In another task than the thread of its ``lock_view``."""

    @app.get("/again")
    @lock_view(NAME)
    async def again() -> str:
        async with alocks["default"].lock(NAME, timeout=0):
            return "got it"

    assert app.test_client().get("/again").status_code == 423
    (told,) = [r for r in caplog.records if " gets " in r.getMessage()]
    assert told.levelname == "WARNING"
    assert "GET /again: that is the lock_view around the code that asks" in told.getMessage()


def test_a_view_does_not_wait_for_itself(app: Flask) -> None:
    """Not even if it would wait for ever: a lock deep in its code wants the name of its own."""

    @app.get("/twice")
    @lock_view(NAME)
    def twice() -> str:
        locks["default"].lock(NAME, timeout=None).acquire()
        raise AssertionError

    response = app.test_client().get("/twice")
    assert response.status_code == 423
    assert response.get_json(force=True)["code"] == "lock-busy"


def test_what_a_view_has_started_may_wait_for_its_end(app: Flask) -> None:
    leases: list[lockkit.Lease] = []

    def work() -> None:
        with app.app_context():
            leases.append(locks["default"].lock(NAME, timeout=None).acquire())

    threads: list[threading.Thread] = []

    @app.get("/starts")
    @lock_view(NAME)
    def starts() -> str:
        threads.append(threading.Thread(target=copy_context().run, args=[work]))
        threads[0].start()
        eventually(lambda: getattr(locks["default"].inspect(NAME), "waiters", 0))
        return "done"

    assert app.test_client().get("/starts").text == "done"
    threads[0].join()
    assert leases[0].release()


def test_threads_of_one_name_wait_for_one_another(app: Flask) -> None:
    """Each is in a view of the same path that holds another name than the one it asks for."""
    entered, leave = threading.Event(), threading.Event()
    answers: dict[str, str] = {}

    @app.get("/move")
    @lock_view("account:{query.of:str}")
    def move() -> str:
        if request.args["of"] == "A":
            entered.set()
            assert leave.wait(60)
            return "moved"
        with locks["default"].lock("account:A", timeout=60):
            return "moved, later"

    def ask(of: str) -> None:
        answers[of] = app.test_client().get(f"/move?of={of}").text

    threads = [threading.Thread(target=ask, args=[of], name="twin") for of in "AB"]
    threads[0].start()
    assert entered.wait(60)
    threads[1].start()
    with app.app_context():
        waiting = partial(locks["default"].inspect, "account:A")
        eventually(lambda: answers or getattr(waiting(), "waiters", 0))
    leave.set()
    for thread in threads:
        thread.join()
    assert answers == {"A": "moved", "B": "moved, later"}


def test_what_outlives_its_view_waits_for_others(app: Flask) -> None:
    """Another request of the same thread has the lock, in a view of the same path."""
    asked: list[lockkit.LockHeld] = []

    def ask() -> None:
        with app.app_context(), pytest.raises(lockkit.LockHeld) as refused:
            locks["default"].lock(NAME, timeout=0).acquire()
        asked.append(refused.value)

    later: list[threading.Thread] = []

    @app.get("/again")
    @lock_view(NAME)
    def again() -> str:
        if later:
            later[0].start()
            later[0].join()
        later.append(threading.Thread(target=copy_context().run, args=[ask]))
        return "done"

    for _ in range(2):
        app.test_client().get("/again")
    assert [(error.own, "waits for itself" in str(error)) for error in asked] == [(False, False)]


def test_a_request_within_a_view_leaves_it_its_lock(app: Flask) -> None:
    @app.get("/inner")
    @lock_view("stock:B2")
    def inner() -> str:
        return "done"

    @app.get("/outer")
    @lock_view(NAME)
    async def outer() -> str:
        app.test_client().get("/inner")
        async with alocks["default"].lock(NAME, timeout=0):
            return "got it"

    app.testing = True
    app.register_error_handler(lockkit.LockHeld, lambda error: (str(error), 423))
    assert "that is the lock_view around" in app.test_client().get("/outer").text


@pytest.mark.parametrize("accept", ["*/*", "text/html"])
@pytest.mark.parametrize(
    ("locale", "language", "said"),
    [("zh_Hans_CN", "zh-hans", "其他人正在修改"), ("fr", "en", "Someone else")],
)
def test_the_text_and_content_language_are_those_of_the_visitor(
    app: Flask, accept: str, locale: str, language: str, said: str
) -> None:
    Babel(app, locale_selector=lambda: locale)
    with locks["default"].lock(NAME):
        response = app.test_client().get("/by-hand", headers={"Accept": accept})
    text = response.text if "html" in accept else response.get_json(force=True)["detail"]
    assert said in text
    assert response.headers["Content-Language"] == language
    assert response.status_code == 423
