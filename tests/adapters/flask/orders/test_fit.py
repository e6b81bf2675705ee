"""Orders in the shapes that Flask apps have: one view, a blueprint, a class, a hook, a signal."""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pytest
import sqlalchemy as sa
from flask import Blueprint, Flask, Request, Response, make_response, redirect, request, send_file
from flask.views import MethodView
from flask_login import (
    LoginManager,
    UserMixin,
    fresh_login_required,
    login_required,
    login_user,
    logout_user,
)
from flask_project import Order, db, put
from flask_sqlalchemy import SQLAlchemy

import lockkit
from lockkit.orders.rows import TABLE as TABLE_NAME
from lockkit_flask import (
    CurrentOrder,
    LockKit,
    current_order,
    idempotent,
    lock_view,
    locks,
    order_conflict,
    order_orphaned,
    order_replayed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flask.typing import ResponseReturnValue
    from werkzeug.test import TestResponse

ALICE = {"X-User": "alice"}
A_1 = {**ALICE, "X-Order-ID": "A-1"}
HEADERS_ONLY = {"ORDER_ID": ["header:X-Order-ID"], "PATHS": ["^/covered"]}


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Only SQLite: how a database ends an order is ``test_orders``."""
    return f"sqlite:///{tmp_path / 'shop.sqlite3'}"


@pytest.fixture
def shop(make_shop: Callable[..., Flask]) -> Flask:
    """Orders are what the views say: no path of these tests is in PATHS."""
    return make_shop(LOCKKIT_ORDERS=HEADERS_ONLY)


def sell(**_: object) -> ResponseReturnValue:
    order = put("sold")
    db.session.commit()
    return {"order": order.id}, 201


def sold(app: Flask, name: str = "sold") -> int:
    with app.app_context():
        query = sa.select(sa.func.count()).select_from(Order).where(Order.name == name)
        return int(db.session.execute(query).scalar_one())


def twice(app: Flask, path: str, **kwargs: Any) -> tuple[TestResponse, TestResponse]:
    kwargs.setdefault("headers", A_1)
    client = app.test_client()
    return client.post(path, **kwargs), client.post(path, **kwargs)


def is_once(answers: tuple[TestResponse, TestResponse]) -> bool:
    first, second = answers
    assert first.status_code < 400, first.text
    assert "Idempotent-Replayed" not in first.headers
    assert (second.status_code, second.data) == (first.status_code, first.data)
    return second.headers.get("Idempotent-Replayed") == "true"


def passing(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that lockkit does not know: it might be a check."""

    @functools.wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if request.headers.get("X-Revoked"):
            return "revoked", 403
        return view(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("spelling", ["json.order.id", "json:order.id"])
def test_one_view_with_its_order_id_in_json(shop: Flask, spelling: str) -> None:
    shop.add_url_rule(
        "/buy", view_func=idempotent(order_id=spelling, required=True)(sell), methods=["POST"]
    )
    body = {"order": {"id": 17}}
    assert is_once(twice(shop, "/buy", json=body, headers=ALICE))
    missing = shop.test_client().post("/buy", json={}, headers=A_1)
    assert (missing.status_code, missing.json["code"]) == (400, "order-id-missing")
    other = shop.test_client().post("/buy", json={**body, "n": 2}, headers=ALICE)
    assert other.status_code == 422
    assert sold(shop) == 1


def test_a_wrong_order_id_source_is_an_error_at_import() -> None:
    with pytest.raises(lockkit.ConfigurationError, match="cookie"):
        idempotent(order_id="cookie:order_id")
    with pytest.raises(lockkit.ConfigurationError, match="decorators"):
        idempotent(MethodView)


def test_without_orders_in_the_app_it_is_an_error_and_no_second_order(
    make_app: Callable[..., Flask],
) -> None:
    app = make_app(TESTING=True)
    app.add_url_rule("/buy", view_func=idempotent(lambda: "sold"), endpoint="buy", methods=["POST"])
    with pytest.raises(lockkit.ConfigurationError, match="LOCKKIT_ORDERS"):
        app.test_client().post("/buy", headers=A_1)


def test_an_exempt_view_is_no_order(make_shop: Callable[..., Flask]) -> None:
    shop = make_shop()

    @shop.post("/exempt")
    @idempotent.exempt
    def exempt() -> ResponseReturnValue:
        return sell()

    class Exempt(MethodView):
        @passing
        @idempotent.exempt
        def post(self) -> ResponseReturnValue:
            return sell()

    @idempotent.exempt
    class AllExempt(MethodView):
        def post(self) -> ResponseReturnValue:
            return sell()

    class OneExempt(MethodView):
        decorators: ClassVar[list[Any]] = [idempotent(required=True)]

        @idempotent.exempt
        def post(self) -> ResponseReturnValue:
            return sell()

        def put(self) -> ResponseReturnValue:
            return sell()

    shop.add_url_rule("/one-exempt", view_func=OneExempt.as_view("one_exempt"))
    shop.add_url_rule("/method", view_func=Exempt.as_view("method"))
    shop.add_url_rule("/class", view_func=AllExempt.as_view("class"))
    for path in ("/exempt", "/method", "/class", "/one-exempt"):
        assert not any("Idempotent-Replayed" in a.headers for a in twice(shop, path))
    assert sold(shop) == 8
    assert shop.test_client().post("/one-exempt").status_code == 201
    assert shop.test_client().put("/one-exempt").status_code == 400


def test_safe_methods_of_an_order_view_are_no_orders(shop: Flask) -> None:
    shop.add_url_rule("/buy", view_func=idempotent(required=True)(sell), methods=["GET", "POST"])
    assert shop.test_client().get("/buy").status_code == 201
    assert shop.test_client().options("/buy").status_code == 200
    assert shop.test_client().post("/buy", headers=ALICE).status_code == 400


def test_blueprints_and_their_hooks(shop: Flask) -> None:
    blueprint = Blueprint("shop", __name__, url_prefix="/shop")

    @blueprint.before_request
    def check() -> tuple[str, int] | None:
        return ("no", 403) if request.headers.get("X-Revoked") else None

    blueprint.add_url_rule("/buy", view_func=idempotent(sell), methods=["POST"])
    inner = Blueprint("inner", __name__, url_prefix="/inner")
    inner.add_url_rule("/buy", view_func=idempotent(sell), methods=["POST"])
    blueprint.register_blueprint(inner)
    shop.register_blueprint(blueprint)
    for path in ("/shop/buy", "/shop/inner/buy"):  # another route: another order
        assert is_once(twice(shop, path))
        refused = shop.test_client().post(path, headers={**A_1, "X-Revoked": "1"})
        assert refused.status_code == 403
    assert sold(shop) == 2


def test_class_views_in_decorators_and_on_a_method(shop: Flask) -> None:
    class Whole(MethodView):
        decorators = [idempotent(required=True)]  # noqa: RUF012

        def post(self, sku: str) -> ResponseReturnValue:
            return sell()

    class OneMethod(MethodView):
        @idempotent
        def post(self, sku: str) -> ResponseReturnValue:
            return sell()

        def put(self, sku: str) -> ResponseReturnValue:
            return sell()

    shop.add_url_rule("/whole/<sku>", view_func=Whole.as_view("whole"))
    shop.add_url_rule("/one-method/<sku>", view_func=OneMethod.as_view("one_method"))
    assert is_once(twice(shop, "/whole/a"))
    assert is_once(twice(shop, "/one-method/a"))
    assert shop.test_client().put("/one-method/a", headers=A_1).status_code == 201
    assert sold(shop) == 3


def test_async_views(shop: Flask) -> None:
    @idempotent
    async def buy() -> ResponseReturnValue:
        return {"id": current_order.order_id, **dict([sell()[0].popitem()])}, 201  # type: ignore[index, union-attr]

    shop.add_url_rule("/buy", view_func=buy, methods=["POST"])
    assert is_once(twice(shop, "/buy"))
    assert sold(shop) == 1


def test_the_running_view_knows_its_order(shop: Flask) -> None:
    seen: list[CurrentOrder] = []

    @idempotent
    def buy() -> str:
        assert current_order.order_id == request.order.order_id  # type: ignore[attr-defined]
        seen.append(request.order)  # type: ignore[attr-defined]
        return "no", 503  # type: ignore[return-value]

    shop.add_url_rule("/buy", view_func=buy, methods=["POST"])
    twice(shop, "/buy")
    assert [order.order_id for order in seen] == ["A-1", "A-1"]
    assert seen[0].fencing_token < seen[1].fencing_token
    with shop.test_request_context(), pytest.raises(RuntimeError, match="no order"):
        current_order.order_id  # noqa: B018
    assert not current_order


def test_a_view_may_ask_whether_it_runs_as_an_order(shop: Flask) -> None:
    @idempotent
    def buy() -> str:
        return f"{request.order} {bool(current_order)}"  # type: ignore[attr-defined]

    shop.add_url_rule("/buy", view_func=buy, methods=["GET", "POST"])
    client = shop.test_client()
    assert client.post("/buy").text == client.get("/buy").text == "None False"
    assert client.post("/buy", headers=A_1).text.endswith("True")


@pytest.mark.parametrize("path", ["/buy", "/covered/buy"])
def test_checks_above_idempotent_are_asked_before_a_replay(shop: Flask, path: str) -> None:
    shop.add_url_rule(path, view_func=passing(idempotent(sell)), methods=["POST"])
    assert is_once(twice(shop, path))
    revoked = shop.test_client().post(path, headers={**A_1, "X-Revoked": "1"})
    assert (revoked.status_code, revoked.text) == (403, "revoked")
    assert sold(shop) == 1


class Sold(NamedTuple):
    id: int


def sell_one() -> Sold:
    sell()
    return Sold(17)


def marshalled(view: Callable[..., Any]) -> Callable[..., Any]:
    """As Flask-RESTX does: whatever is no tuple has the attributes of an order."""

    @functools.wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        order = view(*args, **kwargs)
        if request.headers.get("X-Revoked"):
            return {"message": "revoked"}, 403
        return {"id": getattr(order, "id", None)}, 201

    return wrapper


@pytest.mark.parametrize("path", ["/buy", "/covered/buy"])
def test_a_decorator_above_idempotent_serialises_orders_and_nothing_else(
    shop: Flask, path: str
) -> None:
    """It would make a success of each refusal, and something else of a stored answer."""
    shop.add_url_rule(path, view_func=marshalled(idempotent(sell_one)), methods=["POST"])
    assert is_once(twice(shop, path))
    client = shop.test_client()
    assert client.post(path, headers=A_1).json == {"id": 17}
    other = client.post(path, headers=A_1, json={"n": 2})
    assert (other.status_code, other.json["code"]) == (422, "order-id-reused")
    revoked = client.post(path, headers={**A_1, "X-Revoked": "1"})
    assert (revoked.status_code, revoked.json) == (403, {"message": "revoked"})
    assert sold(shop) == 1


def test_a_decorator_above_idempotent_may_call_it_again(shop: Flask) -> None:
    """What was said the first time is forgotten."""
    calls = []

    def again(view: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(view)
        def wrapper() -> Any:
            answer = view()
            return view() if answer.status_code == 423 else answer

        return wrapper

    def busy_once(*_: Any) -> Response:
        calls.append("busy")
        held.release()
        return make_response("busy", 423)

    def buy() -> ResponseReturnValue:
        return make_response(sell())

    view = again(idempotent(lock_view("stock:1", timeout=0, on_busy=busy_once)(buy)))
    shop.add_url_rule("/buy", view_func=view, endpoint="buy", methods=["POST"])
    with shop.app_context():
        held = locks["default"].lock("stock:1").acquire()
    answer = shop.test_client().post("/buy", headers=A_1)
    assert (answer.status_code, calls, sold(shop)) == (201, ["busy"], 1)


def test_a_store_that_is_down_is_no_order_whoever_serialises(
    make_shop: Callable[..., Flask],
) -> None:
    shop = make_shop(LOCKKIT_URL="redis://127.0.0.1:1/0")
    shop.add_url_rule("/buy", view_func=marshalled(idempotent(sell_one)), methods=["POST"])
    answer = shop.test_client().post("/buy", headers=A_1)
    assert (answer.status_code, sold(shop)) == (503, 0)


def test_decorators_that_hide_idempotent_are_an_error_and_no_bypass(shop: Flask) -> None:
    view = idempotent(sell)
    shop.add_url_rule("/covered", view_func=lambda: view(), endpoint="hidden", methods=["POST"])  # noqa: PLW0108
    shop.testing = True
    for _ in range(2):
        with pytest.raises(lockkit.ConfigurationError, match=r"functools\.wraps"):
            shop.test_client().post("/covered", headers=A_1)
    assert sold(shop) == 0


class Customer(UserMixin):
    def __init__(self, name: str) -> None:
        self.id = name


@pytest.fixture
def login_shop(make_shop: Callable[..., Flask]) -> Flask:
    """With Flask-Login, whose user owns the orders."""
    shop = make_shop(LOCKKIT_ORDERS=HEADERS_ONLY, LOCKKIT_USER=None)
    manager = LoginManager(shop)
    manager.user_loader(Customer)
    manager.login_view = "login"

    def login() -> str:
        login_user(Customer(request.args["name"]))
        return "in"

    def logout() -> str:
        logout_user()
        return "out"

    shop.add_url_rule("/login", view_func=login, endpoint="login")
    shop.add_url_rule("/logout", view_func=logout, endpoint="logout")
    shop.add_url_rule(
        "/covered", view_func=login_required(sell), endpoint="covered", methods=["POST"]
    )
    return shop


class Clerk(Customer):
    pass


def test_a_customer_is_no_clerk_of_the_same_number(make_shop: Callable[..., Flask]) -> None:
    """Flask-Login knows both by one ID; the loader says which of the two it is."""
    shop = make_shop(LOCKKIT_ORDERS=HEADERS_ONLY, LOCKKIT_USER=None)

    def load(name: str) -> Customer:
        return (Clerk if request.headers.get("X-Clerk") else Customer)(name)

    LoginManager(shop).user_loader(load)
    shop.add_url_rule("/login", view_func=lambda: str(login_user(load("7"))), endpoint="login")
    shop.add_url_rule("/covered", view_func=login_required(sell), methods=["POST"])
    client, clerk = shop.test_client(), {"X-Clerk": "1", **A_1}
    client.get("/login")
    assert is_once((client.post("/covered", headers=A_1), client.post("/covered", headers=A_1)))
    assert "Idempotent-Replayed" not in client.post("/covered", headers=clerk).headers
    assert sold(shop) == 2


def test_login_and_logout_between_tries(login_shop: Flask) -> None:
    client = login_shop.test_client()
    header = {"X-Order-ID": "A-1"}
    post = functools.partial(client.post, "/covered", headers=header)
    assert post().status_code == 400  # nobody's
    client.get("/login?name=alice")
    assert is_once((post(), post()))
    client.get("/logout")
    assert post().status_code == 400
    client.get("/login?name=bob")
    assert "Idempotent-Replayed" not in post().headers
    client.get("/logout")
    client.get("/login?name=alice")
    assert post().headers["Idempotent-Replayed"] == "true"
    assert sold(login_shop) == 2


def test_the_way_to_the_login_page_is_no_answer_to_keep(login_shop: Flask) -> None:
    """A token owns the order, and the page wants a login: it is asked again, and at a replay."""
    client = login_shop.test_client()
    headers = {"X-Order-ID": "A-1", "Authorization": "Bearer of-mine"}
    for _ in range(2):
        answer = client.post("/covered", headers=headers)
        assert (answer.status_code, "Idempotent-Replayed" in answer.headers) == (302, False)
    with login_shop.app_context():
        assert not db.session.execute(sa.text(f"SELECT key FROM {TABLE_NAME}")).all()


SSO = "https://sso.example.com"


def redirected(shop: Flask, to: str, login_view: str) -> list[bool]:
    """Whether each of two tries of somebody who is logged in was answered by a replay."""
    shop.login_manager.login_view = login_view  # type: ignore[attr-defined]

    def pay() -> ResponseReturnValue:
        sell()
        return redirect(to)

    shop.add_url_rule("/covered/pay", view_func=pay, methods=["POST"])
    client = shop.test_client()
    client.get("/login?name=alice")
    tries = [client.post("/covered/pay", headers={"X-Order-ID": "A-1"}) for _ in range(2)]
    assert [answer.status_code for answer in tries] == [302, 302]
    return ["Idempotent-Replayed" in answer.headers for answer in tries]


@pytest.mark.parametrize(
    ("to", "login_view"),
    [
        ("/", f"{SSO}/"),
        ("https://pay.example/", f"{SSO}/"),
        ("https://pay.example/login", "login"),
        ("?thanks", SSO),
        ("/thanks", "an-endpoint-of-another-app"),
    ],
)
def test_a_redirect_to_another_host_or_path_is_an_answer(
    login_shop: Flask, to: str, login_view: str
) -> None:
    assert redirected(login_shop, to, login_view) == [False, True]
    assert sold(login_shop) == 1


@pytest.mark.parametrize(
    ("to", "login_view"),
    [
        (f"{SSO}/?next=/", SSO),
        ("http://localhost/login?next=", "login"),
        ("/login?wrong=1&next=%2F", "http://localhost/login"),
        ("../login?next=/", "login"),
        ("https://www.shop.example/login?next=/", "login"),
    ],
)
def test_a_redirect_to_the_login_page_is_a_refusal(
    login_shop: Flask, to: str, login_view: str
) -> None:
    login_shop.config["FORCE_HOST_FOR_REDIRECTS"] = "www.shop.example"
    assert redirected(login_shop, to, login_view) == [False, False]
    assert sold(login_shop) == 2


@pytest.mark.parametrize(
    ("to", "login_view"), [("/", "/"), ("/login?wrong=1", "login"), ("../login", "login")]
)
def test_a_user_whose_order_ends_at_the_login_page_has_ordered(
    login_shop: Flask, to: str, login_view: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert redirected(login_shop, to, login_view) == [False, True]
    assert sold(login_shop) == 1
    assert "login page" not in caplog.text


def test_a_login_that_is_to_be_renewed_is_a_refusal_if_the_way_back_is_in_the_session(
    login_shop: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    login_shop.config["USE_SESSION_FOR_NEXT"] = True
    view = fresh_login_required(sell)
    login_shop.add_url_rule("/covered/fresh", view_func=view, methods=["POST"])
    login_shop.login_manager.refresh_view = "login"  # type: ignore[attr-defined]
    client = login_shop.test_client()
    client.get("/login?name=alice")
    with client.session_transaction() as session:
        session["_fresh"] = False
    for _ in range(2):
        answer = client.post("/covered/fresh", headers={"X-Order-ID": "A-1"})
        assert (answer.status_code, answer.location) == (302, "/login")
    assert "Idempotent-Replayed" not in answer.headers
    assert "login page" not in caplog.text


@pytest.mark.parametrize("sells", [False, True])
def test_a_guest_who_is_sent_to_the_login_page_has_ordered_if_something_is_saved(
    login_shop: Flask, sells: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise they are refused, and that is logged."""

    def pay() -> ResponseReturnValue:
        if sells:
            sell()
        return redirect("/login")

    login_shop.add_url_rule("/covered/pay", view_func=pay, methods=["POST"])
    client = login_shop.test_client()
    headers = {"X-Order-ID": "A-1", "Authorization": "Bearer of-mine"}
    tries = [client.post("/covered/pay", headers=headers) for _ in range(2)]
    assert ["Idempotent-Replayed" in answer.headers for answer in tries] == [False, sells]
    assert sold(login_shop) == sells
    told = [text for text in caplog.messages if "login page" in text]
    assert len(told) == (0 if sells else 2)
    assert all("POST /covered/pay" in text for text in told)


def test_a_redirect_to_the_page_that_renews_a_login_is_a_refusal(login_shop: Flask) -> None:
    manager = login_shop.login_manager  # type: ignore[attr-defined]
    manager.refresh_view = "https://sso.example.com/again"
    assert redirected(login_shop, "https://sso.example.com/again?next=/", "login") == [False, False]
    assert sold(login_shop) == 2


def test_a_refusal_is_logged_with_order_id_and_path(
    shop: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    shop.add_url_rule("/sell", view_func=idempotent(sell), methods=["POST"])
    client = shop.test_client()
    client.post("/sell", headers=A_1, json={"sku": "x"})
    caplog.clear()  # of what is wrong with the app
    with caplog.at_level("INFO", "lockkit"):
        client.post("/sell", headers=A_1, json={"sku": "y"})
    (told,) = [r.getMessage() for r in caplog.records if r.name == "lockkit"]
    assert told == "POST /sell gets 422 order-id-reused for the order 'A-1'"


def test_signals(shop: Flask, caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[str, str]] = []

    def listen(signal: Any, name: str) -> Any:
        def receive(sender: Flask, *, request: Any, order_id: str) -> None:
            assert (sender, request.path) == (shop, "/buy")
            told.append((name, order_id))
            raise RuntimeError("of a receiver")

        signal.connect(receive, shop)
        return receive

    kept = [
        listen(order_replayed, "replayed"),
        listen(order_conflict, "conflict"),
        listen(order_orphaned, "orphaned"),
    ]
    shop.add_url_rule("/buy", view_func=idempotent(sell), methods=["POST"])
    assert is_once(twice(shop, "/buy"))
    assert shop.test_client().post("/buy", headers=A_1, data=b"x").status_code == 422
    assert told == [("replayed", "A-1"), ("conflict", "A-1")]
    assert "of a receiver" in caplog.text
    del kept


def test_recover_knows_what_was_too_large_to_keep(make_shop: Callable[..., Flask]) -> None:
    config = {**HEADERS_ONLY, "RECOVER": "flask_project.recover", "MAX_RESPONSE": 5}
    shop = make_shop(LOCKKIT_ORDERS=config)
    shop.add_url_rule("/buy", view_func=idempotent(sell), methods=["POST"])
    first, second = twice(shop, "/buy")
    assert first.json == {"order": 1}
    assert (second.status_code, second.json) == (201, {"recovered": "A-1", "orders": 1})
    assert second.headers["Idempotent-Replayed"] == "true"
    forgotten = shop.test_client().post("/buy", headers={**A_1, "X-Forgotten": "1"})
    assert (forgotten.status_code, forgotten.json["code"]) == (409, "order-completed")
    assert sold(shop) == 1


def recover_known(request: Request, order_id: str) -> ResponseReturnValue:
    """A hook that shows a receipt in the way that the query asks for."""
    ways: dict[str, Callable[[], ResponseReturnValue]] = {
        "stream": lambda: Response(iter(["rec", "eipt"]), 201, {"Location": "/1"}),
        "file": lambda: send_file(BytesIO(b"receipt"), download_name="receipt.txt"),
        "encoded": lambda: Response(b"?", 201, {"Content-Encoding": "gzip"}),
        "busy": lambda: ("receipt", 503),
    }
    return ways[request.headers["X-Way"]]()


@pytest.mark.parametrize(("way", "status"), [("stream", 201), ("file", 200)])
def test_what_recover_sends_in_parts_is_read_whole(
    make_shop: Callable[..., Flask], way: str, status: int
) -> None:
    known = recovered(make_shop, way)
    assert (known.status_code, known.text) == (status, "receipt")
    assert known.headers["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize("way", ["encoded", "busy"])
def test_what_recover_returns_and_cannot_be_kept_is_logged(
    make_shop: Callable[..., Flask], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    known = recovered(make_shop, way)
    assert (known.status_code, known.json["code"]) == (409, "order-completed")
    assert "test_fit.recover_known returned" in caplog.text


def recovered(make_shop: Callable[..., Flask], way: str) -> TestResponse:
    hook = f"{__name__}.recover_known"
    shop = make_shop(LOCKKIT_ORDERS={**HEADERS_ONLY, "RECOVER": hook, "MAX_RESPONSE": 5})
    shop.add_url_rule("/buy", view_func=idempotent(sell), methods=["POST"])
    headers = {**A_1, "X-Way": way}
    first, second = (shop.test_client().post("/buy", headers=headers) for _ in "12")
    assert first.json == {"order": 1}
    return second


@pytest.mark.parametrize("key", ["RECOVER", "SCOPE", "TENANT", "AUTHORIZE_REPLAY"])
def test_a_hook_that_cannot_be_imported_is_an_error_at_start(
    make_shop: Callable[..., Flask], key: str
) -> None:
    with pytest.raises(lockkit.ConfigurationError, match=key):
        make_shop(LOCKKIT_ORDERS={"PATHS": [], key: "no.such_hook"})


@pytest.fixture
def two_databases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Flask]]:
    """``two_databases(USING="other")``: an app with a table ``sale`` in both of its databases."""
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    with ExitStack() as stack:
        yield lambda **orders: stack.enter_context(_two_databases(tmp_path, orders))


@contextmanager
def _two_databases(path: Path, orders: dict[str, str]) -> Iterator[Flask]:
    own, app = SQLAlchemy(), Flask("two")
    app.config.update(
        SQLALCHEMY_DATABASE_URI=f"sqlite:///{path / 'main.sqlite3'}",
        SQLALCHEMY_BINDS={"other": f"sqlite:///{path / 'other.sqlite3'}"},
        LOCKKIT_URL="memory://",
        LOCKKIT_USER=lambda: "alice",
        LOCKKIT_ORDERS={**HEADERS_ONLY, **orders},
    )
    own.init_app(app)
    LockKit(app)
    with app.app_context():
        for engine in own.engines.values():
            with engine.begin() as connection:
                connection.execute(sa.text("CREATE TABLE IF NOT EXISTS sale (n INTEGER)"))

    def buy() -> ResponseReturnValue:
        for engine in own.engines.values():
            insert = sa.text("INSERT INTO sale VALUES (1)")
            own.session.execute(insert, bind_arguments={"bind": engine})
        own.session.commit()
        return "sold", int(request.headers.get("X-Status", "201"))

    app.add_url_rule("/covered", view_func=buy, methods=["POST"])
    app.add_url_rule(
        "/buy", view_func=idempotent(using="other")(buy), endpoint="in_other", methods=["POST"]
    )
    yield app
    with app.app_context():
        for engine in own.engines.values():
            engine.dispose()


def rows(app: Flask, table: str = "sale") -> tuple[int, int]:
    """How many there are in the app's two databases."""
    with app.app_context():
        engines = app.extensions["sqlalchemy"].engines
        return _count(engines[None], table), _count(engines["other"], table)


def _count(engine: sa.Engine, table: str) -> int:
    if not sa.inspect(engine).has_table(table):
        return -1
    with engine.connect() as connection:
        return int(connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one())


def test_only_the_database_of_the_record_is_exact(two_databases: Callable[..., Flask]) -> None:
    """The record is where the view says; what it commits elsewhere stays."""
    shop = two_databases()
    with shop.app_context():
        LockKit.create_tables()
    assert rows(shop, TABLE_NAME) == (0, 0)
    broken = shop.test_client().post("/buy", headers={**A_1, "X-Status": "500"})
    assert (broken.status_code, rows(shop)) == (500, (1, 0))
    assert is_once(twice(shop, "/buy"))
    assert rows(shop) == (2, 1)
    assert rows(shop, TABLE_NAME) == (0, 1)


def test_a_request_does_not_describe_the_table_of_its_order(
    two_databases: Callable[..., Flask],
) -> None:
    """A metadata takes a table once, and two first orders at once would collide."""
    with two_databases().app_context():
        LockKit.create_tables()
    shop = two_databases()
    with shop.app_context():
        other = shop.extensions["sqlalchemy"].metadatas["other"]
    assert is_once(twice(shop, "/buy"))
    assert not other.tables
    with shop.app_context():
        LockKit.create_tables()
    assert list(other.tables) == [TABLE_NAME]


def test_using_in_the_settings(two_databases: Callable[..., Flask]) -> None:
    shop = two_databases(USING="other")
    with shop.app_context():
        shop.extensions["sqlalchemy"].create_all()
    assert is_once(twice(shop, "/covered"))
    assert rows(shop, TABLE_NAME) == (-1, 1)


def test_a_database_that_the_app_does_not_have(two_databases: Callable[..., Flask]) -> None:
    with pytest.raises(lockkit.ConfigurationError, match="USING"):
        two_databases(USING="nowhere")
    shop = two_databases()
    view = idempotent(using="nowhere")(sell)
    shop.add_url_rule("/wrong", view_func=view, endpoint="wrong", methods=["POST"])
    shop.testing = True
    with pytest.raises(lockkit.ConfigurationError, match="nowhere"):
        shop.test_client().post("/wrong", headers=A_1)


@pytest.mark.parametrize("above", [True, False])
def test_together_with_lock_view(shop: Flask, above: bool) -> None:
    lock = lock_view("stock:{sku}", timeout=0)
    view = lock(idempotent(sell)) if above else idempotent(lock(sell))
    shop.add_url_rule("/buy/<sku>", view_func=view, methods=["POST"])
    with shop.app_context(), locks["default"].lock("stock:42"):
        busy = shop.test_client().post("/buy/42", headers=A_1)
        assert (busy.status_code, busy.json["code"]) == (423, "lock-busy")
        assert set(busy.json) == {"type", "title", "status", "detail", "code"}
    assert is_once(twice(shop, "/buy/42"))
    assert sold(shop) == 1
    with shop.app_context():
        assert not list(locks["default"].holders())


def test_expired_records_are_pruned_in_batches(shop: Flask) -> None:
    from lockkit_flask.state import app_locks

    shop.add_url_rule("/buy", view_func=idempotent(sell), methods=["POST"])
    for number in range(5):
        shop.test_client().post("/buy", headers={**ALICE, "X-Order-ID": str(number)})
    orders = app_locks(shop).orders
    assert orders is not None
    with shop.app_context():
        db.session.execute(sa.text(f"UPDATE {TABLE_NAME} SET expires = 1 WHERE order_id <> '4'"))
        db.session.commit()
        (table,) = orders.tables()
        assert list(table.prune(3)) == [3, 1]
        left = db.session.execute(sa.text(f"SELECT order_id FROM {TABLE_NAME}")).scalars().all()
    assert left == ["4"]
