"""``{{ order_id_field() }}``: guests, and who logs in or out between two clicks."""

from __future__ import annotations

import re
import socket
import threading
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
import uvicorn
from a2wsgi import WSGIMiddleware
from flask import Blueprint, Flask, render_template_string, request, session
from flask_login import LoginManager, UserMixin, login_user, logout_user
from flask_project import Order, db
from jinja2 import DictLoader

from lockkit.model.errors import ConfigurationError
from lockkit_flask import current_order, new_order_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flask.testing import FlaskClient

FIELD = re.compile(r'<input type="hidden" name="order_id" value="([^"]*)">')
COOKIE = "session-lockkit"
ORDERS = {"ORDER_ID": ["form:order_id"], "PATHS": ["^/orders"], "REQUIRED": True}
PAGE = "<form method=post>{{ order_id_field() }}</form>" * 2
MACRO = "{% macro form() %}{{ order_id_field() }}{% endmacro %}{{ form() }}"


def page() -> str:
    return render_template_string(PAGE)


def macro() -> str:
    return render_template_string(MACRO)


async def coroutine_page() -> str:
    return render_template_string(PAGE)


def public_page() -> tuple[str, dict[str, str]]:
    return new_order_id(), {"Cache-Control": "public, max-age=600"}


def orders() -> tuple[str, int]:
    order = Order(name=current_order.order_id)
    db.session.add(order)
    db.session.commit()
    return f"order {order.id} for {session.get('user')}", 201


def log_in(name: str) -> str:
    """As in Flask's tutorial."""
    session.clear()
    session["user"] = name
    return "in"


def log_out() -> str:
    session.clear()
    return "out"


def forget() -> str:
    """As Flask-Login does: the rest of the session stays."""
    session.pop("user")
    return "out"


def nothing() -> str:
    return "something"


@pytest.fixture
def shop(make_shop: Callable[..., Flask]) -> Flask:
    app = make_shop(LOCKKIT_ORDERS=ORDERS, LOCKKIT_USER=lambda: session.get("user"))
    for view in (page, macro, coroutine_page, public_page, log_out, forget, nothing):
        app.add_url_rule(f"/{view.__name__}", view_func=view)
    app.add_url_rule("/log_in/<name>", view_func=log_in)
    app.add_url_rule("/orders", view_func=orders, methods=["POST"])
    return app


@pytest.fixture
def database(tmp_path: Any) -> str:
    """What is tested here is the same on every database."""
    return f"sqlite:///{tmp_path / 'shop.sqlite3'}"


@pytest.fixture
def client(shop: Flask) -> FlaskClient:
    return shop.test_client()


def form(client: FlaskClient, path: str = "page") -> str:
    return forms(client, path)[0]


def forms(client: FlaskClient, path: str = "page") -> list[str]:
    response = client.get(f"/{path}")
    assert response.status_code == 200
    return [unescape(value) for value in FIELD.findall(response.text)]


def buy(client: FlaskClient, value: str, quantity: str = "1") -> Any:
    return client.post("/orders", data={"order_id": value, "quantity": quantity})


def answer(response: Any) -> tuple[int, str, bool]:
    return response.status_code, response.text, "Idempotent-Replayed" in response.headers


def code(response: Any) -> str:
    return str(response.json["code"])


def sold(shop: Flask) -> list[str]:
    with shop.app_context():
        return [order.name for order in db.session.query(Order)]


@pytest.mark.parametrize("path", ["page", "macro", "coroutine_page"])
@pytest.mark.parametrize("user", [None, "alice"])
def test_a_form_sent_twice_is_one_order(
    shop: Flask, client: FlaskClient, path: str, user: str | None
) -> None:
    if user is not None:
        client.get(f"/log_in/{user}")
    value = form(client, path)
    first, second = answer(buy(client, value)), answer(buy(client, value))
    assert (first[0], second) == (201, (201, first[1], True))
    assert sold(shop) == [value.split(".")[1]]
    assert code(buy(client, value, quantity="2")) == "order-id-reused"


