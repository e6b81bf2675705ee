"""Faults of PATHS, routes and names of locks are found, and logged at the first request."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import pytest
from command_line import dead_port
from flask import Blueprint, Flask
from flask.views import MethodView
from flask_project import create_app, db
from werkzeug.routing import BaseConverter

from lockkit_flask import LockKit, idempotent, lock_view
from lockkit_flask.operate.checks import findings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockkit.testing.servers import RedisServer


def codes(app: Flask) -> list[str]:
    app.testing = True  # its locks may be in memory
    return [finding.code for finding in findings(app)]


def locked(template: str) -> Any:
    @lock_view(template)
    def view(**kwargs: object) -> str:
        return "done"

    return view


def of_class(template: str) -> Any:
    class Locked(MethodView):
        decorators = [lock_view(template)]  # noqa: RUF012  as Flask has it

        def post(self, **kwargs: object) -> str:
            return "done"

    return Locked.as_view("view")


def of_method(template: str) -> Any:
    class Locked(MethodView):
        @lock_view(template)
        def post(self, **kwargs: object) -> str:
            return "done"

    return Locked.as_view("view")


def of_partial(template: str) -> Any:
    return functools.partial(locked(template), shop=1)


KINDS: Sequence[Callable[[str], Any]] = (locked, of_partial, of_class, of_method)


def of(app: Flask, rule: str, view: Any, **options: Any) -> list[str]:
    app.add_url_rule(rule, "view", view, methods=["POST"], **options)
    return codes(app)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("sqlite:///shop.sqlite3", ["relative-path"]),
        ("sqlalchemy+sqlite+pysqlite:///shop.sqlite3", ["relative-path"]),
        ("sqlalchemy+sqlite:///file:shop.sqlite3?uri=true", ["relative-path"]),
        ("sqlite:////tmp/shop.sqlite3", []),
        ("sqlalchemy+sqlite+pysqlite:////tmp/shop.sqlite3", []),
        ("sqlalchemy+sqlite:///file:/tmp/shop.sqlite3?uri=true", []),
        ("sqlalchemy+sqlite:///:memory:", []),
    ],
)
def test_a_relative_path_of_locks(
    make_app: Callable[..., Flask], url: str, found: list[str]
) -> None:
    assert codes(make_app(LOCKKIT_URL=url)) == found


@pytest.mark.parametrize("view", KINDS)
def test_a_field_that_the_route_does_not_have(
    make_app: Callable[..., Flask], view: Callable[[str], Any]
) -> None:
    assert of(make_app(), "/<int:pk>", view("stock:{sku}")) == ["missing-field"]
    assert of(make_app(), "/<int:pk>", view("stock:{shop}")) == ["missing-field"]  # of a partial
    assert of(make_app(), "/<int:pk>", view("stock:{pk}")) == []


@pytest.mark.parametrize("view", KINDS)
@pytest.mark.parametrize("field", ["form.sku", "query.sku", "json.a.b", "header.X-Sku", "sku"])
def test_a_text_that_a_client_chooses(
    make_app: Callable[..., Flask], view: Callable[[str], Any], field: str
) -> None:
    assert of(make_app(), "/<sku>", view(f"stock:{{{field}}}")) == ["bare-field"]
    for conversion in ("int", "uuid", "lower", "str"):
        assert of(make_app(), "/<sku>", view(f"stock:{{{field}:{conversion}}}")) == []


def hooked(blueprint: str, template: str, **options: Any) -> list[str]:
    """What is found in an app with the routes ``/<sku>`` of ``shop.api`` and ``/`` of ``other``, of
    which each request, or each one of a blueprint, runs a hook first."""
    app = Flask("app", static_folder=None)
    shop, api, other = (Blueprint(each, "app") for each in SHOPS)
    by_name = {"": app, **dict(zip(SHOPS, (shop, api, other), strict=True))}
    by_name[blueprint].before_request(lock_view(template, **options)(lambda: None))
    api.add_url_rule("/<sku>", "view", lambda sku: sku)
    other.add_url_rule("/", "view", lambda: "")
    shop.register_blueprint(api)
    app.register_blueprint(shop)
    app.register_blueprint(other)
    LockKit(app)
    return codes(app)


SHOPS = ("shop", "api", "other")


@pytest.mark.parametrize("blueprint", ["", *SHOPS])
def test_a_hook_before_a_view_is_checked_like_the_view(blueprint: str) -> None:
    missing = ["missing-field"] * (blueprint not in {"shop", "api"})
    assert hooked(blueprint, "stock:{sku:str}") == missing
    assert hooked(blueprint, "stock:{form.sku}") == ["bare-field"]
    assert hooked(blueprint, "stock:{form.sku:str}") == []
    assert hooked(blueprint, "stock", alias="missing") == ["missing-alias"]


class Cleaned(BaseConverter):
    def to_python(self, value: str) -> str:
        return value.strip()


class Doubled(BaseConverter):
    def to_python(self, value: str) -> int:
        return 2 * int(value)

    def to_url(self, value: Any) -> str:
        return str(value // 2)


@pytest.mark.parametrize(
    ("rule", "is_text"),
    [
        ("/<string:sku>", True),
        ("/<path:sku>", True),
        ("/<int:sku>", False),
        ("/<uuid:sku>", False),
        ("/<any(a, b):sku>", False),
        ("/<doubled:sku>", False),
        ("/<cleaned:sku>", True),
    ],
)
def test_a_value_of_the_url_is_a_text_or_not(
    make_app: Callable[..., Flask], rule: str, is_text: bool
) -> None:
    app = make_app()
    app.url_map.converters.update(doubled=Doubled, cleaned=Cleaned)
    assert of(app, rule, locked("{sku}")) == ["bare-field"] * is_text
    assert of(make_app(), "/", locked("{sku}"), defaults={"sku": "a"}) == []


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        (r"^/orders/", True),
        (r"^/orders/\d+/pay$", True),
        (r"^/shops/[\w-]+/[0-9a-f-]{36}$", True),
        (r"^orders/", False),
        (r"^/order/", False),
        (r"^/orders/$", False),
        (r"^/en/orders/", False),
    ],
)
def test_paths(make_shop: Callable[..., Flask], pattern: str, fits: bool) -> None:
    app = make_shop(LOCKKIT_ORDERS={"PATHS": [pattern]})
    app.url_map.converters.update(doubled=Doubled, cleaned=Cleaned)
    for rule in ("/orders/<int:pk>/pay", "/shops/<shop>/<uuid:order>", "/d/<doubled:x>"):
        app.add_url_rule(rule, rule, lambda **_: "done", methods=["POST"])
    assert codes(app) == ["path-of-no-route"] * (not fits)


@pytest.mark.parametrize("pattern", [r"^/order/", r"^/static/"])
def test_a_pattern_that_fits_only_what_is_read(
    make_shop: Callable[..., Flask], pattern: str
) -> None:
    """It was meant for another route. Those of other methods may be orders, if METHODS says so."""
    app = make_shop(LOCKKIT_ORDERS={"PATHS": [pattern], "METHODS": ["PUT"]})
    app.add_url_rule("/order/<int:pk>", "show", lambda pk: "", methods=["GET", "POST"])
    app.add_url_rule("/orders/", "buy", lambda: "", methods=["PUT"])
    assert codes(app) == ["path-of-no-route"]
    app.add_url_rule("/order/", "change", lambda: "", methods=["PUT"])
    app.add_url_rule("/static/it", "load", lambda: "", methods=["PUT"])
    assert codes(app) == []


@pytest.mark.parametrize("rule", ["/orders/<int:pk>/", "/orders/<int:pk>"])
@pytest.mark.parametrize(
    ("pattern", "fits"),
    [(r"^/orders/\d+/$", False), (r"^/orders/\d+$", False), (r"^/orders/\d+(/|$)", True)],
)
def test_a_route_that_takes_its_path_with_a_last_slash_and_without(
    make_shop: Callable[..., Flask], rule: str, pattern: str, fits: bool
) -> None:
    app = make_shop(LOCKKIT_ORDERS={"PATHS": [pattern]})
    assert of(app, rule, lambda pk: "done", strict_slashes=False) == ["path-of-one-slash"] * (
        not fits
    )
    told = [finding.text for finding in findings(app)]
    assert all("'/orders/1'" in text and "'/orders/1/'" in text for text in told)


def test_a_route_with_any_last_slash_that_makes_no_orders(make_shop: Callable[..., Flask]) -> None:
    app = make_shop(LOCKKIT_ORDERS={"PATHS": ["^/orders/$"]})
    app.add_url_rule("/orders/", "list", lambda: "all", strict_slashes=False)
    assert of(app, "/orders/", lambda: "done", strict_slashes=True) == []


def in_its_place(_: Any) -> Callable[[], Any]:
    return lambda: "of an extension"


def around_it(dispatch: Any) -> Callable[..., Any]:
    @functools.wraps(dispatch)
    def timed(*args: Any) -> Any:
        return dispatch(*args)

    return timed


def untouched(dispatch: Any) -> Any:
    return dispatch


@pytest.mark.parametrize("extension", [in_its_place, around_it, untouched])
def test_what_has_replaced_the_call_of_the_view_is_told(
    make_shop: Callable[..., Flask], extension: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An extension that is set up after LockKit may do so, as Flask-DebugToolbar does."""
    app = make_shop(LOCKKIT_ORDERS={"PATHS": ["^/one"]})
    vars(app)["dispatch_request"] = extension(app.dispatch_request)
    found = ["replaced-dispatch"] * (extension is in_its_place)
    assert codes(app) == found
    app.test_client().post("/one")
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert ["in_its_place.<locals>.<lambda>" in each for each in told] == [True] * len(found)


