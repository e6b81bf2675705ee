"""Orders in Flask where the rules meet: checks on classes, hooks after the view, guests, bodies."""

from __future__ import annotations

import functools
import gzip
import io
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from flask import (
    Flask,
    Request,
    abort,
    flash,
    got_request_exception,
    redirect,
    request,
    session,
)
from flask.sessions import SessionInterface, SessionMixin
from flask.views import MethodView, View
from flask_login import LoginManager, UserMixin, fresh_login_required, login_user
from flask_project import Order, db, put
from flask_project.hooks import permission_required
from werkzeug.routing import BaseConverter

from lockkit.model.errors import ConfigurationError, OpenTransaction
from lockkit.orders.rows import TABLE as TABLE_NAME
from lockkit_flask import LockKit, current_lease, idempotent, lock_view
from lockkit_flask.state import app_locks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flask import Response
    from flask.typing import ResponseReturnValue
    from werkzeug.test import TestResponse

A_1 = {"X-User": "alice", "X-Order-ID": "A-1"}


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.sqlite3'}"


@pytest.fixture
def shop(make_shop: Callable[..., Flask]) -> Flask:
    """Every path is covered."""
    return make_shop()


def post(app: Flask, path: str, **headers: str) -> TestResponse:
    return app.test_client().post(path, headers={**A_1, **headers})


def sell(*_: object, **__: object) -> ResponseReturnValue:
    order = put("sold")
    db.session.commit()
    return {"order": order.id}, 201


def sold(app: Flask, name: str = "sold") -> int:
    with app.app_context():
        query = sa.select(sa.func.count()).select_from(Order).where(Order.name == name)
        return int(db.session.execute(query).scalar_one())


def replayed(answer: TestResponse) -> bool:
    return "Idempotent-Replayed" in answer.headers


# Checks on classes


class Checked(View):
    methods = ("POST",)
    dispatch_request = permission_required(sell)


class CheckedMethods(MethodView):
    @permission_required
    def dispatch_request(self, **kwargs: Any) -> Any:
        return super().dispatch_request(**kwargs)

    def post(self) -> ResponseReturnValue:
        return sell()


class ChecksItself(MethodView):
    def dispatch_request(self, **kwargs: Any) -> Any:
        if "X-Revoked" in request.headers:
            abort(403)
        return super().dispatch_request(**kwargs)

    def post(self) -> ResponseReturnValue:
        return sell()


@pytest.mark.parametrize("view", [Checked, CheckedMethods, ChecksItself])
def test_what_may_be_a_check_on_a_class_stops_replays(shop: Flask, view: type[View]) -> None:
    shop.add_url_rule("/class", view_func=view.as_view("class"))
    assert post(shop, "/class").status_code == 201
    for headers in ({}, {"X-Revoked": "1"}):
        again = post(shop, "/class", **headers)
        assert (again.status_code, again.json["code"]) == (409, "order-completed")
    assert sold(shop) == 1


class Plain(MethodView):
    def post(self) -> ResponseReturnValue:
        return sell()


class OneOrder(MethodView):
    @permission_required
    @idempotent
    def dispatch_request(self, **kwargs: Any) -> Any:
        return super().dispatch_request(**kwargs)

    def post(self) -> ResponseReturnValue:
        return sell()


@pytest.mark.parametrize("view", [Plain, OneOrder])
def test_a_class_without_checks_or_with_passed_ones_is_replayed(
    shop: Flask, view: type[View]
) -> None:
    shop.add_url_rule("/class", view_func=view.as_view("class"))
    assert [replayed(post(shop, "/class")) for _ in range(2)] == [False, True]
    assert sold(shop) == 1
    if view is OneOrder:
        assert post(shop, "/class", **{"X-Revoked": "1"}).status_code == 403


class User(UserMixin):
    id = "7"


class Fresh(View):
    methods = ("POST",)
    dispatch_request = fresh_login_required(sell)


