"""What PostgreSQL's errors mean, whichever driver brings them."""

from __future__ import annotations

from lockkit.model.errors import (
    BackendUnavailable,
    ConfigurationError,
    LockError,
    OutcomeUnknown,
    StoreRefused,
)
from lockkit.stores.sql.connector import Missed, Stale

MISSED = frozenset({"23505", "25P02", "40001", "40P01", "55P03"})
"""unique violation, failed transaction, serialization failure, deadlock, lock not available"""

MISSING_TABLE = "42P01"
CANCELLED = "57014"
REFUSED = ("28", "3D000", "42501")
"""Authorization, a database that is not there, a missing permission."""

REFUSALS = (
    "authentication failed",
    "no pg_hba.conf entry",
    "no password supplied",
    "does not exist",
)
"""The words of libpq, which tells no code of what the server says before a session begins."""

LOST_CLASSES = ("08", "57")
"""Connection exceptions, and a server that shuts down or has lost a process."""


def failure(error: BaseException, statement: str, remedy: str) -> Missed | LockError:
    """The typed error for a driver's error. ``remedy`` says how to make the table."""
    state = _sqlstate(error)
    if state in MISSED:
        return Missed()
    if state == MISSING_TABLE:
        return ConfigurationError(f"the lock database has no table lockkit_lock: {remedy}")
    if state is None or (state[:2] in LOST_CLASSES and state != CANCELLED):
        if statement.startswith("SELECT"):
            return Stale()
        return OutcomeUnknown(f"the connection to the lock database broke: {_line(error)}")
    kind = StoreRefused if state.startswith(REFUSED) else BackendUnavailable
    return kind(f"the lock database refused a statement: {_line(error)}")


def no_connection(error: BaseException) -> BackendUnavailable:
    """Limit: of a server that speaks another language, a refusal counts as unavailable."""
    refused = (_sqlstate(error) or "").startswith(REFUSED)
    refused = refused or any(words in str(error) for words in REFUSALS)
    kind = StoreRefused if refused else BackendUnavailable
    return kind(f"cannot connect to the lock database: {_line(error)}")


def descriptor_of(connection: object) -> int | None:
    """Of a driver's connection; None where the driver does not tell it."""
    fileno = getattr(connection, "fileno", None)
    return fileno() if callable(fileno) else None


def _sqlstate(error: BaseException) -> str | None:
    """As psycopg, psycopg2 and pg8000 tell it."""
    for attribute in ("sqlstate", "pgcode"):
        state = getattr(error, attribute, None)
        if isinstance(state, str):
            return state
    fields = error.args[0] if error.args else None
    return fields.get("C") if isinstance(fields, dict) else None


def _line(error: BaseException) -> str:
    """Its first line: what follows can quote the statement."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
