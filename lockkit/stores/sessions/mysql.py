"""``mysql://…`` and ``mariadb://…``, ``?mode=advisory`` and ``?mode=row``."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from lockkit.model.checks import near_option
from lockkit.model.errors import ConfigurationError, DriverMissing
from lockkit.stores.contract import Queued
from lockkit.stores.sessions.mysql_dialects import GetLock, MySQLRow
from lockkit.stores.sessions.settings import OURS, Arguments, Said
from lockkit.stores.sessions.store import SessionStore
from lockkit.stores.tls import for_mysql

if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings
    from lockkit.stores.sessions.connection import Connection

SECONDS = 5
SAID = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_mode")
"""What the URL may say after the question mark, besides ``mode`` and ``max_sessions``."""

SCHEMES = {"mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql"}


class MySQLSessions(SessionStore):
    """Locks of sessions of MySQL or MariaDB. OPTIONS as for ``PostgresSessions``."""

    @classmethod
    def _connected(cls, arguments: Arguments, *, may_be_pooled: bool) -> Connection:
        from lockkit.stores.sessions.pymysql_connection import MySQLConnection

        return MySQLConnection(arguments, may_be_pooled=may_be_pooled)

    @staticmethod
    def _arguments(settings: AliasSettings, options: Said) -> dict[str, object]:
        try:
            import pymysql  # type: ignore[import-untyped]  # noqa: F401
        except ImportError as error:
            raise DriverMissing(
                f"{settings.shown_location} needs PyMySQL: pip install 'lockkit[mysql]' ({error})"
            ) from error
        wrong = ConfigurationError(
            f"{settings.place} is not a MySQL URL, or has an option "
            f"after its question mark that is not one of {', '.join(SAID)}; it looks like "
            "mysql://user@host/database?mode=advisory"
            + near_option(settings.location, (*SAID, *OURS))
        )
        try:
            parts = urlsplit(options.url)
            port = parts.port or 3306
        except ValueError:  # its text shows a part of the URL
            raise wrong from None
        more = dict(parse_qsl(parts.query))
        if parts.scheme not in SCHEMES:
            raise ConfigurationError(
                f"{settings.place} names another driver than PyMySQL, "
                "the only one for locks of sessions: it must begin with mysql:// or mariadb://"
            )
        if not more.keys() <= {*SAID}:
            raise wrong
        host = parts.hostname or "localhost"
        verified = for_mysql("pymysql", "" if "unix_socket" in more else host, more, settings.place)
        return {
            "host": host,
            "port": port,
            "user": unquote(parts.username or "") or None,
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path.lstrip("/")) or None,
            "connect_timeout": SECONDS,
            "read_timeout": SECONDS,
            "write_timeout": SECONDS,
            "charset": "utf8mb4",
            **verified,
            **more,
        }


class GetLockStore(MySQLSessions, Queued):
    """GET_LOCK: no table, no transaction."""

    _sql = GetLock()

    @staticmethod
    def _prefix_of(settings: AliasSettings, arguments: dict[str, object]) -> str:
        """The names of GET_LOCK are shared by all databases of a server, so the database's name is
        put before them; in lower case, because some servers ignore its case."""
        return f"{str(arguments['database'] or '').lower()}\0{settings.key_prefix}"


class MySQLRowStore(MySQLSessions):
    """SELECT … FOR UPDATE of a row for each name, in a transaction as long as the lease."""

    _sql = MySQLRow()
