"""``flask locks`` runs the command, whose tests are with the core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from command_line import dead_port, hold
from flask import Flask
from flask_project import create_app, db
from flask_sqlalchemy import SQLAlchemy

import lockkit
from lockkit.operate.console import Exit
from lockkit.orders import table
from lockkit_flask import LockKit, idempotent, lock_view, locks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lockkit.testing.servers import RedisServer


def test_it_lists_the_locks_of_every_alias(make_app: Callable[..., Flask]) -> None:
    app = make_app(LOCKKIT={"default": {}, "reports": "memory://"})
    with app.app_context(), locks["default"].lock("a"), locks["reports"].lock("b"):
        result = app.test_cli_runner().invoke(args=["locks", "--format", "json"])
    assert result.exit_code == 0
    assert "a" in result.output
    assert "reports" in result.output


def test_exit_statuses_are_those_of_the_command(make_app: Callable[..., Flask]) -> None:
    app = make_app(LOCKKIT={"default": {}, "down": "redis://127.0.0.1:1/0"})
    runner = app.test_cli_runner()
    assert runner.invoke(args=["locks", "--no-such-option"]).exit_code == 2
    assert runner.invoke(args=["locks"]).exit_code == 69
    assert "--stuck" in runner.invoke(args=["locks", "--help"]).output


@pytest.mark.parametrize("refuses", [True, False])
def test_a_database_of_orders_that_refuses_is_told_from_one_that_is_down(
    refuses: bool, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = sa.make_url(postgres_url).set(drivername="postgresql+psycopg", username="nobody")
    url = url.set(password="canary") if refuses else url.set(password="canary", port=dead_port())
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    app = create_app(
        SQLALCHEMY_DATABASE_URI=url, LOCKKIT_URL="memory://", LOCKKIT_ORDERS={"PATHS": []}
    )
    done = app.test_cli_runner().invoke(args=["locks", "prune"])
    assert done.exit_code == (1 if refuses else 69)
    (line,) = [each for each in done.output.splitlines() if each.startswith("database default")]
    assert line.startswith("database default: the database of the order records ")
    assert ('role "nobody" does not exist' if refuses else "refused") in line
    assert "canary" not in line


def test_arguments_of_a_child_pass_unchanged(make_app: Callable[..., Flask]) -> None:
    app = make_app(LOCKKIT_URL=None)
    line = ["locks", "run", "nightly", "--", sys.executable, "-c", "raise SystemExit(7)"]
    assert app.test_cli_runner().invoke(args=line).exit_code == 7


def test_a_program_is_not_run_under_a_lock_within_this_process(
    make_app: Callable[..., Flask],
) -> None:
    app = make_app(LOCKKIT={"default": {}, "reports": "memory://"})
    line = ["locks", "run", "nightly", "--alias", "reports", "--", "true"]
    result = app.test_cli_runner().invoke(args=line)
    assert result.exit_code == 1
    assert "within one process" in result.output


def test_as_a_program(tmp_path: Path) -> None:
    done = _flask(tmp_path, "locks", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) is not None


def test_an_app_that_sets_up_logging_does_not_silence_the_record_of_a_release(
    tmp_path: Path,
) -> None:
    """By default dictConfig disables the loggers that exist already."""
    logs = {"version": 1, "handlers": {"h": {"class": "logging.StreamHandler"}},
            "root": {"handlers": ["h"]}}  # fmt: skip
    setup = f"import logging.config\nlogging.config.dictConfig({logs})\n"
    url = f"sqlite:///{tmp_path}/locks.sqlite3"
    with closing(lockkit.connect(url)) as client:
        hold(client, "x")
        done = _flask(tmp_path, "locks", "release", "x", "--yes", setup=setup, LOCKKIT_URL=url)
    assert done.returncode == 0
    assert done.stderr.startswith("locks release: outcome=released operator=")


def _flask(
    folder: Path, *argv: str, setup: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    (folder / "shop.py").write_text(
        f"{setup}"
        "from flask import Flask\n"
        "from lockkit_flask import LockKit\n"
        "app = Flask(__name__)\n"
        "LockKit(app)\n"
    )
    clean = {k: v for k, v in os.environ.items() if k != "LOCKKIT_URL"}
    command = [sys.executable, "-m", "flask", "--app", str(folder / "shop.py"), *argv]
    return subprocess.run(
        command, env={**clean, **environment}, cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


ROW = {"order_id": "A", "request": "POST /", "fingerprint": "2:x", "created": 0, "version": 2,
       "state": "done", "status": 201, "headers": "[]", "body": b""}  # fmt: skip
"""The record of an order, without its key and its end."""


def test_expired_records_of_orders_are_pruned(make_shop: Callable[..., Flask]) -> None:
    app = make_shop()
    with app.app_context():
        table = db.metadata.tables["lockkit_order"]
        for key, expires in (("a", 1), ("b", 1), ("c", 2**62)):
            db.session.execute(sa.insert(table).values(key=key, expires=expires, **ROW))
        db.session.commit()
    runner = app.test_cli_runner()
    result = runner.invoke(args=["locks", "prune", "--batch", "1"])
    assert (result.exit_code, result.output) == (0, "default: 2 expired order records deleted\n")
    with app.app_context():
        assert db.session.execute(sa.select(table.c.key)).scalars().all() == ["c"]
    assert runner.invoke(args=["locks", "prune", "--database", "x"]).exit_code == 2


def test_a_bind_key_with_the_name_of_the_main_database_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    own, app = SQLAlchemy(), Flask("two")
    app.config.update(
        SQLALCHEMY_DATABASE_URI=f"sqlite:///{tmp_path / 'main.sqlite3'}",
        SQLALCHEMY_BINDS={"default": f"sqlite:///{tmp_path / 'other.sqlite3'}"},
        LOCKKIT_URL="memory://",
        LOCKKIT_ORDERS={"PATHS": []},
    )
    own.init_app(app)
    LockKit(app)
    buy = idempotent(using="default")(lambda: "")
    app.add_url_rule("/buy", "buy", buy, methods=["POST"])
    with app.app_context():
        LockKit.create_tables()
        for using in (None, "default"):
            table = own.metadatas[using].tables["lockkit_order"]
            expired = sa.insert(table).values(key="a", expires=1, **ROW)
            with own.engines[using].begin() as connection:
                connection.execute(expired)
    pruned = app.test_cli_runner().invoke(args=["locks", "prune"])
    assert pruned.output.splitlines() == [
        f"{name}: 1 expired order records deleted"
        for name in ("SQLALCHEMY_DATABASE_URI", "default")
    ]
    with app.app_context():
        for engine in own.engines.values():
            engine.dispose()


DAMAGES: list[dict[str, object]] = [
    {"state": "gone"},
    {"fingerprint": "x"},
    *({"headers": headers} for headers in ("[[1", "[1]", '[["a"]]', "[x]", "{}")),
    *({"status": status} for status in (9999, 99, 50, -1)),
    {"expires": 2**63 - 1, "state": ""},
]
OF_A_NEWER_RELEASE = {"version": 3, "state": "gone", "headers": "{}", "status": 9999}


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_records_that_cannot_be_read(
    make_shop: Callable[..., Flask], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are told, page by page; what can be read is not, and stays."""
    monkeypatch.setattr(table, "PAGE", 4)
    app = make_shop()
    row = {**ROW, "expires": 2**62}
    sound = {f"{number:064}": {**row, "expires": 2**62} for number in range(12)}
    newer = {f"{20:064}": {**row, **OF_A_NEWER_RELEASE}}
    damaged = {f"{n + 2:063}a": {**row, **damage} for n, damage in enumerate(DAMAGES)}
    with app.app_context():
        orders = db.metadata.tables["lockkit_order"]
        for key, values in {**sound, **newer, **damaged}.items():
            db.session.execute(sa.insert(orders).values(key=key, **values))
        db.session.commit()
    runner = app.test_cli_runner()
    told = runner.invoke(args=["locks", "prune"])
    assert told.exit_code == Exit.STUCK
    keys = [line.rpartition(" --unreadable order:")[2] for line in told.stderr.splitlines()]
    assert keys == sorted(damaged)
    assert f"run {app.name} locks prune --database default --unread" in told.stderr
    repair = ["locks", "prune", "--yes", "--unreadable"]
    for key in damaged:
        assert runner.invoke(args=[*repair, key]).exit_code == 0
    for key in (min(sound), min(newer)):
        assert runner.invoke(args=[*repair, key]).exit_code == 1
    with app.app_context():
        left = db.session.execute(sa.select(orders.c.key)).scalars().all()
    assert sorted(left) == sorted([*sound, *newer])


