"""``postgresql://…``, ``mysql://…``, ``mariadb://…``, ``sqlalchemy+<URL>``, or ``sqlalchemy://``
with OPTIONS {"engine": engine}: the database of an application that uses SQLAlchemy.

On a server, the locks are in a table of that database, made by ``create_table(engine)``. lockkit
opens connections of its own, so requests that wait for locks cannot use up the engine's pool. For
SQLite, the locks are in a file beside the database; see ``beside``.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from lockkit.model.errors import ConfigurationError, LockError
from lockkit.model.settings import AliasSettings
from lockkit.stores.contract import ServerClock, reject_unknown_options
from lockkit.stores.servers import cannot_connect, first_line, raise_unless_of_connecting
from lockkit.stores.sql.beside import connector_beside, path_beside
from lockkit.stores.sql.connector import Connection, Connector
from lockkit.stores.sql.dialect import Dialect, load_dialect
from lockkit.stores.sql.driver import descriptor_of
from lockkit.stores.sql.engines import engine_of
from lockkit.stores.sql.guard import connecting
from lockkit.stores.sql.pushed import PushedTable
from lockkit.stores.sql.sqlite import SQLiteStore, table_over
from lockkit.stores.sql.store import SQLStore
from lockkit.stores.sql.vendors import cannot_send, connected, vendor_of

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.engine.interfaces import DBAPIConnection

    from lockkit.stores.sql.guard import Begin

OPTIONS: Final = ("engine", "mode", "password", "timeout", "take_over_dead")
REMEDY: Final = (
    "call create_table() of the client's store once, as in locks.store.create_table(), in Flask "
    "LockKit.create_tables(), or run what 'lockkit locks ddl --url …' prints"
)


class SQLAlchemyStore(SQLStore):
    """Locks in the database of an SQLAlchemy engine. OPTIONS: ``engine``, or ``password`` for the
    URL; ``timeout``, seconds a step waits for other writers; ``take_over_dead``, only for SQLite,
    see ``SQLiteStore``."""

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> SQLStore:
        reject_unknown_options(settings, OPTIONS)
        engine = engine_of(settings)
        dialect = engine.dialect.name
        if dialect == "sqlite":
            is_ours = engine is not settings.options.get("engine")
            database = (engine.url.database or "") if is_ours else _database_of(engine)
            return table_over(SQLiteStore, connector_beside(database), settings)
        if dialect not in SERVERS:
            raise ConfigurationError(
                f"{settings.place}: lockkit keeps no locks in {dialect}; "
                "use PostgreSQL, MySQL, MariaDB, SQLite or redis://"
            )
        return table_over(SERVERS[dialect], EngineConnector(engine), settings)


class SQLAlchemyPostgreSQL(PushedTable, SQLAlchemyStore, ServerClock):
    """A table in a PostgreSQL database."""


class SQLAlchemyMySQL(SQLAlchemyStore, ServerClock):
    """A table in a MySQL or MariaDB database."""


SERVERS: Final[dict[str, type[SQLAlchemyStore]]] = {
    "postgresql": SQLAlchemyPostgreSQL,
    "mysql": SQLAlchemyMySQL,
    "mariadb": SQLAlchemyMySQL,
}
"""By the names of SQLAlchemy's dialects."""


class EngineConnector(Connector):
    """Connections to a server, made as the engine makes its own."""

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        import sqlalchemy

        self._vendor = vendor_of(engine.dialect.name, engine.dialect.loaded_dbapi)
        self._failure = sqlalchemy.exc.SQLAlchemyError
        self.engine = engine

    @property
    def dialect(self) -> Dialect:
        return load_dialect(self._vendor.name)

    def described(self) -> str:
        url = self.engine.url
        port = f":{url.port}" if url.port else ""
        return f"{url.get_backend_name()}://{url.host or ''}{port}/{url.database or ''}"

    def connect(self) -> Connection:
        module = self.engine.dialect.loaded_dbapi
        try:
            made = connecting(self._made)
        except LockError:
            raise
        except UnicodeError:
            raise cannot_send() from None
        except (self._failure, module.Error, RuntimeError, OSError, TypeError) as error:
            raise_unless_of_connecting(error)
            raise self._vendor.no_connection(getattr(error, "orig", None) or error) from error
        return connected(made.dbapi_connection, module, self._vendor, REMEDY)

    def _made(self, begin: Begin) -> sqlalchemy.PoolProxiedConnection:
        """Made by a pool like the engine's, with the listeners that the engine's has by now. They
        ask the server: SQLAlchemy's own, too. ``first_connect`` comes before all of them."""
        from sqlalchemy import event

        pool = self.engine.pool.recreate()
        event.listen(
            pool, "first_connect", lambda driver, _: begin(descriptor_of(driver)), insert=True
        )
        event.listen(pool, "connect", self._commit_each)
        made = pool.connect()
        made.detach()  # or closing it would give it back to the pool
        return made

    def _commit_each(self, connection: DBAPIConnection, _: object) -> None:
        """Commit what the listeners have run, and from now on each statement."""
        connection.commit()
        self.engine.dialect.set_isolation_level(connection, "AUTOCOMMIT")


def _database_of(engine: sqlalchemy.Engine) -> str:
    """The database of a user's engine of SQLite. If its URL names no file, SQLite is asked: a
    ``creator`` may open one. Not over a StaticPool, whose only connection may be in the middle of a
    transaction that this would roll back."""
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import StaticPool

    named = engine.url.database or ""
    if path_beside(named) is not None or isinstance(engine.pool, StaticPool):
        return named
    try:
        with closing(engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute("PRAGMA database_list")
            return str(next(file for _, name, file in cursor.fetchall() if name == "main"))
    except (SQLAlchemyError, engine.dialect.loaded_dbapi.Error) as error:
        raise cannot_connect("database", first_line(error), is_refusal=False) from error
