"""Decorators in places where they would do nothing: said, and not done."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from flask import Blueprint, Flask
from flask.views import MethodView

import lockkit
from lockkit_flask import idempotent, lock_view, locked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeApp = Callable[..., Flask]


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    app = make_app()
    app.testing = True
    return app


def other(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def called() -> Any:
        return view()

    return called


def test_lock_view_above_the_route_is_an_error_and_not_a_view_without_a_lock(app: Flask) -> None:
    @lock_view("stock")
    @app.post("/stock")
    def deduct() -> str:
        raise AssertionError

    for _ in "12":
        with pytest.raises(lockkit.ConfigurationError, match=r"lock_view stands above.*deduct"):
            app.test_client().post("/stock")


@pytest.mark.parametrize("decorator", [lock_view("stock"), locked("stock"), idempotent])
@pytest.mark.parametrize("hook", [False, True])
def test_so_it_is_above_a_decorator_that_hides_the_function(
    app: Flask, decorator: Any, hook: bool
) -> None:
    def hides(view: Callable[[], str]) -> Callable[[], str]:
        def hidden() -> str:
            return view()

        return hidden

    if hook:
        app.add_url_rule("/stock", "stock", lambda: "", methods=["POST"])

    @decorator
    @(app.before_request if hook else app.post("/stock"))
    @hides
    def deduct() -> str:
        raise AssertionError

    with pytest.raises(lockkit.ConfigurationError, match="stands above"):
        app.test_client().post("/stock")


def test_what_is_made_around_a_function_from_elsewhere_says_nothing_of_that(app: Flask) -> None:
    def bare() -> str:
        return "bare"

    def both(view: Callable[[], str]) -> Callable[[], str]:
        @lock_view("stock")
        @functools.wraps(view)
        def inner() -> str:
            return view()

        return inner

    both(bare)
    app.add_url_rule("/bare", view_func=bare, methods=["POST"])
    assert app.test_client().post("/bare").text == "bare"


def test_a_view_that_is_replaced_later_is_looked_at_again(app: Flask) -> None:
    def deduct() -> str:
        return "deducted"

    app.add_url_rule("/stock", "stock", lock_view("stock")(deduct), methods=["POST"])
    assert app.test_client().post("/stock").text == "deducted"

    def registered(view: Callable[[], str]) -> Callable[[], str]:
        app.view_functions["stock"] = view
        return view

    @lock_view("stock")
    @registered
    def bare() -> str:
        raise AssertionError

    with pytest.raises(lockkit.ConfigurationError, match=r"lock_view stands above.*bare"):
        app.test_client().post("/stock")


def test_lock_view_on_a_class_is_told_where_it_belongs() -> None:
    with pytest.raises(lockkit.ConfigurationError, match=r"method of Stock.*decorators = "):

        @lock_view("stock")
        class Stock(MethodView):
            pass


@pytest.mark.parametrize(
    "decorator", [lock_view("stock"), idempotent, idempotent(required=True), locked("stock")]
)
def test_so_it_is_with_decorators_around_it_and_in_blueprints(
    app: Flask, decorator: Callable[[Any], Any]
) -> None:
    shop = Blueprint("shop", __name__)

    @other
    @decorator
    @shop.post("/stock")
    @other
    def deduct() -> str:
        raise AssertionError

    app.register_blueprint(shop)
    checked = app.test_cli_runner().invoke(args=["locks", "check"])
    assert (checked.exit_code, checked.output.count("stands above the route")) == (1, 1)
    with pytest.raises(lockkit.ConfigurationError, match="stands above the route"):
        app.test_client().post("/stock")


def test_a_decorator_between_hides_nothing(app: Flask) -> None:
    @lock_view("stock")
    @other
    @app.post("/stock")
    @other
    def deduct() -> str:
        raise AssertionError

    with pytest.raises(lockkit.ConfigurationError, match="stands above the route"):
        app.test_client().post("/stock")


def test_a_route_decorator_of_ones_own_that_registers_a_wrapper_hides_nothing(app: Flask) -> None:
    def route(view: Callable[..., Any]) -> Callable[..., Any]:
        app.add_url_rule("/stock", "stock", other(view), methods=["POST"])
        return view

    @lock_view("stock")
    @route
    def deduct() -> str:
        raise AssertionError

    with pytest.raises(lockkit.ConfigurationError, match="stands above the route"):
        app.test_client().post("/stock")


@pytest.mark.parametrize("of", ["before_request", "errorhandler"])
def test_above_a_hook_or_an_error_handler_it_is_an_error_as_well(app: Flask, of: str) -> None:
    @lock_view("stock")
    @(app.before_request if of == "before_request" else app.errorhandler(404))
    def deduct(*_: Any) -> str:
        raise AssertionError

    with pytest.raises(lockkit.ConfigurationError, match=r"or the hook of .*deduct"):
        app.test_client().post("/stock")


def test_below_a_hook_it_is_none(app: Flask) -> None:
    @app.before_request
    @lock_view("stock")
    def deduct() -> str:
        return "here"

    assert app.test_client().get("/").text == "here"


def test_a_route_with_the_lock_and_one_without_it_are_two_routes(app: Flask) -> None:
    @app.get("/locked")
    @lock_view("stock")
    @app.get("/free", endpoint="free")
    def stock() -> str:
        return "here"

    assert app.test_client().get("/locked").text == "here"
    assert app.test_client().get("/free").text == "here"


def test_a_function_may_be_registered_and_be_locked_elsewhere(app: Flask) -> None:
    @app.get("/free")
    def stock() -> str:
        return "here"

    lock_view("stock")(stock)
    assert app.test_client().get("/free").text == "here"


@pytest.mark.parametrize(
    ("decorator", "example"),
    [(lock_view, r"@lock_view\('stock:{sku:str}'\)"), (locked, r"@locked\('stock:{sku}'\)")],
)
def test_a_decorator_without_its_parentheses_says_what_to_write(
    decorator: Any, example: str
) -> None:
    with pytest.raises(lockkit.ConfigurationError, match=f"write {example}"):

        @decorator
        def deduct(sku: str) -> str:
            return sku


@pytest.mark.parametrize("url", ["/page", "/page/A1"])
def test_a_route_whose_view_was_taken_for_a_name_says_so(app: Flask, url: str) -> None:
    def page(sku: str = "") -> str:
        raise AssertionError

    app.add_url_rule("/page", "page", lock_view(page))
    app.add_url_rule("/page/<sku>", "item", lock_view(page))
    expected = r"write @lock_view\('stock:{sku:str}'\) above the view"
    with pytest.raises(lockkit.ConfigurationError, match=expected):
        app.test_client().get(url)


def test_a_name_may_still_be_a_function(app: Flask) -> None:
    def name(sku: str) -> str:
        return f"stock:{sku}"

    @app.get("/<sku>")
    @lock_view(name)
    @lock_view(lambda sku: f"shelf:{sku}")
    def deduct(sku: str) -> str:
        return sku

    assert app.test_client().get("/a").text == "a"


def test_lock_view_above_a_generator_is_an_error_and_not_a_view_without_a_lock() -> None:
    """Flask sends it as a streaming body, which runs after the end of the request."""
    with pytest.raises(lockkit.ConfigurationError, match=r"is a generator.*by hand in its body"):

        @lock_view("stock")
        def deduct() -> Iterator[str]:
            raise AssertionError
            yield ""