def test_flask_login_on_dispatch_request_is_asked(make_shop: Callable[..., Flask]) -> None:
    shop = make_shop(LOCKKIT_USER=None)
    LoginManager(shop).user_loader(lambda _: User())
    shop.add_url_rule("/in", "in", lambda: str(login_user(User())))
    shop.add_url_rule("/stale", "stale", lambda: session.update(_fresh=False) or "")
    shop.add_url_rule("/fresh", view_func=Fresh.as_view("fresh"))
    client = shop.test_client()
    client.get("/in")
    answers = [client.post("/fresh", headers=A_1) for _ in range(2)]
    assert [replayed(answer) for answer in answers] == [False, True]
    client.get("/stale")
    assert client.post("/fresh", headers=A_1).status_code == 401


class Locking(View):
    methods = ("POST",)

    @lock_view("stock:42")
    def dispatch_request(self) -> ResponseReturnValue:
        current_lease().check()
        return sell()


def test_lock_view_on_dispatch_request_is_taken_before_the_transaction(shop: Flask) -> None:
    shop.add_url_rule("/locking", view_func=Locking.as_view("locking"))
    assert [post(shop, "/locking").status_code for _ in range(2)] == [201, 201]
    assert sold(shop) == 1


# Hooks after the view


@pytest.mark.parametrize("how", ["changes the status", "raises"])
def test_a_hook_that_makes_a_failure_of_it_rolls_back(
    make_shop: Callable[..., Flask], how: str
) -> None:
    shop = make_shop(PROPAGATE_EXCEPTIONS=False)
    shop.add_url_rule("/sell", view_func=sell, methods=["POST"])

    @shop.after_request
    def fail(response: Response) -> Response:
        if "X-Fail" in request.headers and response.status_code == 201:
            if how == "raises":
                raise RuntimeError
            response.status_code = 503
        return response

    assert post(shop, "/sell", **{"X-Fail": "1"}).status_code >= 500
    assert sold(shop) == 0
    assert [replayed(post(shop, "/sell")) for _ in range(2)] == [False, True]
    assert sold(shop) == 1


@pytest.mark.parametrize("status", [302, 403, 404, 409])
def test_a_hook_that_changes_the_status_overrules_no_view_that_has_sold(
    shop: Flask, status: int
) -> None:
    """Such as one that sends the visitor to the login page, or counts requests."""
    shop.add_url_rule("/sell", view_func=sell, methods=["POST"])
    answer_with(shop, status)
    answers = [post(shop, "/sell") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status, status]
    assert [replayed(answer) for answer in answers] == [False, True]
    assert sold(shop) == 1


def refuses_to_sell() -> ResponseReturnValue:
    return "sold out", 409


def sells_half() -> ResponseReturnValue:
    sell()
    return "no more", 503


def fails_to_sell() -> ResponseReturnValue:
    sell()
    raise ValueError


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("view", [refuses_to_sell, sells_half, fails_to_sell])
def test_a_hook_that_changes_the_status_overrules_no_view_that_has_not(
    make_shop: Callable[..., Flask], view: Callable[[], ResponseReturnValue], status: int
) -> None:
    """Such as one that always answers 200, for a client that understands nothing else."""
    shop = make_shop(PROPAGATE_EXCEPTIONS=False)
    shop.add_url_rule("/sell", view_func=view, methods=["POST"])
    answer_with(shop, status)
    assert [replayed(post(shop, "/sell")) for _ in range(2)] == [False, False]
    assert not records(shop)
    assert sold(shop) == 0


def answer_with(shop: Flask, status: int) -> None:
    @shop.after_request
    def answer(response: Response) -> Response:
        response.status_code = status
        return response


def test_what_is_made_of_a_hook_that_raises_is_saved(make_shop: Callable[..., Flask]) -> None:
    """By receivers of the signal and by error handlers, as it is without orders."""
    shop = make_shop(PROPAGATE_EXCEPTIONS=False)
    shop.add_url_rule("/sell", view_func=sell, methods=["POST"])
    shop.after_request(lambda _: {}["missing"])

    def note(_: object, **__: object) -> None:
        put("noted")
        db.session.commit()

    @shop.errorhandler(Exception)
    def page(error: Exception) -> ResponseReturnValue:
        note(error)
        return "sorry", 500

    with got_request_exception.connected_to(note, shop):
        assert post(shop, "/sell").status_code == 500
    assert (sold(shop), sold(shop, "noted")) == (0, 2)


