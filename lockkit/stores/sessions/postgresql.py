"""``postgresql://…?mode=advisory`` and ``?mode=row``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lockkit.model.checks import near_option
from lockkit.model.errors import ConfigurationError, DriverMissing
from lockkit.stores.contract import Queued
from lockkit.stores.sessions.postgres_dialects import PostgresAdvisory, PostgresRow
from lockkit.stores.sessions.settings import (
    ASKING_SECONDS,
    IDLE_SECONDS,
    OURS,
    QUESTIONS,
    Arguments,
    Said,
)
from lockkit.stores.sessions.store import SessionStore
from lockkit.stores.tls import for_libpq

if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings
    from lockkit.stores.sessions.connection import Connection

DEFAULTS = {
    "connect_timeout": 5,
    "keepalives_idle": IDLE_SECONDS,
    "keepalives_interval": ASKING_SECONDS,
    "keepalives_count": QUESTIONS,
}
"""Unless the URL says otherwise."""


class PostgresSessions(SessionStore):
    """Locks of sessions of PostgreSQL. OPTIONS: ``max_sessions``, the most that this process has
    at once; ``password``, a string, or a function that is called for each new connection;
    ``session_pooler``: LOCATION is a pooler that gives each client a session of its own."""

    @classmethod
    def _connected(cls, arguments: Arguments, *, may_be_pooled: bool) -> Connection:
        from lockkit.stores.sessions.libpq import PostgresConnection

        return PostgresConnection(arguments, cls._sql.prepared, may_be_pooled=may_be_pooled)

    @staticmethod
    def _arguments(settings: AliasSettings, options: Said) -> dict[str, object]:
        try:
            from psycopg import ProgrammingError, conninfo, pq
        except ImportError as error:
            raise DriverMissing(
                f"{settings.shown_location} needs psycopg 3: "
                f"pip install 'lockkit[postgresql]' ({error})"
            ) from error
        driver = settings.scheme.partition("+")[2]
        if driver not in {"", "psycopg"}:
            raise ConfigurationError(
                f"{settings.place} names the driver {driver!r}: locks of sessions use psycopg 3"
            )
        known = [*OURS, *(option.keyword.decode() for option in pq.Conninfo.get_defaults())]
        wrong = ConfigurationError(
            f"{settings.place} is not a PostgreSQL URL, or has an "
            "option that libpq does not know; it looks like "
            "postgresql://user@host/database?mode=advisory" + near_option(settings.location, known)
        )
        try:
            arguments = conninfo.conninfo_to_dict(options.url.replace("+psycopg://", "://", 1))
        except (ProgrammingError, ValueError):  # their texts show the URL
            raise wrong from None
        if re.search("[^0-9,]", str(arguments.get("port", ""))):
            raise wrong
        arguments |= for_libpq(arguments)
        return {**DEFAULTS, **arguments, "client_encoding": "utf-8"}


class PostgresAdvisoryStore(PostgresSessions, Queued):
    """pg_advisory_lock: no table, no transaction."""

    _sql = PostgresAdvisory()


class PostgresRowStore(PostgresSessions):
    """SELECT … FOR UPDATE of a row for each name, in a transaction as long as the lease."""

    _sql = PostgresRow()
