"""Whether a block of ``atomic`` has changed anything yet.

No database says so for a block, so the statements of Django's cursors are watched, on connections
that are made after this module is imported: it is when the application is set up. A statement is
known by its words, without comments and what is quoted; in doubt, what begins as a query is one.
Limit: ``callproc``, what goes around Django's cursors, and functions that write when they are
selected are not seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.db.backends.signals import connection_created

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["has_written"]

WROTE = "_lockkit_wrote"
"""Attribute of a connection: the outermost block, or None without one, that wrote last."""

READS = re.compile(
    r"(?:SELECT|WITH|SHOW|SET|RESET|PRAGMA|EXPLAIN|DESC|DESCRIBE|SAVEPOINT|RELEASE|ROLLBACK|ABORT|"
    r"BEGIN|START|COMMIT|END|USE|VALUES|TABLE|DECLARE|FETCH|MOVE|CLOSE|LISTEN|UNLISTEN)\b",
    re.IGNORECASE,
)
NOISE = re.compile(
    r"--[^\n]*|/\*.*?\*/|\A\s*\#[^\n]*"  # comments; the last is MySQL's
    r"|'(?:[^']|'')*+'|\"(?:[^\"]|\"\")*+\"|`[^`]*`|\$((?:[a-z_]\w*)?)\$.*?\$\1\$",
    re.IGNORECASE | re.DOTALL,
)
BEFORE_WORDS = re.compile(r"(?:[\s(;]|--[^\n]*|/\*.*?\*/|\#[^\n]*)*", re.DOTALL)
CHANGES = re.compile(
    r"(?:[()]|\bANALYZE)\s*(?:INSERT|UPDATE|DELETE|MERGE|REPLACE)\s+[\w.]"
    r"|\bFOR\s+(?:NO\s+KEY\s+|KEY\s+)?(?:UPDATE|SHARE)\b"
    r"|\A\s*PRAGMA\s+(?:\w+\.)?(?:user_version|application_id|schema_version)\s*[=(]",
    re.IGNORECASE,
)
"""In what begins as a query: a change in a WITH, or under EXPLAIN ANALYZE; the locks of rows, which
end with the transaction as changes become final with it; the settings in the file of SQLite that
are rolled back with the transaction (others are not, or are the connection's)."""


def has_written(connection: BaseDatabaseWrapper, block: object) -> bool:
    """Whether a statement in this outermost block changed anything, or locked rows."""
    marks = vars(connection)
    return WROTE in marks and marks[WROTE] is block


def _watch(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    if _note not in connection.execute_wrappers:
        connection.execute_wrappers.insert(0, _note)


def _note(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
    connection = context["connection"]
    if connection.in_atomic_block and _writes(sql):
        blocks = (block for block in connection.atomic_blocks if not block._from_testcase)
        vars(connection)[WROTE] = next(blocks, None)
    return execute(sql, params, many, context)


def _writes(sql: Any) -> bool:
    """``sql``: a string, or what psycopg composes."""
    text = sql if isinstance(sql, str) else str(getattr(sql, "as_string", str)(None))
    if not _is_query(text):
        return True
    return any(
        CHANGES.search(part) or not _is_query(part) for part in NOISE.sub(" ", text).split(";")
    )


def _is_query(statement: str) -> bool:
    """By its first word; a comment alone asks for nothing."""
    before = BEFORE_WORDS.match(statement)
    start = before.end() if before else 0
    return start == len(statement) or READS.match(statement, start) is not None


connection_created.connect(_watch, dispatch_uid="lockkit_django.writes")