def test_a_guest_gets_a_cookie_and_the_page_is_for_him_only(
    shop: Flask, client: FlaskClient
) -> None:
    response = client.get("/page")
    (cookie,) = response.headers.getlist("Set-Cookie")
    assert cookie.startswith(f"{COOKIE}=")
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Secure" not in cookie
    assert "Cookie" in response.headers["Vary"]
    assert response.cache_control.private
    secret = cookie.partition("=")[2].partition(".")[0]
    assert secret not in response.text
    assert "Set-Cookie" not in client.get("/page").headers
    assert "Set-Cookie" not in client.get("/nothing").headers
    shop.config["SESSION_COOKIE_SECURE"] = True
    assert "Secure" in shop.test_client().get("/page").headers["Set-Cookie"]


def test_in_a_frame_of_another_site_the_cookie_is_kept_where_that_of_the_session_is(
    shop: Flask,
) -> None:
    """Flask 3.0 knows no such cookies."""
    shop.config["SESSION_COOKIE_PARTITIONED"] = True
    of_session, of_guest = (
        shop.test_client().get(path).headers["Set-Cookie"] for path in ("/log_in/alice", "/page")
    )
    assert of_guest.startswith(f"{COOKIE}=")
    assert ("Partitioned" in of_guest) == ("Partitioned" in of_session)


def test_a_page_that_calls_itself_public_is_not(client: FlaskClient) -> None:
    cache = client.get("/public_page").cache_control
    assert cache.private and not cache.public


def test_what_anybody_may_keep_hands_no_cookie_over(shop: Flask, client: FlaskClient) -> None:
    """A cache in between would give the cookie to others."""
    folder = Path(__file__).parent
    shop.register_blueprint(Blueprint("shop", "shop", static_folder=folder, static_url_path="/f"))
    public = {"Cache-Control": "public, max-age=60"}
    shop.add_url_rule("/public", view_func=lambda: ("news", public))
    form(client)
    with client.session_transaction() as found:
        found["user"] = "alice"
    for path in (f"/f/{Path(__file__).name}", "/public"):
        response = client.get(path)
        assert response.status_code == 200
        assert COOKIE not in response.headers.get("Set-Cookie", "")
        response.close()
    assert COOKIE in client.get("/nothing").headers["Set-Cookie"]


def test_a_user_gets_no_cookie(client: FlaskClient) -> None:
    client.get("/log_in/alice")
    client.get("/page")
    assert client.get_cookie(COOKIE) is None


@pytest.mark.parametrize("way", ["log_out", "forget"])
def test_whoever_logs_out_between_two_clicks_neither_sees_the_order_nor_orders_again(
    shop: Flask, client: FlaskClient, way: str
) -> None:
    of_guest = form(client)
    assert buy(client, of_guest).status_code == 201
    client.get("/log_in/alice")
    of_alice = form(client)
    assert buy(client, of_alice).status_code == 201
    client.get(f"/{way}")
    for value in (of_guest, of_alice):
        refused = buy(client, value)
        assert (refused.status_code, code(refused)) == (403, "order-form-of-another")
    client.get("/log_in/bob")
    assert code(buy(client, of_guest)) == "order-form-of-another"
    client.get("/log_in/alice")
    for value in (of_guest, of_alice):
        assert answer(buy(client, value))[::2] == (201, True)
    assert len(sold(shop)) == 2


class Customer(UserMixin):
    def __init__(self, name: str) -> None:
        self.id = name


class Clerk(Customer):
    pass


def load_user(name: str) -> Customer:
    return (Clerk if name == "clerk" else Customer)("7")


@pytest.fixture(params=["keeps", "clears"])
def login_client(request: pytest.FixtureRequest, make_shop: Callable[..., Flask]) -> FlaskClient:
    """Of a shop with Flask-Login, whose login keeps the session or clears it."""
    shop = make_shop(LOCKKIT_ORDERS=ORDERS, LOCKKIT_USER=None)
    LoginManager(shop).user_loader(lambda _: load_user(session["kind"]))

    def enter(name: str) -> str:
        if request.param == "clears":
            session.clear()
        session["kind"] = name
        login_user(load_user(name))
        return "in"

    shop.add_url_rule("/page", view_func=page)
    shop.add_url_rule("/log_in/<name>", view_func=enter)
    shop.add_url_rule("/log_out", view_func=lambda: str(logout_user()))
    shop.add_url_rule("/orders", view_func=orders, methods=["POST"])
    return shop.test_client()


def test_a_form_from_before_the_login_with_flask_login_orders_after_it(
    login_client: FlaskClient,
) -> None:
    value = form(login_client)
    login_client.get("/log_in/customer")
    first, second = answer(buy(login_client, value)), answer(buy(login_client, value))
    assert (first[0], second) == (201, (201, first[1], True))
    assert len(sold(login_client.application)) == 1


