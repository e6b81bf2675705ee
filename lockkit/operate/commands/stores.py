"""What the stores hold, as pages of rows: streamed, so that memory does not grow with the store."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lockkit.leases.client import LockClient
from lockkit.model.errors import BackendError, ConfigurationError, StoreRefused
from lockkit.model.types import LockInfo, LockState
from lockkit.operate.commands.exits import Exit, UsageError
from lockkit.operate.commands.places import about, others, place
from lockkit.operate.commands.side_by_side import side_by_side
from lockkit.operate.commands.terminal import ELLIPSIS, Console, escape, printable
from lockkit.operate.inspect import Growth, Stuck, remark, stuck

__all__ = [
    "SORTS",
    "ClientFactory",
    "Limits",
    "Row",
    "Stores",
    "is_now",
    "limited",
    "ordered",
    "paged",
]

ClientFactory = Callable[[], LockClient]

PAGE = 64
"""Rows. A store is asked for no more than the page needs before the page is shown."""


class Row(NamedTuple):
    """One name in one alias."""

    alias: str
    info: LockInfo
    stuck: Stuck | None

    @property
    def reason(self) -> str | None:
        """Why it is stuck, or how its lease ended, in words."""
        return self.stuck.reason if self.stuck else remark(self.info)


def is_now(row: Row) -> bool:
    """Of what is, and not the last words of what was."""
    return row.info.state is not LockState.LOST


class Limits(NamedTuple):
    """What counts as stuck, and whether last words are looked at."""

    older_than: float | None = None
    waiting_longer_than: float | None = None
    lost: bool = False


NO_LIMITS = Limits()


class Stores:
    """The configured aliases, and which of them failed.

    A store that is down does not keep the others from being shown: its failure is reported when
    it happens, and decides how the command ends.
    """

    def __init__(self, clients: Mapping[str, ClientFactory], console: Console) -> None:
        self._clients = clients
        self._console = console
        self.down: dict[str, str] = {}  #: alias: what its store said
        self.wrong: dict[str, str] = {}  #: alias: what is wrong with its settings
        self._looked_at: list[str] = []
        self._growth = Growth()

    def select(self, aliases: Sequence[str] | None) -> list[str]:
        """The aliases asked for, or all. Raises UsageError."""
        for alias in aliases or ():
            if alias not in self._clients:
                known = ", ".join(map(escape, self._clients))
                raise UsageError(f"there is no lock alias {alias!r}; there are: {known}")
        return list(dict.fromkeys(aliases or self._clients))

    def client(self, alias: str) -> LockClient:
        """Raises ConfigurationError."""
        return self._clients[alias]()

    def where(self, aliases: Iterable[str]) -> str:
        """Which stores these are, and what else is there, without passwords."""
        shown = {alias: self.place(alias) + others(self.client(alias)) for alias in aliases}
        if len(shown) == 1:
            return next(iter(shown.values()))
        return ", ".join(f"{escape(alias)} ({where})" for alias, where in shown.items())

    def place(self, alias: str) -> str:
        return place(self.client(alias))

    def about(self, *, nothing: bool) -> dict[str, dict[str, Any]]:
        """The stores that have answered, for JSON."""
        answered = [a for a in self._looked_at if a not in self.down and a not in self.wrong]
        return {alias: about(self.client(alias), nothing=nothing) for alias in answered}

    def forgive(self) -> None:
        """Forget the failures of an earlier look."""
        self.down.clear()
        self.wrong.clear()
        self._growth.next_look()

    def pages(
        self, aliases: Iterable[str], name: str | None = None, limits: Limits = NO_LIMITS
    ) -> Iterator[list[Row]]:
        """All, or what is known of one name; each page holds rows of one alias only."""
        self._looked_at = list(aliases)
        readers = {alias: self._pages(alias, name, limits) for alias in aliases}
        return side_by_side(readers)

    def of_name(self, aliases: Sequence[str], name: str) -> list[Row]:
        """What is known of the name; of one that a table has clipped, of all that begin so."""
        rows = [row for page in self.pages(aliases, name) for row in page]
        if rows or not name.endswith(ELLIPSIS):
            return rows
        return [
            row
            for page in self.pages(aliases)
            for row in page
            if row.info.name.startswith(name.removesuffix(ELLIPSIS))
        ]

    def one_name(self, aliases: Sequence[str], name: str) -> list[Row]:
        """The same, of one name. Raises UsageError where a clipped one may be several."""
        rows = self.of_name(aliases, name)
        names = dict.fromkeys(row.info.name for row in rows)
        if len(names) > 1:
            raise UsageError(
                f"{escape(name)} is clipped: it may be {', '.join(map(escape, names))}"
            )
        return rows

    def ending(self) -> Exit:
        if self.down:
            return Exit.STORE_DOWN
        return Exit.ERROR if self.wrong else Exit.OK

    def _pages(self, alias: str, name: str | None, limits: Limits) -> Iterator[list[Row]]:
        """What was read before a store failed is shown, too."""
        page: list[Row] = []
        failed: tuple[dict[str, str], str] | None = None
        try:
            for info in _all(self.client(alias), name, lost=limits.lost or name is not None):
                found = stuck(info, limits.older_than, limits.waiting_longer_than)
                page.append(Row(alias, info, found or self._growth.judge(alias, info)))
                if len(page) == PAGE:
                    yield page
                    page = []
        except StoreRefused as error:
            failed = self.wrong, f"its store refuses: {error} ({self.place(alias)})"
        except BackendError as error:
            failed = self.down, f"its store is down: {error} ({self.place(alias)})"
        except ConfigurationError as error:
            failed = self.wrong, str(error)
        if page:
            yield page
        if failed:
            failed[0][alias] = failed[1]
            self._console.complain(f"alias {escape(alias)}: {printable(failed[1])}")


def _all(client: LockClient, name: str | None, *, lost: bool) -> Iterator[LockInfo]:
    """What the locks are, how leases ended that were not released, and then the orders that were
    begun and are nobody's any more."""
    yield from client.holders(name)
    if lost:
        yield from client.last_words(name)
    if client.backend.records() is not None:  # only then is there more to import
        from lockkit.orders.redis_records import orphans

        yield from orphans(client, name)


