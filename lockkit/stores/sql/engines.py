"""The SQLAlchemy engine of an alias: the one that is configured, or one for its URL."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from lockkit.model.checks import check_password, near_option
from lockkit.model.errors import ConfigurationError, DriverMissing
from lockkit.model.settings import AliasSettings
from lockkit.stores import tls
from lockkit.stores.servers import current, said_twice

if TYPE_CHECKING:
    import sqlalchemy

PREFIX: Final = "sqlalchemy+"
ENGINE: Final = "sqlalchemy://"
"""The LOCATION of an alias that has an engine in its OPTIONS."""

SECONDS: Final = "5"

DRIVERS: Final = {
    "postgresql": {"psycopg": "psycopg"},
    "mysql": {"pymysql": "pymysql", "mysqldb": "MySQLdb"},
}
"""The names of SQLAlchemy's drivers, in the order of preference, and the drivers' modules."""

LIBPQ: Final = ("psycopg", "psycopg2")

ALSO: Final = {"postgresql": ", and 'psycopg[binary]' if libpq is not installed"}
"""What the extra does not install, as a part of an error text."""

QUERY: Final = {
    "postgresql": {"connect_timeout": SECONDS, "client_encoding": "utf8"},
    "mysql": {"connect_timeout": SECONDS, "charset": "utf8mb4"},
}
"""Added to a URL that does not say otherwise. Every name can be sent in utf8. Without it,
SQLAlchemy cannot read what psycopg 3 brings from a database without an encoding (SQL_ASCII)."""

PATIENCE: Final = {"read_timeout": SECONDS, "write_timeout": SECONDS}
"""For the drivers of MySQL. ``guard`` ends steps that hang, but it knows no socket before the
server has sent its greeting. Without these timeouts, a driver would wait without end for the
greeting of a server that sends none."""


PYMYSQL_TIMES: Final = ("connect_timeout", "read_timeout", "write_timeout")


def engine_of(settings: AliasSettings) -> sqlalchemy.Engine:
    """The engine in OPTIONS, or a new one for the URL; no I/O. OPTIONS: ``engine``; or, with a URL,
    ``password``, a string, or a function that is called for each new connection. Raises
    ConfigurationError and DriverMissing."""
    try:
        import sqlalchemy
    except ImportError as error:
        vendor = settings.scheme.partition("+")[0].replace("mariadb", "mysql")
        raise DriverMissing(
            f"{settings.scheme}:// needs SQLAlchemy: pip install {_extra(vendor)} ({error})"
        ) from error
    engine = settings.options.get("engine")
    if engine is not None:
        return _checked(engine, sqlalchemy.Engine, settings)
    if settings.location == ENGINE:
        raise ConfigurationError(
            f"{settings.title} needs OPTIONS {{'engine': engine}}, "
            "or a URL such as 'postgresql://user@host/database'"
        )
    try:
        url, arguments = _verified(_url(settings), settings)
        made = sqlalchemy.create_engine(url, connect_args=arguments)
        _check_query(made, settings)
    except ConfigurationError:
        raise
    except (sqlalchemy.exc.SQLAlchemyError, ValueError, TypeError):  # their texts show the URL
        raise ConfigurationError(
            f"{settings.place} is not one that SQLAlchemy "
            "knows, or has an option that its driver does not take; special characters of a "
            "password are percent-encoded, such as %40 for @"
        ) from None
    except ImportError as error:
        raise DriverMissing(f"{settings.shown_location} needs a driver: {error}") from error
    _give_password(made, settings)
    return made


def _checked(
    engine: object, kind: type[sqlalchemy.Engine], settings: AliasSettings
) -> sqlalchemy.Engine:
    if not isinstance(engine, kind):
        raise ConfigurationError(
            f"OPTIONS['engine'] of {settings.title} is a "
            f"{type(engine).__name__}; it must be a sqlalchemy.Engine, not an async one"
        )
    if settings.options.get("password") is not None:
        raise ConfigurationError(
            f"{settings.title} has OPTIONS['engine'], which has its own password: "
            "OPTIONS['password'] is for URLs"
        )
    if settings.location not in {ENGINE, f"{ENGINE}?mode=table"}:
        raise ConfigurationError(
            f"{settings.title} has an engine in its OPTIONS, which says where its "
            f"database is: the URL must be {ENGINE!r}"
        )
    return engine


def _url(settings: AliasSettings) -> sqlalchemy.URL:
    """The URL, with the installed driver if it names none, and without lockkit's own options."""
    from sqlalchemy import make_url

    url = make_url(settings.location.removeprefix(PREFIX)).difference_update_query(["mode"])
    vendor, _, driver = url.drivername.partition("+")
    vendor = "mysql" if vendor == "mariadb" else vendor
    known = LIBPQ if vendor == "postgresql" else DRIVERS["mysql"]
    if vendor in DRIVERS and driver and driver not in known:
        raise ConfigurationError(
            f"{settings.place} names the driver {driver!r}: lockkit uses {' or '.join(known)}"
        )
    if vendor in DRIVERS and not driver:
        url = url.set(drivername=f"{vendor}+{_driver(vendor, settings)}")
    said = {key: value for key, value in QUERY.get(vendor, {}).items() if key not in url.query}
    return url.update_query_dict(said)