def test_an_order_from_before_the_login_with_flask_login_is_repeated_after_it(
    login_client: FlaskClient,
) -> None:
    value = form(login_client)
    first = answer(buy(login_client, value))
    login_client.get("/log_in/customer")
    assert answer(buy(login_client, value)) == (201, first[1], True)
    login_client.get("/log_out")
    assert code(buy(login_client, value)) == "order-form-of-another"
    login_client.get("/log_in/clerk")  # of the same number
    assert code(buy(login_client, value)) == "order-form-of-another"
    login_client.get("/log_in/customer")
    assert answer(buy(login_client, value)) == (201, first[1], True)
    assert len(sold(login_client.application)) == 1


def fails() -> str:
    raise ValueError


def answers_502() -> tuple[str, int]:
    return "no payment", 502


def does_not_commit() -> str:
    db.session.add(Order(name="forgotten"))
    return "done"


@pytest.mark.parametrize("fault", [fails, answers_502, does_not_commit])
def test_a_login_that_is_undone_with_its_order_takes_no_form_away(
    login_client: FlaskClient, fault: Callable[[], Any]
) -> None:
    """As at a checkout that opens an account."""
    shop = login_client.application
    faults = [fault]

    def check_out() -> Any:
        session["kind"] = "customer"
        login_user(load_user("customer"))
        return faults.pop()() if faults else orders()

    shop.view_functions["orders"] = check_out
    value = form(login_client)
    first, second, third = (buy(login_client, value) for _ in "123")
    assert first.status_code in (500, 502)
    assert (second.status_code, answer(third)) == (201, (201, second.text, True))
    assert len(sold(shop)) == 1
    login_client.get("/log_out")
    assert code(buy(login_client, value)) == "order-form-of-another"


def test_an_attribute_order_of_the_apps_own_is_no_matter(shop: Flask, client: FlaskClient) -> None:
    @shop.before_request
    def note() -> None:
        if request.path == "/nothing":
            vars(request)["order"] = "of coffee"

    form(client)
    with client.session_transaction() as found:
        found["user"] = "alice"
    assert COOKIE in client.get("/nothing").headers["Set-Cookie"]


def test_an_old_cookie_shows_no_guest_what_the_user_has_ordered(
    shop: Flask, client: FlaskClient
) -> None:
    """Somebody keeps the cookies of a computer, and another logs in there."""
    value = form(client)
    kept = client.get_cookie(COOKIE)
    assert kept is not None
    client.get("/log_in/alice")
    assert "alice" in buy(client, value).text
    thief = shop.test_client()
    thief.set_cookie(COOKIE, kept.value)
    refused = buy(thief, value)
    assert (refused.status_code, code(refused)) == (422, "order-id-reused")
    thief.get("/log_in/bob")
    assert code(buy(thief, value)) == "order-id-reused"
    assert len(sold(shop)) == 1


def test_a_cookie_that_was_changed_is_no_cookie(shop: Flask, client: FlaskClient) -> None:
    value = form(client)
    assert buy(client, value).status_code == 201
    client.get("/log_in/alice")
    cookie = client.get_cookie(COOKIE)
    assert cookie is not None
    secret, _, signature = cookie.value.split(".")
    for forged in (f"{secret}.{signature}", secret, "", "...", f"{cookie.value}x"):
        thief = shop.test_client()
        thief.set_cookie(COOKIE, forged)
        assert code(buy(thief, value)) == "order-form-of-another"


