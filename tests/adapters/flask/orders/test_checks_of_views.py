"""Nobody sees a stored answer whom a check of the view would refuse now."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from flask import Blueprint, Flask, abort, request
from flask.views import MethodView, View
from flask_login import login_required
from flask_project import db, put
from flask_project.hooks import permission_required
from transparent import Measured, Transparent

from lockkit_flask import idempotent, lock_view
from lockkit_flask.operate.checks import findings

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask.typing import ResponseReturnValue

    Views = Callable[[], Callable[..., Any]]

ALICE = {"X-User": "alice", "X-Order-ID": "A-1"}


def buy() -> ResponseReturnValue:
    put("bought")
    db.session.commit()
    return "bought", 201


def check() -> None:
    if "X-Revoked" in request.headers:
        abort(403)


def hiding(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that does not tell what it wraps."""

    def checked() -> Any:
        check()
        return view()

    return checked


def hiding_in_a_default(view: Callable[..., Any]) -> Callable[..., Any]:
    def checked(_view: Callable[..., Any] = view) -> Any:
        check()
        return _view()

    return checked


def hiding_in_a_keyword(view: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*, _view: Callable[..., Any] = view) -> Any:
        check()
        return _view()

    return checked


class Guard:
    """Not callable itself."""

    def hides(self, view: Callable[..., Any]) -> Callable[..., Any]:
        self.view = view

        def checked() -> Any:
            check()
            return self.view()

        return checked


def hiding_in_a_list(view: Callable[..., Any]) -> Callable[..., Any]:
    views = [view]

    def checked() -> Any:
        check()
        return views[0]()

    return checked


class Checks(MethodView):
    """A base of the project's own."""

    def dispatch_request(self, **kwargs: Any) -> Any:
        check()
        return super().dispatch_request(**kwargs)


class OfOwnBase(Checks):
    def post(self) -> ResponseReturnValue:
        return buy()


class ChecksWhenMade(MethodView):
    def __init__(self) -> None:
        check()

    def post(self) -> ResponseReturnValue:
        return buy()


class AboveItsMethods(MethodView):
    decorators = (idempotent,)

    @permission_required
    def post(self) -> ResponseReturnValue:
        return buy()


class HiddenAboveItsMethods(MethodView):
    decorators = (idempotent,)
    post = staticmethod(hiding(buy))


class HiddenAboveItsDispatch(View):
    methods = ("POST",)
    dispatch_request = staticmethod(idempotent(hiding(buy)))


class AboveItsBase(Checks):
    @idempotent
    def dispatch_request(self, **kwargs: Any) -> Any:
        return super().dispatch_request(**kwargs)

    def post(self) -> ResponseReturnValue:
        return buy()


@dataclass
class Unhashable:
    def __call__(self) -> ResponseReturnValue:
        return buy()


@dataclass
class Require:
    """A decorator that is a class, and returns a method."""

    view: Callable[..., Any]

    def run(self) -> ResponseReturnValue:
        check()
        return self.view()


UNKNOWN: dict[str, Views] = {
    "a decorator": lambda: permission_required(buy),
    "one that hides": lambda: hiding(buy),
    "one that hides in a default": lambda: hiding_in_a_default(buy),
    "one that hides in a keyword": lambda: hiding_in_a_keyword(buy),
    "one that hides in an object": lambda: Guard().hides(buy),
    "one that hides in a list": lambda: hiding_in_a_list(buy),
    "one below lock_view": lambda: lock_view("stock")(permission_required(buy)),
    "one below @idempotent": lambda: idempotent(permission_required(buy)),
    "one that hides below @idempotent": lambda: idempotent(hiding(buy)),
    "a decorator below an agent's": lambda: Measured(permission_required(buy)),
    "a proxy of lock_view": lambda: Transparent(lock_view("stock")(buy), check),
    "a proxy of login_required": lambda: Transparent(login_required(buy), check),
    "an object": lambda: functools.partial(buy),
    "one without a hash": Unhashable,
    "one that hides an object": lambda: hiding(Unhashable()),
    "one that hides a partial": lambda: hiding(functools.partial(buy)),
    "a method of an object": lambda: Require(buy).run,
    "a base": lambda: OfOwnBase.as_view("of_own_base"),
    "its making": lambda: ChecksWhenMade.as_view("checks_when_made"),
    "a method below decorators": lambda: AboveItsMethods.as_view("above_its_methods"),
    "one that hides below decorators": lambda: HiddenAboveItsMethods.as_view("hidden_method"),
    "one that hides below dispatch": lambda: HiddenAboveItsDispatch.as_view("hidden_dispatch"),
    "a base below @idempotent": lambda: AboveItsBase.as_view("above_its_base"),
}


