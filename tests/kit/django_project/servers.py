"""A database of a server as an alias of Django's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connections

from lockkit.testing.servers import MariaDBServer, PostgresServer

KINDS = {
    "sqlite": "",
    "postgresql": "postgres_server",
    "psycopg2": "postgres_server",
    "mysql": "mariadb_server",
}
ENGINES = {"psycopg2": {"ENGINE": "django_psycopg2"}}
"""Settings of the kinds that Django itself does not know."""

_made: dict[tuple[str, ...], str] = {}
"""The URLs of databases that have a table of each model, by server and tables."""


@contextmanager
def place(request: pytest.FixtureRequest, *models: Any, **settings: Any) -> Iterator[str]:
    """The alias of a database of the kind that the fixture's parameter names."""
    if request.param == "sqlite":
        yield "default"
        return
    server = request.getfixturevalue(KINDS[request.param])
    settings |= ENGINES.get(request.param, {})
    blocker = request.getfixturevalue("django_db_blocker")
    with blocker.unblock(), database_of(server, "served", *models, **settings):
        yield "served"


@contextmanager
def database_of(
    server: PostgresServer | MariaDBServer, alias: str, *models: Any, **settings: Any
) -> Iterator[Any]:
    """A database with an empty table of each model, one for all tests of a server that ask for the
    same; gives the connection."""
    tables = [model._meta.db_table for model in models]
    key = (server.url, *tables)
    url = _made.get(key) or server.create_database()
    connections.settings[alias] = entry(url, **settings)
    connection = connections[alias]
    try:
        if key in _made:
            with connection.cursor() as cursor:
                for table in reversed(tables):
                    cursor.execute(f"DELETE FROM {table}")
        else:
            with connection.schema_editor() as editor:
                for model in models:
                    editor.create_model(model)
            _made[key] = url
        yield connection
    finally:
        connection.close()
        del connections[alias]
        del connections.settings[alias]


def entry(url: str, **settings: Any) -> dict[str, Any]:
    parts = urlsplit(url)
    kind = "mysql" if parts.scheme == "mysql" else "postgresql"
    own = {
        "ENGINE": f"django.db.backends.{kind}",
        "NAME": parts.path[1:],
        "HOST": parts.hostname,
        "PORT": parts.port,
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        **settings,
    }
    return dict(type(connections)({"default": own}).settings["default"])