def _verified(
    url: sqlalchemy.URL, settings: AliasSettings
) -> tuple[sqlalchemy.URL, dict[str, Any]]:
    """The URL and the driver's arguments, so that a server on another host is verified; see
    ``stores.tls``."""
    driver, said = url.get_driver_name(), dict(url.query)
    if driver in LIBPQ:
        return url.update_query_dict(tls.for_libpq({"host": url.host, **said})), {}
    if driver in DRIVERS["mysql"]:
        host = "" if "unix_socket" in said else str(said.get("host") or url.host or "")
        arguments = tls.for_mysql(driver, host, said, settings.place)
        return url.set(query={**PATIENCE, **said}), arguments
    return url, {}


def _driver(vendor: str, settings: AliasSettings) -> str:
    for driver, module in DRIVERS[vendor].items():
        if find_spec(module) is not None:
            return driver
    raise DriverMissing(f"{settings.scheme}:// needs a driver: pip install {_extra(vendor)}")


def _extra(vendor: str) -> str:
    """The argument of pip for a database."""
    if vendor not in DRIVERS:
        return "'lockkit[sqlalchemy]'"
    return f"'lockkit[{vendor}]'{ALSO.get(vendor, '')}"


def _check_query(engine: sqlalchemy.Engine, settings: AliasSettings) -> None:
    """Raise ConfigurationError for an option that the driver does not know. The driver itself would
    complain only when it connects, and the server would seem to be down."""
    _, arguments = engine.dialect.create_connect_args(engine.url)
    if engine.driver == "pymysql":
        for option in PYMYSQL_TIMES:
            if arguments.get(option, 1) <= 0:  # PyMySQL says so at the first lock
                raise ConfigurationError(f"{option} of {settings.place} must be 1 second or more")
    known = _known(engine.driver)
    if known and not known.issuperset(arguments):
        raise ConfigurationError(
            f"{settings.place} has an option after its question "
            f"mark that the driver {engine.driver} does not know"
            f"{near_option(settings.location, {*known, 'mode', 'ssl_mode'})}"
        )


def _known(driver: str) -> set[str]:
    """The options that this driver takes; empty if they are not known."""
    if driver == "psycopg":
        from psycopg import pq

        return {option.keyword.decode() for option in pq.Conninfo.get_defaults()} | {"context"}
    if driver == "pymysql":
        from inspect import signature

        return set(signature(import_module("pymysql.connections").Connection).parameters)
    return set()


def _give_password(engine: sqlalchemy.Engine, settings: AliasSettings) -> None:
    password = settings.options.get("password")
    if password is None:
        return
    check_password(f"OPTIONS['password'] of {settings.title}", password)
    url = engine.url
    if url.password is not None or not url.query.keys().isdisjoint({"password", "passwd"}):
        raise said_twice(settings.place)
    from sqlalchemy import event

    @event.listens_for(engine, "do_connect")
    def give(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        parameters["password"] = current(password)