def test_what_is_wrong_is_told_at_the_first_request(
    make_shop: Callable[..., Flask], caplog: pytest.LogCaptureFixture
) -> None:
    app = make_shop(LOCKKIT_ORDERS={"PATHS": [r"^order/"]}, LOCKKIT={"default": {"TTL": 1}})
    app.testing = True  # one process will do
    app.add_url_rule("/orders/<sku>", "orders", locked("{sku}"), methods=["POST"])
    assert not caplog.records
    for _ in range(2):
        app.test_client().post("/orders/1")
    told = [(each.levelno, each.getMessage()) for each in caplog.records if each.name == "lockkit"]
    assert [level for level, _ in told] == [logging.WARNING, logging.ERROR, logging.WARNING]
    assert "has TTL 1" in told[0][1]
    assert "'^order/', which fits no route" in told[1][1]
    assert "{sku:int}" in told[2][1]


def test_a_view_of_orders_in_an_app_without_them(
    make_app: Callable[..., Flask], make_shop: Callable[..., Flask]
) -> None:
    buy = idempotent(lambda: "done")
    assert of(make_app(), "/buy", buy) == ["no-orders"]
    assert of(make_app(), "/buy", idempotent.exempt(lambda: "done")) == []
    assert of(make_shop(LOCKKIT_ORDERS={"PATHS": []}), "/buy", buy) == []


