"""What operators see of a table, and how it is made. Looking writes nothing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from lockkit.engine.effects import Step
from lockkit.model.errors import LayoutMismatch
from lockkit.model.types import LockInfo, LockState, Page
from lockkit.runtime.wires import Lane, call
from lockkit.stores.contract import Listed
from lockkit.stores.sql.codec import row_id
from lockkit.stores.sql.connector import Connector, Parameters
from lockkit.stores.sql.dialect import Dialect
from lockkit.stores.sql.rows import infos, infos_of_row
from lockkit.stores.sql.words import words_in

PAGE = 500
"""Rows per request of a listing."""

PREFIXES_OF = 10_000
"""Rows that are looked at for other prefixes: the first by their ids, so they are a sample."""

STRAYED = (
    "the row says the key prefix {!r}, so not all is told of it: set prefix to {!r} in the row "
    "with the id {!r}"
)


class _Cursor(NamedTuple):
    """Where a listing goes on: after this row; None: all were read, and one could not be."""

    after: str | None = ""
    unreadable: LayoutMismatch | None = None
    others: bool = False  #: the rows of other prefixes are looked through


class TableListing(Listed):
    """The steps that look."""

    connector: Connector
    _prefix: str

    @abstractmethod
    def _rows(self, statement: str, values: Parameters) -> Sequence[Sequence[Any]]:
        """Of one statement, in no transaction."""

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

    def ddl(self) -> str:
        """A file gets its table at the first lock."""
        return "" if self._dialect.name == "sqlite" else self._dialect.create

    def create_table(self) -> None:
        if sql := self.ddl():
            self._rows(sql, {})

    def _last_words(self, name: str | None) -> list[LockInfo]:
        if not self.connector.has_anything():  # whoever only looks must not own the file
            return []
        return list(words_in(self._rows, self._dialect, self._prefix, name))

    def _prefixes(self) -> dict[str, bool]:
        if not self.connector.has_anything():
            return {}
        of: Parameters = {"prefix": self._prefix, "most": PREFIXES_OF}
        found = self._rows(self._dialect.prefixes, of)
        return {str(prefix): bool(has_locks) for prefix, has_locks in found}

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
        found: list[LockInfo] = []
        if cursor.others:
            return self._strayed(found, cursor)
        after, unreadable, _ = cursor
        rows = self._rows(self._dialect.page, self._after(cursor))
        for now, after, version, one, fence, text in rows:
            try:
                found += infos_of_row(self._prefix, after, one, (now, version, fence, text))
            except LayoutMismatch as error:
                unreadable = unreadable or error
        if len(rows) == PAGE:
            return Page(found, _Cursor(after, unreadable))
        return self._strayed(found, _Cursor("", unreadable, others=True))

    def _strayed(self, found: list[LockInfo], cursor: _Cursor) -> Page:
        """Rows of ours whose prefix is damaged: they are locked by their ids all the same."""
        rows = self._rows(self._dialect.others, self._after(cursor))
        found += [
            LockInfo(name, LockState.DAMAGED, damage=STRAYED.format(says, self._prefix, key))
            for key, name, says in rows
            if isinstance(name, str) and row_id(self._prefix, name) == key
        ]
        if len(rows) == PAGE:
            return Page(found, cursor._replace(after=rows[-1][0]))
        return Page(found, cursor.unreadable and _Cursor(None, cursor.unreadable))

    def _after(self, cursor: _Cursor) -> Parameters:
        return {"after": cursor.after or "", "prefix": self._prefix, "most": PAGE}
