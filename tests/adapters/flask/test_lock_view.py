"""``@lock_view``: which request gets in, what the others are told, when the lock is released."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import uuid
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from flask import Blueprint, Flask, copy_current_request_context, jsonify, request
from flask.views import MethodView, View
from werkzeug.exceptions import Locked, ServiceUnavailable

import lockkit
from lockkit_flask import current_lease, lock_view, locks

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask.typing import ResponseReturnValue

    from lockkit.testing.plugin import HoldLock

    MakeApp = Callable[..., Flask]


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    return make_app(LOCKKIT_VIEWS={"TIMEOUT": 0})


def held(name: str) -> bool:
    info = locks["default"].inspect(name)
    return info is not None and info.state is lockkit.LockState.HELD


def shown(name: str) -> ResponseReturnValue:
    return jsonify(held(name))


def test_the_view_runs_under_the_lock_and_it_is_free_afterwards(app: Flask) -> None:
    @app.post("/stock/<sku>")
    @lock_view("stock:{sku}")
    def deduct(sku: str) -> ResponseReturnValue:
        return shown(f"stock:{sku}")

    assert app.test_client().post("/stock/42").json is True
    with app.app_context():
        assert not held("stock:42")


def test_the_owner_shows_the_request_line_without_its_query(app: Flask) -> None:
    @app.get("/stock/<sku>")
    @lock_view("stock:{sku}")
    def show(sku: str) -> str:
        info = locks["default"].inspect(f"stock:{sku}")
        assert info is not None
        assert info.owner is not None
        return info.owner.label

    assert app.test_client().get("/stock/42?card=4111").text == "GET /stock/42"


class Methods(MethodView):
    decorators = (lock_view("stock:{sku}"),)

    def post(self, sku: str) -> ResponseReturnValue:
        return shown(f"stock:{sku}")


class OneMethod(MethodView):
    @lock_view("stock:{sku}")
    def post(self, sku: str) -> ResponseReturnValue:
        return shown(f"stock:{sku}")


class Dispatching(View):
    methods = ("POST",)
    decorators = (lock_view("stock:{sku}"),)

    def dispatch_request(self, sku: str) -> ResponseReturnValue:
        return shown(f"stock:{sku}")


@pytest.mark.parametrize("view", [Methods, OneMethod, Dispatching])
def test_class_views(app: Flask, view: type[View]) -> None:
    app.add_url_rule("/stock/<sku>", view_func=view.as_view("stock"))
    client = app.test_client()
    assert client.post("/stock/42").json is True
    with app.app_context(), locks["default"].lock("stock:42"):
        assert client.post("/stock/42").status_code == 423


def test_async_views(app: Flask) -> None:
    @app.post("/stock/<sku>")
    @lock_view("stock:{sku}")
    async def deduct(sku: str) -> ResponseReturnValue:
        return shown(f"stock:{sku}")

    assert app.test_client().post("/stock/42").json is True
    with app.app_context():
        assert not held("stock:42")


def test_blueprints(app: Flask) -> None:
    shop = Blueprint("shop", __name__, url_prefix="/shop")

    @shop.post("/stock/<sku>")
    @lock_view("stock:{sku}")
    def deduct(sku: str) -> ResponseReturnValue:
        return shown(f"stock:{sku}")

    app.register_blueprint(shop)
    assert app.test_client().post("/shop/stock/42").json is True


def test_a_callable_gets_the_parameters_of_the_url(app: Flask) -> None:
    @app.post("/stock/<sku>")
    @lock_view(lambda sku: f"stock:{sku.lower()}")
    def deduct(sku: str) -> ResponseReturnValue:
        return shown(f"stock:{sku.lower()}")

    assert app.test_client().post("/stock/ABC").json is True


def test_uuid_parameters(app: Flask) -> None:
    @app.post("/orders/<uuid:order>")
    @lock_view("order:{order}")
    def pay(order: uuid.UUID) -> ResponseReturnValue:
        return shown(f"order:{order}")

    assert app.test_client().post(f"/orders/{uuid.uuid4()}").json is True


@pytest.fixture
def busy(app: Flask) -> Flask:
    """An app whose view counts its calls, and whose lock is held."""
    app.config["CALLS"] = 0

    @app.post("/stock/<sku>")
    @lock_view("stock:{sku}")
    def deduct(sku: str) -> str:
        app.config["CALLS"] += 1
        return sku

    return app


def test_busy_is_423_with_retry_after_and_the_view_does_not_run(busy: Flask) -> None:
    with busy.app_context(), locks["default"].lock("stock:42"):
        response = busy.test_client().post("/stock/42")
    assert response.status_code == 423
    assert int(response.headers["Retry-After"]) >= 1
    assert response.headers["Cache-Control"] == "no-store"
    assert response.content_type == "application/problem+json"
    assert response.get_json(force=True)["status"] == 423
    assert busy.config["CALLS"] == 0


def test_a_browser_gets_html(busy: Flask) -> None:
    with busy.app_context(), locks["default"].lock("stock:42"):
        response = busy.test_client().post("/stock/42", headers={"Accept": "text/html,*/*;q=0.8"})
    assert response.status_code == 423
    assert response.mimetype == "text/html"
    assert "Retry-After" in response.headers


def test_an_error_handler_sees_werkzeugs_locked(busy: Flask) -> None:
    @busy.errorhandler(423)
    def sorry(error: Locked) -> tuple[str, int]:
        assert isinstance(error, Locked)
        return "sorry", 423

    with busy.app_context(), locks["default"].lock("stock:42"):
        response = busy.test_client().post("/stock/42")
    assert (response.text, response.status_code) == ("sorry", 423)
    assert "Retry-After" in response.headers  # the handler forgot it


def test_the_busy_status_is_a_setting(make_app: MakeApp) -> None:
    app = make_app(LOCKKIT_VIEWS={"TIMEOUT": 0, "BUSY_STATUS": 409})

    @app.post("/")
    @lock_view("a")
    def view() -> str:
        return ""

    with app.app_context(), locks["default"].lock("a"):
        response = app.test_client().post("/")
    assert (response.status_code, "Retry-After" in response.headers) == (409, True)


def test_on_busy_makes_the_answer(
    app: Flask, hold_lock: HoldLock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.post("/")
    @lock_view("a", on_busy=lambda error: (f"later, in {error.retry_after} s", 202))
    def view() -> str:
        return ""

    with app.app_context(), hold_lock("a"), caplog.at_level(logging.INFO, "lockkit"):
        response = app.test_client().post("/")
    assert (response.text, response.status_code) == ("later, in 1 s", 202)
    (told,) = [each for each in caplog.records if " gets " in each.getMessage()]
    said = "POST / gets 423 lock-busy: 'a' is held by another-host:1 hold_lock"
    assert (told.levelname, told.getMessage()) == ("INFO", said)


@pytest.mark.parametrize("most", [8, 0])
def test_on_busy_of_a_view_that_waits_for_itself_is_warned(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, most: int
) -> None:
    """Also if the waiting room is full."""
    app = make_app(LOCKKIT_VIEWS={"TIMEOUT": 0.1, "MAX_WAITERS": most})

    @app.post("/")
    @lock_view("a")
    @lock_view("a", on_busy=lambda error: (str(error.own), 202))
    def view() -> str:
        return ""

    assert app.test_client().post("/").text == "True"
    (told,) = [each for each in caplog.records if " gets " in each.getMessage()]
    assert told.levelname == "WARNING"
    assert "that is this thread or task itself" in told.getMessage()


def test_too_many_waiters_are_503_at_once(make_app: MakeApp) -> None:
    app = make_app(LOCKKIT_VIEWS={"MAX_WAITERS": 0, "TIMEOUT": None})
    seen: list[object] = []

    @app.errorhandler(ServiceUnavailable)
    def note(error: ServiceUnavailable) -> ServiceUnavailable:
        seen.append(error.retry_after)
        return error

    @app.post("/")
    @lock_view("a")
    def view() -> str:
        return ""

    with app.app_context(), locks["default"].lock("a"):
        response = app.test_client().post("/")
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert seen == [1]


def test_a_store_that_is_down_is_503_and_the_view_does_not_run(make_app: MakeApp) -> None:
    app = make_app(LOCKKIT_URL="redis://127.0.0.1:1/0")

    @app.post("/")
    @lock_view("a")
    def view() -> str:
        raise AssertionError

    response = app.test_client().post("/")
    assert response.status_code == 503
    assert "Retry-After" in response.headers


FIELDS = [
    ("{json.order.id}", {"json": {"order": {"id": 7}}}, "x:7"),
    ("{json.order.id}", {"json": {"order": {}}}, 400),
    ("{json.order.id}", {"json": {"order": {"id": 1.0}}}, 400),
    ("{json.order.id}", {"data": b"{", "content_type": "application/json"}, 400),
    ("{json.order.id}", {"data": b"\xff", "content_type": "application/json"}, 400),
    ("{form.sku}", {"data": {"sku": "a:b"}}, "x:a%3Ab"),
    ("{form.sku}", {"data": {"sku": ["a", "b"]}}, 400),
    ("{form.sku}", {"json": {"sku": "a"}}, 400),
    ("{query.sku}", {"query_string": "sku=a%25&x=1"}, "x:a%25"),
    ("{query.sku}", {"query_string": "sku="}, 400),
    ("{header.X-Sku}", {"headers": {"X-Sku": "a"}}, "x:a"),
    ("{header.X-Sku}", {}, 400),
    ("{query.sku}", {"query_string": "sku=" + "a" * 300}, 400),
    ("{form.sku:int}", {"data": {"sku": " 01"}}, "x:1"),
    ("{form.sku:int}", {"data": {"sku": "1_0"}}, 400),
    ("{json.sku:uuid}", {"json": {"sku": "A" * 32}}, f"x:{UUID('a' * 32)}"),
    ("{query.mail:lower}", {"query_string": "mail=Ann"}, "x:ann"),
]


@pytest.mark.parametrize(("field", "sent", "expected"), FIELDS)
def test_fields(app: Flask, field: str, sent: dict[str, Any], expected: str | int) -> None:
    @app.post("/")
    @lock_view(f"x:{field}")
    def view() -> ResponseReturnValue:
        (info,) = locks["default"].holders()
        streamed = request.stream.read().decode()
        return jsonify(name=info.name, streamed=streamed, again=request.get_data(as_text=True))

    response = app.test_client().post("/", **sent)
    if isinstance(expected, int):
        assert response.status_code == expected
    else:
        assert response.json is not None
        assert response.json["name"] == expected
        assert response.json["again"] or "json" not in sent  # the view can still read it
        assert response.json["streamed"] == response.json["again"]


def test_no_spelling_of_a_number_passes_its_lock(
    app: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []

    @app.post("/<sku>")
    @lock_view("stock:{sku:int}", timeout=0)
    def view(sku: str) -> str:
        runs.append(int(sku))
        return ""

    with app.app_context(), locks["default"].lock("stock:1"):
        client = app.test_client()
        held = [client.post(f"/{sku}").status_code for sku in ("1", "01", " 1", "+1")]
        with caplog.at_level(logging.INFO, "lockkit"):
            refused = [client.post(f"/{sku}") for sku in ("\uff11", "1_0", "x")]
    assert held == [423] * 4
    assert [answer.status_code for answer in refused] == [400] * 3
    assert all(answer.get_json()["code"] == "lock-name-not-found" for answer in refused)
    assert "POST /x gets 400 lock-name-not-found: {sku" in caplog.text
    assert runs == []


def test_the_user_comes_from_a_hook(make_app: MakeApp) -> None:
    app = make_app(LOCKKIT_USER=lambda: request.headers.get("X-User"))

    @app.post("/")
    @lock_view("cart:{user.pk}")
    def view() -> ResponseReturnValue:
        return shown("cart:7")

    assert app.test_client().post("/", headers={"X-User": "7"}).json is True
    assert app.test_client().post("/").status_code == 403


def test_an_app_that_does_not_say_who_its_users_are_is_told_to(app: Flask) -> None:
    @app.post("/")
    @lock_view("cart:{user.pk}")
    def view() -> str:
        return ""

    app.testing = True
    with pytest.raises(lockkit.ConfigurationError, match="LOCKKIT_USER"):
        app.test_client().post("/")


def test_a_field_that_the_route_does_not_have_is_a_defect(app: Flask) -> None:
    @app.post("/")
    @lock_view("x:{sku}")
    def view() -> str:
        return ""

    app.testing = True
    with pytest.raises(lockkit.ConfigurationError, match="sku"):
        app.test_client().post("/")


@pytest.mark.parametrize(
    "make",
    [
        lambda: lock_view("x:{"),
        lambda: lock_view("x:{usr.pk}"),
        lambda: lock_view("x", timeout=-1),
        lambda: lock_view("x", ttl=0),
        lock_view,
    ],
)
def test_a_wrong_decorator_is_an_error_at_import(make: Callable[[], object]) -> None:
    with pytest.raises(lockkit.ConfigurationError):
        make()


def test_an_unhandled_exception_gives_the_lock_back(app: Flask) -> None:
    @app.post("/")
    @lock_view("a")
    def view() -> str:
        raise RuntimeError

    app.testing = True  # the exception propagates, so after_request is skipped
    with pytest.raises(RuntimeError):
        app.test_client().post("/")
    with app.app_context():
        assert not held("a")


def test_the_lock_is_held_until_the_request_has_ended(app: Flask) -> None:
    seen = {}

    @app.post("/")
    @lock_view("a")
    def view() -> str:
        return ""

    @app.after_request
    def after(response: Any) -> Any:
        seen["after_request"] = held("a")
        return response

    @app.teardown_request
    def teardown(error: BaseException | None) -> None:
        seen["teardown_request"] = held("a")

    @app.teardown_appcontext
    def teardown_context(error: BaseException | None) -> None:
        seen["teardown_appcontext"] = held("a")

    app.test_client().post("/")
    assert seen == {"after_request": True, "teardown_request": True, "teardown_appcontext": True}


def test_an_app_context_around_the_request_does_not_keep_the_lock(app: Flask) -> None:
    @app.post("/")
    @lock_view("a")
    def view() -> ResponseReturnValue:
        return shown("a")

    with app.app_context():
        for _ in range(2):
            assert app.test_client().post("/").json is True
        assert not held("a")


def test_a_request_within_a_request_gives_back_its_own_lock_only(app: Flask) -> None:
    @app.post("/<name>")
    @lock_view("{name}")
    def view(name: str) -> ResponseReturnValue:
        if name == "outer":
            app.test_client().post("/inner")
        return jsonify(held("outer"), held("inner"))

    assert app.test_client().post("/outer").json == [True, False]


@pytest.mark.parametrize("way", ["called", "in a thread"])
def test_a_copy_of_the_context_ends_no_lock_of_the_request(app: Flask, way: str) -> None:
    def token() -> int:
        return current_lease().fencing_token

    async def copied() -> int:
        work = copy_current_request_context(token)
        return work() if way == "called" else await asyncio.to_thread(work)

    @app.post("/")
    @lock_view("a")
    async def view() -> ResponseReturnValue:
        return jsonify(await copied() == token(), held("a"))

    assert app.test_client().post("/").json == [True, True]
    with app.app_context():
        assert not held("a")


def test_teardown_twice_is_harmless(app: Flask) -> None:
    @app.post("/")
    @lock_view("a")
    def view() -> str:
        return ""

    with app.test_request_context("/", method="POST"):
        app.full_dispatch_request()
        app.do_teardown_appcontext()
        assert not held("a")


def test_the_view_can_ask_for_its_lease(app: Flask) -> None:
    @app.post("/")
    @lock_view("a")
    def view() -> ResponseReturnValue:
        lease = current_lease()
        (info,) = locks["default"].holders()
        return jsonify(lease.fencing_token == info.fence)

    assert app.test_client().post("/").json is True
    with app.app_context(), pytest.raises(lockkit.ConfigurationError, match="below @lock_view"):
        current_lease()


def test_a_lost_lease_is_an_error_and_not_a_success(app: Flask) -> None:
    @app.post("/")
    @lock_view("a", ttl=1)
    def view() -> str:
        lease = current_lease()
        assert locks["default"].break_("a", fence=lease.fencing_token)
        while not lease.lost:  # until the next renewal is refused
            threading.Event().wait(0.01)
        return "done"

    assert app.test_client().post("/").status_code == 500


def test_a_view_is_not_entered_again_under_its_lost_lease(app: Flask) -> None:
    runs = []

    def again(view: Callable[[], str]) -> Callable[[], str]:
        @functools.wraps(view)
        def retried() -> str:
            with pytest.raises(lockkit.LeaseLost):
                view()
            return view()

        return retried

    @app.post("/")
    @again
    @lock_view("a")
    def view() -> str:
        runs.append(1)
        lease = current_lease()
        locks["default"].break_("a", fence=lease.fencing_token)
        with pytest.raises(lockkit.LeaseLost):
            lease.extend()
        return "done"

    assert app.test_client().post("/").status_code == 500
    assert runs == [1]


def test_requests_in_threads_exclude_one_another(make_app: MakeApp) -> None:
    app = make_app(LOCKKIT_VIEWS={"TIMEOUT": 60, "MAX_WAITERS": 20})
    value = {"n": 0}

    @app.post("/")
    @lock_view("counter")
    def view() -> str:
        seen = value["n"]
        threading.Event().wait(0.002)
        value["n"] = seen + 1
        return ""

    def work() -> None:
        for _ in range(10):
            assert app.test_client().post("/").status_code == 200

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value["n"] == 80


def test_a_view_that_locks_its_own_name_again_is_told(app: Flask) -> None:
    said: list[str] = []

    @app.post("/stock/<sku>")
    @lock_view("stock:{sku}")
    def deduct(sku: str) -> str:
        with pytest.raises(lockkit.LockHeld) as refused:
            locks["default"].lock(f"stock:{sku}", timeout=0).acquire()
        said.append(str(refused.value))
        return "kept"

    assert app.test_client().post("/stock/42").text == "kept"
    assert "POST /stock/42: that is this thread or task itself" in said[0]
    assert "that of lock_view" in said[0]
