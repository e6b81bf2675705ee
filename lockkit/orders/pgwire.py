"""Statements to PostgreSQL in as few messages as there can be, over a connection of psycopg 3.

Its cursors send BEGIN and COMMIT in messages of their own, and take longer for a statement than the
server does. Here BEGIN goes before the first statement of a transaction and COMMIT behind the last.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection
    from psycopg.pq.abc import PGresult

    from lockkit.orders.rows import Step

IDLE = 0
COMMAND_OK, TUPLES_OK = 1, 2
"""Of libpq's enumerations."""


def is_plain(connection: Any) -> bool:
    """Whether ``run`` may be used: psycopg 3, UTF-8, no pipeline, usual transactions."""
    pgconn = getattr(connection, "pgconn", None)
    if pgconn is None or pgconn.pipeline_status:
        return False
    if pgconn.parameter_status(b"client_encoding") != b"UTF8":
        return False
    if pgconn.transaction_status != IDLE or connection.autocommit:
        return True
    return connection.read_only is connection.deferrable is None


def run(connection: Connection[Any], steps: Sequence[Step], *, commit: bool) -> Any:
    """What the last of these statements returns: its rows, or the number that it changed. Raises
    psycopg's errors.

    A transaction is begun if psycopg would begin one. ``commit``: end it, too, unless a statement
    fails.
    """
    escaping, execute, error_of = _psycopg()
    pgconn = connection.pgconn
    literal = escaping(pgconn).escape_literal
    said = [
        sql.encode()
        % tuple(
            [
                b"%d" % each
                if type(each) is int
                else literal(each.encode() if isinstance(each, str) else _hex(each))
                for each in parameters
            ]
        )
        for sql, parameters in steps
    ]
    if not connection.autocommit and pgconn.transaction_status == IDLE:
        level = connection.isolation_level
        kind = "" if level is None else f" ISOLATION LEVEL {level.name.replace('_', ' ')}"
        said.insert(0, f"BEGIN{kind}".encode())
    if commit:
        said.append(b"COMMIT")
    with connection.lock:
        pgconn.send_query(b";".join(said))
        results = connection.wait(execute(pgconn))
    for result in results:
        if result.status not in (COMMAND_OK, TUPLES_OK):
            raise error_of(result)
    return _answer(results[-2 if commit else -1])


@cache
def _psycopg() -> tuple[Any, Any, Any]:
    from psycopg.errors import error_from_result
    from psycopg.generators import execute
    from psycopg.pq import Escaping

    return Escaping, execute, error_from_result


def _hex(value: Any) -> bytes:
    return b"\\x" + bytes(value).hex().encode()


def _answer(result: PGresult) -> Any:
    if result.status == COMMAND_OK:
        return result.command_tuples or 0
    if not result.ntuples:
        return []
    columns = range(result.nfields)
    read = [_READERS.get(result.ftype(column), bytes.decode) for column in columns]
    return [
        [
            None if (raw := result.get_value(row, column)) is None else read[column](raw)
            for column in columns
        ]
        for row in range(result.ntuples)
    ]


_READERS: dict[int, Any] = {
    **dict.fromkeys((20, 21, 23), int),
    17: lambda raw: _psycopg()[0]().unescape_bytea(raw),
}
"""By the types of columns: integers, bytes. The rest is text."""
