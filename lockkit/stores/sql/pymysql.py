"""Connections of PyMySQL: past its cursors and its escapes, which take longer than a step's rest.

MariaDB also parses once what takes and frees a name. Such a statement is named by its database,
which it keeps, and its text: so a session that a proxy has put in between either has the same by
this name or none; then nothing was done, and the connection goes on without. MySQL takes variables
only in place of the values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from pymysql import MySQLError  # type: ignore[import-untyped]

from lockkit.stores.sql.connector import Result
from lockkit.stores.sql.driver import DriverConnection

NOT_PREPARED: Final = {"1243", "1295", "1461", "1615"}
"""No statement of this name; the server takes none, or no more of them; the table has changed."""


class PyMySQLConnection(DriverConnection):
    """By the queries of PyMySQL."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._prepared: dict[str, str] = {}  #: how a statement is executed
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
    """A whole number, or a text. What must not stand between quotes is given as bytes, whatever
    the session's mode takes for an escape."""
    if not isinstance(value, str):
        return value
    if "'" in value or "\\" in value:
        return f"X'{value.encode().hex()}'"
    return f"'{value}'"