SORTS: Mapping[str, Callable[[Row], tuple[float | str, ...]]] = {
    "alias": lambda row: (row.alias, row.info.name),
    "name": lambda row: (row.info.name, row.alias),
    "state": lambda row: (row.stuck is None, row.info.state.value, row.info.name),
    "owner": lambda row: (str(row.info.owner or ""), row.info.name),
    "age": lambda row: (-_or(row.info.age, 0.0), row.info.name),
    "left": lambda row: (_or(row.info.left, float("inf")), row.info.name),
    "waiters": lambda row: (-row.info.waiters_alive, -row.info.waiters, row.info.name),
    "fence": lambda row: (_or(row.info.fence, float("inf")), row.info.name),
}
"""What an operator looks for comes first: the oldest, the next to expire, the longest queue."""


def ordered(
    pages: Iterable[list[Row]], sort: str, *, reverse: bool, limit: int | None
) -> Iterator[list[Row]]:
    """Sorted pages. Keeps every row, or only as many as the limit allows."""
    rows = itertools.chain.from_iterable(pages)
    key = SORTS[sort]
    if limit is None:
        return paged(sorted(rows, key=key, reverse=reverse))
    pick = heapq.nlargest if reverse else heapq.nsmallest
    return paged(pick(limit, rows, key=key))


def paged(rows: Iterable[Row]) -> Iterator[list[Row]]:
    left = iter(rows)
    while page := list(itertools.islice(left, PAGE)):
        yield page


def limited(pages: Iterable[list[Row]], limit: int | None) -> Iterator[list[Row]]:
    """At most so many rows; the stores are not asked for more."""
    if limit is None:
        yield from pages
        return
    for page in pages:
        yield page[:limit]
        limit -= len(page)
        if limit <= 0:
            return


def _or(value: float | None, instead: float) -> float:
    return instead if value is None else value
