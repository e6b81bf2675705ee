"""Connections of PyMySQL, without its cursors and escapes, which take longer than all else in a
step.

On MariaDB, UPDATE statements are prepared, so that the server parses them once. A prepared
statement is named by a hash of its text and its database. If a proxy leads to another session of
the server, that session has the same statement by this name, or none. If it has none, nothing was
done, and the connection goes on without prepared statements. MySQL prepares nothing here: it would
take the values only from variables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from pymysql import MySQLError  # type: ignore[import-untyped]

from lockkit.stores.sql.connector import Result
from lockkit.stores.sql.driver import DriverConnection

NOT_PREPARED: Final = {"1243", "1295", "1461", "1615"}
"""Codes: the server has no statement of this name; it prepares none, or no more; the table has
changed."""


class PyMySQLConnection(DriverConnection):
    """Sends whole statements, with ``query`` of PyMySQL."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._prepared: dict[str, str] = {}  #: by its text: how it is executed
        self._prepares = "MariaDB" in self.driver.get_server_info()

    def _result(self, text: str, values: Sequence[object]) -> Result:
        literals = tuple(map(literal, values))
        if self._prepares and text.startswith("UPDATE"):
            try:
                return self._reply((self._prepared.get(text) or self._prepare(text)) % literals)
            except MySQLError as error:
                if self._vendor.code(error) not in NOT_PREPARED:
                    raise
            self._prepares = False
        return self._reply(text % literals if values else text)

    def _prepare(self, text: str) -> str:
        both = f"{self.driver.db}\0{text}".encode()
        name = f"lockkit_{hashlib.sha256(both).hexdigest()[:16]}"
        self._reply(f"PREPARE {name} FROM {self.driver.escape(text.replace('%s', '?'))}")
        uses = ", ".join(["%s"] * text.count("%s"))
        self._prepared[text] = f"EXECUTE {name} USING {uses}"
        return self._prepared[text]

    def _reply(self, text: str) -> Result:
        self.driver.query(text)
        result = self.driver._result
        return Result(result.rows or (), result.affected_rows, result.insert_id or 0)


def literal(value: object) -> object:
    """The value as it stands in a statement. A text with a quote or a backslash is written as the
    hex digits of its bytes, because the session's mode decides whether a backslash escapes."""
    if not isinstance(value, str):
        return value
    if "'" in value or "\\" in value:
        return f"X'{value.encode().hex()}'"
    return f"'{value}'"