def test_without_orders_there_is_nothing_to_prune(make_app: Callable[..., Flask]) -> None:
    result = make_app().test_cli_runner().invoke(args=["locks", "prune"])
    assert (result.exit_code, "LOCKKIT_ORDERS is not set" in result.output) == (1, True)


def test_a_view_with_orders_in_a_database_that_is_not_there(
    make_shop: Callable[..., Flask],
) -> None:
    app = make_shop()
    app.add_url_rule("/a/", "a", idempotent(using="orderz")(lambda: ""), methods=["POST"])
    result = app.test_cli_runner().invoke(args=["locks", "prune"])
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert "LOCKKIT_ORDERS['USING'], or that of @idempotent" in result.output


@pytest.mark.parametrize("url", ["redis2://user:canary@host/0", "redis://user:canary@host:x/0"])
def test_a_wrong_url_is_one_line(url: str, tmp_path: Path) -> None:
    """The command is one of an installed package, which flask finds before it loads the app."""
    info = tmp_path / "shop_commands-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-commands\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[flask.commands]\nlocks = lockkit_flask.operate.command:locks\n"
    )
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = _flask(tmp_path, "locks", LOCKKIT_URL=url, PYTHONPATH=paths)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr
    assert "canary" not in done.stderr


def test_what_is_wrong_with_the_routes(make_shop: Callable[..., Flask]) -> None:
    app = make_shop(LOCKKIT_ORDERS={"PATHS": ["^/orders/", "^order/"]})
    runner = app.test_cli_runner()
    view = lock_view("order:{pk}")(lambda pk: "")
    app.add_url_rule("/orders/<int:pk>/", "orders", view, methods=["POST"])
    result = runner.invoke(args=["locks", "check"])
    assert result.exit_code == 1
    assert "'^order/', which fits no route that takes one of METHODS" in result.output
    assert "the nearest path is '/orders/1/'" in result.output
    assert "{pk}" not in result.output


def test_nothing_is_wrong_with_the_routes(make_app: Callable[..., Flask]) -> None:
    app = make_app(TESTING=True)
    app.add_url_rule("/orders/<int:pk>/", "orders", lock_view("order:{pk}")(lambda pk: ""))
    result = app.test_cli_runner().invoke(args=["locks", "check"])
    assert (result.exit_code, result.output) == (0, "nothing found\n")


def test_records_of_orders_that_could_fill_the_redis_of_the_locks(
    make_app: Callable[..., Flask], redis_url: str, redis_server: RedisServer
) -> None:
    rules = {"PATHS": [], "STORE": "redis", "NAMESPACE": "shop"}
    runner = make_app(LOCKKIT_URL=redis_url, LOCKKIT_ORDERS=rules).test_cli_runner()
    with redis_server.client() as admin:
        admin.config_set("maxmemory", "100mb")
        result = runner.invoke(args=["locks", "check"])
        admin.config_set("maxmemory", "0")
        again = runner.invoke(args=["locks", "check"])
    assert (result.exit_code, again.exit_code) == (1, 1)
    assert "bounded (maxmemory 104857600)" in result.output
    assert "bounded" not in again.output
    assert "persists nothing" in again.output  # that of the tests
