"""The database servers in which a lock table can be, and how they differ, for every driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any, ClassVar, Final

from lockkit.model.errors import (
    UNNAMED,
    BackendUnavailable,
    ConfigurationError,
    LockError,
    MissingTable,
    OutcomeUnknown,
    StoreRefused,
)
from lockkit.stores.servers import (
    MYSQL_LOST,
    MYSQL_REFUSED,
    cannot_connect,
    first_line,
    postgresql_refuses,
)
from lockkit.stores.sql.connector import Missed, Stale
from lockkit.stores.sql.driver import DriverConnection

DRIVERS: Final = ("psycopg", "psycopg2", "pymysql", "MySQLdb")
"""Their modules. Other drivers report errors and show their sockets in ways that lockkit does not
know."""

CANCELLED = "57014"
"""PostgreSQL's code for a cancelled statement. The connection goes on."""

FAILED = "25P02"
"""PostgreSQL's code for a statement in a transaction that has failed. The connection stays in it,
so it is not used again."""

LOST_CLASSES = ("08", "57")
"""How PostgreSQL's codes begin for a broken connection, and for a server that shuts down or has
lost a process."""

PREPARE = "SET SESSION innodb_lock_wait_timeout = 1"
"""A step that waits a second for a locked row is tried again. With 50 seconds, the default, it
would count as hanging."""

COMMIT: Final = "COMMIT AND NO CHAIN NO RELEASE"
"""Sent on each new connection. With ``completion_type = CHAIN``, the COMMIT or ROLLBACK of a driver
or a listener has begun a transaction there, and nobody would commit what lockkit does in it."""


class Vendor(ABC):
    """What a server's errors mean, and what a new connection to it needs."""

    name: ClassVar[str]
    """The name of the file with its statements."""

    missed: ClassVar[frozenset[str]]
    """Codes of statements that were not applied because somebody else was in the way. They are
    tried again."""

    missing_table: ClassVar[str]

    unwritable: ClassVar[frozenset[str]] = frozenset()
    """Codes for a text that the database's encoding cannot write."""

    @abstractmethod
    def code(self, error: BaseException) -> str | None:
        """The server's code in a driver's error; None if the server has said nothing."""

    @abstractmethod
    def is_lost(self, code: str) -> bool:
        """Whether the connection is over after an error with this code."""

    @abstractmethod
    def is_refusal(self, error: BaseException) -> bool:
        """Whether the error does not pass by itself: it is about a password, a permission, or a
        missing database."""

    def prepare(self, connection: DriverConnection) -> None:
        """Called once for each new connection. Raises like ``Connection.execute``."""
        return

    def failure(self, error: BaseException, statement: str, remedy: str) -> Missed | LockError:
        """The error to raise for a driver's error. ``remedy`` says how to make the table."""
        code = self.code(error)
        if code in self.missed:
            return Stale() if code == FAILED else Missed()
        if code == self.missing_table:
            return MissingTable(f"the lock database has no table lockkit_lock: {remedy}")
        if code in self.unwritable or isinstance(error, UnicodeEncodeError):
            return ConfigurationError(
                f"the lock database cannot write {UNNAMED} in its encoding: {first_line(error)}"
            )
        if code is None or self.is_lost(code):
            if statement.startswith(("SELECT", "SET", COMMIT)):  # it changes no row
                return Stale()
            return OutcomeUnknown(f"the connection to the lock database broke: {first_line(error)}")
        kind = StoreRefused if self.is_refusal(error) else BackendUnavailable
        return kind(f"the lock database refused a statement: {first_line(error)}")

    def no_connection(self, error: BaseException) -> LockError:
        """The error to raise if no connection is made. It shows what a driver says, but no text
        that may be the application's own, such as the URL of a request for a token."""
        if isinstance(error, TypeError):  # of a driver whose options are not known beforehand
            return ConfigurationError("the driver of the lock database does not take its options")
        text = first_line(error)
        if isinstance(error, OSError):
            text = error.strerror or type(error).__name__
        return cannot_connect("lock database", text, is_refusal=self.is_refusal(error))


