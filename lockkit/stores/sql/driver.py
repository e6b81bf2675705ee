"""A connection of any DB-API driver, made from a URL, by an engine or by Django."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lockkit.stores.sql.connector import Connection, Parameters, Result
from lockkit.stores.sql.dialect import load_dialect

if TYPE_CHECKING:
    from lockkit.stores.sql.vendors import Vendor

PARAMETER = re.compile(r":([a-z]\w*)")


class DriverConnection(Connection):
    """One open connection in autocommit mode."""

    identity = None

    def __init__(self, driver: Any, module: Any, vendor: Vendor, remedy: str) -> None:
        """``driver``: the driver's connection. ``module``: the driver. ``remedy``: says, in errors,
        how the table is made."""
        self.driver = driver
        self._cursor: Any = None
        self.reads_from(descriptor_of(driver))
        self.dialect = load_dialect(vendor.name)
        self._error: type[Exception] = module.Error
        self._vendor = vendor
        self._remedy = remedy

    def execute(self, statement: str, parameters: Parameters) -> Result:
        text, names = styled(statement)
        values = [parameters[name] for name in names]
        try:
            return self._result(text, values)
        except (self._error, UnicodeEncodeError) as error:
            raise self._vendor.failure(error, statement, self._remedy) from error

    def _result(self, text: str, values: Sequence[object]) -> Result:
        cursor = self._cursor = self._cursor or self.driver.cursor()  # kept: making one takes long
        cursor.execute(text, values or None)
        rows = cursor.fetchall() if cursor.description else ()
        return Result(rows, cursor.rowcount, getattr(cursor, "lastrowid", 0))

    def close(self) -> None:
        with suppress(Exception):
            self.driver.close()


@functools.cache
def styled(statement: str) -> tuple[str, list[str]]:
    """The statement with a ``%s`` for each ``:named`` parameter; and their names, in this order."""
    return PARAMETER.sub("%s", statement), PARAMETER.findall(statement)


def descriptor_of(driver: Any) -> int | None:
    """The descriptor of its socket; None if the driver does not tell it."""
    socket = driver if hasattr(driver, "fileno") else getattr(driver, "_sock", None)
    return socket.fileno() if socket is not None else None