@pytest.mark.parametrize("status", [200, 410])
def test_a_hook_that_raises_undoes_it_whatever_the_page_of_errors_says(
    make_shop: Callable[..., Flask], status: int
) -> None:
    shop = make_shop(PROPAGATE_EXCEPTIONS=False)
    shop.add_url_rule("/sell", view_func=sell, methods=["POST"])
    shop.register_error_handler(500, lambda _: ("sorry", status))

    @shop.after_request
    def fail(response: Response) -> Response:
        if response.status_code == 201:
            raise RuntimeError
        return response

    assert post(shop, "/sell").status_code == status
    assert not records(shop)
    assert sold(shop) == 0


def test_changes_that_are_left_are_an_error_whatever_a_hook_answers(
    make_shop: Callable[..., Flask],
) -> None:
    shop = make_shop(TESTING=True)
    shop.add_url_rule("/sell", view_func=lambda: put("sold") and "ok", methods=["POST"])
    answer_with(shop, 404)
    with pytest.raises(ConfigurationError, match="not committed"):
        post(shop, "/sell")
    assert sold(shop) == 0


def test_what_cannot_be_made_a_response_is_a_failure(make_shop: Callable[..., Flask]) -> None:
    shop = make_shop(PROPAGATE_EXCEPTIONS=False)
    shop.add_url_rule("/none", view_func=lambda: sell() and None, methods=["POST"])
    shop.register_error_handler(500, lambda _: ("sorry", 410))
    assert post(shop, "/none").status_code in (410, 500)
    assert sold(shop) == 0


# Guests who are sent to a login of the app's own


def login_required(view: Callable[..., Any]) -> Callable[..., Any]:
    """As in Flask's tutorial."""

    @functools.wraps(view)
    def wrapped(**kwargs: Any) -> Any:
        if session.get("user") is None:
            return to_login()
        return view(**kwargs)

    return wrapped


def to_login() -> ResponseReturnValue:
    flash("Please log in")
    return redirect("/in")


def checks_inside() -> ResponseReturnValue:
    db.session.execute(sa.select(Order)).all()
    return to_login() if session.get("user") is None else sell()


def commits_nothing() -> ResponseReturnValue:
    db.session.commit()
    with db.session.begin_nested():
        db.session.execute(sa.select(Order)).all()
    return to_login() if session.get("user") is None else sell()


def aborts_inside() -> ResponseReturnValue:
    return abort(to_login()) if session.get("user") is None else sell()


def has_bought() -> ResponseReturnValue:
    sell()
    return redirect("/thanks")


def log_in() -> str:
    session["user"] = "7"
    return ""


def page() -> str:
    from lockkit_flask import new_order_id

    return new_order_id()


@pytest.fixture
def forms(make_shop: Callable[..., Flask]) -> Flask:
    orders = {"ORDER_ID": ["form:order_id"], "PATHS": ["^/buy"], "REQUIRED": True}
    shop = make_shop(LOCKKIT_USER=lambda: session.get("user"), LOCKKIT_ORDERS=orders)
    shop.add_url_rule("/in", view_func=log_in)
    shop.add_url_rule("/page", view_func=page)
    views = [login_required(sell), checks_inside, aborts_inside, has_bought, commits_nothing]
    for number, view in enumerate(views):
        shop.add_url_rule(f"/buy/{number}", str(number), view, methods=["POST"])
    return shop


