"""A database of a server as an alias of Django's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connections

from lockkit.testing.servers import MariaDBServer, PostgresServer

KINDS = {"sqlite": "", "postgresql": "postgres_server", "mysql": "mariadb_server"}


@contextmanager
def place(request: pytest.FixtureRequest, *models: Any, **settings: Any) -> Iterator[str]:
    """The alias of a database of the kind that the fixture's parameter names."""
    if request.param == "sqlite":
        yield "default"
        return
    server = request.getfixturevalue(KINDS[request.param])
    blocker = request.getfixturevalue("django_db_blocker")
    with blocker.unblock(), database_of(server, "served", *models, **settings):
        yield "served"


@contextmanager
def database_of(
    server: PostgresServer | MariaDBServer, alias: str, *models: Any, **settings: Any
) -> Iterator[Any]:
    """A new database with a table of each model; gives the connection."""
    url = server.create_database()
    connections.settings[alias] = entry(url, **settings)
    connection = connections[alias]
    try:
        with connection.schema_editor() as editor:
            for model in models:
                editor.create_model(model)
        yield connection
    finally:
        connection.close()
        del connections[alias]
        del connections.settings[alias]
        server.drop_database(url)


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
