"""Whether a block of ``atomic`` has changed anything yet.

No database says so for a block, so the statements of Django's cursors are watched, on connections
that are made after this module is imported: it is when the application is set up. Limit: what
goes around Django's cursors, and functions that write when they are selected, are not seen.
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
    r"[\s(]*(?:SELECT|SHOW|SET|PRAGMA|EXPLAIN|DESCRIBE|SAVEPOINT|RELEASE|ROLLBACK|BEGIN|START|"
    r"COMMIT|USE|VALUES|WITH(?!.*\b(?:INSERT|UPDATE|DELETE|REPLACE)\b))\b",
    re.IGNORECASE | re.DOTALL,
)
ROW_LOCKS = re.compile(r"\bFOR\s+(?:NO\s+KEY\s+)?(?:UPDATE|SHARE)\b", re.IGNORECASE)
"""They end with the transaction, as changes become final with it."""


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
    return not READS.match(text) or ROW_LOCKS.search(text) is not None


connection_created.connect(_watch, dispatch_uid="lockkit_django.writes")
