"""How operators look at a lock table, and how it is made. Looking writes nothing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from lockkit.engine.effects import Step
from lockkit.model.errors import LayoutMismatch, MissingTable, StoreRefused
from lockkit.model.types import LockInfo, Page
from lockkit.runtime.wires import Lane, call
from lockkit.stores.contract import Listed
from lockkit.stores.sql.codec import row_id
from lockkit.stores.sql.connector import Connector, Parameters
from lockkit.stores.sql.dialect import Dialect
from lockkit.stores.sql.rows import infos, infos_of_row
from lockkit.stores.sql.words import PAGE, words_in

PREFIXES_OF = 10_000
"""The most rows that are searched for other prefixes: the first by their ids. Ids are hashes, so
these rows are a random sample."""


class _Cursor(NamedTuple):
    """Where a listing goes on: behind the row with the id ``after``. None: all rows were listed,
    and ``unreadable`` is to be raised."""

    after: str | None = ""
    unreadable: LayoutMismatch | None = None


class TableListing(Listed):
    """The steps with which operators look."""

    connector: Connector
    _prefix: str

    @abstractmethod
    def _rows(self, statement: str, values: Parameters) -> Sequence[Sequence[Any]]:
        """The rows of one statement, outside any transaction. There are none where nobody has ever
        locked: a process that only looks must not make the file."""

    @property
    def _dialect(self) -> Dialect:
        return self.connector.dialect

    def page(self, name: str | None, cursor: _Cursor | None = None) -> Step[Page]:
        return call(lambda: self._page(name, cursor or _Cursor()))

    def check(self) -> Step[None]:
        yield from super().check()
        yield from call(self.connector.check_place)

    def last_words(self, name: str | None = None) -> Step[list[LockInfo]]:
        lane = Lane.ASKING if name is None else Lane.RENEWING  # of one name, a lost lease asks
        return call(lambda: list(words_in(self._rows, self._dialect, self._prefix, name)), lane)

    def prefixes(self) -> Step[dict[str, bool]]:
        of: Parameters = {"prefix": self._prefix, "most": PREFIXES_OF}
        found = yield from call(lambda: self._rows(self._dialect.prefixes, of))
        return {str(prefix): bool(has_locks) for prefix, has_locks in found}

    def database(self) -> str:
        return self.connector.described()

    def ddl(self) -> str:
        """A file gets its table at the first lock."""
        return "" if self._dialect.name == "sqlite" else self._dialect.create

    def create_table(self) -> None:
        """Look first: the server refuses the statement to a user who may not make tables, even if
        the table is there."""
        if sql := self.ddl():
            try:
                self._rows(self._dialect.read, {"id": ""})
            except (MissingTable, StoreRefused):  # the user may have no other right than to make it
                self._rows(sql, {})

    def _page(self, name: str | None, cursor: _Cursor) -> Page:
        """Raises LayoutMismatch after the last page, so that all rows that can be read are shown
        first."""
        if cursor.unreadable is not None and cursor.after is None:
            raise cursor.unreadable
        if name is not None:
            rows = self._rows(self._dialect.read, {"id": row_id(self._prefix, name)})
            return Page([info for row in rows for info in infos(name, row)])
        return self._next_page(cursor)

    def _next_page(self, cursor: _Cursor) -> Page:
        """In pages, so that neither memory nor a read transaction grows with the table."""
        found: list[LockInfo] = []
        key, unreadable = cursor
        at: Parameters = {"after": key or "", "prefix": self._prefix, "most": PAGE}
        rows = self._rows(self._dialect.page, at)
        for row in rows:
            try:
                found += infos_of_row(self._prefix, row)
            except LayoutMismatch as error:
                unreadable = unreadable or error
        if len(rows) == PAGE:
            return Page(found, _Cursor(rows[-1][1], unreadable))
        return Page(found, unreadable and _Cursor(None, unreadable))
