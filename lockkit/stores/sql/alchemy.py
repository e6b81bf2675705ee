"""``sqlalchemy+<URL>``, or ``sqlalchemy://`` with OPTIONS {"engine": engine}: the database of an
application that uses SQLAlchemy.

PostgreSQL: a table in that database, made by ``create_table(engine)``, over connections of our
own: the engine's pool is not touched, so a request that waits for a lock while it has a connection
cannot use it up. SQLite: a file beside the database; see ``beside``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from lockkit.model.errors import ConfigurationError, DriverMissing
from lockkit.model.settings import AliasSettings
from lockkit.stores.contract import HostLocal, ServerClock, reject_unknown_options
from lockkit.stores.sql.beside import connector_beside
from lockkit.stores.sql.connector import Connection, Connector, Parameters, Result
from lockkit.stores.sql.dialect import Dialect, load_dialect
from lockkit.stores.sql.postgresql import descriptor_of, failure, no_connection
from lockkit.stores.sql.sqlite import busy_seconds, takes_over
from lockkit.stores.sql.store import SQLStore

if TYPE_CHECKING:
    import sqlalchemy

OPTIONS = ("engine", "timeout", "take_over_dead")
PREFIX = "sqlalchemy+"
CONNECT_SECONDS: Final = "5"
REMEDY = "call lockkit.stores.sql.create_table(engine) once, or in Flask LockKit.create_tables()"


class SQLAlchemyStore(SQLStore):
    """Locks in the database of an SQLAlchemy engine. OPTIONS: ``engine``; ``timeout``, seconds a
    step waits for other writers; ``take_over_dead``, as of SQLite, where that is the database."""

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> SQLAlchemyStore:
        reject_unknown_options(settings, OPTIONS)
        engine = _engine(settings)
        dialect = engine.dialect.name
        if dialect not in ("sqlite", "postgresql"):
            raise ConfigurationError(
                f"the lock alias {settings.alias!r}: lockkit keeps no locks in {dialect} yet; "
                "use PostgreSQL, SQLite or redis://"
            )
        is_file = dialect == "sqlite"
        return (SQLAlchemyFile if is_file else SQLAlchemyServer)(
            _beside(engine) if is_file else SQLAlchemyConnector(engine),
            key_prefix=settings.key_prefix,
            busy_seconds=busy_seconds(settings),
            takes_over=takes_over(settings) and is_file,
        )

    def create_table(self) -> None:
        """Make the lock table, if it is not there. A SQLite file gets its own at the first lock."""
        if isinstance(self.connector, SQLAlchemyConnector):
            create_table(self.connector.engine)


class SQLAlchemyFile(SQLAlchemyStore, HostLocal):
    """A file beside an SQLite database."""


class SQLAlchemyServer(SQLAlchemyStore, ServerClock):
    """A table in a PostgreSQL database."""


def create_table(engine: sqlalchemy.Engine) -> None:
    """Make the lock table in a PostgreSQL database, if it is not there. A Django project gets it
    by ``manage.py migrate`` and need not call this."""
    with engine.begin() as connection:
        connection.exec_driver_sql(load_dialect(engine.dialect.name).create)


def _engine(settings: AliasSettings) -> sqlalchemy.Engine:
    """The engine that is configured, or one for the URL. No I/O."""
    try:
        import sqlalchemy
    except ImportError as error:
        raise DriverMissing(
            "sqlalchemy:// needs SQLAlchemy: pip install 'lockkit[sqlalchemy]'"
        ) from error
    engine = settings.options.get("engine")
    if engine is not None:
        return _checked(engine, sqlalchemy.Engine, settings)
    if not settings.location.startswith(PREFIX):
        raise ConfigurationError(
            f"the lock alias {settings.alias!r} needs OPTIONS {{'engine': engine}}, "
            "or a LOCATION such as 'sqlalchemy+postgresql+psycopg://user@host/database'"
        )
    try:
        url = sqlalchemy.make_url(settings.location.removeprefix(PREFIX))
        if url.drivername.startswith("postgresql") and "connect_timeout" not in url.query:
            url = url.update_query_dict({"connect_timeout": CONNECT_SECONDS})
        return sqlalchemy.create_engine(url)
    except (sqlalchemy.exc.ArgumentError, sqlalchemy.exc.NoSuchModuleError) as error:
        raise ConfigurationError(
            f"the LOCATION of the lock alias {settings.alias!r} is not an URL that SQLAlchemy knows"
        ) from error
    except ImportError as error:
        raise DriverMissing(f"{settings.shown_location} needs a driver: {error}") from error


def _checked(
    engine: object, kind: type[sqlalchemy.Engine], settings: AliasSettings
) -> sqlalchemy.Engine:
    if isinstance(engine, kind):
        return engine
    raise ConfigurationError(
        f"OPTIONS['engine'] of the lock alias {settings.alias!r} is a {type(engine).__name__}; "
        "it must be a sqlalchemy.Engine, not an async one"
    )


def _beside(engine: sqlalchemy.Engine) -> Connector:
    return connector_beside(engine.url.database or "")


class SQLAlchemyConnector(Connector):
    """Connections to a server database, made as the engine makes its own."""

    closes_before_fork = True

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        import sqlalchemy

        self._sqlalchemy = sqlalchemy
        self.engine = sqlalchemy.create_engine(
            engine.url, pool=engine.pool.recreate(), isolation_level="AUTOCOMMIT"
        )

    @property
    def dialect(self) -> Dialect:
        return load_dialect("postgresql")

    def identity(self) -> object:
        return None

    def described(self) -> str:
        url = self.engine.url
        return f"{url.get_backend_name()}://{url.host or ''}/{url.database or ''}"

    def connect(self) -> Connection:
        try:
            connection = self.engine.connect()
            connection.detach()  # so that closing it closes it
        except self._sqlalchemy.exc.SQLAlchemyError as error:
            raise no_connection(getattr(error, "orig", None) or error) from error
        return SQLAlchemyConnection(connection, self._sqlalchemy)


class SQLAlchemyConnection(Connection):
    """One connection of SQLAlchemy's, in autocommit mode."""

    identity = None

    def __init__(self, connection: sqlalchemy.Connection, module: Any) -> None:
        self._connection = connection
        self._text = module.text
        self._driver: Any = connection.connection.dbapi_connection
        self.descriptor = descriptor_of(self._driver)
        self._error = module.exc.SQLAlchemyError

    def execute(self, statement: str, parameters: Parameters) -> Result:
        try:
            result = self._connection.execute(self._text(statement), parameters)
            return Result(result.all() if result.returns_rows else (), result.rowcount)
        except self._error as error:
            cause = getattr(error, "orig", None) or error
            raise failure(cause, statement, REMEDY) from error

    def close(self) -> None:
        """SQLAlchemy forgets a connection that an interrupt has ended, and does not close it."""
        for connection in (self._connection, self._driver):
            with suppress(Exception):
                connection.close()
