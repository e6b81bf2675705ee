"""What an error of a database, or of a lock, means for an order, whichever driver and framework
report it."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from lockkit.model.errors import BackendUnavailable, ConfigurationError, StoreRefused
from lockkit.model.log import log
from lockkit.orders import refusals
from lockkit.orders.record import DuplicateKeyError, RecordChangedError, storable

if TYPE_CHECKING:
    from lockkit.orders.record import OrderResponse
    from lockkit.web.refusal import Refusal

Unavailable = Callable[[str, BaseException], BackendUnavailable]

CONFLICT_CLASS = "40"
"""The class of SQLSTATE of an error that reports a rollback because of other transactions."""

UNKNOWN = "40003"
"""A state of that class after which it is not known whether the statement was done."""

ENDED_CLASS = "25"
"""The class if the server has ended an idle transaction. psycopg raises InternalError for it."""

MYSQL_CONFLICTS = frozenset({1020, 1205, 1213})
"""Record changed since the snapshot, lock wait timeout, deadlock."""

NO_SAVEPOINT = 1305
"""MySQL's number for a savepoint that has gone with its transaction."""

DUPLICATES = ("23505", 1062, "SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE")
DRIVERS = ("sqlite3", "psycopg", "pymysql", "MySQLdb")
"""Those that tell a duplicate key from another rule of a table that is broken."""

BUSY = "SQLITE_BUSY"

OF_CONNECTION = {"OperationalError", "InterfaceError"}
"""Names of errors after which the connection may be gone."""

WRONG = {"ProgrammingError", "IntegrityError"}
"""Names of errors that a table of other columns or rules makes."""


def states_of(error: BaseException) -> tuple[object, ...]:
    """The SQLSTATE, as drivers of PostgreSQL report it, and the number of MariaDB and MySQL."""
    own = _driver_error(error)
    return getattr(own, "sqlstate", None), getattr(own, "pgcode", None), *own.args[:1]


def is_conflict(error: BaseException) -> bool:
    """Whether the database rolled back because of others: a serialization failure, a deadlock, or
    MySQL's lock wait timeout."""
    if "DatabaseError" not in _names(error):
        return False
    own = _driver_error(error)
    if _is_of_class(CONFLICT_CLASS, error) and UNKNOWN not in states_of(error)[:2]:
        return True
    of_mysql = type(own).__module__.startswith(("MySQLdb", "pymysql"))
    return of_mysql and not MYSQL_CONFLICTS.isdisjoint(own.args[:1])


def unsaved(error: BaseException) -> Refusal | None:
    """The answer if a COMMIT failed; None if nothing was saved, and the error is to be raised.

    If the connection or its transaction has ended, the outcome is not known.
    """
    if isinstance(error, RecordChangedError):
        log.error(
            "%s: the database has rolled its transaction back, as at the end of a deadlock, and "
            "the view went on; or the view has ended it by SQL, or deleted the record. The order "
            "is rolled back",
            error,
        )
        return refusals.NOT_SAVED
    if is_conflict(error) or getattr(_driver_error(error), "sqlite_errorname", "").startswith(BUSY):
        return refusals.NOT_SAVED
    is_over = getattr(error, "connection_invalidated", False) or _is_of_class(ENDED_CLASS, error)
    return refusals.outcome_unknown() if is_over or _names(error) & OF_CONNECTION else None


def without_lock(answered: OrderResponse | None) -> OrderResponse | None:
    """The answer that was made of a lock's error. A refusal counts as 423, whichever BUSY_STATUS it
    shows: another try may get the lock."""
    if answered is None or answered.status < HTTPStatus.BAD_REQUEST:
        return answered
    return answered._replace(status=HTTPStatus.LOCKED) if storable(answered.status) else answered


def as_raised(answered: OrderResponse | None, status: int | None) -> OrderResponse | None:
    """The answer that was made of an exception with this status. If the view has raised a passing
    refusal or a 5xx in order to say that nothing has happened, no page that is made of it changes
    that."""
    if answered is None or status is None or storable(status):
        return answered
    return answered._replace(status=status)


def typed(error: Exception, unavailable: Unavailable, remedy: str) -> Exception:
    """What to raise for an error of a statement about records: DuplicateKeyError for an existing
    key, ConfigurationError with the ``remedy`` for a missing table, and BackendUnavailable for
    all else. ``unavailable``: the function of ``lockkit.stores.sql.vendors``.
    """
    names = _names(error)
    if _is_duplicate(error):
        return DuplicateKeyError()
    note(error)
    if "DataError" in names:
        return BackendUnavailable("the database does not take this order record")
    failure = unavailable("the database of the order records", _driver_error(error))
    # SQLite raises OperationalError for everything; StoreRefused: a permission is missing
    is_wrong = bool(names & WRONG) or "no such table" in str(_driver_error(error))
    if is_wrong and not isinstance(failure, StoreRefused):
        return ConfigurationError(f"the table of order records cannot be used: {remedy}")
    return failure


def _is_duplicate(error: Exception) -> bool:
    """Whether there is such a key. With a driver that does not tell, each broken rule counts."""
    if "IntegrityError" not in _names(error):
        return False
    own = _driver_error(error)
    told = (*states_of(error), getattr(own, "sqlite_errorname", None))
    return any(each in DUPLICATES for each in told) or not type(own).__module__.startswith(DRIVERS)


def note(error: Exception) -> None:
    """Log the driver's message, which has no parameters in it."""
    log.error("the order records cannot be used: %s", _driver_error(error))


def _driver_error(error: BaseException) -> Any:
    """The driver's own error."""
    own = getattr(error, "orig", None)
    return own if isinstance(own, BaseException) else error.__cause__ or error


def _names(error: BaseException) -> set[str]:
    """The names of an error's classes: Django, SQLAlchemy and drivers use those of PEP 249."""
    return {each.__name__ for each in type(error).__mro__}


def _is_of_class(start: str, error: BaseException) -> bool:
    return any(str(state).startswith(start) for state in states_of(error)[:2])
