"""Setting lockkit up on apps, and its settings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from flask import Flask

import lockkit
from lockkit_flask import AppLocks, LockKit, alocks, lock_view, locks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    MakeApp = Callable[..., Flask]


def test_the_state_is_in_the_app_and_not_on_the_extension(make_app: MakeApp) -> None:
    app = make_app()
    assert isinstance(app.extensions["lockkit"], AppLocks)
    assert not vars(LockKit())


def test_one_extension_serves_several_apps() -> None:
    extension = LockKit()
    first, second = Flask("first"), Flask("second")
    for app in (first, second):
        app.config["LOCKKIT_URL"] = "memory://"
        extension.init_app(app)
    with first.app_context(), locks["default"].lock("a"):
        assert locks["default"].inspect("a") is not None
        with second.app_context():
            assert locks["default"].inspect("a") is None


def test_setting_up_twice_is_an_error(make_app: MakeApp) -> None:
    app = make_app()
    with pytest.raises(lockkit.ConfigurationError, match="already"):
        LockKit(app)


def test_an_app_without_lockkit_is_told_what_to_do() -> None:
    with Flask("bare").app_context(), pytest.raises(lockkit.ConfigurationError, match="LockKit"):
        locks["default"]


def test_an_unknown_alias_names_the_likely_one(make_app: MakeApp) -> None:
    with make_app().app_context(), pytest.raises(lockkit.ConfigurationError, match="'default'"):
        locks["defualt"]


def test_aliases_are_listed(make_app: MakeApp) -> None:
    with make_app(LOCKKIT={"default": {}, "reports": "memory://"}).app_context():
        assert sorted(locks) == ["default", "reports"]
        assert sorted(alocks) == ["default", "reports"]


@pytest.mark.parametrize(
    ("late", "key"),
    [
        ({"LOCKKIT_ORDERS": {"PATHS": ["^/"]}, "LOCKKIT_USER": lambda: "7"}, "LOCKKIT_ORDERS"),
        ({"LOCKKIT_URL": "redis://shop:hunter2@127.0.0.1:1/0"}, "LOCKKIT_URL"),
        ({"LOCKKIT": {"default": {"TTL": 60}, "reports": {}}}, "LOCKKIT"),
        ({"LOCKKIT_USER": lambda: "7"}, "LOCKKIT_USER"),
        ({"LOCKKIT_VIEWS": {"TIMEOUT": 0}}, "LOCKKIT_VIEWS"),
        ({"LOCKKIT_ORDER": {"PATHS": ["^/"]}}, "LOCKKIT_ORDERS"),
    ],
)
def test_a_setting_that_comes_after_lockkit_is_not_ignored(
    make_app: MakeApp, late: dict[str, object], key: str
) -> None:
    """Orders would run twice, and locks be in another store."""
    app = make_app(LOCKKIT={"default": {"TTL": 60}})
    runs: list[str] = []
    app.add_url_rule("/", view_func=lambda: str(runs.append("ran")), methods=["POST"])
    app.config.update(late)
    client = app.test_client()
    assert [client.post("/").status_code for _ in "12"] == [500, 500]
    app.testing = True
    with pytest.raises(lockkit.ConfigurationError, match=rf"\b{key}\b") as refused:
        client.post("/")
    assert not runs
    checked = app.test_cli_runner().invoke(args=["locks", "check"])
    assert checked.exit_code == 1
    assert checked.output == f"Error: {refused.value}\n"
    assert "hunter2" not in checked.output
    assert app.test_cli_runner().invoke(args=["locks"]).output.endswith(f"{refused.value}\n")
    with app.app_context(), pytest.raises(lockkit.ConfigurationError, match=rf"\b{key}\b"):
        locks["default"]


def test_a_part_of_a_setting_that_comes_after_lockkit_is_not_ignored(make_app: MakeApp) -> None:
    app = make_app(LOCKKIT={"default": {"TTL": 60}}, TESTING=True)
    app.config["LOCKKIT"]["default"]["TTL"] = 5
    with pytest.raises(lockkit.ConfigurationError, match="LOCKKIT of the app"):
        app.test_client().get("/")


def test_other_settings_may_come_after_lockkit(make_app: MakeApp) -> None:
    aliases = {"default": {"TTL": 60, "OPTIONS": {}}}
    app = make_app(LOCKKIT=aliases)
    app.config.update(TESTING=True, LOCKKIT=dict(aliases), LOCKKIT_ORDERS=None)
    assert app.test_client().get("/").status_code == 404


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("LOCKKIT_ORDER", "did you mean LOCKKIT_ORDERS"),
        ("LOCKIT_URL", "did you mean LOCKKIT_URL"),
        ("LOCKIT", "did you mean LOCKKIT"),
        ("LOCKKIT_KEY_PREFIX", r"it has LOCKKIT, .*LOCKKIT = {'default': {…}} has the keys"),
        ("LOCKKIT_REDIS_URL", r"it has LOCKKIT, .*LOCKKIT = {'default': {…}} has the keys"),
    ],
)
def test_a_misspelt_setting_is_not_ignored(make_app: MakeApp, name: str, hint: str) -> None:
    with pytest.raises(lockkit.ConfigurationError, match=f"no setting {name}.*{hint}"):
        make_app(**{name: {}})


def test_a_misspelt_default_alias_is_not_ignored(make_app: MakeApp) -> None:
    with pytest.raises(lockkit.ConfigurationError, match="is 'defualt' a misspelling"):
        make_app(LOCKKIT={"defualt": "memory://"}, LOCKKIT_URL=None)


def test_without_settings_it_locks_in_a_file_of_the_instance_folder(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(LOCKKIT_URL=None)
    monkeypatch.chdir(tmp_path)
    with app.app_context(), locks["default"].lock("a"):
        assert (tmp_path / "instance" / "lockkit.sqlite3").exists()


def test_the_environment_wins_over_the_url_of_the_app_and_that_over_the_mapping(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = {"default": {"LOCATION": "memory://mapping", "TTL": 7}}
    with make_app(LOCKKIT=mapping, LOCKKIT_URL=None).app_context():
        assert locks["default"].settings.location == "memory://mapping"
    with make_app(LOCKKIT=mapping, LOCKKIT_URL="memory://app").app_context():
        assert locks["default"].settings.location == "memory://app"
        assert locks["default"].settings.ttl == 7
    make = make_app
    monkeypatch.setenv("LOCKKIT_URL", "memory://environment")
    with make(LOCKKIT=mapping, LOCKKIT_URL="memory://app").app_context():
        assert locks["default"].settings.location == "memory://environment"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"LOCKKIT": {"default": {"TLL": 3}}}, "TTL"),
        ({"LOCKKIT": {"default": {"TTL": 0}}}, "TTL"),
        ({"LOCKKIT": []}, "LOCKKIT"),
        ({"LOCKKIT_URL": 7}, "LOCKKIT_URL"),
        ({"LOCKKIT_URL": "reddis://h"}, "redis"),
        ({"LOCKKIT_VIEWS": {"TIMOUT": 1}}, "TIMEOUT"),
        ({"LOCKKIT_ORDERS": {"PATH": []}}, "PATHS"),
        ({"LOCKKIT_ORDERS": {}}, "PATHS"),
        ({"LOCKKIT_ORDERS": {"PATHS": []}}, "Flask-SQLAlchemy"),
        ({"LOCKKIT_USER": "no.such.hook"}, "LOCKKIT_USER"),
        ({"LOCKKIT_USER": 7}, "LOCKKIT_USER"),
        ({"LOCKKIT_USER": "os.sep"}, "not callable"),
    ],
)
def test_a_wrong_setting_is_named_when_the_app_is_made(
    make_app: MakeApp, config: dict[str, object], words: str
) -> None:
    with pytest.raises(lockkit.ConfigurationError, match=words):
        make_app(**config)


def test_a_password_in_the_url_is_not_shown(make_app: MakeApp) -> None:
    app = make_app(LOCKKIT_URL="redis://user:hunter2@127.0.0.1:1/0")
    assert "hunter2" not in repr(app.extensions["lockkit"].config)
    with app.app_context():
        assert "hunter2" not in repr(locks["default"])


def test_each_event_loop_has_an_async_client_of_its_own(make_app: MakeApp) -> None:
    app = make_app()

    async def use() -> lockkit.aio.AsyncLockClient:  # type: ignore[name-defined]
        client = alocks["default"]
        assert alocks["default"] is client
        async with client.lock("a") as lease:
            lease.check()
        await client.close()
        return client

    with app.app_context():
        assert asyncio.run(use()) is not asyncio.run(use())


def test_an_url_that_was_not_filled_in_is_an_error(make_app: MakeApp) -> None:
    with pytest.raises(lockkit.ConfigurationError, match="LOCKKIT_URL is empty"):
        make_app(LOCKKIT_URL="")


def test_async_clients_have_the_store_of_the_blocking_ones(make_app: MakeApp) -> None:
    """Also plain memory://, which no other client could open."""
    app = make_app(LOCKKIT_URL="memory://")

    async def try_it() -> bool:
        return await alocks["default"].lock("a").try_acquire() is None

    with app.app_context():
        with locks["default"].lock("a"):
            assert asyncio.run(try_it())
        assert locks["default"].lock("a").acquire(timeout=0).release(), "it is not closed"