@pytest.mark.parametrize("path", ["/buy/0", "/buy/1", "/buy/2", "/buy/4"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer eyJhbGciOiJub25lIn0.e30."}])
def test_a_guest_who_is_sent_to_the_login_orders_after_it(
    forms: Flask, path: str, headers: dict[str, str]
) -> None:
    client = forms.test_client()
    form = {"order_id": client.get("/page").text}
    assert client.post(path, data=form, headers=headers).status_code == 302
    assert client.post(path, data=form).status_code == 302
    assert not records(forms)
    client.get("/in")
    assert client.post(path, data=form).status_code == 201
    assert client.post(path, data=form).status_code in (201, 409)
    assert sold(forms) == 1


@pytest.mark.parametrize("writes", [False, True])
def test_a_hook_that_commits_makes_no_order_of_a_guest_who_is_sent_to_the_login(
    forms: Flask, writes: bool
) -> None:
    """Such as one that counts visits, or commits for every view."""

    @forms.after_request
    def commit(response: Response) -> Response:
        if writes:
            put("a visit")
        db.session.commit()
        return response

    client = forms.test_client()
    form = {"order_id": client.get("/page").text}
    assert client.post("/buy/1", data=form).status_code == 302
    assert not records(forms)
    client.get("/in")
    assert client.post("/buy/1", data=form).status_code == 201
    assert sold(forms) == 1
    with forms.app_context():
        visits = sa.select(sa.func.count()).select_from(Order).where(Order.name == "a visit")
        assert db.session.scalar(visits) == (4 if writes else 0)


def test_a_guest_who_has_bought_is_not_sent_away(forms: Flask) -> None:
    client = forms.test_client()
    form = {"order_id": client.get("/page").text}
    answers = [client.post("/buy/3", data=form) for _ in range(2)]
    assert {answer.location for answer in answers} == {"/thanks"}
    assert [replayed(answer) for answer in answers] == [False, True]
    assert sold(forms) == 1


def key_of_partner(request: Request) -> str | None:
    return request.headers.get("X-Api-Key")


@pytest.mark.parametrize("owner", ["X-User", "X-Api-Key"])
def test_a_users_redirect_is_a_result_though_nothing_was_saved(
    make_shop: Callable[..., Flask], owner: str
) -> None:
    orders = {"ORDER_ID": ["header:X-Order-ID"], "PATHS": ["^/"]}
    shop = make_shop(LOCKKIT_ORDERS={**orders, "SCOPE": f"{__name__}.key_of_partner"})
    shop.add_url_rule("/pay", view_func=lambda: redirect("/pay/elsewhere"), methods=["POST"])
    headers = {"X-Order-ID": "A-1", owner: "alice"}
    answers = [shop.test_client().post("/pay", headers=headers) for _ in range(2)]
    assert [replayed(answer) for answer in answers] == [False, True]


# Who the user is, and where records are


def test_a_user_that_is_no_key_is_an_error(make_shop: Callable[..., Flask]) -> None:
    """Its text would be another one at each request: each try its own order."""
    shop = make_shop(LOCKKIT_USER=object, TESTING=True)
    with pytest.raises(ConfigurationError, match="primary key"):
        post(shop, "/one")


class Drawn(dict[str, Any], SessionMixin):
    sid = "drawn-for-this-request"


class Draws(SessionInterface):
    """As Flask-Session: an ID for each request that brings none, and no session is called new."""

    def open_session(self, app: Flask, request: Request) -> Drawn:
        return Drawn()

    def save_session(self, app: Flask, session: Any, response: Response) -> None:
        return


def test_a_session_that_the_client_does_not_have_owns_no_order(shop: Flask) -> None:
    """However much a hook has put into it: the next try would have another one."""
    shop.session_interface = Draws()
    shop.before_request(lambda: session.update(seen=1))
    answer = shop.test_client().post("/one", headers={"X-Order-ID": "A-1"})
    assert (answer.status_code, answer.json["code"]) == (400, "order-without-owner")
    client = shop.test_client()
    client.set_cookie("session", "drawn-for-this-request.signed")
    answers = [client.post("/one", headers={"X-Order-ID": "A-1"}) for _ in range(2)]
    assert [replayed(answer) for answer in answers] == [False, True]


def test_expired_records_of_a_newer_release_are_not_pruned(shop: Flask) -> None:
    post(shop, "/one")
    post(shop, "/one", **{"X-Order-ID": "A-2"})
    table = db.metadata.tables[TABLE_NAME]
    with shop.app_context():
        db.session.execute(sa.update(table).values(expires=1))
        newer = sa.update(table).where(table.c.order_id == "A-2")
        db.session.execute(newer.values(version=99, headers="of another form"))
        db.session.commit()
        orders = app_locks().orders
        assert orders is not None
        assert sum(orders.records.prune(10)) == 1
    assert post(shop, "/one", **{"X-Order-ID": "A-2"}).status_code == 503


def test_a_table_of_an_earlier_release_is_seen_in_each_database(
    make_shop: Callable[..., Flask], tmp_path: Path
) -> None:
    """Several apps may share a ``db``, and each has engines of its own."""
    new, old = (
        make_shop(SQLALCHEMY_DATABASE_URI=f"sqlite:///{tmp_path / name}", TESTING=True)
        for name in ("new.sqlite3", "old.sqlite3")
    )
    with old.app_context(), db.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE lockkit_order_record (key TEXT)"))
    assert post(new, "/one").status_code == 201
    with pytest.raises(ConfigurationError, match="earlier release"):
        post(old, "/one")


def records(app: Flask) -> list[str]:
    with app.app_context():
        found = db.session.scalars(sa.select(db.metadata.tables[TABLE_NAME].c.order_id))
        return list(found)


@pytest.mark.parametrize("catches", [True, False])
def test_what_sqlite_has_ended_itself_saves_nothing_without_its_record(
    shop: Flask, catches: bool
) -> None:
    """The driver would begin another transaction, and the view's COMMIT would be a real one."""
    shop.config["PROPAGATE_EXCEPTIONS"] = False
    with shop.app_context(), db.engine.begin() as connection:
        ends = "SELECT RAISE(ROLLBACK, 'none left')"
        when = """BEFORE INSERT ON "order" WHEN new.name = 'sold'"""
        connection.exec_driver_sql(f"CREATE TRIGGER stock {when} BEGIN {ends}; END")

    def sell_or_note() -> ResponseReturnValue:
        try:
            return sell()
        except sa.exc.DBAPIError:
            with suppress(sa.exc.DBAPIError):
                db.session.rollback()
            if not catches:
                raise
        put("backorder")
        db.session.commit()
        return "later", 201

    shop.add_url_rule("/sell", view_func=sell_or_note, methods=["POST"])
    for _ in range(2):
        answer = post(shop, "/sell")
        assert answer.status_code == (503 if catches else 500)
        assert not catches or answer.json["code"] == "order-not-saved"
        assert (sold(shop, "backorder"), records(shop)) == (0, [])


# Bodies


def test_an_answer_without_a_type_is_repeated_without_one(shop: Flask) -> None:
    """Else what is no page would be one, with the scripts in it."""

    def untyped() -> Response:
        answer = shop.make_response(("<script>", {"X-Content-Type-Options": "nosniff"}))
        del answer.headers["Content-Type"]
        return answer

    shop.add_url_rule("/untyped", view_func=untyped, methods=["POST"])
    first, second = post(shop, "/untyped"), post(shop, "/untyped")
    assert (second.data, second.headers["Idempotent-Replayed"]) == (first.data, "true")
    assert [answer.headers.get("Content-Type") for answer in (first, second)] == [None, None]


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_the_view_can_read_the_body_as_without_an_order(
    shop: Flask, kind: str, chunked: bool, stream: bool
) -> None:
    def read() -> ResponseReturnValue:
        body = request.stream.read() if stream else request.get_data()
        return {"data": body.decode(), "form": request.form}

    shop.add_url_rule("/read", view_func=read, methods=["POST"])
    kwargs: dict[str, Any] = {"content_type": kind, "data": b"a=1&b=2"}
    length = {"Transfer-Encoding": "chunked"} if chunked else {}
    if chunked:
        kwargs["environ_overrides"] = {"wsgi.input_terminated": True}
    one = shop.test_client().post("/read", headers={"X-User": "alice", **length}, **kwargs)
    other = shop.test_client().post("/read", headers={**A_1, **length}, **kwargs)
    assert one.json["data"] == "a=1&b=2"
    assert one.json["data"] == other.json["data"]
    assert other.json["form"] == ({} if kind == "text/plain" else {"a": "1", "b": "2"})


@pytest.mark.parametrize(
    "kind",
    ["application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"],
)
@pytest.mark.parametrize("read_before", ["", "form", "data"])
def test_what_came_of_a_client_that_went_away_in_its_body_is_no_order(
    shop: Flask, kind: str, read_before: str
) -> None:
    """Whoever reads it first, such as what looks for a token against forgery."""

    @shop.before_request
    def read() -> None:
        if read_before:
            assert request.form is not None if read_before == "form" else request.get_data()

    shop.add_url_rule("/sell", view_func=sell, methods=["POST"])
    body = b'--b\r\nContent-Disposition: form-data; name="n"\r\n\r\n12\r\n--b--\r\n'
    assert cut_and_whole(shop, kind, body) == [400, 201]
    assert sold(shop) == 1


@pytest.mark.parametrize(
    ("kind", "order_id"),
    [
        ("application/json", "header:X-Order-ID"),
        ("application/json", "json:id"),
        ("application/x-www-form-urlencoded", "header:X-Order-ID"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("looks_next", [False, True])
def test_a_body_that_a_hook_has_consumed_is_an_error(
    make_shop: Callable[..., Flask], kind: str, order_id: str, stream: bool, looks_next: bool
) -> None:
    """Every body would look the same, and none would have an order ID."""
    orders = {"ORDER_ID": [order_id], "PATHS": ["^/"]}
    shop = make_shop(LOCKKIT_ORDERS=orders, TESTING=True)

    @shop.before_request
    def check_signature() -> None:
        assert request.stream.read() if stream else request.get_data(cache=False)
        assert not (looks_next and request.form)

    shop.add_url_rule("/sell", view_func=sell, methods=["POST"])
    with pytest.raises(ConfigurationError, match=r"request\.get_data\(\)"):
        shop.test_client().post("/sell", headers=A_1, content_type=kind, data=b'{"id": "A-1"}')
    assert sold(shop) == 0


def test_what_is_pending_before_an_order_is_an_error_that_says_what_helps(
    make_shop: Callable[..., Flask],
) -> None:
    """Orders have none of the ways out that locks have."""
    shop = make_shop(TESTING=True)
    shop.before_request(lambda: db.session.add(Order(name="pending")))
    shop.add_url_rule("/sell", view_func=sell, methods=["POST"])
    with pytest.raises(OpenTransaction, match=r"Commit or roll back first$"):
        post(shop, "/sell")


def test_an_empty_form_is_no_error(shop: Flask) -> None:
    @shop.before_request
    def look_for_a_token() -> None:
        assert not request.form

    shop.add_url_rule("/sell", view_func=sell, methods=["POST"])
    kind = "application/x-www-form-urlencoded"
    assert shop.test_client().post("/sell", headers=A_1, content_type=kind).status_code == 201


def test_a_form_without_a_field_is_no_error(shop: Flask) -> None:
    """Unless a hook has parsed it, for then it cannot be told from one that was consumed."""
    shop.add_url_rule("/sell", view_func=sell, methods=["POST"])
    kind = "application/x-www-form-urlencoded"
    answer = shop.test_client().post("/sell", headers=A_1, content_type=kind, data=b"&")
    assert answer.status_code == 201


def test_a_cut_body_that_a_lock_has_read_is_no_order(make_shop: Callable[..., Flask]) -> None:
    shop = make_shop(LOCKKIT_ORDERS={"ORDER_ID": ["header:X-Order-ID"], "PATHS": []})
    view = lock_view("stock:{form.n:str}")(idempotent(sell))
    shop.add_url_rule("/sell", view_func=view, methods=["POST"])
    kind = "application/x-www-form-urlencoded"
    assert cut_and_whole(shop, kind, b"n=A1&quantity=10") == [400, 201]
    assert sold(shop) == 1


@pytest.mark.parametrize("encoding", ["identity", "utf-8", "aws-chunked", "identity;q=1"])
def test_a_cut_body_that_is_not_compressed_is_no_order(shop: Flask, encoding: str) -> None:
    shop.add_url_rule("/sell", view_func=sell, methods=["POST"])
    kind = "application/x-www-form-urlencoded"
    statuses = cut_and_whole(shop, kind, b"n=A1&quantity=10", {"Content-Encoding": encoding})
    assert (statuses, sold(shop)) == ([400, 201], 1)


def cut_and_whole(
    shop: Flask, kind: str, body: bytes, headers: dict[str, str] | None = None
) -> list[int]:
    """The statuses; by a server that says where a body ends, also of what is left of it."""
    length = {"CONTENT_LENGTH": str(len(body)), "wsgi.input_terminated": True}
    statuses = []
    for sent in (body[:-7], body):
        came = {**length, "CONTENT_TYPE": kind, "wsgi.input": io.BytesIO(sent)}
        sent_with = {**A_1, **(headers or {})}
        answer = shop.test_client().post("/sell", headers=sent_with, environ_overrides=came)
        statuses.append(answer.status_code)
    return statuses


@pytest.mark.parametrize("is_order", [False, True])
def test_a_body_that_a_middleware_inflates_is_read_whole(shop: Flask, is_order: bool) -> None:
    """Its Content-Length is that of the body as it was sent."""
    shop.add_url_rule("/read", view_func=lambda: str(len(request.get_data())), methods=["POST"])
    below = shop.wsgi_app

    def inflates(environ: Any, start_response: Any) -> Any:
        environ["wsgi.input"] = io.BytesIO(gzip.decompress(environ["wsgi.input"].read()))
        environ["wsgi.input_terminated"] = True
        return below(environ, start_response)

    vars(shop)["wsgi_app"] = inflates
    headers = {"X-User": "alice", "Content-Encoding": "gzip", **(A_1 if is_order else {})}
    answer = shop.test_client().post("/read", headers=headers, data=gzip.compress(b"a" * 9000))
    assert (answer.status_code, answer.text) == (200, "9000")


def test_a_body_without_a_length_that_the_server_does_not_end_is_411(shop: Flask) -> None:
    """Werkzeug sees nothing of it, so two orders would look the same."""
    shop.add_url_rule("/sell", view_func=sell, methods=["POST"])
    headers = {**A_1, "Transfer-Encoding": "chunked"}
    for body in (b"one", b"two"):
        unseen = {"wsgi.input": io.BytesIO(body)}
        refused = shop.test_client().post("/sell", headers=headers, environ_overrides=unseen)
        assert (refused.status_code, refused.json["code"]) == (411, "order-length-required")
    assert sold(shop) == 0


@pytest.mark.parametrize("matching", ["subdomain", "host"])
def test_a_host_that_the_route_takes_as_a_parameter_tells_orders_apart(
    database: str, matching: str
) -> None:
    """As it does the shops that it stands for."""
    of_host = {"host_matching": True, "static_host": "shop.test"}
    shop = Flask("shop", **(of_host if matching == "host" else {"subdomain_matching": True}))
    shop.config.update(
        SQLALCHEMY_DATABASE_URI=database,
        SERVER_NAME=None if matching == "host" else "shop.test",
        LOCKKIT_URL="memory://",
        LOCKKIT_USER=lambda: "alice",
        LOCKKIT_ORDERS={"ORDER_ID": ["header:X-Order-ID"], "PATHS": ["^/"]},
    )
    db.init_app(shop)
    LockKit(shop)
    place = {"host": "<shop>.shop.test"} if matching == "host" else {"subdomain": "<shop>"}
    shop.add_url_rule("/sell", view_func=sell, methods=["POST"], **place)
    with shop.app_context():
        db.create_all()
    answers = [
        shop.test_client().post("/sell", headers=A_1, base_url=f"http://{host}")
        for host in ("one.shop.test", "two.shop.test", "ONE.shop.test")
    ]
    app_locks(shop).close()
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert [replayed(answer) for answer in answers] == [False, False, True]
    with shop.app_context():
        db.engine.dispose()


class Basket:
    """Each object reads as itself alone."""


class NamedBasket(Basket):
    """All of them read alike."""

    def __str__(self) -> str:
        return "a basket"


@pytest.mark.parametrize("made", [Basket, NamedBasket])
def test_url_values_are_compared_as_they_were_sent(shop: Flask, made: type[Basket]) -> None:
    class Converter(BaseConverter):
        def to_python(self, value: str) -> Basket:
            return made()

    shop.url_map.converters["basket"] = Converter
    shop.add_url_rule("/basket/<basket:basket>", view_func=sell, methods=["POST"])
    answers = [post(shop, f"/basket/{sent}") for sent in ("1", "1", "2", "01")]
    assert [answer.status_code for answer in answers] == [201, 201, 422, 422]
    for other in ({"SCRIPT_NAME": "/staff"}, {"PATH_INFO": "/basket/\xff"}):
        answer = shop.test_client().post("/basket/1", headers=A_1, environ_overrides=other)
        assert answer.status_code == 422


def test_files_of_a_field_are_compared_in_their_order_and_with_their_type(shop: Flask) -> None:
    shop.add_url_rule("/sell", view_func=sell, methods=["POST"])

    def upload(*files: tuple[str, str]) -> TestResponse:
        sent = [(io.BytesIO(b"x"), name, kind) for name, kind in files]
        return shop.test_client().post("/sell", headers=A_1, data={"f": sent})

    png, svg = ("a", "image/png"), ("b", "image/svg+xml")
    assert upload(png, svg).status_code == 201
    assert upload(png, svg).headers["Idempotent-Replayed"] == "true"
    for other in [(svg, png), (png, png), (png,), (("a", svg[1]), svg)]:
        assert upload(*other).status_code == 422


class Endless(io.RawIOBase):
    """A body without a length, and without an end."""

    count = 0

    def __init__(self, start: bytes = b"") -> None:
        super().__init__()
        self.start = start

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        assert self.count < 100_000, "read on and on"
        self.count += len(buffer)
        buffer[:] = self.start[: len(buffer)].ljust(len(buffer), b"x")
        self.start = self.start[len(buffer) :]
        return len(buffer)


class OlderRequest(Request):
    """As in Flask 3.0, where the limit is the app's alone."""

    max_content_length = property(lambda _: None)


class SmallFields(Request):
    """Flask has a setting for it since 3.1."""

    max_form_memory_size = 1000  # type: ignore[assignment]


UPLOAD = b'--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n'


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        ("application/x-www-form-urlencoded", b""),
        ("text/plain", b""),
        ("multipart/form-data; boundary=b", UPLOAD),
        ("multipart/form-data; boundary=b", UPLOAD.replace(b'; filename="f"', b"")),
    ],
    ids=["form", "text", "file", "field"],
)
@pytest.mark.parametrize("request_class", [Request, OlderRequest])
def test_a_body_without_an_end_is_read_up_to_the_limit(
    make_shop: Callable[..., Flask], kind: str, start: bytes, request_class: type[Request]
) -> None:
    shop = make_shop(
        LOCKKIT_ORDERS={"ORDER_ID": ["header:X-Order-ID"], "PATHS": ["^/"], "MAX_REQUEST": 1000}
    )
    shop.request_class = request_class
    body = Endless(start)
    answer = shop.test_client().post(
        "/one",
        headers={**A_1, "Transfer-Encoding": "chunked"},
        content_type=kind,
        environ_overrides={"wsgi.input": body, "wsgi.input_terminated": True},
    )
    assert (answer.status_code, answer.json["code"]) == (413, "order-too-large")
    assert body.count < 3000
    assert not records(shop)


def test_an_upload_that_only_the_app_has_a_limit_for_is_refused_as_without_an_order(
    make_shop: Callable[..., Flask],
) -> None:
    shop = make_shop(MAX_CONTENT_LENGTH=1000)
    answer = shop.test_client().post(
        "/one",
        headers={**A_1, "Transfer-Encoding": "chunked"},
        content_type="multipart/form-data; boundary=b",
        environ_overrides={"wsgi.input": Endless(UPLOAD), "wsgi.input_terminated": True},
    )
    assert (answer.status_code, answer.json) == (413, None)
    assert not records(shop)


def test_a_field_that_only_the_app_has_a_limit_for_is_refused_as_without_an_order(
    make_shop: Callable[..., Flask],
) -> None:
    shop = make_shop()
    shop.request_class = SmallFields
    answer = shop.test_client().post(
        "/one", headers=A_1, content_type="multipart/form-data", data={"note": "x" * 5000}
    )
    assert (answer.status_code, answer.json) == (413, None)
    assert not records(shop)