class PostgreSQL(Vendor):
    name = "postgresql"
    missed = frozenset({"23505", FAILED, "40001", "40P01", "42710", "42P07", "55P03"})
    """unique violation, failed transaction, serialization failure, deadlock, a table that somebody
    else has just made (two codes), lock not available"""

    missing_table = "42P01"
    unwritable = frozenset({"22021", "22P05"})

    def code(self, error: BaseException) -> str | None:
        """In psycopg it is ``sqlstate``, in psycopg2 ``pgcode``."""
        state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        return state

    def is_lost(self, code: str) -> bool:
        return code[:2] in LOST_CLASSES and code != CANCELLED

    def is_refusal(self, error: BaseException) -> bool:
        return postgresql_refuses(self.code(error) or "", error)


class MySQL(Vendor):
    """MySQL and MariaDB: lockkit needs the same of both."""

    name = "mysql"
    missed = frozenset({"1020", "1062", "1205", "1213", "3101"})
    """The row has changed, duplicate key, lock wait timeout, deadlock, conflict in a cluster"""

    missing_table = "1146"

    def code(self, error: BaseException) -> str | None:
        """In PyMySQL and mysqlclient it is the first argument of the error."""
        found = error.args[0] if error.args else None
        return str(found) if isinstance(found, int) else None

    def is_lost(self, code: str) -> bool:
        return int(code) in MYSQL_LOST

    def is_refusal(self, error: BaseException) -> bool:
        return int(self.code(error) or -1) in MYSQL_REFUSED

    def prepare(self, connection: DriverConnection) -> None:
        connection.execute(PREPARE, {})
        connection.execute(COMMIT, {})
        if not connection.driver.get_autocommit():  # PyMySQL and mysqlclient have it
            raise ConfigurationError(
                "the connection to the lock database would not commit a lock: the application has "
                "turned autocommit off, in a listener or receiver for new connections"
            )
        charset = connection.driver.character_set_name()  # both have it, too
        if charset != "utf8mb4":
            raise ConfigurationError(
                f"the connection to the lock database has the character set {charset}, in which "
                "not every name can be written: make its engine with ?charset=utf8mb4"
            )


VENDORS: Final[dict[str, Vendor]] = {
    "postgresql": PostgreSQL(),
    "mysql": MySQL(),
    "mariadb": MySQL(),
}
"""By the names that SQLAlchemy and Django have for them."""


def vendor_of(name: str, driver: Any) -> Vendor:
    """The vendor of that name. ``driver``: the module of its driver. Raises ConfigurationError for
    a driver that lockkit does not use."""
    found = driver.__name__ if isinstance(driver, ModuleType) else type(driver).__name__
    if found not in DRIVERS:
        raise ConfigurationError(
            f"lockkit uses a database over psycopg, psycopg2, PyMySQL or mysqlclient, not {found}"
        )
    return VENDORS[name]


def cannot_send() -> ConfigurationError:
    """For a UnicodeError of a driver. Not to be chained: that shows the password."""
    return ConfigurationError(
        "the driver of the lock database cannot send its host, user or password; PyMySQL takes "
        "users and passwords of Latin-1 characters"
    )


def unavailable(what: str, error: BaseException) -> BackendUnavailable:
    """The error to raise for a driver's error, with the first line of its text. It is StoreRefused
    if the server has refused, and will refuse again."""
    is_refusal = any(vendor.is_refusal(error) for vendor in VENDORS.values())
    kind, fails = (StoreRefused, "refuses") if is_refusal else (BackendUnavailable, "fails")
    return kind(f"{what} {fails}: {first_line(error)}")


def connected(driver: Any, module: Any, vendor: Vendor, remedy: str) -> DriverConnection:
    """A connection that is ready for use. The arguments are those of DriverConnection."""
    kind: type[DriverConnection] = DriverConnection
    if hasattr(driver, "pgconn"):
        from lockkit.stores.sql.psycopg import PsycopgConnection

        kind = PsycopgConnection
    elif module.__name__ == "pymysql":
        from lockkit.stores.sql.pymysql import PyMySQLConnection

        kind = PyMySQLConnection
    connection = kind(driver, module, vendor, remedy)
    try:
        connection.within_time(lambda _: vendor.prepare(connection))
    except BaseException:  # nobody else would close it
        connection.close()
        raise
    return connection