def test_the_table_of_locks_in_postgresql_is_made(
    make_app: MakeApp, postgres_database: str
) -> None:
    app = make_app(LOCKKIT_URL=f"sqlalchemy+{postgres_database}")
    with app.app_context():
        with pytest.raises(lockkit.ConfigurationError, match=r"LockKit\.create_tables"):
            locks["default"].lock("a").acquire()
        for _ in "12":
            LockKit.create_tables()
        with locks["default"].lock("a"):
            assert locks["default"].inspect("a") is not None


def test_orders_without_flask_sqlalchemy_say_what_to_install(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockkit_flask.orders.app_orders.find_spec", lambda _: None)
    with pytest.raises(lockkit.ConfigurationError, match=r"install 'lockkit\[flask-sqlalchemy\]'"):
        make_app(LOCKKIT_ORDERS={"PATHS": []})


class Lite:
    """What Flask-SQLAlchemy-Lite puts there: its ``session`` is one, and makes it."""

    session = object()
    engines: dict[str, object] = {}  # noqa: RUF012


def test_another_extension_of_this_name_is_left_alone() -> None:
    app = Flask("lite")
    app.extensions["sqlalchemy"] = Lite()
    app.config.update(LOCKKIT_URL="memory://", TESTING=True)
    LockKit(app)
    app.add_url_rule("/", view_func=lock_view("a")(lambda: locks["default"].inspect("a").name))
    assert app.test_client().get("/").text == "a"


def test_orders_beside_another_extension_of_this_name_say_what_they_need() -> None:
    app = Flask("lite")
    app.extensions["sqlalchemy"] = Lite()
    app.config.update(LOCKKIT_URL="memory://", LOCKKIT_ORDERS={"PATHS": []})
    with pytest.raises(lockkit.ConfigurationError, match="needs Flask-SQLAlchemy"):
        LockKit(app)