@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
def test_what_may_check_is_never_passed_by(make_shop: Callable[..., Flask], make: Views) -> None:
    shop = shop_with(make_shop, make())
    first, *again = [send(shop, headers) for headers in ({}, {}, {"X-Revoked": "1"})]
    assert first.status_code == 201
    assert [(each.status_code, b"bought" in each.data) for each in again] == [(409, False)] * 2
    assert again[0].json["code"] == "order-completed"
    (told,) = [found for found in findings(shop) if found.code == "replay-unknown"]
    assert "'/buy'" in told.text
    assert "Put @idempotent below" in told.remedy


def test_an_order_that_no_settings_cover_may_have_any_method(
    make_shop: Callable[..., Flask],
) -> None:
    shop = make_shop(LOCKKIT_ORDERS={"PATHS": []}, LOGIN_DISABLED=True)
    shop.add_url_rule("/buy", view_func=idempotent(permission_required(buy)), methods=["PUT"])
    assert "replay-unknown" in {found.code for found in findings(shop)}


class Made(MethodView):
    init_every_request = False

    def __init__(self, answer: Callable[[], ResponseReturnValue]) -> None:
        self.answer = answer

    def post(self) -> ResponseReturnValue:
        return self.answer()


class OneOrder(View):
    methods = ("POST",)

    @idempotent
    def dispatch_request(self) -> ResponseReturnValue:
        return buy()


def in_a_factory(extra: str | None = None) -> Callable[..., Any]:
    import decimal

    from flask_project import Order

    from lockkit_flask import current_order

    app, database, log = Flask("other"), db, logging.getLogger("shop")
    blueprint = Blueprint("other", "other")
    if extra is not None:
        unset = extra

    def view(status: int = 201) -> ResponseReturnValue:
        assert (database, log.name, status) == (db, "shop", decimal.Decimal(201))
        assert blueprint.name == "other"
        assert (app.name, Order.__name__, current_order.order_id) == ("other", "Order", "A-1")
        return unset if app.debug else buy()

    return view


KNOWN: dict[str, Views] = {
    "a function": lambda: buy,
    "one of a factory": in_a_factory,
    "an agent's": lambda: Measured(lock_view("stock")(Measured(buy))),
    "lock_view": lambda: lock_view("stock")(buy),
    "a class": lambda: Made.as_view("made", buy),
    "@idempotent below what checks": lambda: permission_required(idempotent(buy)),
    "@idempotent on dispatch_request": lambda: OneOrder.as_view("one_order"),
}


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_what_has_no_checks_or_passed_ones_is_repeated(
    make_shop: Callable[..., Flask], make: Views
) -> None:
    shop = shop_with(make_shop, make())
    answers = [send(shop, {}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert "Idempotent-Replayed" in answers[1].headers
    assert not [found for found in findings(shop) if found.code == "replay-unknown"]


class OwnApp(Flask):
    """Its check is passed by, unless the order is below it."""

    def dispatch_request(self) -> ResponseReturnValue:
        check()
        return super().dispatch_request()


@pytest.mark.parametrize("below", [False, True])
def test_an_app_of_a_class_that_dispatches_itself_may_check(
    make_shop: Callable[..., Flask], monkeypatch: pytest.MonkeyPatch, below: bool
) -> None:
    monkeypatch.setattr("flask_project.Flask", OwnApp)
    shop = shop_with(make_shop, idempotent(buy) if below else buy)
    answers = [send(shop, headers) for headers in ({}, {}, {"X-Revoked": "1"})]
    statuses = [answer.status_code for answer in answers]
    assert statuses == ([201, 201, 403] if below else [201, 409, 409])
    told = [found.text for found in findings(shop) if found.code == "replay-unknown"]
    assert below == (not told)
    assert all("OwnApp.dispatch_request" in text for text in told)


def test_where_the_project_decides_nothing_is_unknown(make_shop: Callable[..., Flask]) -> None:
    orders = {"AUTHORIZE_REPLAY": "flask_project.hooks.may_see_again"}
    shop = shop_with(make_shop, permission_required(buy), **orders)
    assert [send(shop, {}).status_code for _ in range(2)] == [201, 201]
    assert not [found for found in findings(shop) if found.code == "replay-unknown"]


def shop_with(make_shop: Callable[..., Flask], view: Any, **orders: str) -> Flask:
    rules = {"ORDER_ID": ["header:X-Order-ID"], "PATHS": ["^/buy$"], "WAIT": 10, **orders}
    shop = make_shop(LOCKKIT_ORDERS=rules, LOGIN_DISABLED=True)  # as Flask-Login calls it
    shop.add_url_rule("/buy", "buy", view, methods=["POST"])
    return shop


def send(shop: Flask, headers: dict[str, str]) -> Any:
    return shop.test_client().post("/buy", headers={**ALICE, **headers})
