"""What operators see of a table. Looking writes nothing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from lockkit.engine.effects import Step
from lockkit.model.errors import LayoutMismatch
from lockkit.model.types import LockInfo, Page
from lockkit.runtime.wires import Lane, call
from lockkit.stores.contract import Listed
from lockkit.stores.sql.codec import row_id
from lockkit.stores.sql.connector import Connector, Parameters
from lockkit.stores.sql.dialect import Dialect
from lockkit.stores.sql.rows import infos, infos_of_row
from lockkit.stores.sql.words import words_in

PAGE = 500
"""Rows per request of a listing."""


class _Cursor(NamedTuple):
    """Where a listing goes on: after this row; None: all were read, and one could not be."""

    after: str | None = ""
    unreadable: LayoutMismatch | None = None


class TableListing(Listed):
    """The steps that look."""

    connector: Connector
    _prefix: str

    @abstractmethod
    def _rows(self, statement: str, values: Parameters) -> Sequence[Sequence[Any]]:
        """Of one statement that reads."""

    @property
    def _dialect(self) -> Dialect:
        return self.connector.dialect

    def page(self, name: str | None, cursor: _Cursor | None = None) -> Step[Page]:
        return call(lambda: self._page(name, cursor or _Cursor()))

    def last_words(self, name: str | None = None) -> Step[list[LockInfo]]:
        return call(lambda: self._last_words(name), Lane.RENEWING)

    def prefixes(self) -> Step[dict[str, bool]]:
        return call(self._prefixes)

    def database(self) -> str:
        return self.connector.described()

    def _last_words(self, name: str | None) -> list[LockInfo]:
        if not self.connector.has_anything():  # whoever only looks must not own the file
            return []
        return list(words_in(self._rows, self._dialect, self._prefix, name))

    def _prefixes(self) -> dict[str, bool]:
        if not self.connector.has_anything():
            return {}
        found = self._rows(self._dialect.prefixes, {"prefix": self._prefix})
        return {prefix: bool(has_locks) for prefix, has_locks in found}

    def _page(self, name: str | None, cursor: _Cursor) -> Page:
        """So that neither memory nor a read transaction grows with what is held.

        A row that another release wrote is an error after all the others.
        """
        if cursor.unreadable is not None and cursor.after is None:
            raise cursor.unreadable
        if not self.connector.has_anything():  # whoever only looks must not own the file
            return Page([])
        if name is not None:
            (row,) = self._rows(self._dialect.read, {"id": row_id(self._prefix, name)})
            return Page(list(infos(name, row)))
        values: Parameters = {"after": cursor.after or "", "prefix": self._prefix, "most": PAGE}
        rows = self._rows(self._dialect.page, values)
        found: list[LockInfo] = []
        after, unreadable = cursor
        for now, after, version, one, fence, text in rows:
            try:
                found += infos_of_row(self._prefix, after, one, (now, version, fence, text))
            except LayoutMismatch as error:
                unreadable = unreadable or error
        if len(rows) == PAGE:
            return Page(found, _Cursor(after, unreadable))
        return Page(found, unreadable and _Cursor(None, unreadable))