def test_an_alias_that_a_view_uses_and_nobody_configured(make_app: Callable[..., Flask]) -> None:
    app = make_app()
    app.add_url_rule("/", "view", lock_view("a", alias="elsewhere")(lambda: "done"))
    assert codes(app) == ["missing-alias"]


def test_dangers_of_the_settings_and_of_the_store(
    make_app: Callable[..., Flask], redis_server: RedisServer
) -> None:
    aliases = {"default": {"MAX_HOLD": None, "TTL": 1}, "down": "redis://127.0.0.1:1/0"}
    app = make_app(LOCKKIT=aliases, TESTING=False)
    told = [finding.code for finding in findings(app)]
    assert told == ["within-process", "unlimited-hold", "short-ttl"]
    checked = app.test_cli_runner().invoke(args=["locks", "check"])
    assert checked.exit_code == 1
    assert "The store of the lock alias 'down' (redis://127.0.0.1:1/0) fails" in checked.output
    sound = make_app(LOCKKIT={"default": {"LOCATION": redis_server.url}}, LOCKKIT_URL=None)
    checked = sound.test_cli_runner().invoke(args=["locks", "check"])
    assert (checked.exit_code, checked.output) == (0, "nothing found\n")


def test_a_missing_table_of_order_records_is_told(make_shop: Callable[..., Flask]) -> None:
    app = make_shop()
    table = db.metadata.tables["lockkit_order"]
    command = app.test_cli_runner()
    with app.app_context():
        table.drop(db.engine)
    found = command.invoke(args=["locks", "check"])
    assert found.exit_code == 1
    assert "no table 'lockkit_order'" in found.output
    assert "LockKit.create_tables()" in found.output
    with app.app_context():
        LockKit.create_tables()
    assert "no table" not in command.invoke(args=["locks", "check"]).output


def test_a_database_that_is_down_hides_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CI job may have none."""
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    app = create_app(
        SQLALCHEMY_DATABASE_URI=f"postgresql+psycopg://nobody@127.0.0.1:{dead_port()}/shop",
        LOCKKIT_URL="memory://",
        LOCKKIT_ORDERS={"PATHS": ["^order/"]},
    )
    checked = app.test_cli_runner().invoke(args=["locks", "check"])
    assert checked.exit_code == 69
    assert "'^order/', which fits no route" in checked.stdout
    assert "the database of the order records" in checked.stderr