@pytest.fixture
def url(shop: Flask) -> Iterator[str]:
    """The shop on a real ASGI server, a2wsgi in between."""
    config = uvicorn.Config(WSGIMiddleware(shop), lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_guests_log_in_and_out_between_two_clicks_on_an_asgi_server(url: str) -> None:
    with requests.Session() as visitor, requests.Session() as thief:

        def send(who: requests.Session, value: str) -> requests.Response:
            return who.post(f"{url}/orders", {"order_id": value}, timeout=60)

        for path in ("page", "coroutine_page"):
            value = unescape(FIELD.findall(visitor.get(f"{url}/{path}", timeout=60).text)[0])
            first = send(visitor, value)
            assert first.status_code == 201
            visitor.get(f"{url}/log_in/alice", timeout=60)
            again = send(visitor, value)
            assert (again.text, again.headers["Idempotent-Replayed"]) == (first.text, "true")
            visitor.get(f"{url}/log_out", timeout=60)
            for who in (visitor, thief):
                assert send(who, value).json()["code"] == "order-form-of-another"


def test_a_user_hook_that_refuses_guests_breaks_no_answer(make_shop: Callable[..., Flask]) -> None:
    def user() -> str:
        if request.path == "/nothing":
            raise RuntimeError("nobody asks me here")
        return ""

    shop = make_shop(LOCKKIT_ORDERS=ORDERS, LOCKKIT_USER=user)
    shop.add_url_rule("/page", view_func=page)
    shop.add_url_rule("/nothing", view_func=nothing)
    client = shop.test_client()
    client.get("/page")
    assert client.get("/nothing").status_code == 200


def test_a_field_needs_orders_and_a_secret_key(
    make_app: Callable[..., Flask], make_shop: Callable[..., Flask]
) -> None:
    app = make_app()
    with app.test_request_context(), pytest.raises(ConfigurationError, match="LOCKKIT_ORDERS"):
        new_order_id()
    shop = make_shop(LOCKKIT_ORDERS=ORDERS, LOCKKIT_USER=lambda: None)
    shop.secret_key = None
    with shop.test_request_context(), pytest.raises(ConfigurationError, match="SECRET_KEY"):
        new_order_id()


def test_a_field_that_nobody_reads_is_not_rendered(make_shop: Callable[..., Flask]) -> None:
    """Two clicks would be two orders, and nothing would say so."""
    shop = make_shop(LOCKKIT_ORDERS={"PATHS": ["^/orders"]}, LOCKKIT_USER=lambda: None)
    with shop.test_request_context(), pytest.raises(ConfigurationError, match="'form:order_id'"):
        page()
    with shop.test_request_context():  # for a view that reads it all the same
        assert 'name="oid"' in render_template_string("{{ order_id_field(field='oid') }}")


def test_a_field_has_the_name_that_is_read(make_shop: Callable[..., Flask]) -> None:
    rules = {**ORDERS, "ORDER_ID": ["header:Idempotency-Key", "form:oid", "form:order_id"]}
    shop = make_shop(LOCKKIT_ORDERS=rules, LOCKKIT_USER=lambda: None)
    with shop.test_request_context():
        assert page().count('name="oid"') == 2


def test_a_template_of_an_app_without_orders_is_told_so(make_app: Callable[..., Flask]) -> None:
    app = make_app()
    with app.test_request_context(), pytest.raises(ConfigurationError, match="LOCKKIT_ORDERS"):
        render_template_string(PAGE)


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize("name", ["order-id-reused", "422", "refusal"])
def test_a_template_of_the_app_is_preferred(shop: Flask, name: str) -> None:
    shop.jinja_env.loader = DictLoader({f"lockkit/{name}.html": "{{ refusal.code }}: {{ advice }}"})
    client = shop.test_client()
    value = form(client)
    buy(client, value)
    sent = {"order_id": value, "quantity": "2"}
    response = client.post("/orders", data=sent, headers=BROWSER)
    assert response.text.startswith("order-id-reused: Go back")


def test_who_clicks_while_his_order_runs_is_told_to_send_the_form_again(
    make_shop: Callable[..., Flask],
) -> None:
    shop = make_shop(LOCKKIT_ORDERS={**ORDERS, "WAIT": 0}, LOCKKIT_USER=lambda: "alice")
    running, done = threading.Event(), threading.Event()

    def slow_order() -> str:
        running.set()
        assert done.wait(60)
        return "bought"

    shop.add_url_rule("/page", view_func=page)
    shop.add_url_rule("/orders/slow", view_func=slow_order, methods=["POST"])
    sent = {"order_id": form(shop.test_client())}
    answers: list[Any] = []

    def click() -> None:
        answers.append(shop.test_client().post("/orders/slow", data=sent, headers=BROWSER))

    first = threading.Thread(target=click)
    first.start()
    try:
        assert running.wait(60)
        second = shop.test_client().post("/orders/slow", data=sent, headers=BROWSER)
    finally:
        done.set()
        first.join()
    assert (second.status_code, second.mimetype) == (409, "text/html")
    assert "Retry-After" in second.headers
    assert "let your browser send the form again" in second.text
    assert [answer.text for answer in answers] == ["bought"]
