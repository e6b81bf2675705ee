"""A project that has set ``LockKit`` up and uses nothing of it."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from entered import calls_of_ours
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from lockkit_flask import LockKit, locks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROGRAM = """
import gc, sys
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

app = Flask("shop")
app.config.update(SQLALCHEMY_DATABASE_URI="sqlite://", LOCKKIT_URL="memory://")
db = SQLAlchemy(app)
if sys.argv[1:]:
    from lockkit_flask import LockKit
    LockKit(app)

class Item(db.Model):
    id = db.Column(db.Integer, primary_key=True)

def ask():
    db.session.add(Item())
    db.session.commit()
    db.session.scalars(sa.select(Item).where(Item.id.in_(range(100)))).all()
    db.session.rollback()

calls = 0
def note(frame, event, _):
    global calls
    calls += event == "call"

with app.app_context():
    db.create_all()
    ask()
    ask()
    gc.disable()
    sys.setprofile(note)
    ask()
    sys.setprofile(None)
print(calls)
"""


def calls_of_project(*lockkit: str) -> int:
    """How many functions two transactions call."""
    command = [sys.executable, "-c", PROGRAM, *lockkit]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_its_queries_and_transactions_call_what_they_did() -> None:
    assert calls_of_project("lockkit") == calls_of_project()


def test_no_transaction_runs_a_line_of_lockkit_but_one_that_keeps_a_lock(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection never does; a session does from its first such lock to its end."""
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    app = Flask("shop", instance_path=str(tmp_path))
    app.config.update(SQLALCHEMY_DATABASE_URI=database, LOCKKIT_URL="memory://")
    db = SQLAlchemy(app)
    LockKit(app)

    def buy() -> None:
        db.session.execute(sa.text("CREATE TEMPORARY TABLE bought AS SELECT 7 AS id"))
        db.session.execute(sa.text("SELECT * FROM bought"))
        db.session.execute(sa.text("DROP TABLE bought"))
        db.session.commit()

    with app.app_context():
        assert calls_of_ours(buy) == 0
        lock = locks["default"].lock("stock:42")
        buy()
        with lock:  # of a transaction that has ended nobody is asked
            assert calls_of_ours(buy) == 0
        db.session.execute(sa.text("SELECT 1"))
        with lock:  # the database is asked, and from then on nothing is listened to, either
            assert calls_of_ours(buy) == 0
        with locks["default"].lock("stock:42", until="commit"):
            db.session.execute(sa.text("SELECT 1"))
        assert calls_of_ours(db.session.commit) > 0
        assert calls_of_ours(lambda: db.session.execute(sa.text("SELECT 1"))) == 0
    with app.app_context():
        assert calls_of_ours(buy) == 0
        db.session.remove()
        db.engine.dispose()


@pytest.mark.parametrize("text", ["SELECT 1", "SELECT {}"])
def test_no_statement_is_read_before_a_lock_is_asked_for(tmp_path: Path, text: str) -> None:
    """Where a database does not tell: the 300th costs what the first does."""
    app = Flask("shop", instance_path=str(tmp_path))
    app.config.update(SQLALCHEMY_DATABASE_URI="sqlite://", LOCKKIT_URL="memory://")
    db = SQLAlchemy(app)
    LockKit(app)

    def calls_of(statements: int) -> int:
        def read() -> None:
            for number in range(statements):
                db.session.connection().exec_driver_sql(text.format(number)).all()
            db.session.rollback()

        return calls_of_ours(read)

    with app.app_context():
        sa.event.listen(db.engine, "begin", lambda connection: None)
    with app.app_context():
        assert calls_of(301) == 301 * calls_of(1)
        db.session.remove()
        db.engine.dispose()


def test_where_statements_are_noted_sqlalchemy_calls_hardly_more(
    tmp_path: Path, mariadb_url: str
) -> None:
    """A listener of an engine or connection would have it look for all kinds of them each time."""

    def calls_of(statements: int, name: str) -> int:
        app = Flask(name, instance_path=str(tmp_path))
        database = mariadb_url.replace("mysql://", "mysql+pymysql://", 1)
        app.config.update(SQLALCHEMY_DATABASE_URI=database, LOCKKIT_URL="memory://")
        db = SQLAlchemy(app)
        if name == "lockkit":
            LockKit(app)

        def read() -> None:
            for _ in range(statements):
                db.session.execute(sa.text("SELECT 1"))
            db.session.rollback()

        with app.app_context():
            read()
            calls = calls_of_all(read)
            db.session.remove()
            db.engine.dispose()
        return calls

    more = [calls_of(n, "lockkit") - calls_of(n, "bare") for n in (1, 11)]
    assert 0 < more[0] <= 8
    assert more[1] <= 11 * more[0]


def calls_of_all(call: Callable[[], object]) -> int:
    """How many functions it calls, whose ever they are."""
    calls = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def test_apps_that_share_an_extension_have_their_transactions_watched_once(tmp_path: Path) -> None:
    """Where a listener begins the transactions of SQLite, they are."""
    db = SQLAlchemy()

    def read() -> None:
        db.session.execute(sa.text("SELECT 1"))
        db.session.rollback()

    def calls_of_an_app(name: str) -> int:
        app = Flask(name, instance_path=str(tmp_path))
        app.config.update(SQLALCHEMY_DATABASE_URI="sqlite://", LOCKKIT_URL="memory://")
        db.init_app(app)
        LockKit(app)
        with app.app_context():
            sa.event.listen(db.engine, "begin", lambda connection: None)
        with app.app_context():
            calls = calls_of_ours(read)
            db.session.remove()
            db.engine.dispose()
        return calls

    first = calls_of_an_app("first")
    assert first > 0
    assert [calls_of_an_app(name) for name in ("second", "third")] == [first, first]
