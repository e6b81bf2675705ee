"""Apps for the tests: each with locks of its own, and a shop on a real database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask_project import create_app, db

from lockkit_flask import LockKit
from lockkit_flask.state import EXTENSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lockkit.testing.servers import PostgresServer


@pytest.fixture
def make_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Flask]]:
    """``make_app(LOCKKIT_VIEWS={...})``: an app whose instance folder is empty, with LockKit."""
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    apps: list[Flask] = []

    def make(kind: type[Flask] = Flask, **config: object) -> Flask:
        app = kind(f"app{len(apps)}", instance_path=str(tmp_path / "instance"))
        app.config.update({"LOCKKIT_URL": "memory://", "SECRET_KEY": "s", **config})
        LockKit(app)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.extensions[EXTENSION].close()


@pytest.fixture(scope="session")
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url.replace("postgresql://", "postgresql+psycopg://", 1)
    postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.sqlite3'}"
    if request.param == "mariadb":  # for who asks for it
        served: str = request.getfixturevalue("mariadb_url")
        return served.replace("mysql://", "mysql+pymysql://", 1)
    url: str = request.getfixturevalue("postgres_database")
    return url


@pytest.fixture
def make_shop(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Flask]]:
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    made: list[Flask] = []

    def make(**config: Any) -> Flask:
        defaults = {"SQLALCHEMY_DATABASE_URI": database, "LOCKKIT_URL": "memory://"}
        app = create_app(**{**defaults, **config})
        made.append(app)
        with app.app_context():
            db.create_all()
            for table in db.metadata.sorted_tables:
                db.session.execute(sa.delete(table))
            db.session.commit()
        return app

    yield make
    for app in made:
        with app.app_context():
            for engine in db.engines.values():
                # The next tests have the same database: what is open would stand in their way.
                assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
                engine.dispose()
        app.extensions[EXTENSION].close()
